//! The device itself, and the family of one that it is in.

use std::sync::Arc;

use oxcart_backend::{
    Arithmetic, Buffer, BufferType, Caps, Device, DeviceKind, Error, HostBuffer, HostBufferType, HostMemory,
    Memory, Registry, Stream, StreamOptions, same_buffer_type,
};
use oxcart_tensor::TensorRef;

use crate::job::Grain;
use crate::kernels::{choose, fuse};
use crate::os;
use crate::simd::Level;
use crate::stream::CpuStream;

/// What the device is called.
pub(crate) const NAME: &str = "CPU";

/// The processor this program runs on.
#[derive(Debug)]
pub struct CpuDevice {
    level: Level,
    grain: Grain,
    description: String,
    buffer_type: Arc<dyn BufferType>,
}

impl CpuDevice {
    /// The device, with the best instructions the processor has or those that `OXCART_CPU` names.
    pub fn new() -> Result<Arc<CpuDevice>, Error> {
        let refused = |error: crate::LevelError| Error::Unsupported {
            device: NAME.to_owned(),
            what: error.to_string(),
        };
        Ok(CpuDevice::with_level(Level::detect().map_err(refused)?))
    }

    /// The device, with these instructions.
    pub fn with_level(level: Level) -> Arc<CpuDevice> {
        CpuDevice::with_grain(level, Grain::default())
    }

    /// The device, with these instructions, which cuts any work among threads and looks all the time whether to stop. It is
    /// slow; tests see with small tensors what cutting does.
    #[doc(hidden)]
    pub fn that_cuts_finely(level: Level) -> Arc<CpuDevice> {
        CpuDevice::with_grain(level, Grain::FINEST)
    }

    fn with_grain(level: Level, grain: Grain) -> Arc<CpuDevice> {
        let description =
            format!("{}, {level} instructions", os::processor::name().unwrap_or("processor".into()));
        Arc::new(CpuDevice { level, grain, description, buffer_type: HostBufferType::new(NAME) })
    }

    /// The instructions it uses.
    pub const fn level(&self) -> Level {
        self.level
    }

    pub(crate) const fn grain(&self) -> Grain {
        self.grain
    }

    /// How many of these nodes, from the first on, would be computed in one go, if it is several; for tests, which cannot see it
    /// in results.
    #[doc(hidden)]
    pub fn fused(&self, nodes: &[TensorRef<'_>]) -> Option<usize> {
        fuse(nodes, self.level).map(|unit| unit.nodes)
    }
}

impl Device for CpuDevice {
    fn name(&self) -> &str {
        NAME
    }

    fn description(&self) -> &str {
        &self.description
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }

    fn memory(&self) -> Result<Memory, Error> {
        os::memory::memory().ok_or_else(|| Error::DeviceFailed {
            device: NAME.to_owned(),
            reason: "the system does not tell how much memory there is".into(),
        })
    }

    fn caps(&self) -> Caps {
        Caps { buffer_from_host: true, ..Caps::default() }
    }

    fn open(self: Arc<Self>, options: &StreamOptions) -> Result<Box<dyn Stream>, Error> {
        Ok(Box::new(CpuStream::new(self, options)?))
    }

    fn buffer_type(&self) -> Arc<dyn BufferType> {
        Arc::clone(&self.buffer_type)
    }

    fn buffer_from_host(&self, memory: HostMemory) -> Result<Arc<dyn Buffer>, Error> {
        Ok(HostBuffer::over(self.buffer_type(), memory)?)
    }

    fn supports_op(&self, node: TensorRef<'_>) -> bool {
        !node.computes() || choose(node, self.level).is_some()
    }

    fn supports_buffer_type(&self, buffer_type: &Arc<dyn BufferType>) -> bool {
        same_buffer_type(buffer_type, &self.buffer_type) || buffer_type.is_host()
    }

    fn arithmetic(&self) -> Option<Arithmetic> {
        self.level.arithmetic()
    }
}

/// The family that has the CPU and nothing else.
#[derive(Debug)]
pub struct CpuRegistry {
    device: Arc<CpuDevice>,
}

impl CpuRegistry {
    /// The family of this machine's CPU.
    pub fn new() -> Result<Arc<CpuRegistry>, Error> {
        Ok(Arc::new(CpuRegistry { device: CpuDevice::new()? }))
    }
}

impl Registry for CpuRegistry {
    fn name(&self) -> &str {
        NAME
    }

    fn devices(&self) -> Vec<Arc<dyn Device>> {
        vec![Arc::clone(&self.device) as _]
    }
}
