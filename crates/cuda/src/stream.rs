//! A stream of work on a card.
//!
//! Concurrency: calls from several threads take turns. What is asked for is done some time later, in order; bytes that come
//! with a call are copied to memory that does not move before the call returns.
//!
//! Invariant: a ticket is a mark in the queue. Marks are used again once no caller can ask for them: [`CudaStream::finish`] of a
//! ticket waits for the newest mark that is at least as late.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use oxcart_backend::{Device, Error, Guid, Pending, Place, Plan, Stream, StreamOptions, Ticket, Work};

use crate::card::Card;
use crate::device::CudaDevice;
use crate::driver::{Address, Mark, Queue};
use crate::memory::{Allocation, CudaBuffer, Pinned};
use crate::plan::{CudaPlan, Words};

/// Words that kernels of a stream count with.
const COUNTERS: usize = 16 << 10;

/// What a stream and its plans share: the queue, scratch memory, and the word that kernels report to.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) card: Arc<Card>,
    pub(crate) queue: Queue,
    faults: Pinned,
    /// Zeros that kernels count with.
    counters: Allocation,
    scratch: Mutex<Option<Arc<Allocation>>>,
    /// Host memory for bytes on their way from the card, and their marks, that is free to be used again.
    arrivals: Mutex<Vec<(Pinned, Mark)>>,
    max_scratch: usize,
    /// Whether results must not depend on what is computed beside them.
    pub(crate) exact: bool,
}

/// Pieces of host memory for arriving bytes that are kept, and how large the least is.
const KEPT_ARRIVALS: usize = 4;
const LEAST_ARRIVAL: usize = 64 << 10;

impl Lane {
    fn new(card: &Arc<Card>, options: &StreamOptions) -> Result<Lane, Error> {
        let faults = Pinned::zeroed(card, size_of::<u64>())?;
        let counters = Allocation::zeroed(card, COUNTERS * size_of::<u32>())?;
        let queue = card.with(|driver, number| driver.open_queue(number))?;
        let (max_scratch, exact) = (options.max_scratch.unwrap_or(usize::MAX), options.exact);
        let card = Arc::clone(card);
        let (scratch, arrivals) = (Mutex::default(), Mutex::default());
        Ok(Lane { card, queue, faults, counters, scratch, arrivals, max_scratch, exact })
    }

    /// Begins to copy bytes from the card.
    fn begin_arrival(self: &Arc<Lane>, from: Address, len: usize) -> Result<Arriving, Error> {
        let mut kept = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.iter().position(|(piece, _)| piece.as_ref().len() >= len);
        let found = found.map(|index| kept.swap_remove(index));
        drop(kept);
        let (mut piece, mark) = match found {
            Some(found) => found,
            None => {
                let piece = Pinned::zeroed(&self.card, len.next_power_of_two().max(LEAST_ARRIVAL))?;
                (piece, self.card.with(|driver, number| driver.make_mark(number))?)
            }
        };
        let begun = self.card.with(|driver, number| {
            let to = piece.as_mut().as_mut_ptr();
            // SAFETY: the caller checked the source; the target is kept until the mark after the copy has been reached.
            unsafe { driver.copy_out(number, self.queue, to, from, len) }?;
            driver.set_mark(number, mark, self.queue)
        });
        if begun.is_err() {
            // Bytes may be on their way without a mark that says when they are here.
            let _ = self.card.driver.drain(self.card.number, self.queue);
        }
        let arriving = Arriving { pair: Some((piece, mark)), len, lane: Arc::clone(self) };
        begun.map(|()| arriving)
    }

    /// The words that kernels share.
    pub(crate) fn words(&self) -> Words {
        Words { faults: self.faults.address(), counters: self.counters.start, count: COUNTERS }
    }

    /// Scratch memory of at least so many bytes, for one plan at a time. A plan keeps the piece that it was made with. Where there is a limit,
    /// because many plans of others may be kept, each piece is twice as long as the one before, or the last: all of them
    /// together have less than three times the limit.
    pub(crate) fn scratch(&self, bytes: usize) -> Result<Option<Arc<Allocation>>, Error> {
        if bytes == 0 {
            return Ok(None);
        }
        if bytes > self.max_scratch {
            return Err(Error::OutOfMemory { buffer_type: "scratch".into(), size: bytes });
        }
        let mut kept = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(scratch) = kept.as_ref().filter(|scratch| scratch.len >= bytes) {
            return Ok(Some(Arc::clone(scratch)));
        }
        let len = match self.max_scratch {
            usize::MAX => bytes,
            most => bytes.checked_next_power_of_two().map_or(most, |len| len.min(most)),
        };
        // What was there goes first, unless a plan has it, so that both need not fit.
        *kept = None;
        let scratch = Arc::new(Allocation::zeroed(&self.card, len)?);
        *kept = Some(Arc::clone(&scratch));
        Ok(Some(scratch))
    }

    /// Waits for the queue, and says what went wrong.
    fn drain(&self) -> Result<(), Error> {
        self.card.with(|driver, number| driver.drain(number, self.queue))?;
        self.look_for_faults()
    }

    /// What kernels reported since it was last looked for.
    fn look_for_faults(&self) -> Result<(), Error> {
        let fault = self.faults.peek();
        if fault == 0 {
            return Ok(());
        }
        self.faults.poke(0);
        let what = match fault {
            1 => "a row number in tensor data is out of range",
            2 => "an expert's number in tensor data is out of range",
            3 => "a state's number in tensor data is out of range",
            _ => "a kernel found something wrong with tensor data",
        };
        Err(Error::DeviceFailed { device: self.card.name.clone(), reason: what.into() })
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let _ = self.card.driver.drain(self.card.number, self.queue);
        for (_, mark) in self.arrivals.get_mut().unwrap_or_else(PoisonError::into_inner) {
            let _ = self.card.driver.drop_mark(self.card.number, *mark);
        }
        let _ = self.card.driver.close_queue(self.card.number, self.queue);
    }
}

/// Marks in the queue.
#[derive(Debug, Default)]
struct Marks {
    last: u64,
    /// Those that were set, oldest first.
    set: VecDeque<(u64, Mark)>,
}

/// Marks that a stream keeps. Asking for an older ticket waits for the oldest that is kept.
const KEPT_MARKS: usize = 64;

/// A stream of a card.
#[derive(Debug)]
pub struct CudaStream {
    device: Arc<dyn Device>,
    lane: Arc<Lane>,
    marks: Mutex<Marks>,
    staging: Mutex<Staging>,
    cancel: Arc<AtomicBool>,
}

/// Host memory that bytes pass through on their way to the card: pieces that are used in turn.
#[derive(Debug, Default)]
struct Staging {
    pieces: VecDeque<(Pinned, Mark)>,
}

/// Bytes of a piece; more are sent in several.
const PIECE: usize = 256 << 10;

/// Pieces that a stream keeps.
const KEPT_PIECES: usize = 16;

impl CudaStream {
    pub(crate) fn new(device: Arc<CudaDevice>, options: &StreamOptions) -> Result<CudaStream, Error> {
        let lane = Arc::new(Lane::new(device.card(), options)?);
        Ok(CudaStream {
            device,
            lane,
            marks: Mutex::default(),
            staging: Mutex::default(),
            cancel: Arc::default(),
        })
    }

    fn card(&self) -> &Arc<Card> {
        &self.lane.card
    }

    /// A place in this card's memory.
    fn own(&self, place: &Place) -> Result<Option<Address>, Error> {
        match place.buffer.as_any().downcast_ref::<CudaBuffer>() {
            Some(buffer) if Arc::ptr_eq(buffer.card(), self.card()) => {
                buffer.range(place.offset, place.len).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Sends bytes through memory that does not move.
    fn send(&self, to: Address, data: &[u8]) -> Result<(), Error> {
        let (card, queue) = (self.card(), self.lane.queue);
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, part) in data.chunks(PIECE).enumerate() {
            let oldest = if staging.pieces.len() < KEPT_PIECES { None } else { staging.pieces.pop_front() };
            let (mut piece, mark, used) = match oldest {
                Some((piece, mark)) => (piece, mark, true),
                None => {
                    let piece = Pinned::zeroed(card, PIECE)?;
                    (piece, card.with(|driver, number| driver.make_mark(number))?, false)
                }
            };
            let sent = card.with(|driver, number| {
                if used {
                    // It may still be on its way.
                    driver.wait_for_mark(number, mark)?;
                }
                piece.as_mut()[..part.len()].copy_from_slice(part);
                let from = piece.as_ref().as_ptr();
                // SAFETY: the caller checked the target; the source is kept until the mark after the copy has been reached.
                unsafe { driver.copy_in(number, queue, to.plus(index * PIECE), from, part.len()) }?;
                driver.set_mark(number, mark, queue)
            });
            if sent.is_err() {
                // It may be on its way without a mark that says when it has been read.
                let _ = card.driver.drain(card.number, queue);
            }
            staging.pieces.push_back((piece, mark));
            sent?;
        }
        Ok(())
    }
}

impl Stream for CudaStream {
    fn name(&self) -> &str {
        &self.card().name
    }

    fn guid(&self) -> Guid {
        Guid(*b"oxcart cuda dev1")
    }

    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn set_async(&self, target: &Place, data: Vec<u8>) -> Result<(), Error> {
        if data.len() > target.len {
            let (offset, len, size) = (0, data.len(), target.len);
            return Err(Error::OutOfBounds { what: "the place".into(), offset, len, size });
        }
        match self.own(target)? {
            Some(to) => self.send(to, &data),
            None => target.write(&data),
        }
    }

    fn get_async(&self, source: &Place) -> Result<Pending, Error> {
        let Some(from) = self.own(source)? else { return source.bytes().map(Pending::Ready) };
        let arriving = self.lane.begin_arrival(from, source.len)?;
        // The buffer must stay until its bytes are here.
        let buffer = Arc::clone(&source.buffer);
        Ok(Pending::Waiting(Box::new(move || {
            let bytes = arriving.wait().map(<[u8]>::to_vec);
            drop(buffer);
            bytes
        })))
    }

    fn read(&self, source: &Place, out: &mut [u8]) -> Result<(), Error> {
        /// More is copied to where it belongs at once.
        const MOST_IN_PASSING: usize = 16 << 20;
        match self.own(source)? {
            Some(from) if out.len() <= source.len.min(MOST_IN_PASSING) => {
                let arriving = self.lane.begin_arrival(from, out.len())?;
                out.copy_from_slice(arriving.wait()?);
                Ok(())
            }
            _ => {
                self.synchronize()?;
                source.read(out)
            }
        }
    }

    fn copy_in(&self, source_stream: &dyn Stream, source: &Place, target: &Place) -> Result<bool, Error> {
        let Some(to) = self.own(target)? else { return Ok(false) };
        if let Some(other) = source_stream.as_any().downcast_ref::<CudaStream>() {
            let Some(from) = other.own(source)? else { return Ok(false) };
            let same = Arc::ptr_eq(other.card(), self.card());
            if same && to < from.plus(source.len) && from < to.plus(source.len) {
                return Ok(false);
            }
            if !Arc::ptr_eq(&other.lane, &self.lane) {
                let ticket = other.record()?;
                self.wait_for(other, ticket)?;
            }
            let (queue, bytes) = (self.lane.queue, source.len);
            let (here, there) = (self.card().number, other.card().number);
            self.card().with(|driver, number| match same {
                true => driver.copy(number, queue, to, from, bytes),
                false => driver.copy_across((here, to), (there, from), queue, bytes),
            })?;
            if !Arc::ptr_eq(&other.lane, &self.lane) {
                // The source must not change before it was copied.
                let ticket = self.record()?;
                other.wait_for(self, ticket)?;
            }
            return Ok(true);
        }
        // From the host: what its stream does is done when it says so, and it may change the bytes right after.
        let Some(memory) = source.buffer.host() else { return Ok(false) };
        source_stream.synchronize()?;
        self.send(to, &memory.read()[source.offset..source.offset + source.len])?;
        Ok(true)
    }

    fn synchronize(&self) -> Result<(), Error> {
        self.lane.drain()
    }

    fn plan(&self, work: Work<'_>) -> Result<Option<Box<dyn Plan>>, Error> {
        Ok(Some(Box::new(CudaPlan::new(&self.lane, &self.cancel, work)?)))
    }

    fn compute(&self, work: Work<'_>) -> Result<(), Error> {
        CudaPlan::new(&self.lane, &self.cancel, work)?.compute()
    }

    fn cancel_flag(&self) -> Option<Arc<AtomicBool>> {
        Some(Arc::clone(&self.cancel))
    }

    fn record(&self) -> Result<Ticket, Error> {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let mark = match marks.set.len() {
            0..KEPT_MARKS => self.card().with(|driver, number| driver.make_mark(number))?,
            _ => match marks.set.pop_front() {
                Some((_, mark)) => mark,
                None => return Ok(Ticket(marks.last)),
            },
        };
        marks.last += 1;
        let ticket = marks.last;
        let queue = self.lane.queue;
        let set = self.card().with(|driver, number| driver.set_mark(number, mark, queue));
        marks.set.push_back((ticket, mark));
        set.map(|()| Ticket(ticket))
    }

    fn finish(&self, ticket: Ticket) -> Result<(), Error> {
        let marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let found = marks.set.iter().find(|(number, _)| *number >= ticket.0).map(|&(_, mark)| mark);
        drop(marks);
        match found {
            Some(mark) => self.card().with(|driver, number| driver.wait_for_mark(number, mark))?,
            None => self.card().check()?,
        }
        self.lane.look_for_faults()
    }

    fn wait_for(&self, other: &dyn Stream, ticket: Ticket) -> Result<(), Error> {
        let Some(cuda) = other.as_any().downcast_ref::<CudaStream>() else { return other.finish(ticket) };
        let marks = cuda.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(&(_, mark)) = marks.set.iter().find(|(number, _)| *number >= ticket.0) else {
            return Ok(());
        };
        let queue = self.lane.queue;
        self.card().with(|driver, number| driver.queue_behind(number, queue, mark))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        let _ = self.card().driver.drain(self.card().number, self.lane.queue);
        let marks = std::mem::take(self.marks.get_mut().unwrap_or_else(PoisonError::into_inner));
        let staging = std::mem::take(self.staging.get_mut().unwrap_or_else(PoisonError::into_inner));
        for (_, mark) in marks.set {
            let _ = self.card().driver.drop_mark(self.card().number, mark);
        }
        for (_, mark) in staging.pieces {
            let _ = self.card().driver.drop_mark(self.card().number, mark);
        }
    }
}

/// Bytes on their way from a card.
#[derive(Debug)]
struct Arriving {
    pair: Option<(Pinned, Mark)>,
    len: usize,
    lane: Arc<Lane>,
}

impl Arriving {
    fn wait(&self) -> Result<&[u8], Error> {
        let Some((piece, mark)) = &self.pair else { return Ok(&[]) };
        self.lane.card.with(|driver, number| driver.wait_for_mark(number, *mark))?;
        self.lane.look_for_faults()?;
        Ok(&piece.as_ref()[..self.len])
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        let Some((piece, mark)) = self.pair.take() else { return };
        let card = &self.lane.card;
        // Not before the copy is done, or it would write to memory that is another's by then.
        let _ = card.driver.wait_for_mark(card.number, mark);
        let mut kept = self.lane.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT_ARRIVALS {
            kept.push((piece, mark));
        } else {
            let _ = card.driver.drop_mark(card.number, mark);
        }
    }
}
