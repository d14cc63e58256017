//! Memory of a card, and host memory that it reaches directly.
//!
//! Concurrency: reads and writes are complete when they return; they go through a queue of their own, so what a stream has
//! under way is not waited for. A result is read only after its stream was waited for.
//!
//! Invariants: a range is checked against the buffer before it is touched. Memory is allocated with some bytes to spare at
//! the end ([`SLACK`]), so that kernels may read whole pieces of 16 bytes.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use oxcart_backend::{Buffer, BufferType, Error, HostBuffer, HostMemory, Usage};
use oxcart_tensor::TensorRef;

use crate::card::Card;
use crate::driver::{Address, Kind};

/// What tensors' offsets are multiples of: kernels read rows in pieces of 16 bytes, the copy engine wants 128.
pub(crate) const ALIGNMENT: usize = 128;

/// Bytes beyond the end of a buffer that may be read.
pub(crate) const SLACK: usize = 256;

/// Memory that was allocated; freed when dropped.
#[derive(Debug)]
pub(crate) struct Allocation {
    card: Arc<Card>,
    pub(crate) start: Address,
    pub(crate) len: usize,
}

impl Allocation {
    /// Zeroed memory.
    pub(crate) fn zeroed(card: &Arc<Card>, len: usize) -> Result<Allocation, Error> {
        let allocation = Allocation::new(card, len)?;
        card.with_queue(|queue| {
            card.with(|driver, number| driver.fill(number, queue, allocation.start, 0, allocation.padded()))?;
            card.with(|driver, number| driver.drain(number, queue))
        })?;
        Ok(allocation)
    }

    /// Memory with anything in it.
    pub(crate) fn new(card: &Arc<Card>, len: usize) -> Result<Allocation, Error> {
        card.check()?;
        let too_much = || Error::OutOfMemory { buffer_type: card.name.clone(), size: len };
        let padded = padded(len).ok_or_else(too_much)?;
        let start = card.driver.allocate(card.number, padded).map_err(|failure| match failure.kind() {
            Kind::OutOfMemory => too_much(),
            _ => card.tell(&failure),
        })?;
        Ok(Allocation { card: Arc::clone(card), start, len })
    }

    fn padded(&self) -> usize {
        padded(self.len).unwrap_or(self.len)
    }
}

fn padded(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(ALIGNMENT)?.checked_add(SLACK)
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // Memory of a lost card is gone anyway.
        let _ = self.card.driver.free(self.card.number, self.start);
    }
}

/// The memory of a card.
#[derive(Debug)]
pub(crate) struct CudaBufferType {
    card: Arc<Card>,
}

impl CudaBufferType {
    pub(crate) fn new(card: &Arc<Card>) -> Arc<CudaBufferType> {
        Arc::new(CudaBufferType { card: Arc::clone(card) })
    }
}

impl BufferType for CudaBufferType {
    fn name(&self) -> &str {
        &self.card.name
    }

    fn allocate_bytes(self: Arc<Self>, size: usize) -> Result<Arc<dyn Buffer>, Error> {
        let memory = Allocation::zeroed(&self.card, size)?;
        Ok(Arc::new(CudaBuffer {
            card: Arc::clone(&self.card),
            buffer_type: self,
            memory,
            usage: AtomicU8::new(0),
        }))
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    fn alloc_size(&self, tensor: TensorRef<'_>) -> usize {
        tensor.byte_len()
    }
}

/// A buffer in a card's memory.
#[derive(Debug)]
pub(crate) struct CudaBuffer {
    card: Arc<Card>,
    buffer_type: Arc<dyn BufferType>,
    memory: Allocation,
    usage: AtomicU8,
}

impl CudaBuffer {
    /// The card it is on.
    pub(crate) fn card(&self) -> &Arc<Card> {
        &self.card
    }

    /// Where a range begins, if it is inside.
    pub(crate) fn range(&self, offset: usize, len: usize) -> Result<Address, Error> {
        if offset.checked_add(len).is_some_and(|end| end <= self.memory.len) {
            return Ok(self.memory.start.plus(offset));
        }
        let (what, size) = (self.card.name.clone(), self.memory.len);
        Err(Error::OutOfBounds { what, offset, len, size })
    }
}

impl Buffer for CudaBuffer {
    fn buffer_type(&self) -> &Arc<dyn BufferType> {
        &self.buffer_type
    }

    fn len(&self) -> usize {
        self.memory.len
    }

    fn usage(&self) -> Usage {
        match self.usage.load(Ordering::Relaxed) {
            1 => Usage::Weights,
            2 => Usage::Compute,
            _ => Usage::Any,
        }
    }

    fn set_usage(&self, usage: Usage) {
        let number = match usage {
            Usage::Any => 0,
            Usage::Weights => 1,
            Usage::Compute => 2,
        };
        self.usage.store(number, Ordering::Relaxed);
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), Error> {
        let to = self.range(offset, data.len())?;
        if data.is_empty() {
            return Ok(());
        }
        self.card.with_queue(|queue| {
            self.card.with(|driver, card| {
                // SAFETY: the target was checked, the source is borrowed until the queue is drained.
                unsafe { driver.copy_in(card, queue, to, data.as_ptr(), data.len()) }
                    .and_then(|()| driver.drain(card, queue))
            })
        })
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        let from = self.range(offset, out.len())?;
        if out.is_empty() {
            return Ok(());
        }
        self.card.with_queue(|queue| {
            self.card.with(|driver, card| {
                // SAFETY: the source was checked, the target is borrowed until the queue is drained.
                unsafe { driver.copy_out(card, queue, out.as_mut_ptr(), from, out.len()) }
                    .and_then(|()| driver.drain(card, queue))
            })
        })
    }

    fn fill(&self, offset: usize, len: usize, value: u8) -> Result<(), Error> {
        let to = self.range(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        self.card.with_queue(|queue| {
            self.card.with(|driver, card| {
                driver.fill(card, queue, to, value, len).and_then(|()| driver.drain(card, queue))
            })
        })
    }

    /// From the memory of this or another card.
    fn copy_from(
        &self,
        offset: usize,
        source: &dyn Buffer,
        source_offset: usize,
        len: usize,
    ) -> Result<bool, Error> {
        let Some(source) = source.as_any().downcast_ref::<CudaBuffer>() else { return Ok(false) };
        let (to, from) = (self.range(offset, len)?, source.range(source_offset, len)?);
        let same = self.card.number == source.card.number;
        if !Arc::ptr_eq(&self.card.driver, &source.card.driver) {
            return Ok(false);
        }
        if same && to < from.plus(len) && from < to.plus(len) {
            // The driver's copies must not overlap.
            return Ok(false);
        }
        if len == 0 {
            return Ok(true);
        }
        self.card.with_queue(|queue| {
            self.card.with(|driver, card| {
                if same {
                    driver.copy(card, queue, to, from, len)?;
                } else {
                    driver.copy_across((card, to), (source.card.number, from), queue, len)?;
                }
                driver.drain(card, queue)
            })
        })?;
        Ok(true)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Host memory that a card reads and writes directly.
#[derive(Debug)]
pub(crate) struct Pinned {
    card: Arc<Card>,
    start: Address,
    len: usize,
}

// SAFETY: the memory belongs to this value alone, which gives it out under the usual rules of borrowing.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Zeroed memory.
    pub(crate) fn zeroed(card: &Arc<Card>, len: usize) -> Result<Pinned, Error> {
        card.check()?;
        let too_much = || Error::OutOfMemory { buffer_type: format!("{}_Host", card.name), size: len };
        let start =
            card.driver.allocate_host(card.number, len.max(1)).map_err(|failure| match failure.kind() {
                Kind::OutOfMemory => too_much(),
                _ => card.tell(&failure),
            })?;
        let mut pinned = Pinned { card: Arc::clone(card), start, len };
        pinned.as_mut().fill(0);
        Ok(pinned)
    }

    /// Its address, the same for the card and for this program.
    pub(crate) fn address(&self) -> Address {
        self.start
    }

    /// A word that the card may write at any time.
    pub(crate) fn peek(&self) -> u32 {
        let word = std::ptr::with_exposed_provenance::<u32>(self.start.0 as usize);
        // SAFETY: the memory is at least a word, aligned to a page, and any bits make a number. The card writes it while we
        // read, which a volatile read allows for.
        unsafe { word.read_volatile() }
    }

    /// Sets that word.
    pub(crate) fn poke(&self, value: u32) {
        let word = std::ptr::with_exposed_provenance_mut::<u32>(self.start.0 as usize);
        // SAFETY: as for `peek`.
        unsafe { word.write_volatile(value) };
    }
}

impl AsRef<[u8]> for Pinned {
    fn as_ref(&self) -> &[u8] {
        let start = std::ptr::with_exposed_provenance(self.start.0 as usize);
        // SAFETY: the driver allocated so many bytes there, which belong to this value and were zeroed first of all.
        unsafe { std::slice::from_raw_parts(start, self.len) }
    }
}

impl AsMut<[u8]> for Pinned {
    fn as_mut(&mut self) -> &mut [u8] {
        let start = std::ptr::with_exposed_provenance_mut(self.start.0 as usize);
        // SAFETY: as above, and this borrow is the only one.
        unsafe { std::slice::from_raw_parts_mut(start, self.len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.card.driver.free_host(self.card.number, self.start);
    }
}

/// Host memory from which a card copies at full speed.
#[derive(Debug)]
pub(crate) struct PinnedBufferType {
    card: Arc<Card>,
    name: String,
}

impl PinnedBufferType {
    pub(crate) fn new(card: &Arc<Card>) -> Arc<PinnedBufferType> {
        Arc::new(PinnedBufferType { card: Arc::clone(card), name: format!("{}_Host", card.name) })
    }
}

impl BufferType for PinnedBufferType {
    fn name(&self) -> &str {
        &self.name
    }

    fn allocate_bytes(self: Arc<Self>, size: usize) -> Result<Arc<dyn Buffer>, Error> {
        let memory = Pinned::zeroed(&self.card, size)?;
        Ok(HostBuffer::new(self, HostMemory::exclusive(memory)))
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    fn is_host(&self) -> bool {
        true
    }
}
