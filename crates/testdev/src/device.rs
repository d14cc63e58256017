//! The device and its settings.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oxcart_backend::{
    Buffer, BufferType, Caps, Device, DeviceKind, Error, HostBuffer, HostBufferType, HostMemory, Memory,
    Registry, Stream, StreamOptions, same_buffer_type,
};
use oxcart_tensor::{Op, TensorId, TensorRef};

use crate::buffer::TestBufferType;
use crate::interpret::computes;
use crate::stream::TestStream;

/// What a test device is like. The default is a synchronous CPU with host memory that can do all there is.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name.
    pub name: String,
    /// What it claims to be.
    pub kind: DeviceKind,
    /// Names of the ops it can compute; `None` for all.
    pub ops: Option<Vec<&'static str>>,
    /// Whether its memory is host memory that other devices can see.
    pub host: bool,
    /// Whether it can read host memory although its own is elsewhere.
    pub reads_host: bool,
    /// Whether it wants large ops whose weights are elsewhere.
    pub offloads: bool,
    /// What offsets must be multiples of.
    pub alignment: usize,
    /// The largest buffer.
    pub max_size: usize,
    /// Bytes each tensor takes beyond its own.
    pub padding: usize,
    /// Bytes of memory.
    pub capacity: usize,
    /// Whether it works in a thread of its own.
    pub asynchronous: bool,
    /// How long each job of that thread is held up, to make wrong orders show.
    pub delay: Duration,
    /// Whether its streams offer copies to others, rather than from others.
    pub copies_out: bool,
    /// Whether nodes are not really computed: for planning alone.
    pub null: bool,
    /// How wrong it is: every result is too large by this share.
    pub scale_error: f32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            name: "CPU".into(),
            kind: DeviceKind::Cpu,
            ops: None,
            host: true,
            reads_host: true,
            offloads: false,
            alignment: 64,
            max_size: usize::MAX,
            padding: 0,
            capacity: usize::MAX,
            asynchronous: false,
            delay: Duration::ZERO,
            copies_out: false,
            null: false,
            scale_error: 0.0,
        }
    }
}

impl Config {
    /// An accelerator: memory of its own that no other device can see.
    pub fn accelerator(name: &str) -> Config {
        Config {
            name: name.into(),
            kind: DeviceKind::Gpu,
            host: false,
            reads_host: false,
            ..Config::default()
        }
    }
}

/// What can go wrong while a device computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// Scratch memory cannot be had; the device goes on.
    NoMemory,
    /// A kernel panics.
    Panic,
    /// The device breaks, and stays broken.
    Breakdown,
}

/// A device for tests.
#[derive(Debug)]
pub struct TestDevice {
    pub(crate) config: Config,
    buffer_type: Arc<TestBufferType>,
    host_buffer_type: Arc<HostBufferType>,
    allocated: Arc<AtomicUsize>,
    /// Every node it has computed, in order.
    log: Mutex<Vec<TensorId>>,
    /// What happens at the next node.
    fault: Mutex<Option<InjectedFault>>,
    /// Taken for a moment before each node.
    gate: Mutex<()>,
    /// Nodes that have come to the gate.
    begun: AtomicUsize,
}

impl TestDevice {
    /// A device with these settings.
    pub fn new(config: Config) -> Arc<TestDevice> {
        let allocated = Arc::new(AtomicUsize::new(0));
        let buffer_type = Arc::new(TestBufferType {
            name: config.name.clone(),
            alignment: config.alignment,
            max_size: config.max_size,
            padding: config.padding,
            is_host: config.host,
            allocated: Arc::clone(&allocated),
            capacity: config.capacity,
            allocations_left: AtomicUsize::new(usize::MAX),
        });
        let host_buffer_type = HostBufferType::new(format!("{}_Host", config.name));
        Arc::new(TestDevice {
            config,
            buffer_type,
            host_buffer_type,
            allocated,
            log: Mutex::default(),
            fault: Mutex::default(),
            gate: Mutex::default(),
            begun: AtomicUsize::new(0),
        })
    }

    /// Lets no node be computed until this is dropped: what one of them holds up is held up for as long as a test wants.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nodes that were begun so far, one that is [held](TestDevice::hold) included.
    pub fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    /// Begins a node, and waits for as long as that is held.
    pub(crate) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        drop(self.hold());
    }

    /// Lets something go wrong at the next node that is computed; `None` for nothing.
    pub fn inject(&self, fault: Option<InjectedFault>) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// Lets so many more allocations succeed, and none after them.
    pub fn allow_allocations(&self, count: usize) {
        self.buffer_type.allocations_left.store(count, Ordering::Relaxed);
    }

    /// What goes wrong now.
    pub(crate) fn fault(&self) -> Option<InjectedFault> {
        let mut injected = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        match *injected {
            // What is broken stays so.
            Some(InjectedFault::Breakdown) => Some(InjectedFault::Breakdown),
            _ => injected.take(),
        }
    }

    /// Opens a stream.
    pub fn stream(self: &Arc<Self>) -> Box<dyn Stream> {
        Box::new(TestStream::new(Arc::clone(self)))
    }

    /// Bytes that live buffers hold.
    pub fn allocated_bytes(&self) -> usize {
        self.allocated.load(Ordering::Relaxed)
    }

    /// Takes the list of nodes computed so far.
    pub fn take_log(&self) -> Vec<TensorId> {
        std::mem::take(&mut *self.log.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn note(&self, node: TensorId) {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(node);
    }

    fn is_listed(&self, op: &Op) -> bool {
        self.config.ops.as_ref().is_none_or(|ops| ops.contains(&op.label()) || ops.contains(&op.name()))
    }

    /// Whether it could see memory of this kind if it were real.
    pub(crate) fn sees(&self, buffer_type: &Arc<dyn BufferType>) -> bool {
        let own: Arc<dyn BufferType> = Arc::clone(&self.buffer_type) as _;
        same_buffer_type(&own, buffer_type) || (self.config.reads_host && buffer_type.is_host())
    }
}

impl Device for TestDevice {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn description(&self) -> &str {
        "a device for tests"
    }

    fn kind(&self) -> DeviceKind {
        self.config.kind
    }

    fn memory(&self) -> Result<Memory, Error> {
        let total = self.config.capacity;
        Ok(Memory { free: total.saturating_sub(self.allocated_bytes()), total })
    }

    fn caps(&self) -> Caps {
        Caps { asynchronous: self.config.asynchronous, buffer_from_host: self.config.host }
    }

    fn open(self: Arc<Self>, _options: &StreamOptions) -> Result<Box<dyn Stream>, Error> {
        Ok(self.stream())
    }

    fn buffer_type(&self) -> Arc<dyn BufferType> {
        Arc::clone(&self.buffer_type) as _
    }

    fn host_buffer_type(&self) -> Option<Arc<dyn BufferType>> {
        Some(Arc::clone(&self.host_buffer_type) as _)
    }

    fn buffer_from_host(&self, memory: HostMemory) -> Result<Arc<dyn Buffer>, Error> {
        if self.config.host {
            return Ok(HostBuffer::over(self.buffer_type(), memory)?);
        }
        Err(Error::Unsupported { device: self.config.name.clone(), what: "buffers over host memory".into() })
    }

    fn supports_op(&self, node: TensorRef<'_>) -> bool {
        self.is_listed(node.op()) && (self.config.null || computes(node))
    }

    fn supports_buffer_type(&self, buffer_type: &Arc<dyn BufferType>) -> bool {
        self.sees(buffer_type)
    }

    fn wants_offload(&self, node: TensorRef<'_>) -> bool {
        self.config.offloads && node.layout().ne()[1] >= 32
    }
}

/// Some test devices as a family.
#[derive(Debug)]
pub struct TestRegistry {
    name: String,
    devices: Vec<Arc<TestDevice>>,
}

impl TestRegistry {
    /// A family of devices with these settings.
    pub fn new(name: &str, configs: Vec<Config>) -> Arc<TestRegistry> {
        Arc::new(TestRegistry {
            name: name.into(),
            devices: configs.into_iter().map(TestDevice::new).collect(),
        })
    }
}

impl Registry for TestRegistry {
    fn name(&self) -> &str {
        &self.name
    }

    fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect()
    }
}
