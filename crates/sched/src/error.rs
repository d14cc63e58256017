//! The one error of this crate.

use oxcart_tensor::TensorId;

use crate::memory::MemoryPlanError;

/// Why a graph could not be scheduled or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device or buffer failed.
    #[error(transparent)]
    Device(#[from] oxcart_backend::Error),
    /// The graph refused something.
    #[error(transparent)]
    Tensor(#[from] oxcart_tensor::Error),
    /// The tensors do not fit.
    #[error(transparent)]
    Memory(#[from] MemoryPlanError),
    /// A scheduler without devices.
    #[error("a scheduler needs at least one stream")]
    NoStreams,
    /// A stream that is not there.
    #[error("stream {index} of {count} does not exist")]
    NoSuchStream {
        /// The index asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// A node that no device can compute.
    #[error("no stream can compute {op} ({id}, {name})")]
    NoStreamFor {
        /// The node.
        id: TensorId,
        /// Its op.
        op: &'static str,
        /// Its name.
        name: String,
    },
    /// A node whose memory is where its op cannot run.
    #[error("{name} ({id}) lies in {buffer_type} memory, where no stream can compute {op}")]
    StuckInMemory {
        /// The node.
        id: TensorId,
        /// Its name.
        name: String,
        /// Its op.
        op: &'static str,
        /// The memory it was put in.
        buffer_type: String,
    },
    /// A tensor that is not an input.
    #[error("{name} ({id}) is not an input of the graph")]
    NotAnInput {
        /// The tensor.
        id: TensorId,
        /// Its name.
        name: String,
    },
}
