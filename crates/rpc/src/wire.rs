//! Bytes to typed messages and back, for every dialect of the protocol.
//!
//! Sans-IO: nothing in here reads a socket or a clock. A [`Dialect`] is a table of what differs between versions; the
//! rest of this module is what they share.
//!
//! Invariant: nothing in here panics on any bytes, and no length is believed before that many bytes have arrived.

mod command;
mod dialect;
mod dialects;
mod graph;
mod hash;
mod limits;
mod offer;
mod op_code;
mod params;
mod record;

pub use command::{Command, Reply};
pub use dialect::{Dialect, Version};
pub use graph::{GraphBody, GraphError, encode_graph};
pub use hash::{Fnv1a, fnv1a};
pub use limits::{MAX_GRAPH_BYTES, MAX_NODES, MAX_TENSORS};
pub use offer::{CAPABILITY_BYTES, NO_CAPABILITIES, answer_capabilities, offers_own_ops};
pub use op_code::OpCode;
pub use params::{ParamError, Params, encode_params};
pub use record::{NO_TENSOR, RECORD_BYTES, TensorRecord};
