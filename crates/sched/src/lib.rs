//! One graph, many devices: the fewest bytes and the fewest copies.
//!
//! [`memory`] packs a graph's tensors into buffers; the scheduler decides which device computes each node, cuts the
//! graph into splits and runs each split where its data lives. Devices are seen through the traits of
//! `oxcart-backend` only.
#![forbid(unsafe_code)]

pub mod memory;
