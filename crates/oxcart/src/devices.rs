//! The devices of this machine.
//!
//! Invariant: this is the one place that lists the kinds of devices there are; every caller sees all of them. Those
//! that are preferred come first, the CPU, which can do everything, comes last.

use std::path::Path;

use oxcart_backend::{Error, Registries, plugin};
use oxcart_cpu::CpuRegistry;
use oxcart_cuda::CudaRegistry;

/// Finds the devices of this machine, and those that plug-ins bring.
///
/// ```
/// let found = oxcart::devices::find(&[] as &[&str])?;
/// assert!(found.devices().iter().any(|device| device.name() == "CPU"));
/// # Ok::<(), oxcart::backend::Error>(())
/// ```
pub fn find(plugins: &[impl AsRef<Path>]) -> Result<Registries, Error> {
    let found = Registries::new();
    for path in plugins {
        plugin::load(path.as_ref(), &found)?;
    }
    // A machine without cards, or with a driver that cannot be used, has no such devices; `unavailable` says why.
    if let Ok(cards) = CudaRegistry::new() {
        found.register(cards)?;
    }
    found.register(CpuRegistry::new()?)?;
    Ok(found)
}

/// Why devices that seem to be there are not listed: for people, a sentence for each kind of device.
pub fn unavailable() -> Vec<String> {
    match CudaRegistry::new() {
        Err(oxcart_cuda::Unavailable::Unusable { reason }) => vec![reason],
        _ => Vec::new(),
    }
}
