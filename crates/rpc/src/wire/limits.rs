//! Every bound that messages have in all dialects, by name. What a worker allows beyond them is its own affair.

use super::RECORD_BYTES;

/// The most nodes a graph may have.
pub const MAX_NODES: usize = 131_072;
/// The most tensors a graph may have.
pub const MAX_TENSORS: usize = 200_000;
/// The longest body of a graph.
pub const MAX_GRAPH_BYTES: usize = 64 << 20;

const _: () = assert!(12 + 8 * MAX_NODES + RECORD_BYTES * MAX_TENSORS <= MAX_GRAPH_BYTES);

/// The most graphs that a worker keeps for a client at a time, beside the last ones of its devices.
pub const MAX_KEPT_GRAPHS: usize = 256;

/// Rounds that an operation may repeat its work; honest clients ask for a few dozen.
pub(super) const MAX_ITERATIONS: u32 = 1024;

/// The longest text of a message by which two machines meet.
pub const MAX_PAIRING_BYTES: usize = 4096;

/// The most bytes that one worker pushes to another at a time; more take several.
pub const MAX_DELIVERY_BYTES: usize = 64 << 20;
