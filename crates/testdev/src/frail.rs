//! A device that is lost at whatever call a test wants.
//!
//! It does what another device does, in memory that only it can see, as a worker would; and it counts what it is asked for. From the call on
//! that it is lost at, every call fails with [`Error::DeviceLost`], those to its buffers included. It may also say of everything that it is to
//! compute that it has waited in vain, as a worker that lies would.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use oxcart_backend::{
    Arithmetic, Buffer, BufferType, Buffers, Caps, Device, DeviceKind, Error, Guid, Memory, Place, Stream,
    StreamOptions, Usage, Work, allocate, same_buffer_type,
};
use oxcart_tensor::TensorRef;

/// How many calls there were, and how many more there may be.
#[derive(Debug)]
struct Life {
    name: String,
    calls: AtomicUsize,
    last: AtomicUsize,
    /// Whether all that it computes is interrupted.
    waits_in_vain: AtomicBool,
    /// Whether it says nothing of how it adds up.
    is_vague: AtomicBool,
}

impl Life {
    /// Counts a call.
    fn call(&self) -> Result<(), Error> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.check()
    }

    fn check(&self) -> Result<(), Error> {
        match self.calls.load(Ordering::SeqCst) > self.last.load(Ordering::SeqCst) {
            true => Err(Error::DeviceLost { device: self.name.clone(), reason: "its time had come".into() }),
            false => Ok(()),
        }
    }
}

/// A device that is lost at some call.
#[derive(Debug)]
pub struct FrailDevice {
    inner: Arc<dyn Device>,
    life: Arc<Life>,
    memory: Arc<FrailMemory>,
    capacity: usize,
}

impl FrailDevice {
    /// A device that does what another one does and has so many bytes of memory; nothing happens to it yet.
    pub fn new(name: &str, inner: Arc<dyn Device>, capacity: usize) -> Arc<FrailDevice> {
        let life = Arc::new(Life {
            name: name.to_owned(),
            calls: AtomicUsize::new(0),
            last: AtomicUsize::new(usize::MAX),
            waits_in_vain: AtomicBool::new(false),
            is_vague: AtomicBool::new(false),
        });
        let memory = FrailMemory {
            inner: inner.buffer_type(),
            life: Arc::clone(&life),
            used: AtomicUsize::new(0),
            weights: AtomicUsize::new(0),
            written: AtomicUsize::new(0),
        };
        Arc::new(FrailDevice { inner, life, memory: Arc::new(memory), capacity })
    }

    /// What it was asked for so far: to compute, write, read, fill, copy or allocate.
    pub fn calls(&self) -> usize {
        self.life.calls.load(Ordering::SeqCst)
    }

    /// Lets so many more calls succeed, and none after them.
    pub fn lose_after(&self, calls: usize) {
        self.life.last.store(self.calls().saturating_add(calls), Ordering::SeqCst);
    }

    /// Has it say from now on, of everything that it is to compute, that it has waited in vain for another one; or no longer.
    pub fn wait_in_vain(&self, does: bool) {
        self.life.waits_in_vain.store(does, Ordering::SeqCst);
    }

    /// Bytes that live buffers hold.
    pub fn allocated_bytes(&self) -> usize {
        self.memory.used.load(Ordering::SeqCst)
    }

    /// Bytes of buffers for weights that are alive.
    pub fn weights_held(&self) -> usize {
        self.memory.weights.load(Ordering::SeqCst)
    }

    /// Says nothing any more of how it adds up, as a card does.
    pub fn be_vague(&self) {
        self.life.is_vague.store(true, Ordering::SeqCst);
    }

    /// Bytes of weights that were written to it so far.
    pub fn weight_bytes(&self) -> usize {
        self.memory.written.load(Ordering::SeqCst)
    }
}

impl Device for FrailDevice {
    fn name(&self) -> &str {
        &self.life.name
    }

    fn description(&self) -> &str {
        "a device that is lost at some call"
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Gpu
    }

    fn memory(&self) -> Result<Memory, Error> {
        self.life.check()?;
        Ok(Memory { free: self.capacity.saturating_sub(self.allocated_bytes()), total: self.capacity })
    }

    fn caps(&self) -> Caps {
        Caps { asynchronous: false, buffer_from_host: false }
    }

    fn open(self: Arc<Self>, options: &StreamOptions) -> Result<Box<dyn Stream>, Error> {
        self.life.call()?;
        let inner = Arc::clone(&self.inner).open(options)?;
        Ok(Box::new(FrailStream { device: Arc::clone(&self) as _, life: Arc::clone(&self.life), inner }))
    }

    fn buffer_type(&self) -> Arc<dyn BufferType> {
        Arc::clone(&self.memory) as _
    }

    fn supports_op(&self, node: TensorRef<'_>) -> bool {
        self.inner.supports_op(node)
    }

    /// As if it were far away, as devices that can be lost are.
    fn wants_small_results(&self) -> bool {
        true
    }

    fn supports_buffer_type(&self, buffer_type: &Arc<dyn BufferType>) -> bool {
        same_buffer_type(&self.buffer_type(), buffer_type)
    }

    fn arithmetic(&self) -> Option<Arithmetic> {
        self.inner.arithmetic().filter(|_| !self.life.is_vague.load(Ordering::SeqCst))
    }
}

/// Its memory.
#[derive(Debug)]
struct FrailMemory {
    inner: Arc<dyn BufferType>,
    life: Arc<Life>,
    /// Bytes of live buffers, and of those among them that are for weights.
    used: AtomicUsize,
    weights: AtomicUsize,
    /// Bytes of weights that were written.
    written: AtomicUsize,
}

impl BufferType for FrailMemory {
    fn name(&self) -> &str {
        &self.life.name
    }

    fn allocate_bytes(self: Arc<Self>, size: usize) -> Result<Arc<dyn Buffer>, Error> {
        self.life.call()?;
        let inner = allocate(&self.inner, size)?;
        self.used.fetch_add(size, Ordering::SeqCst);
        let buffer_type: Arc<dyn BufferType> = Arc::clone(&self) as _;
        Ok(Arc::new(FrailBuffer { inner, buffer_type, of: self, usage: Mutex::default() }))
    }

    fn alignment(&self) -> usize {
        self.inner.alignment()
    }
}

/// A buffer that hides its bytes from all other devices.
#[derive(Debug)]
struct FrailBuffer {
    inner: Arc<dyn Buffer>,
    buffer_type: Arc<dyn BufferType>,
    of: Arc<FrailMemory>,
    usage: Mutex<Usage>,
}

impl Drop for FrailBuffer {
    fn drop(&mut self) {
        self.of.used.fetch_sub(self.inner.len(), Ordering::SeqCst);
        if self.usage() == Usage::Weights {
            self.of.weights.fetch_sub(self.inner.len(), Ordering::SeqCst);
        }
    }
}

impl Buffer for FrailBuffer {
    fn buffer_type(&self) -> &Arc<dyn BufferType> {
        &self.buffer_type
    }

    fn len(&self) -> usize {
        self.inner.len()
    }

    fn usage(&self) -> Usage {
        *self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_usage(&self, usage: Usage) {
        let mut known = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != Usage::Weights && usage == Usage::Weights {
            self.of.weights.fetch_add(self.inner.len(), Ordering::SeqCst);
        }
        *known = usage;
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), Error> {
        self.of.life.call()?;
        if self.usage() == Usage::Weights {
            self.of.written.fetch_add(data.len(), Ordering::SeqCst);
        }
        self.inner.write(offset, data)
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        self.of.life.call()?;
        self.inner.read(offset, out)
    }

    fn fill(&self, offset: usize, len: usize, value: u8) -> Result<(), Error> {
        self.of.life.call()?;
        self.inner.fill(offset, len, value)
    }

    fn copy_from(
        &self,
        offset: usize,
        source: &dyn Buffer,
        source_offset: usize,
        len: usize,
    ) -> Result<bool, Error> {
        let Some(source) = source.as_any().downcast_ref::<FrailBuffer>() else { return Ok(false) };
        if !same_buffer_type(&self.buffer_type, &source.buffer_type) {
            return Ok(false);
        }
        self.of.life.call()?;
        self.inner.copy_from(offset, &*source.inner, source_offset, len)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A stream of it.
#[derive(Debug)]
struct FrailStream {
    device: Arc<dyn Device>,
    life: Arc<Life>,
    inner: Box<dyn Stream>,
}

impl Stream for FrailStream {
    fn name(&self) -> &str {
        &self.life.name
    }

    fn guid(&self) -> Guid {
        Guid(*b"oxcart testfrail")
    }

    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn read(&self, source: &Place, out: &mut [u8]) -> Result<(), Error> {
        source.read(out)
    }

    fn synchronize(&self) -> Result<(), Error> {
        self.life.check()
    }

    /// With the other device's buffers in place of its own.
    fn compute(&self, work: Work<'_>) -> Result<(), Error> {
        self.life.call()?;
        if self.life.waits_in_vain.load(Ordering::SeqCst) {
            let (device, reason) = (self.life.name.clone(), "it has waited for another one".to_owned());
            return Err(Error::Interrupted { device, reason });
        }
        let mut buffers = Buffers::new();
        for buffer in work.buffers.iter() {
            let own = buffer.as_any().downcast_ref::<FrailBuffer>();
            buffers.add(Arc::clone(own.map_or(buffer, |own| &own.inner)));
        }
        self.inner.compute(Work { nodes: work.nodes, buffers: &buffers })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
