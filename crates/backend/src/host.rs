//! Host memory behind a lock: owned, or lent by its owner.
//!
//! Concurrency: the lock decides who may touch the bytes. A device that computes on host memory holds a
//! [`HostWrite`] (or [`HostRead`]) for as long as its kernels run, so a copy or another graph can never race with it.
//! A thread that locks several of them does so in the order of [`HostMemory`]'s addresses, or two threads could wait for
//! each other for ever.
//!
//! Invariant: owned memory starts zeroed and at a multiple of [`ALIGN`]; a lock that a panicking thread held is taken
//! over, because bytes have no invariant to break.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use memmap2::MmapMut;
use zerocopy::FromZeros;

use crate::buffer::{Buffer, BufferType, Usage, check_range};
use crate::error::Error;
use crate::os::give_back::give_back;

/// Alignment of owned memory: a cache line, and the widest vector there is.
const ALIGN: usize = 64;

/// From here on, memory is a mapping of its own: the system has it back the moment it is freed, while an allocator might
/// keep it for a process that has no more use for it. Mappings start at pages, which are zero.
const MAPPED_FROM: usize = 64 << 10;

/// Mappings at a time. Systems allow a process only so many (65530 by default on Linux), and one with no more left cannot
/// even start a thread: a client that allocates and frees in the right order must not get it there. Beyond, memory
/// comes from the allocator.
const MAX_MAPPINGS: usize = 8192;

/// Mappings there are.
static MAPPINGS: AtomicUsize = AtomicUsize::new(0);

/// A mapping that is counted.
struct Mapping(MmapMut);

impl Mapping {
    /// Zeroed memory; `None` when there are too many mappings, or not enough memory.
    fn zeroed(len: usize) -> Option<Mapping> {
        let one_more = |count: usize| (count < MAX_MAPPINGS).then_some(count + 1);
        MAPPINGS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        let mapped = MmapMut::map_anon(len).ok().map(Mapping);
        if mapped.is_none() {
            MAPPINGS.fetch_sub(1, Ordering::Relaxed);
        }
        mapped
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        give_back(&mut self.0);
        MAPPINGS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for Mapping {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

enum Bytes {
    /// Memory, and how far into it the first aligned byte is.
    Owned(Vec<u8>, usize),
    Shared(Arc<dyn AsRef<[u8]> + Send + Sync>),
    Exclusive(Box<dyn AsMutBytes>),
}

/// Memory that its owner lends for reading and writing.
trait AsMutBytes: Send + Sync {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl<T: AsRef<[u8]> + AsMut<[u8]> + Send + Sync> AsMutBytes for T {
    fn bytes(&self) -> &[u8] {
        self.as_ref()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.as_mut()
    }
}

/// Bytes in host memory that several threads may share.
pub struct HostMemory {
    bytes: RwLock<Bytes>,
    len: usize,
    writable: bool,
}

impl HostMemory {
    /// Zeroed memory; `None` when there is not enough.
    pub fn zeroed(len: usize) -> Option<HostMemory> {
        if len >= MAPPED_FROM
            && let Some(mapping) = Mapping::zeroed(len)
        {
            return Some(HostMemory::exclusive(mapping));
        }
        let bytes = u8::new_vec_zeroed(len.checked_add(ALIGN - 1)?).ok()?;
        let address = bytes.as_ptr().addr();
        let start = address.next_multiple_of(ALIGN) - address;
        Some(HostMemory { bytes: RwLock::new(Bytes::Owned(bytes, start)), len, writable: true })
    }

    /// Memory lent for reading, for example a mapped file.
    pub fn shared(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> HostMemory {
        let len = (*owner).as_ref().len();
        HostMemory { bytes: RwLock::new(Bytes::Shared(owner)), len, writable: false }
    }

    /// Memory lent for reading and writing.
    pub fn exclusive(owner: impl AsRef<[u8]> + AsMut<[u8]> + Send + Sync + 'static) -> HostMemory {
        let len = owner.as_ref().len();
        HostMemory { bytes: RwLock::new(Bytes::Exclusive(Box::new(owner))), len, writable: true }
    }

    /// Number of bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether [`write`](HostMemory::write) works.
    pub const fn is_writable(&self) -> bool {
        self.writable
    }

    /// The bytes, for reading. Waits for writers.
    pub fn read(&self) -> HostRead<'_> {
        HostRead { guard: self.bytes.read().unwrap_or_else(PoisonError::into_inner), len: self.len }
    }

    /// The bytes, for writing. Waits for all other readers and writers; `None` when they were lent for reading only.
    pub fn write(&self) -> Option<HostWrite<'_>> {
        self.writable.then(|| HostWrite {
            guard: self.bytes.write().unwrap_or_else(PoisonError::into_inner),
            len: self.len,
        })
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostMemory")
            .field("len", &self.len)
            .field("writable", &self.writable)
            .finish_non_exhaustive()
    }
}

/// Host memory held for reading.
pub struct HostRead<'a> {
    guard: RwLockReadGuard<'a, Bytes>,
    len: usize,
}

/// Host memory held for writing.
pub struct HostWrite<'a> {
    guard: RwLockWriteGuard<'a, Bytes>,
    len: usize,
}

impl fmt::Debug for HostRead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostRead({} bytes)", self.len)
    }
}

impl fmt::Debug for HostWrite<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostWrite({} bytes)", self.len)
    }
}

impl Bytes {
    fn as_slice(&self, len: usize) -> &[u8] {
        match self {
            Bytes::Owned(bytes, start) => &bytes[*start..start + len],
            Bytes::Shared(owner) => (**owner).as_ref(),
            Bytes::Exclusive(owner) => owner.bytes(),
        }
    }
}

impl Deref for HostRead<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.guard.as_slice(self.len)
    }
}

impl Deref for HostWrite<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.guard.as_slice(self.len)
    }
}

impl DerefMut for HostWrite<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        match &mut *self.guard {
            Bytes::Owned(bytes, start) => &mut bytes[*start..*start + len],
            Bytes::Exclusive(owner) => owner.bytes_mut(),
            Bytes::Shared(_) => unreachable!("shared memory is never locked for writing"),
        }
    }
}

/// Copies bytes within or between memories, taking locks in the order of their addresses. `None` when the target was
/// lent for reading only. The ranges have been checked.
pub(crate) fn copy_bytes(
    source: &HostMemory,
    from: Range<usize>,
    target: &HostMemory,
    to: usize,
) -> Option<()> {
    let end = to + from.len();
    if std::ptr::eq(source, target) {
        target.write()?.copy_within(from, to);
    } else if std::ptr::from_ref(source) < std::ptr::from_ref(target) {
        let source = source.read();
        target.write()?[to..end].copy_from_slice(&source[from]);
    } else {
        let mut target = target.write()?;
        target[to..end].copy_from_slice(&source.read()[from]);
    }
    Some(())
}

/// Plain host memory.
#[derive(Debug)]
pub struct HostBufferType {
    name: String,
}

impl HostBufferType {
    /// A kind of host memory; devices that want to be told apart have one each.
    pub fn new(name: impl Into<String>) -> Arc<HostBufferType> {
        Arc::new(HostBufferType { name: name.into() })
    }
}

impl BufferType for HostBufferType {
    fn name(&self) -> &str {
        &self.name
    }

    fn allocate_bytes(self: Arc<Self>, size: usize) -> Result<Arc<dyn Buffer>, Error> {
        match HostMemory::zeroed(size) {
            Some(memory) => Ok(HostBuffer::new(self, memory)),
            None => Err(Error::OutOfMemory { buffer_type: self.name.clone(), size }),
        }
    }

    fn alignment(&self) -> usize {
        ALIGN
    }

    fn is_host(&self) -> bool {
        true
    }
}

/// A buffer in host memory.
#[derive(Debug)]
pub struct HostBuffer {
    buffer_type: Arc<dyn BufferType>,
    memory: HostMemory,
    usage: AtomicU8,
}

impl HostBuffer {
    /// A buffer over memory that its owner lends, refused if it starts where no tensor of this kind may start.
    pub fn over(buffer_type: Arc<dyn BufferType>, memory: HostMemory) -> Result<Arc<HostBuffer>, Error> {
        let alignment = buffer_type.alignment();
        if !memory.read().as_ptr().addr().is_multiple_of(alignment) {
            return Err(Error::Misaligned { buffer_type: buffer_type.name().to_owned(), alignment });
        }
        Ok(HostBuffer::new(buffer_type, memory))
    }

    /// A buffer over memory of any origin and alignment.
    pub fn new(buffer_type: Arc<dyn BufferType>, memory: HostMemory) -> Arc<HostBuffer> {
        Arc::new(HostBuffer { buffer_type, memory, usage: AtomicU8::new(Usage::Any as u8) })
    }

    fn writer(&self) -> Result<HostWrite<'_>, Error> {
        self.memory.write().ok_or_else(|| self.read_only())
    }

    fn read_only(&self) -> Error {
        Error::ReadOnly { buffer_type: self.buffer_type.name().to_owned() }
    }

    fn check(&self, offset: usize, len: usize) -> Result<Range<usize>, Error> {
        check_range(self.buffer_type.name(), offset, len, self.memory.len())?;
        Ok(offset..offset + len)
    }
}

impl Buffer for HostBuffer {
    fn buffer_type(&self) -> &Arc<dyn BufferType> {
        &self.buffer_type
    }

    fn len(&self) -> usize {
        self.memory.len()
    }

    fn usage(&self) -> Usage {
        match self.usage.load(Ordering::Relaxed) {
            usage if usage == Usage::Weights as u8 => Usage::Weights,
            usage if usage == Usage::Compute as u8 => Usage::Compute,
            _ => Usage::Any,
        }
    }

    fn set_usage(&self, usage: Usage) {
        self.usage.store(usage as u8, Ordering::Relaxed);
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), Error> {
        let range = self.check(offset, data.len())?;
        self.writer()?[range].copy_from_slice(data);
        Ok(())
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        let range = self.check(offset, out.len())?;
        out.copy_from_slice(&self.memory.read()[range]);
        Ok(())
    }

    fn fill(&self, offset: usize, len: usize, value: u8) -> Result<(), Error> {
        let range = self.check(offset, len)?;
        self.writer()?[range].fill(value);
        Ok(())
    }

    /// Straight from any other host memory. Within one buffer, ranges may overlap.
    fn copy_from(
        &self,
        offset: usize,
        source: &dyn Buffer,
        source_offset: usize,
        len: usize,
    ) -> Result<bool, Error> {
        let Some(memory) = source.host() else { return Ok(false) };
        check_range(source.buffer_type().name(), source_offset, len, memory.len())?;
        let to = self.check(offset, len)?;
        let from = source_offset..source_offset + len;
        copy_bytes(memory, from, &self.memory, to.start).ok_or_else(|| self.read_only())?;
        Ok(true)
    }

    fn host(&self) -> Option<&HostMemory> {
        Some(&self.memory)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::{Immutable, IntoBytes, KnownLayout};

    use super::*;
    use crate::buffer::allocate;

    #[derive(Clone, Copy, IntoBytes, Immutable, KnownLayout)]
    #[repr(C, align(64))]
    struct Line([u8; ALIGN]);

    fn host() -> Arc<dyn BufferType> {
        HostBufferType::new("host")
    }

    #[test]
    fn owned_memory_is_zeroed_and_aligned() {
        for len in [MAPPED_FROM - 1, MAPPED_FROM, MAPPED_FROM + 1] {
            let memory = HostMemory::zeroed(len).unwrap();
            let bytes = memory.read();
            assert_eq!((bytes.len(), bytes.as_ptr().addr() % ALIGN), (len, 0));
            assert!(bytes.iter().all(|&byte| byte == 0));
        }
        let buffer = allocate(&host(), 1000).unwrap();
        let memory = buffer.host().unwrap();
        assert_eq!(memory.read().len(), 1000);
        assert!(memory.read().iter().all(|&byte| byte == 0));
        assert!((memory.read().as_ptr() as usize).is_multiple_of(ALIGN));
    }

    #[test]
    fn ranges_are_checked() {
        let buffer = allocate(&host(), 8).unwrap();
        buffer.write(4, &[1, 2, 3, 4]).unwrap();
        let mut out = [0; 3];
        buffer.read(5, &mut out).unwrap();
        assert_eq!(out, [2, 3, 4]);
        assert!(matches!(buffer.write(5, &[0; 4]), Err(Error::OutOfBounds { .. })));
        assert!(matches!(buffer.read(usize::MAX, &mut out), Err(Error::OutOfBounds { .. })));
        assert!(matches!(buffer.fill(8, 1, 0), Err(Error::OutOfBounds { .. })));
        buffer.clear(9).unwrap();
        buffer.read(0, &mut out).unwrap();
        assert_eq!(out, [9, 9, 9]);
    }

    #[test]
    fn lent_memory_is_not_copied_and_not_written() {
        let owner: Arc<Vec<u8>> = Arc::new(vec![1, 2, 3]);
        let address = owner.as_ptr();
        let buffer = HostBuffer::new(host(), HostMemory::shared(owner));
        assert_eq!(buffer.host().unwrap().read().as_ptr(), address);
        assert!(matches!(buffer.write(0, &[0]), Err(Error::ReadOnly { .. })));

        let buffer = HostBuffer::new(host(), HostMemory::exclusive(vec![1, 2, 3]));
        buffer.write(1, &[7]).unwrap();
        assert_eq!(&*buffer.host().unwrap().read(), [1, 7, 3]);
    }

    #[test]
    fn too_much_memory_is_an_error() {
        assert!(matches!(allocate(&host(), usize::MAX / 2), Err(Error::OutOfMemory { .. })));
    }

    #[test]
    fn no_bytes_at_all() {
        let buffer = allocate(&host(), 0).unwrap();
        assert!(buffer.is_empty());
        buffer.clear(1).unwrap();
        buffer.write(0, &[]).unwrap();
        assert!(matches!(buffer.write(0, &[1]), Err(Error::OutOfBounds { .. })));
    }

    #[test]
    fn lent_memory_must_be_aligned() {
        let owner = HostMemory::zeroed(128).unwrap();
        let start = owner.read().as_ptr();
        assert!(start.addr().is_multiple_of(ALIGN));
        struct Shifted(Vec<Line>, usize);
        impl AsRef<[u8]> for Shifted {
            fn as_ref(&self) -> &[u8] {
                &self.0.as_bytes()[self.1..]
            }
        }
        let lent = |shift| HostMemory::shared(Arc::new(Shifted(vec![Line([7; ALIGN]); 2], shift)));
        assert_eq!(HostBuffer::over(host(), lent(0)).unwrap().len(), 2 * ALIGN);
        let refused = HostBuffer::over(host(), lent(4)).unwrap_err();
        assert_eq!(refused.to_string(), "memory lent to host does not start at a multiple of 64");
    }

    #[test]
    fn copies_in_both_directions_do_not_wait_for_each_other() {
        let (a, b) = (HostMemory::zeroed(1 << 16).unwrap(), HostMemory::zeroed(1 << 16).unwrap());
        std::thread::scope(|scope| {
            for (from, to) in [(&a, &b), (&b, &a)] {
                scope.spawn(move || {
                    for _ in 0..500 {
                        copy_bytes(from, 0..1 << 16, to, 0).unwrap();
                    }
                });
            }
        });
    }

    #[test]
    fn a_poisoned_lock_is_taken_over() {
        let memory = Arc::new(HostMemory::zeroed(4).unwrap());
        let other = Arc::clone(&memory);
        let died = std::thread::spawn(move || {
            let _held = other.write();
            panic!("while holding the lock");
        });
        assert!(died.join().is_err());
        assert_eq!(memory.read().len(), 4);
        assert!(memory.write().is_some());
    }
}
