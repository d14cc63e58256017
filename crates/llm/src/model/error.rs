//! The one error of this module.

use oxcart_backend::ByteSize;
use oxcart_tensor::{DType, Shape};

use crate::runner::SequenceId;

/// Why a model could not be read, placed, loaded or run. The culprit (a key, a tensor, a device, the caller) is named.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file.
    #[error(transparent)]
    File(#[from] oxcart_gguf::Error),
    /// A device or its memory.
    #[error(transparent)]
    Device(#[from] oxcart_backend::Error),
    /// The scheduler.
    #[error(transparent)]
    Schedule(#[from] oxcart_sched::Error),
    /// Memory that cannot be planned.
    #[error(transparent)]
    Memory(#[from] oxcart_sched::memory::MemoryPlanError),
    /// A graph that cannot be built.
    #[error(transparent)]
    Tensor(#[from] oxcart_tensor::Error),
    /// A layout that cannot exist.
    #[error(transparent)]
    Layout(#[from] oxcart_tensor::LayoutError),
    /// An architecture that is not implemented here.
    #[error("the architecture '{name}' is not known; known are {known}")]
    UnknownArchitecture {
        /// What the file says.
        name: String,
        /// What there is.
        known: String,
    },
    /// A hyper-parameter that makes no sense, alone or with others.
    #[error("{key} is {value}: {rule}")]
    Parameter {
        /// Its key in the file.
        key: String,
        /// Its value.
        value: String,
        /// What it should have been.
        rule: String,
    },
    /// A file in the other byte order.
    #[error("the file is big-endian; only little-endian models can be run")]
    BigEndian,
    /// A tensor that the architecture needs.
    #[error("the tensor '{name}' is missing")]
    MissingTensor {
        /// Its name.
        name: String,
    },
    /// A tensor that the architecture has no use for; leaving it out could change every result.
    #[error("the tensor '{name}' has no place in this architecture")]
    ExtraTensor {
        /// Its name.
        name: String,
    },
    /// A tensor of other extents than the hyper-parameters say.
    #[error("the tensor '{name}' is {found}, the hyper-parameters ask for {wanted}")]
    TensorShape {
        /// Its name.
        name: String,
        /// Its extents.
        found: Shape,
        /// Those it should have.
        wanted: Shape,
    },
    /// A tensor of a type that cannot be used where it is needed.
    #[error("the tensor '{name}' is of type {found}; it must be {wanted}")]
    TensorType {
        /// Its name.
        name: String,
        /// Its type.
        found: DType,
        /// What would do.
        wanted: &'static str,
    },
    /// Settings of the caller that make no sense.
    #[error("{what} is {value}: {rule}")]
    Setting {
        /// Which setting.
        what: &'static str,
        /// Its value.
        value: String,
        /// What it should have been.
        rule: String,
    },
    /// Streams that are not those the weights were loaded for.
    #[error("stream {index} runs on {found}, but the weights were placed for {wanted}")]
    OtherDevice {
        /// Position in the list.
        index: usize,
        /// The device of the stream.
        found: String,
        /// The device of the placement.
        wanted: String,
    },
    /// A token that the vocabulary does not have.
    #[error("token {token} is not one of the {vocabulary} tokens of the model")]
    NoSuchToken {
        /// The token.
        token: u32,
        /// How many there are.
        vocabulary: usize,
    },
    /// More tokens than the context holds.
    #[error("{asked} tokens after {used} do not fit into a context of {limit}")]
    ContextFull {
        /// Tokens there are.
        used: usize,
        /// Tokens to be added.
        asked: usize,
        /// Tokens that fit.
        limit: usize,
        /// Tokens that the model was trained for.
        trained: usize,
    },
    /// A position that cannot be gone back to.
    #[error("cannot go back to position {position} of {used}: {reason}")]
    CannotTruncate {
        /// Where to.
        position: usize,
        /// Tokens there are.
        used: usize,
        /// Why not.
        reason: &'static str,
    },
    /// A sequence that the runner does not have, or has no more.
    #[error("there is no {sequence}")]
    NoSuchSequence {
        /// Which one.
        sequence: SequenceId,
    },
    /// More sequences than the runner was set up for.
    #[error("{limit} sequences are open, and there can be no more at a time")]
    TooManySequences {
        /// How many there can be.
        limit: usize,
    },
    /// What went wrong with one sequence of a batch; the others are as they were.
    #[error("{sequence}: {error}")]
    InSequence {
        /// Which one.
        sequence: SequenceId,
        /// What went wrong.
        error: Box<Error>,
    },
    /// No room is left for what blocks remember.
    #[error("there is no room for {asked} tokens after {used}: other sequences hold it")]
    StateFull {
        /// Tokens there are.
        used: usize,
        /// Tokens to be added.
        asked: usize,
    },
    /// A file that a sequence is saved to or restored from.
    #[error("the saved sequence cannot be read or written: {0}")]
    Io(#[from] std::io::Error),
    /// A saved sequence that cannot be restored.
    #[error("the saved sequence cannot be restored: {0}")]
    SavedState(&'static str),
    /// A device without room for its part of a model.
    #[error("{device} has {} free, but its part of the model needs {}: {} are missing", ByteSize(*.free as u64), ByteSize(*.needed as u64), ByteSize(.needed.saturating_sub(*.free) as u64))]
    NoRoom {
        /// Which one.
        device: String,
        /// Bytes it has free.
        free: usize,
        /// Bytes it would need.
        needed: usize,
    },
    /// A runner that has no devices at the moment.
    #[error("the runner was taken off its devices")]
    Released,
    /// Something this kind of model does not do.
    #[error("{architecture} models cannot {what}")]
    NotThatKind {
        /// The architecture.
        architecture: &'static str,
        /// What was asked.
        what: &'static str,
    },
}

impl Error {
    /// The device whose work is lost, if this is why, what is said about it, and whether the device itself is lost.
    pub fn lost_work(&self) -> Option<(&str, &str, bool)> {
        use oxcart_backend::Error::{DeviceLost, Interrupted};
        match self {
            Error::Device(error) | Error::Schedule(oxcart_sched::Error::Device(error)) => match error {
                DeviceLost { device, reason } => Some((device, reason, true)),
                Interrupted { device, reason } => Some((device, reason, false)),
                _ => None,
            },
            Error::InSequence { error, .. } => error.lost_work(),
            _ => None,
        }
    }

    /// Whether some device has too little memory.
    pub(crate) fn lacks_room(&self) -> bool {
        use oxcart_backend::Error::OutOfMemory;
        match self {
            Error::NoRoom { .. } => true,
            Error::Device(error) | Error::Schedule(oxcart_sched::Error::Device(error)) => {
                matches!(error, OutOfMemory { .. })
            }
            _ => false,
        }
    }

    pub(crate) fn parameter(key: impl Into<String>, value: impl ToString, rule: impl Into<String>) -> Error {
        Error::Parameter { key: key.into(), value: value.to_string(), rule: rule.into() }
    }

    pub(crate) fn setting(what: &'static str, value: impl ToString, rule: impl Into<String>) -> Error {
        Error::Setting { what, value: value.to_string(), rule: rule.into() }
    }
}
