//! Kernels, plans and the driver's failures, on an emulated card.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a test may print figures, and may panic")]

mod cards;
mod cases;
mod faults;
mod fused;
mod products;
mod registry;
mod twins;
