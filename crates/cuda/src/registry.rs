//! The cards of this machine.

use std::sync::Arc;

use oxcart_backend::{Device, Registry};

use crate::card::Card;
use crate::device::CudaDevice;
use crate::driver::{Driver, DriverFailure, Library};

/// Why there are no cards to work with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// This machine has no NVIDIA driver.
    #[error("there is no NVIDIA driver on this machine")]
    NoDriver,
    /// There is one, but it cannot be used.
    #[error("{reason}")]
    Unusable {
        /// Why not, for people.
        reason: String,
    },
}

/// The oldest driver that takes our kernels: that of CUDA 12.2.
const OLDEST_DRIVER: i32 = 12_020;

/// The least capability that our kernels are made for.
const LEAST_CAPABILITY: (u32, u32) = (7, 5);

/// The cards of this machine.
#[derive(Debug)]
pub struct CudaRegistry {
    devices: Vec<Arc<CudaDevice>>,
}

impl CudaRegistry {
    /// Loads the driver, if there is one, and looks for cards. Cards that are too old are left out; a registry may have none.
    pub fn new() -> Result<Arc<CudaRegistry>, Unavailable> {
        use crate::driver::NoLibrary;
        let driver = Library::load().map_err(|error| match error {
            NoLibrary::NoDriver => Unavailable::NoDriver,
            other => Unavailable::Unusable { reason: other.to_string() },
        })?;
        CudaRegistry::with_driver(Arc::new(driver))
    }

    /// The cards of a driver.
    pub(crate) fn with_driver(driver: Arc<dyn Driver>) -> Result<Arc<CudaRegistry>, Unavailable> {
        let unusable = |reason: String| Unavailable::Unusable { reason };
        let version = driver.version();
        if version < OLDEST_DRIVER {
            let found = format!("CUDA {}.{}", version / 1000, version % 1000 / 10);
            return Err(unusable(format!(
                "the NVIDIA driver is for {found}; 535 or newer (CUDA 12.2) is needed"
            )));
        }
        let failed =
            |failure: DriverFailure| unusable(format!("the NVIDIA driver lists no cards: {failure}"));
        let count = driver.card_count().map_err(failed)?;
        let mut devices = Vec::new();
        for number in 0..count {
            let card = Card::new(Arc::clone(&driver), number).map_err(failed)?;
            if card.info.capability >= LEAST_CAPABILITY {
                devices.push(CudaDevice::new(card));
            }
        }
        Ok(Arc::new(CudaRegistry { devices }))
    }

    /// Its devices as what they are.
    pub fn cuda_devices(&self) -> &[Arc<CudaDevice>] {
        &self.devices
    }
}

impl Registry for CudaRegistry {
    fn name(&self) -> &str {
        "CUDA"
    }

    fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect()
    }
}
