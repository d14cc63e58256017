//! A worker: lends its devices to clients that speak the protocol.
//!
//! [`Worker`] listens; each connection has a thread, which finds out who comes (`entry`), then reads commands (`connection`) and has a
//! `session` carry them out; or it meets a machine (`join`), or takes in what another worker sends (`reception`, `introductions`, `mailbox`;
//! `neighbours` and `courier` are the other end); or it is the pulse of another connection (`pulses`, `beats`). [`Trust`] is whom the worker knows. [`Space`] is what one client can
//! see: buffers under made-up handles and addresses. [`rebuild()`] turns a graph
//! from the wire into one of ours, through the door, with every tensor found in that space; a `sliced_graph` is such a
//! graph cut into slices, and clients take turns slice by slice (`turnstile`, `lent`). A `watch`er ends connections that
//! are late and whatever is still done for a client that has gone. A [`WeightCache`] keeps weights on disk; [`Copies`] are the worker's own.
//!
//! Invariants: a request is checked whole before its first effect; a refused one ends its connection (or, where version 2
//! has a way to say so, is answered) and affects no other client; a connection that ends gives back all it had.

mod beats;
mod budget;
mod cache;
mod client;
mod connection;
mod copies;
mod counters;
mod courier;
mod entry;
mod event;
mod introductions;
mod join;
mod lent;
mod limits;
mod listen;
mod mailbox;
mod neighbours;
mod outlet;
mod parts;
mod passing;
mod peer;
mod pulses;
mod rebuild;
mod reception;
mod refusal;
mod roster;
mod server;
mod session;
mod short_message;
mod sliced_graph;
mod space;
mod stored_graphs;
mod trust;
mod turnstile;
mod watch;

pub use cache::{CacheCounts, CacheSettings, Call, Domain, DomainOf, Gate, Keeping, WeightCache};
pub use client::Dropped;
pub use copies::Copies;
pub use counters::Snapshot;
pub use entry::Plain;
pub use event::{Event, Observer, PairingNews, Totals};
pub use limits::Limits;
pub use rebuild::{Rebuilt, rebuild};
pub use refusal::Refusal;
pub use server::{Config, DialectChoice, Worker};
pub use space::{BufferRange, Space};
pub use trust::Trust;
