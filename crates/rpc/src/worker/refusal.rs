//! Why a worker says no. A refused request ends its connection; the reason goes to the log and to a counter.

use oxcart_tensor::LayoutError;

use crate::wire::{GraphError, NotDelivered, ParamError, PulseMessageError, WorkerMessageError};

/// What was wrong with a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The first command was not HELLO, or HELLO came again.
    #[error("HELLO must come first, and only once")]
    Hello,
    /// A HELLO of a size that no dialect of this listener has.
    #[error("a HELLO of {size} bytes does not belong to any known version")]
    HelloSize {
        /// Bytes announced.
        size: u64,
    },
    /// Someone who has not proved who it is, from where that is needed.
    #[error(
        "clients from there must be paired (oxcart join); --allow-plain accepts those of a network that cannot be, \
         such as llama.cpp's"
    )]
    Plain,
    /// This machine's own key, from elsewhere.
    #[error(
        "another machine has the same key as this one, perhaps because they share a home folder; give each its own XDG_DATA_HOME"
    )]
    OwnKey,
    /// A key that is not known, or not any more.
    #[error("its key is not known here, or no longer")]
    Unknown,
    /// No TLS of ours.
    #[error("TLS: {reason}")]
    Tls {
        /// What is wrong.
        reason: String,
    },
    /// A machine that was not taken in.
    #[error("not paired: {0}")]
    NotPaired(crate::wire::NotPaired),
    /// A worker that no client of this one has introduced, or that does not know the secret.
    #[error("no client has introduced it")]
    NotIntroduced,
    /// A worker that says what none says.
    #[error(transparent)]
    WorkerMessage(WorkerMessageError),
    /// An introduction that the client has not made.
    #[error("this client has made no introduction {number}")]
    Introduction {
        /// Its number.
        number: u32,
    },
    /// Bytes that another worker was to send.
    #[error("what another worker was to send has not come (introduction {number}): {why}")]
    NotDelivered {
        /// The introduction.
        number: u32,
        /// Why.
        why: NotDelivered,
    },
    /// A graph that the client takes to be kept.
    #[error("a graph in a slot was not kept, because others needed the room")]
    NotKept,
    /// RESUME without an interruption.
    #[error("there is no interruption to go on after")]
    NoInterruption,
    /// A pulse of no session here, of one that has a pulse, or from elsewhere.
    #[error("no session of this client expects such a pulse")]
    NoSession,
    /// What is said on no pulse.
    #[error(transparent)]
    PulseMessage(PulseMessageError),
    /// A command that the dialect does not have.
    #[error("there is no command {number}")]
    Command {
        /// Its number.
        number: u8,
    },
    /// A body of another size than its command has.
    #[error("{command} cannot have a body of {size} bytes")]
    Size {
        /// The command.
        command: &'static str,
        /// Bytes announced.
        size: u64,
    },
    /// A device that the worker does not have.
    #[error("there is no device {device}")]
    Device {
        /// Its number.
        device: u32,
    },
    /// A number that is no handle of this client.
    #[error("{handle:#x} is not a buffer of this client")]
    Handle {
        /// The number.
        handle: u64,
    },
    /// Bytes outside a buffer or a tensor.
    #[error("{what}: bytes {offset}..+{len} are outside its {size} bytes")]
    Range {
        /// What they should have been inside of.
        what: &'static str,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Bytes there are.
        size: u64,
    },
    /// A type number that is not alive.
    #[error("there is no type {number}")]
    Type {
        /// The number.
        number: u32,
    },
    /// Extents and strides that make no tensor.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A graph whose bytes do not add up.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// An id that a graph uses but does not list.
    #[error("tensor {id:#x} is not in the graph")]
    Missing {
        /// The id.
        id: u64,
    },
    /// An id that a graph lists twice, or computes twice.
    #[error("tensor {id:#x} is in the graph twice")]
    Duplicate {
        /// The id.
        id: u64,
    },
    /// An operation number that the dialect does not have.
    #[error("there is no operation {number}")]
    Op {
        /// The number.
        number: u32,
    },
    /// Parameters that make no operation.
    #[error(transparent)]
    Params(#[from] ParamError),
    /// A node that the door does not let in.
    #[error("{op}: {reason}")]
    Node {
        /// The operation.
        op: &'static str,
        /// Why not.
        reason: String,
    },
    /// A tensor without memory where memory is needed.
    #[error("{op} uses a tensor that is in no buffer of this client")]
    NoMemory {
        /// The operation.
        op: &'static str,
    },
    /// A stored graph that is not there, or whose buffers are gone.
    #[error("there is no graph to compute again")]
    NoGraph,
    /// A number that is no slot for a graph.
    #[error("there is no slot of that number for a graph")]
    NoSlot,
    /// More than a limit allows.
    #[error("more than {limit} {what}")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// How much is allowed.
        limit: u64,
    },
    /// A device that failed on the client's work.
    #[error("{0}")]
    Failed(#[from] oxcart_backend::Error),
}

impl Refusal {
    /// A short word for counters and logs.
    pub const fn code(&self) -> &'static str {
        match self {
            Refusal::Hello | Refusal::HelloSize { .. } => "hello",
            Refusal::Plain => "plain",
            Refusal::OwnKey => "own_key",
            Refusal::Unknown => "unknown",
            Refusal::Tls { .. } => "tls",
            Refusal::NotPaired(_) => "join",
            Refusal::NotIntroduced
            | Refusal::WorkerMessage(_)
            | Refusal::Introduction { .. }
            | Refusal::NoInterruption => "introduction",
            Refusal::NotDelivered { .. } => "delivery",
            Refusal::NotKept => "not_kept",
            Refusal::NoSession | Refusal::PulseMessage(_) => "pulse",
            Refusal::Command { .. } => "command",
            Refusal::Size { .. } => "size",
            Refusal::Device { .. } => "device",
            Refusal::Handle { .. } => "handle",
            Refusal::Range { .. } => "range",
            Refusal::Type { .. } | Refusal::Layout(_) => "tensor",
            Refusal::Graph(_) | Refusal::Missing { .. } | Refusal::Duplicate { .. } => "graph",
            Refusal::Op { .. } | Refusal::Params(_) | Refusal::Node { .. } => "node",
            Refusal::NoMemory { .. } => "memory",
            Refusal::NoGraph | Refusal::NoSlot => "recompute",
            Refusal::Limit { .. } => "limit",
            Refusal::Failed(_) => "failed",
        }
    }
}
