//! Which families of devices there are.
//!
//! Concurrency: a registry of registries may be used from any thread. Callers get `Arc`s, so unregistering never takes a
//! device away from its users.

use std::any::{Any, TypeId};
use std::fmt;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use crate::device::{Device, DeviceKind};
use crate::error::Error;

/// A family of devices, for example all GPUs that one driver knows, or all devices a peer lends.
pub trait Registry: Send + Sync + fmt::Debug {
    /// Its name, for example `CUDA`.
    fn name(&self) -> &str;

    /// Its devices, the same ones each time.
    fn devices(&self) -> Vec<Arc<dyn Device>>;

    /// Something only this family has, by type; see [`Registries::extension`].
    fn extension(&self, _wanted: TypeId) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }
}

/// Registered families, in the order they were registered.
#[derive(Debug, Default)]
pub struct Registries {
    list: RwLock<Vec<Arc<dyn Registry>>>,
}

/// The registry of this process.
pub fn global() -> &'static Registries {
    static GLOBAL: LazyLock<Registries> = LazyLock::new(Registries::new);
    &GLOBAL
}

impl Registries {
    /// An empty registry; most programs want [`global`].
    pub fn new() -> Registries {
        Registries::default()
    }

    /// Adds a family. Its name must be new; case does not matter.
    pub fn register(&self, registry: Arc<dyn Registry>) -> Result<(), Error> {
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        if list.iter().any(|known| known.name().eq_ignore_ascii_case(registry.name())) {
            return Err(Error::NameTaken { name: registry.name().to_owned() });
        }
        list.push(registry);
        Ok(())
    }

    /// Takes a family away and says whether it was there.
    pub fn unregister(&self, name: &str) -> bool {
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        let before = list.len();
        list.retain(|registry| !registry.name().eq_ignore_ascii_case(name));
        list.len() < before
    }

    /// All families.
    pub fn all(&self) -> Vec<Arc<dyn Registry>> {
        self.list.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The family of a name; case does not matter.
    pub fn by_name(&self, name: &str) -> Option<Arc<dyn Registry>> {
        self.all().into_iter().find(|registry| registry.name().eq_ignore_ascii_case(name))
    }

    /// All devices of all families.
    pub fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.all().iter().flat_map(|registry| registry.devices()).collect()
    }

    /// The device of a name; case does not matter.
    pub fn device_by_name(&self, name: &str) -> Option<Arc<dyn Device>> {
        self.devices().into_iter().find(|device| device.name().eq_ignore_ascii_case(name))
    }

    /// The family a device belongs to, if it is registered.
    pub fn family_of(&self, device: &Arc<dyn Device>) -> Option<Arc<dyn Registry>> {
        let same = |other: &Arc<dyn Device>| std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(device));
        self.all().into_iter().find(|registry| registry.devices().iter().any(same))
    }

    /// The first device of a kind.
    pub fn device_by_kind(&self, kind: DeviceKind) -> Option<Arc<dyn Device>> {
        self.devices().into_iter().find(|device| device.kind() == kind)
    }

    /// The device a program without preferences should use: a GPU, else an integrated one, else the CPU.
    pub fn best_device(&self) -> Option<Arc<dyn Device>> {
        [DeviceKind::Gpu, DeviceKind::IntegratedGpu, DeviceKind::Cpu]
            .into_iter()
            .find_map(|kind| self.device_by_kind(kind))
    }

    /// Something only one family has, by type: what a program would otherwise look up by the name of a symbol.
    pub fn extension<T: Any + Send + Sync>(&self, family: &str) -> Option<Arc<T>> {
        self.by_name(family)?.extension(TypeId::of::<T>())?.downcast().ok()
    }
}
