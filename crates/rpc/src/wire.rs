//! Bytes to typed messages and back: ggml's, for every dialect of its protocol, and those of Oxcarts among themselves: machines that
//! are paired, workers that a client introduces to each other, and a client and a worker that watch each other's life.
//!
//! Sans-IO: nothing in here reads a socket or a clock. A [`Dialect`] is a table of what differs between versions; the
//! rest of this module is what they share.
//!
//! Invariant: nothing in here panics on any bytes, and no length is believed before that many bytes have arrived.

mod command;
mod dialect;
mod dialects;
mod frame;
mod graph;
mod hash;
mod interruption;
mod introduction;
mod kept_graph;
mod limits;
mod offer;
mod op_code;
mod pairing;
mod params;
mod pulse;
mod record;
mod take;
mod worker_message;

pub use command::{Command, Reply};
pub use dialect::{Dialect, Version};
pub use frame::{FRAME_BYTES, FrameHead};
pub use graph::{GraphBody, GraphError, encode_graph};
pub use hash::{Fnv1a, fnv1a};
pub use interruption::{Interruption, NotDelivered};
pub use introduction::{Address, Expect, Meet, Transfer};
pub use kept_graph::{Slot, kept_graph_bytes};
pub use limits::{
    MAX_DELIVERY_BYTES, MAX_GRAPH_BYTES, MAX_KEPT_GRAPHS, MAX_NODES, MAX_PAIRING_BYTES, MAX_TENSORS,
};
pub use offer::{
    CAPABILITY_BYTES, NO_CAPABILITIES, answer_capabilities, offers_arithmetic, offers_copies,
    offers_introductions, offers_kept_graphs, offers_own_ops, offers_pulses, offers_takes, with_arithmetic,
    with_copies, with_kept_graphs,
};
pub use op_code::OpCode;
pub use pairing::{NotPaired, PairingError, PairingMessage};
pub use params::{ParamError, Params, encode_params};
pub use pulse::{PULSE_MARK, PulseMessage, PulseMessageError};
pub use record::{NO_TENSOR, RECORD_BYTES, TensorRecord};
pub use take::{ContentSum, Take, content_of};
pub use worker_message::{DeliveryHead, WORKER_MARK, WorkerMessage, WorkerMessageError};
