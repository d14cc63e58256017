//! Memory that only its own device can see, though it is host memory really.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use oxcart_backend::{Buffer, BufferType, Error, HostBuffer, HostMemory, Usage};
use oxcart_tensor::TensorRef;

/// A kind of memory with the quirks a test asks for.
#[derive(Debug)]
pub struct TestBufferType {
    pub(crate) name: String,
    pub(crate) alignment: usize,
    pub(crate) max_size: usize,
    pub(crate) padding: usize,
    pub(crate) is_host: bool,
    /// Bytes that live buffers hold.
    pub(crate) allocated: Arc<AtomicUsize>,
    pub(crate) capacity: usize,
    /// How many more allocations succeed.
    pub(crate) allocations_left: AtomicUsize,
}

impl BufferType for TestBufferType {
    fn name(&self) -> &str {
        &self.name
    }

    fn allocate_bytes(self: Arc<Self>, size: usize) -> Result<Arc<dyn Buffer>, Error> {
        let full = || Error::OutOfMemory { buffer_type: self.name.clone(), size };
        let one_less = |left: usize| if left == usize::MAX { Some(left) } else { left.checked_sub(1) };
        if self.allocations_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err() {
            return Err(full());
        }
        let before = self.allocated.fetch_add(size, Ordering::Relaxed);
        let memory = HostMemory::zeroed(size).filter(|_| before.saturating_add(size) <= self.capacity);
        let Some(memory) = memory else {
            self.allocated.fetch_sub(size, Ordering::Relaxed);
            return Err(full());
        };
        let buffer_type: Arc<dyn BufferType> = Arc::clone(&self) as _;
        Ok(Arc::new(TestBuffer {
            bytes: HostBuffer::new(buffer_type, memory),
            of: self,
            tensors: AtomicUsize::new(0),
        }))
    }

    fn alignment(&self) -> usize {
        self.alignment
    }

    fn max_size(&self) -> usize {
        self.max_size
    }

    fn alloc_size(&self, tensor: TensorRef<'_>) -> usize {
        tensor.byte_len() + self.padding
    }

    fn is_host(&self) -> bool {
        self.is_host
    }
}

/// A buffer that hides its bytes unless its kind is host memory.
#[derive(Debug)]
pub struct TestBuffer {
    bytes: Arc<HostBuffer>,
    of: Arc<TestBufferType>,
    tensors: AtomicUsize,
}

impl TestBuffer {
    /// Its memory, for the device it belongs to.
    pub(crate) fn memory(&self) -> Option<&HostMemory> {
        self.bytes.host()
    }

    /// How many tensors were prepared since the last reset.
    pub fn prepared_tensors(&self) -> usize {
        self.tensors.load(Ordering::Relaxed)
    }
}

impl Drop for TestBuffer {
    fn drop(&mut self) {
        self.of.allocated.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

impl Buffer for TestBuffer {
    fn buffer_type(&self) -> &Arc<dyn BufferType> {
        self.bytes.buffer_type()
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn usage(&self) -> Usage {
        self.bytes.usage()
    }

    fn set_usage(&self, usage: Usage) {
        self.bytes.set_usage(usage);
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), Error> {
        self.bytes.write(offset, data)
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        self.bytes.read(offset, out)
    }

    fn fill(&self, offset: usize, len: usize, value: u8) -> Result<(), Error> {
        self.bytes.fill(offset, len, value)
    }

    fn init_tensor(&self, _tensor: TensorRef<'_>) -> Result<(), Error> {
        // One thread at a time prepares tensors, so this need not be one step.
        self.tensors.store(self.tensors.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Ok(())
    }

    fn reset(&self) -> Result<(), Error> {
        self.tensors.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Directly between buffers of one kind, the way a device copies within itself.
    fn copy_from(
        &self,
        offset: usize,
        source: &dyn Buffer,
        source_offset: usize,
        len: usize,
    ) -> Result<bool, Error> {
        let Some(source) = source.as_any().downcast_ref::<TestBuffer>() else { return Ok(false) };
        if !Arc::ptr_eq(&self.of, &source.of) {
            return Ok(false);
        }
        self.bytes.copy_from(offset, &*source.bytes, source_offset, len)
    }

    fn host(&self) -> Option<&HostMemory> {
        self.of.is_host.then(|| self.bytes.host()).flatten()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
