//! One graph, many devices: the fewest bytes and the fewest copies.
//!
//! [`memory`] packs a graph's tensors into buffers; the [`Scheduler`] decides which device computes each node, cuts
//! the graph into splits and runs each split where its data lives. Devices are seen through the traits of
//! `oxcart-backend` only.
#![forbid(unsafe_code)]

mod assign;
mod error;
mod kept;
pub mod memory;
mod picture;
mod prepared;
mod program;
mod report;
mod scheduler;
mod split;
mod streams;

pub use assign::{Assignment, Cause};
pub use error::Error;
pub use prepared::{Observer, Prepared};
pub use report::Report;
pub use scheduler::{Options, Scheduler};
pub use split::{Split, SplitInput};
pub use streams::StreamId;
