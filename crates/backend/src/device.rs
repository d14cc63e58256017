//! What a piece of hardware, or a peer that lends one, can do.

use std::fmt;
use std::sync::Arc;

use oxcart_tensor::TensorRef;

use crate::arithmetic::Arithmetic;
use crate::buffer::{Buffer, BufferType};
use crate::error::Error;
use crate::host::HostMemory;
use crate::stream::{Stream, StreamOptions};

/// What kind of processor it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// The processor this program runs on.
    Cpu,
    /// A graphics processor with memory of its own.
    Gpu,
    /// A graphics processor that uses the host's memory.
    IntegratedGpu,
    /// Something that helps the CPU with some ops.
    Accelerator,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DeviceKind::Cpu => "CPU",
            DeviceKind::Gpu => "GPU",
            DeviceKind::IntegratedGpu => "iGPU",
            DeviceKind::Accelerator => "accelerator",
        })
    }
}

/// Bytes of device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Bytes that can be allocated now.
    pub free: usize,
    /// Bytes there are.
    pub total: usize,
}

/// What a device can do beyond computing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// Work runs while the caller goes on; its streams record points that can be waited for.
    pub asynchronous: bool,
    /// Buffers can be made over host memory that is there already.
    pub buffer_from_host: bool,
}

/// About how much a device does in some ten milliseconds: what one of several users may do before it is another's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Multiplications of products and convolutions.
    pub multiplications: u64,
    /// Elements that it reads or writes.
    pub elements: u64,
}

impl Default for Pace {
    /// That of a small processor.
    fn default() -> Pace {
        Pace { multiplications: 1 << 28, elements: 1 << 28 }
    }
}

/// A device.
pub trait Device: Send + Sync + fmt::Debug {
    /// A short name, unique in its registry, for example `CPU` or `CUDA0`.
    fn name(&self) -> &str;

    /// What it is, for people.
    fn description(&self) -> &str;

    /// An id that the hardware keeps over restarts, for example of its bus.
    fn hardware_id(&self) -> Option<&str> {
        None
    }

    /// What kind of processor it is.
    fn kind(&self) -> DeviceKind;

    /// Its memory now.
    fn memory(&self) -> Result<Memory, Error>;

    /// What it can do beyond computing.
    fn caps(&self) -> Caps;

    /// Opens a stream of work.
    fn open(self: Arc<Self>, options: &StreamOptions) -> Result<Box<dyn Stream>, Error>;

    /// The memory it computes in.
    fn buffer_type(&self) -> Arc<dyn BufferType>;

    /// Host memory from which transfers are faster.
    fn host_buffer_type(&self) -> Option<Arc<dyn BufferType>> {
        None
    }

    /// A buffer over host memory that is there already, without a copy.
    fn buffer_from_host(&self, _memory: HostMemory) -> Result<Arc<dyn Buffer>, Error> {
        Err(Error::Unsupported { device: self.name().to_owned(), what: "buffers over host memory".into() })
    }

    /// Whether it can compute this node.
    fn supports_op(&self, node: TensorRef<'_>) -> bool;

    /// Whether it can use tensors in this kind of memory.
    fn supports_buffer_type(&self, buffer_type: &Arc<dyn BufferType>) -> bool;

    /// The order in which it adds up, if that is fixed to the last bit.
    fn arithmetic(&self) -> Option<Arithmetic> {
        None
    }

    /// How fast it is, very roughly.
    fn pace(&self) -> Pace {
        Pace::default()
    }

    /// Whether its results should be made small there before they are read, because they come over a network. Such a device computes all ops
    /// of inference.
    fn wants_small_results(&self) -> bool {
        false
    }

    /// Whether it wants to compute this node although the weights are elsewhere and must be copied.
    fn wants_offload(&self, _node: TensorRef<'_>) -> bool {
        false
    }
}
