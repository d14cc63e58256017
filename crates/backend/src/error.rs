//! The one error of this crate; devices of all kinds speak it.

use std::path::PathBuf;

use oxcart_tensor::graph::BufferId;
use oxcart_tensor::{LayoutError, TensorId};

/// What went wrong, and whose fault it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The graph refused something.
    #[error(transparent)]
    Tensor(#[from] oxcart_tensor::Error),
    /// A layout that cannot exist.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Memory that a device does not have.
    #[error("{buffer_type} cannot allocate {size} bytes")]
    OutOfMemory {
        /// Name of the buffer type.
        buffer_type: String,
        /// Bytes asked for.
        size: usize,
    },
    /// A byte range outside its buffer or tensor.
    #[error("bytes {offset}..+{len} are outside the {size} bytes of {what}")]
    OutOfBounds {
        /// The buffer or tensor.
        what: String,
        /// First byte.
        offset: usize,
        /// Number of bytes.
        len: usize,
        /// Bytes there are.
        size: usize,
    },
    /// Lent memory that starts where no tensor may start.
    #[error("memory lent to {buffer_type} does not start at a multiple of {alignment}")]
    Misaligned {
        /// Name of the buffer type.
        buffer_type: String,
        /// What it must be a multiple of.
        alignment: usize,
    },
    /// A write to memory that was lent for reading.
    #[error("{buffer_type} memory is read-only")]
    ReadOnly {
        /// Name of the buffer type.
        buffer_type: String,
    },
    /// A tensor without memory.
    #[error("{id} ({name}) is not in any buffer")]
    NotPlaced {
        /// The tensor.
        id: TensorId,
        /// Its name.
        name: String,
    },
    /// A buffer id that the table does not know.
    #[error("{id} is not in the table")]
    NoSuchBuffer {
        /// The id.
        id: BufferId,
    },
    /// Two tensors that should look the same.
    #[error("cannot copy {from} to {to}: the layouts differ")]
    LayoutMismatch {
        /// Layout of the source.
        from: String,
        /// Layout of the target.
        to: String,
    },
    /// An op, buffer or call that a device cannot handle.
    #[error("{device} does not support {what}")]
    Unsupported {
        /// Name of the device.
        device: String,
        /// What was asked of it.
        what: String,
    },
    /// A device that failed at some work: bad data, or a call that went wrong. What it computed is lost; it goes on.
    #[error("{device} failed: {reason}")]
    DeviceFailed {
        /// Name of the device.
        device: String,
        /// What it says.
        reason: String,
    },
    /// A device that is broken: what its buffers held is lost, and nothing can be computed on it any more.
    #[error("{device} is lost: {reason}")]
    DeviceLost {
        /// Name of the device.
        device: String,
        /// What it says.
        reason: String,
    },
    /// Work that a device could not finish because something it needed has not come from another one. What its buffers held before is
    /// still there; whatever was under way on its streams is lost, and so are these. New ones can be opened.
    #[error("{device} was interrupted: {reason}")]
    Interrupted {
        /// Name of the device.
        device: String,
        /// What it says.
        reason: String,
    },
    /// A kernel that panicked, which is a bug. The device goes on.
    #[error("{device}: a kernel panicked, which is a bug: {what}")]
    Panicked {
        /// Name of the device.
        device: String,
        /// What it was computing.
        what: String,
    },
    /// Work that was stopped on request.
    #[error("cancelled")]
    Cancelled,
    /// A plug-in that cannot be used.
    #[error("plug-in {path}: {reason}")]
    Plugin {
        /// Its file.
        path: PathBuf,
        /// Why not.
        reason: crate::plugin::Refusal,
    },
    /// A name that is taken.
    #[error("a family of devices named '{name}' is registered already")]
    NameTaken {
        /// The name.
        name: String,
    },
}
