//! ggml's RPC protocol, as a worker and as a client.
//!
//! [`wire`] turns bytes into typed messages and back, for every dialect in use; it knows no socket, no clock and no
//! device. [`worker`] lends devices to clients; [`client`] makes a worker's devices look like any other. [`link`] is how machines
//! know each other.
#![forbid(unsafe_code)]

pub mod client;
mod counted;
pub mod link;
mod os;
pub mod wire;
pub mod worker;
