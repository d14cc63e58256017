//! The CPU device: every op and every type, on the processor this program runs on.
//!
//! A graph becomes a plan: for each node a kernel, chosen once for its types and for the processor's
//! instructions, a number of threads, and scratch memory. Running a plan is a loop over its steps, which all threads of
//! a small pool walk together.
//!
//! Invariants:
//! - results do not depend on the number of threads: work is cut so that each result element is computed by one
//!   thread, in an order that the cut does not change;
//! - all raw memory access goes through `view` (tensors), `simd` (vectors) and the inner loops of matrix products;
//!   everything above is safe code;
//! - a bad index in tensor data, a panic in a kernel or a request to stop ends a run with an error, never the process.

mod claims;
mod device;
mod float16;
mod job;
mod kernels;
mod os;
mod plan;
mod pool;
mod simd;
mod stream;
mod view;

pub use device::{CpuDevice, CpuRegistry};
pub use job::{MOST_BETWEEN_LOOKS, WorkDone};
pub use os::allocator::{return_freed_memory, return_kept_memory};
pub use simd::{Level, LevelError};
pub use stream::CpuStream;
