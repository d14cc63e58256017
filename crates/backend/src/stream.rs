//! A stream of work on a device.
//!
//! Concurrency: calls on one stream take effect in the order they are made. Whether they have taken effect when the
//! call returns is the device's choice; [`Stream::synchronize`] waits. Asynchronous calls own their bytes, so nothing
//! borrowed outlives a call.

use std::any::Any;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use oxcart_tensor::graph::NodeRange;

use crate::buffer::{Buffer, allocate};
use crate::device::Device;
use crate::error::Error;
use crate::guid::Guid;
use crate::host::HostMemory;
use crate::place::{Place, Route, check_copy, copy_place};
use crate::table::Buffers;

/// Nodes to compute, and the memory their tensors lie in.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// The nodes, in order.
    pub nodes: NodeRange<'a>,
    /// What the buffer ids mean.
    pub buffers: &'a Buffers,
}

/// A graph made ready for a device: kernels chosen, scratch sized. Freed by dropping it.
pub trait Plan: Send + fmt::Debug {
    /// Takes the current state of a graph with the same nodes: other buffers, other parameters.
    fn update(&mut self, work: Work<'_>) -> Result<(), Error>;

    /// Runs it on the stream it was made by.
    fn compute(&mut self) -> Result<(), Error>;

    /// Bytes of this machine's memory that it holds, now and after it ran, without buffers and what plans of a stream share. Who
    /// keeps plans for others counts them.
    fn held_bytes(&self) -> usize;
}

/// Bytes that are on their way.
pub enum Pending {
    /// They are here.
    Ready(Vec<u8>),
    /// What waits for them and hands them over.
    Waiting(Box<dyn FnOnce() -> Result<Vec<u8>, Error> + Send>),
}

impl Pending {
    /// Waits for the bytes.
    pub fn wait(self) -> Result<Vec<u8>, Error> {
        match self {
            Pending::Ready(bytes) => Ok(bytes),
            Pending::Waiting(wait) => wait(),
        }
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pending::Ready(bytes) => write!(f, "Ready({} bytes)", bytes.len()),
            Pending::Waiting(_) => f.write_str("Waiting"),
        }
    }
}

/// A point in a stream: everything that was asked of it before. Later points of a stream are larger; those of different
/// streams have nothing to do with each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// How a stream is set up. A device uses what concerns it and leaves the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// Threads that compute, where the device computes with threads of this program; by default one per processor.
    pub threads: Option<NonZeroUsize>,
    /// Processors those threads are pinned to, in order; by default they go where the system puts them. Refused where the
    /// system allows nothing else.
    pub cpus: Vec<usize>,
    /// Bytes of memory that a graph may need beyond its tensors; by default any number. For graphs that are not trusted: rows
    /// that overlap make much scratch out of little memory.
    pub max_scratch: Option<usize>,
    /// Whether what is computed for a column, a row or a token must be the same to the bit whatever is computed beside it. The CPU
    /// always does so; a device that is faster otherwise pays for it.
    pub exact: bool,
}

impl StreamOptions {
    /// Defaults, but this many threads; none means one.
    pub fn threads(count: usize) -> StreamOptions {
        StreamOptions { threads: NonZeroUsize::new(count.max(1)), ..StreamOptions::default() }
    }
}

/// A stream of work on a device.
pub trait Stream: Send + Sync + fmt::Debug {
    /// A name for people.
    fn name(&self) -> &str;

    /// Which implementation this is.
    fn guid(&self) -> Guid;

    /// The device it runs on.
    fn device(&self) -> &Arc<dyn Device>;

    /// Writes the first bytes of a place when the stream gets there. More than it has are refused at once.
    fn set_async(&self, target: &Place, data: Vec<u8>) -> Result<(), Error> {
        target.write(&data)
    }

    /// Reads the bytes of a place when the stream gets there.
    fn get_async(&self, source: &Place) -> Result<Pending, Error> {
        source.bytes().map(Pending::Ready)
    }

    /// Reads the first bytes of a place once the stream has got there, and reports what failed on the way.
    fn read(&self, source: &Place, out: &mut [u8]) -> Result<(), Error> {
        self.synchronize()?;
        source.read(out)
    }

    /// Asked of the target's stream: copies bytes from another stream's device when both streams get there, if it knows
    /// how, and says whether it will. Use [`copy_async`], which checks both places and always finds a way.
    fn copy_in(&self, _source_stream: &dyn Stream, _source: &Place, _target: &Place) -> Result<bool, Error> {
        Ok(false)
    }

    /// As [`copy_in`](Stream::copy_in), asked of the source's stream where the target's does not know how.
    fn copy_out(&self, _target_stream: &dyn Stream, _source: &Place, _target: &Place) -> Result<bool, Error> {
        Ok(false)
    }

    /// Waits until everything has taken effect, and reports what failed on the way.
    fn synchronize(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Makes nodes ready to be computed many times; `None` when the device has no use for it.
    fn plan(&self, _work: Work<'_>) -> Result<Option<Box<dyn Plan>>, Error> {
        Ok(None)
    }

    /// Computes nodes.
    fn compute(&self, work: Work<'_>) -> Result<(), Error>;

    /// What stops this stream, where it can be stopped: while it is true, work under way and work to come ends with
    /// [`Error::Cancelled`] as soon as the device can.
    fn cancel_flag(&self) -> Option<Arc<AtomicBool>> {
        None
    }

    /// Marks the current end of the stream. A stream whose calls take effect before they return needs no marks, and
    /// leaves this and the next two as they are.
    fn record(&self) -> Result<Ticket, Error> {
        Ok(Ticket::default())
    }

    /// Waits until the stream has come to a point that it recorded, and reports what failed on the way.
    fn finish(&self, _ticket: Ticket) -> Result<(), Error> {
        Ok(())
    }

    /// Makes what follows on this stream wait until another one has come to a point that it recorded.
    fn wait_for(&self, other: &dyn Stream, ticket: Ticket) -> Result<(), Error> {
        other.finish(ticket)
    }

    /// The concrete stream, for devices that know each other.
    fn as_any(&self) -> &dyn Any;
}

impl dyn Stream + '_ {
    /// Allocates memory that its device computes in.
    pub fn allocate(&self, size: usize) -> Result<Arc<dyn Buffer>, Error> {
        allocate(&self.device().buffer_type(), size)
    }

    /// Computes nodes and waits for the results.
    pub fn compute_and_wait(&self, work: Work<'_>) -> Result<(), Error> {
        self.compute(work)?;
        self.synchronize()
    }
}

/// Copies bytes from one stream's device to another's, after all that both were asked to do before. Returns how, or
/// `None` when the streams will do it by themselves.
pub fn copy_async(
    source_stream: &dyn Stream,
    source: &Place,
    target_stream: &dyn Stream,
    target: &Place,
) -> Result<Option<Route>, Error> {
    check_copy(source, target)?;
    if source.starts_with(target) {
        return Ok(Some(Route::Direct));
    }
    if target_stream.copy_in(source_stream, source, target)?
        || source_stream.copy_out(target_stream, source, target)?
    {
        return Ok(None);
    }
    let is_late = |stream: &dyn Stream| stream.device().caps().asynchronous;
    if !is_late(target_stream) {
        target_stream.synchronize()?;
        if !is_late(source_stream) {
            source_stream.synchronize()?;
            return copy_place(source, target).map(Some);
        }
        if let Some(mut memory) = target.buffer.host().and_then(HostMemory::write) {
            source_stream.read(source, &mut memory[target.offset..target.offset + source.len])?;
            return Ok(Some(Route::HostTarget));
        }
    }
    // Both streams do their part in their own order, so neither has to be waited for beyond that.
    let mut bytes = vec![0; source.len];
    source_stream.read(source, &mut bytes)?;
    target_stream.set_async(target, bytes)?;
    Ok(Some(Route::Staged))
}
