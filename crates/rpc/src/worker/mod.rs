//! A worker: lends its devices to clients that speak the protocol.
//!
//! [`Space`] is what one client can see: buffers under made-up handles and addresses. [`rebuild`] turns a graph from the
//! wire into one of ours, through the door, with every tensor found in that space.

mod rebuild;
mod refusal;
mod space;

pub use rebuild::{Rebuilt, rebuild};
pub use refusal::Refusal;
pub use space::{Space, Window};
