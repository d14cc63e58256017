//! NVIDIA cards as devices.
//!
//! The driver is loaded at run time, so a program built here needs nothing of NVIDIA's and lists no card where there is none.
//! Kernels are CUDA C++ in `kernels/`, compiled ahead and committed (`images/`); `docs/cuda.md` says how.
//!
//! A graph becomes a plan: a list of launches with all their parameters, neighbours fused where one kernel can do them in one
//! go. A plan that runs again and again is recorded and replayed as a whole.
//!
//! Invariants:
//! - `unsafe` stands in `driver` (calls to NVIDIA's library), `memory` (bytes handed to it) and `plan` (launches), and each
//!   block says why it is sound;
//! - a plan checks every tensor against its buffer before its address enters a launch, and holds every buffer that its
//!   launches use;
//! - a card that fails for good ends as [`Error::DeviceLost`](oxcart_backend::Error::DeviceLost) for those that use it, and for
//!   no others.

mod card;
mod device;
mod driver;
#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod emulated;
mod images;
#[cfg(test)]
mod instances;
mod kernels;
mod memory;
mod plan;
mod registry;
#[cfg(test)]
mod ruined;
mod stream;

pub use device::CudaDevice;
pub use registry::{CudaRegistry, Unavailable};
pub use stream::CudaStream;
