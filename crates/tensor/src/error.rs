//! The one error of this crate.

use crate::graph::{BufferId, TensorId};
use crate::layout::LayoutError;
use crate::ops::OpError;

/// Why a graph refused a tensor, a node or a change.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A node that cannot exist.
    #[error(transparent)]
    Op(#[from] OpError),
    /// A leaf that cannot exist.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// An id of another graph.
    #[error("{id} is not one of the {count} tensors of this graph")]
    NoSuchTensor {
        /// The id.
        id: TensorId,
        /// Tensors of the graph.
        count: usize,
    },
    /// Ids have run out.
    #[error("a graph holds at most {} tensors", crate::limits::MAX_TENSORS)]
    TooManyTensors,
    /// A name that is too long for the peers and files that carry it.
    #[error("name of {len} bytes is longer than {}", crate::limits::MAX_NAME_BYTES)]
    NameTooLong {
        /// Its bytes.
        len: usize,
    },
    /// A role that only a leaf, or only a scalar, can have.
    #[error("{id} cannot be marked as {role}: {reason}")]
    Role {
        /// The tensor.
        id: TensorId,
        /// The role asked for.
        role: &'static str,
        /// Why not.
        reason: &'static str,
    },
    /// A tensor that does not fit where it was put.
    #[error("{id} of {len} bytes does not fit at byte {offset} of {buffer}, which has {capacity}")]
    OutsideBuffer {
        /// The tensor.
        id: TensorId,
        /// Its bytes.
        len: usize,
        /// The buffer.
        buffer: BufferId,
        /// Where in the buffer it was put.
        offset: usize,
        /// Bytes of the buffer.
        capacity: usize,
    },
    /// A place that is not aligned for the tensor's elements.
    #[error("{id} cannot start at byte {offset}: its elements need a multiple of {align}")]
    Misaligned {
        /// The tensor.
        id: TensorId,
        /// Where it was put.
        offset: usize,
        /// The alignment it needs.
        align: usize,
    },
    /// A view has no storage of its own.
    #[error("{id} is a view of {root}; bind that instead")]
    BindView {
        /// The view.
        id: TensorId,
        /// The tensor whose memory it shows.
        root: TensorId,
    },
    /// A node put in order before something it reads.
    #[error("{id} comes before its source {source_id}")]
    OutOfOrder {
        /// The node.
        id: TensorId,
        /// The source that is not in order yet.
        source_id: TensorId,
    },
    /// A node put in order twice.
    #[error("{id} is in order already")]
    AlreadyInOrder {
        /// The node.
        id: TensorId,
    },
    /// A choice among alternatives that is none of them.
    #[error("alternative {index} of {count} does not exist")]
    NoSuchAlternative {
        /// The index asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
}
