//! A stream of work on a device.
//!
//! Concurrency: calls on one stream take effect in the order they are made. Whether they have taken effect when the
//! call returns is the device's choice; [`Backend::synchronize`] waits. Asynchronous calls own their bytes, so nothing
//! borrowed outlives a call.

use std::any::Any;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};

use oxcart_tensor::graph::NodeRange;

use crate::buffer::{Buffer, allocate};
use crate::device::Device;
use crate::error::Error;
use crate::event::Event;
use crate::guid::Guid;
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
}

/// Bytes that are on their way.
#[derive(Debug)]
pub enum Pending {
    /// They are here.
    Ready(Vec<u8>),
    /// They will arrive.
    Waiting(mpsc::Receiver<Result<Vec<u8>, Error>>),
}

impl Pending {
    /// Waits for the bytes.
    pub fn wait(self) -> Result<Vec<u8>, Error> {
        match self {
            Pending::Ready(bytes) => Ok(bytes),
            Pending::Waiting(receiver) => receiver.recv().unwrap_or(Err(Error::Cancelled)),
        }
    }
}

/// A stream of work on a device.
pub trait Backend: Send + Sync + fmt::Debug {
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

    /// Copies bytes from another stream's device when both streams get there, if it knows how, and says whether it
    /// will. Use [`copy_async`], which checks both places and always finds a way.
    fn copy_async(
        &self,
        _source_stream: &dyn Backend,
        _source: &Place,
        _target: &Place,
    ) -> Result<bool, Error> {
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

    /// Marks the current end of the stream.
    fn record(&self, _event: &Arc<dyn Event>) -> Result<(), Error> {
        Err(Error::Unsupported { device: self.name().to_owned(), what: "events".into() })
    }

    /// Makes what follows wait for an event of any stream of the same kind.
    fn wait(&self, _event: &Arc<dyn Event>) -> Result<(), Error> {
        Err(Error::Unsupported { device: self.name().to_owned(), what: "events".into() })
    }

    /// The concrete stream, for devices that know each other.
    fn as_any(&self) -> &dyn Any;
}

impl dyn Backend + '_ {
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
    source_stream: &dyn Backend,
    source: &Place,
    target_stream: &dyn Backend,
    target: &Place,
) -> Result<Option<Route>, Error> {
    check_copy(source, target)?;
    if source.starts_with(target) {
        return Ok(Some(Route::Direct));
    }
    if target_stream.copy_async(source_stream, source, target)? {
        return Ok(None);
    }
    source_stream.synchronize()?;
    target_stream.synchronize()?;
    copy_place(source, target).map(Some)
}
