//! A client: a worker's devices, used like any other.
//!
//! [`RemoteRegistry::connect`] greets a worker and lists its devices. All of them share one connection, on which commands
//! take turns (`connection`); the caller of a command that has an answer waits for it, other commands are not waited for.
//!
//! Invariants: whatever a worker sends or fails to send ends in an error, never in a panic or an endless wait; no size it
//! says is believed beyond what was asked for. After a failure every call fails at once, with the cause and with the
//! commands that it may have cost. Threads: two per connection, one which sends the commands that no caller waits
//! for, and one which watches whether the worker is alive (`pulse`).

mod buffer;
mod buffer_type;
mod channel;
mod classic;
mod connection;
mod device;
mod endpoint;
mod failure;
mod graph;
mod handshake;
mod introduction;
mod job;
mod join;
mod known_graphs;
pub mod limits;
mod line;
mod message;
mod options;
mod pulse;
mod record;
mod registry;
mod stream;
mod support;
mod traffic;

pub use buffer::RemoteBuffer;
pub use buffer_type::RemoteBufferType;
pub(crate) use channel::Channel;
pub use device::RemoteDevice;
pub use endpoint::{Endpoint, EndpointError};
pub use failure::{About, ConnectError, Note, Unconfirmed, WorkerFailure, WorkerFault};
pub use graph::{AddressOf, EncodedGraph, encode_nodes};
pub use join::{JoinError, Joined, invite, join};
pub use options::{LinkTo, Options, Timeouts};
pub use registry::{Abilities, RemoteRegistry};
pub use stream::RemoteStream;
pub use traffic::{Traffic, Usage};
