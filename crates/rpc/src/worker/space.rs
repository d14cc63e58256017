//! What one client can see of a worker's memory: its own buffers, under handles and addresses that are made up.
//!
//! Handles are numbers that start at a random place and grow, so one from another connection, or from before a free, is
//! never valid by accident. Addresses are made up too: each buffer has a range of its own, apart from all others. Neither
//! says anything about the worker's memory.
//!
//! Invariant: every [`BufferRange`] lies inside its buffer.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use oxcart_backend::{Buffer, Error};
use oxcart_tensor::{DType, Layout};

use super::limits::CHORE_BYTES;
use super::refusal::Refusal;
use crate::wire::{Dialect, TensorRecord};

/// Where a tensor's bytes are.
#[derive(Clone, Debug)]
pub struct BufferRange {
    /// Handle of its buffer.
    pub handle: u64,
    /// The buffer.
    pub buffer: Arc<dyn Buffer>,
    /// First byte.
    pub offset: usize,
    /// Number of bytes.
    pub len: usize,
}

impl BufferRange {
    /// Some of its bytes.
    pub fn part(&self, what: &'static str, offset: u64, len: u64) -> Result<BufferRange, Refusal> {
        let size = self.len as u64;
        let outside = || Refusal::Range { what, offset, len, size };
        let fits = offset <= size && len <= size - offset;
        let (start, len_here) = match (usize::try_from(offset), usize::try_from(len)) {
            (Ok(start), Ok(len)) if fits => (start, len),
            _ => return Err(outside()),
        };
        Ok(BufferRange { offset: self.offset + start, len: len_here, ..self.clone() })
    }

    /// Fills it with zeros, a part at a time for each of which `go_on` is asked with its length. What it says no to is left as it is: the
    /// client is gone then, and its buffer with it.
    pub(crate) fn clear(&self, go_on: &mut dyn FnMut(usize) -> bool) -> Result<(), Error> {
        for start in (0..self.len).step_by(CHORE_BYTES) {
            let bytes = CHORE_BYTES.min(self.len - start);
            if !go_on(bytes) {
                break;
            }
            self.buffer.fill(self.offset + start, bytes, 0)?;
        }
        Ok(())
    }
}

/// One buffer of a client.
#[derive(Debug)]
struct Entry {
    buffer: Arc<dyn Buffer>,
    base: u64,
    device: usize,
}

/// The buffers of one client.
#[derive(Debug)]
pub struct Space {
    entries: HashMap<u64, Entry>,
    next_handle: u64,
    next_base: u64,
}

/// Where made-up addresses start; small enough that no sum with a length wraps.
const FIRST_BASE: u64 = 1 << 40;
/// What made-up addresses are multiples of: more than any device asks for.
const BASE_ALIGN: u64 = 1 << 12;
/// Bytes between two buffers, so that running off the end of one never reaches another.
const GUARD: u64 = 1 << 20;

impl Default for Space {
    fn default() -> Space {
        // A fresh hasher is random; the low bits stay clear so that handles never run out.
        let random = RandomState::new().hash_one(0_u8);
        Space {
            entries: HashMap::new(),
            next_handle: (random >> 2 | 1 << 32) & !0xffff_ffff | 1,
            next_base: FIRST_BASE + ((random & 0xff_ffff) << 16),
        }
    }
}

impl Space {
    /// Number of buffers.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no buffers.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Gives a buffer of a device a handle.
    pub fn add(&mut self, buffer: Arc<dyn Buffer>, device: usize) -> u64 {
        let handle = self.next_handle;
        self.next_handle += 1;
        let base = self.next_base.next_multiple_of(BASE_ALIGN);
        self.next_base = base.saturating_add(buffer.len() as u64).saturating_add(GUARD);
        self.entries.insert(handle, Entry { buffer, base, device });
        handle
    }

    fn entry(&self, handle: u64) -> Result<&Entry, Refusal> {
        self.entries.get(&handle).ok_or(Refusal::Handle { handle })
    }

    /// Takes a buffer away.
    pub fn remove(&mut self, handle: u64) -> Result<Arc<dyn Buffer>, Refusal> {
        Ok(self.entries.remove(&handle).ok_or(Refusal::Handle { handle })?.buffer)
    }

    /// The buffer with a handle.
    pub fn buffer(&self, handle: u64) -> Result<&Arc<dyn Buffer>, Refusal> {
        Ok(&self.entry(handle)?.buffer)
    }

    /// All bytes of a buffer.
    pub fn whole(&self, handle: u64) -> Result<BufferRange, Refusal> {
        let buffer = Arc::clone(self.buffer(handle)?);
        let len = buffer.len();
        Ok(BufferRange { handle, buffer, offset: 0, len })
    }

    /// The address its first byte has for the client.
    pub fn base(&self, handle: u64) -> Result<u64, Refusal> {
        Ok(self.entry(handle)?.base)
    }

    /// The device it belongs to.
    pub fn device(&self, handle: u64) -> Result<usize, Refusal> {
        Ok(self.entry(handle)?.device)
    }

    /// Whether a handle is valid.
    pub fn contains(&self, handle: u64) -> bool {
        self.entries.contains_key(&handle)
    }

    /// All buffers.
    pub fn buffers(&self) -> impl Iterator<Item = &Arc<dyn Buffer>> {
        self.entries.values().map(|entry| &entry.buffer)
    }

    /// Where a tensor lies, which must be wholly inside its buffer.
    pub fn range_of(&self, record: &TensorRecord, layout: &Layout) -> Result<BufferRange, Refusal> {
        let handle = record.buffer.get();
        let entry = self.entry(handle)?;
        let (size, len) = (entry.buffer.len() as u64, layout.byte_len() as u64);
        let offset = record.data.get().wrapping_sub(entry.base);
        if offset > size {
            return Err(Refusal::Range { what: "buffer", offset, len, size });
        }
        self.whole(handle)?.part("buffer", offset, len)
    }
}

/// The layout a record describes.
pub(crate) fn layout_of(record: &TensorRecord, dialect: &Dialect) -> Result<Layout, Refusal> {
    let number = record.dtype.get();
    let dtype: DType = dialect.dtype(number).ok_or(Refusal::Type { number })?;
    let (ne, nb) = record.shape();
    let mut strides = nb.map(|stride| stride as usize);
    for dim in 1..4 {
        // A stride over one element may have been cut to 32 bits on its way and means nothing, unless it says that rows which lie further
        // apart along another dimension have one common distance.
        let above = (dim + 1..4).find(|&above| ne[above] != 1);
        if ne[dim] == 1 && above.is_none_or(|above| nb[above] != nb[dim]) {
            strides[dim] =
                strides[dim - 1].saturating_mul((ne[dim - 1] as usize / block(dtype, dim - 1)).max(1));
        }
    }
    Ok(Layout::strided(dtype, ne.map(|extent| extent as usize), strides)?)
}

/// Elements that one step along a dimension goes over.
const fn block(dtype: DType, dim: usize) -> usize {
    if dim == 0 { dtype.block_len() } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_over_one_element_mean_nothing_but_a_common_distance() {
        let strides_of = |dtype: DType, ne: [u32; 4], nb: [u32; 4]| {
            let mut record = TensorRecord::absent();
            record.dtype = oxcart_tensor::dtype_id(dtype).into();
            (record.ne, record.nb) = (ne.map(Into::into), nb.map(Into::into));
            layout_of(&record, Dialect::newest()).unwrap().nb()
        };
        let strides = |ne, nb| strides_of(DType::F32, ne, nb);
        // Cut to 32 bits, or anything else.
        assert_eq!(strides([4, 2, 1, 1], [4, 16, 0, 7]), [4, 16, 32, 32]);
        assert_eq!(strides([4, 1, 1, 3], [4, 9, 8, 64]), [4, 16, 16, 64]);
        // Channels first, of an image one pixel high: the stride of the channels is not that of rows.
        assert_eq!(strides([5, 1, 8, 1], [32, 160, 4, 160]), [32, 160, 4, 32]);
        // Rows of no blocks are a block apart, as rows of no elements are an element apart.
        assert_eq!(strides([0, 1, 2, 1], [4, 0, 8, 0])[1], 4);
        assert_eq!(strides_of(DType::Q4_0, [0, 1, 2, 1], [18, 0, 36, 0])[1], 18);
        // Rows in one place, or at a distance.
        assert_eq!(strides([3, 1, 1, 3], [4, 0, 0, 0]), [4, 0, 0, 0]);
        assert_eq!(strides([3, 1, 2, 1], [4, 64, 64, 0]), [4, 64, 64, 128]);
    }
}
