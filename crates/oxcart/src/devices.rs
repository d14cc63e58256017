//! The devices of this machine.
//!
//! Invariant: this is the one place that lists the kinds of devices there are; every caller sees all of them. Those
//! that are preferred come first, the CPU, which can do everything, comes last.

use std::path::Path;
use std::sync::Arc;

use oxcart_backend::{Device, DeviceKind, Error, Registries, Registry, plugin};
use oxcart_cpu::CpuRegistry;
use oxcart_cuda::CudaRegistry;
use oxcart_llm::model::Proportions;

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

/// How a model is shared out unless the user says otherwise, given the devices of this machine: where there are cards, the CPU
/// only gets what they have no room for.
pub fn usual_proportions(local: &[Arc<dyn Device>]) -> Proportions {
    let has_card =
        local.iter().any(|device| matches!(device.kind(), DeviceKind::Gpu | DeviceKind::IntegratedGpu));
    if has_card { Proportions::SpareLast { most: None } } else { Proportions::ByFreeMemory }
}

/// Why devices that seem to be there are not listed: for people, a sentence for each kind of device.
pub fn unavailable() -> Vec<String> {
    match CudaRegistry::new() {
        Err(oxcart_cuda::Unavailable::Unusable { reason }) => vec![reason],
        _ => Vec::new(),
    }
}

/// Why there are no devices of a kind here, whether its driver cannot be used or is not there at all: for people, a sentence for each kind
/// of device.
pub fn missing() -> Vec<String> {
    match CudaRegistry::new() {
        Ok(cards) if cards.devices().is_empty() => {
            vec!["NVIDIA's driver is here, but no card that it knows".into()]
        }
        Ok(_) => Vec::new(),
        Err(unavailable) => vec![unavailable.to_string()],
    }
}
