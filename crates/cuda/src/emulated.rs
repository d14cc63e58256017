//! A driver for tests: its card is this processor, which runs the very kernels that cards run.
//!
//! Kernels are compiled by the machine's C++ compiler together with `kernels/emulate.h`; where there is none, tests say that
//! they are skipped. Work is done when it is given. Memory has a page without access before and after it, so a kernel that
//! strays ends the test at once. Any call can be made to fail ([`Emulated::fail`]), once or for good.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod card;
mod compile;
mod tests;

pub(crate) use card::Emulated;

use std::sync::Arc;

use crate::device::CudaDevice;
use crate::registry::CudaRegistry;

/// A device on a card on paper.
pub(crate) fn on_paper(
    capability: (u32, u32),
    multiprocessors: u32,
    shared_memory: u32,
) -> (Arc<Emulated>, Arc<CudaDevice>) {
    let driver = Arc::new(Emulated::paper(capability, multiprocessors, shared_memory));
    let registry = CudaRegistry::with_driver(Arc::clone(&driver) as _).unwrap();
    let device = Arc::clone(&registry.cuda_devices()[0]);
    (driver, device)
}

/// A device on an emulated card, if this machine can compile kernels.
pub(crate) fn device() -> Option<(Arc<Emulated>, Arc<CudaDevice>)> {
    let driver = Arc::new(Emulated::new(compile::kernels()?));
    let registry = CudaRegistry::with_driver(Arc::clone(&driver) as _).unwrap();
    let device = Arc::clone(&registry.cuda_devices()[0]);
    Some((driver, device))
}
