//! What devices hold of a model that moves: it was taken off its devices, and is loaded again on those that remain.
//!
//! Invariant: a weight is used again only on the very device that has it, from the bytes that were loaded there. What the new placement has
//! no use for is given back before anything is loaded.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use oxcart_backend::{Buffer, Device};
use oxcart_gguf::Mapping;

use super::error::Error;
use super::file::ModelFile;
use super::placement::{Placement, is_mapped};
use super::weights::{Model, Weight};

/// A weight, and the device and the buffer that it is in.
#[derive(Debug)]
struct HeldWeight {
    device: Arc<dyn Device>,
    weight: Weight,
    buffer: Arc<dyn Buffer>,
}

/// Bytes that a device holds.
pub(crate) type HeldBytes = (Arc<dyn Device>, usize);

/// The file of a model and what devices have of it.
#[derive(Debug)]
pub(crate) struct Held {
    file: Arc<ModelFile>,
    mappings: Vec<Arc<Mapping>>,
    /// By name, where it is.
    weights: HashMap<String, Vec<HeldWeight>>,
}

impl Held {
    /// A file of which no device has anything yet.
    pub(crate) fn nothing_of(file: Arc<ModelFile>) -> Result<Held, Error> {
        let mappings = file.files().files().iter().map(|file| Ok(Arc::new(file.map()?)));
        let mappings = mappings.collect::<Result<Vec<_>, Error>>()?;
        Ok(Held { file, mappings, weights: HashMap::new() })
    }

    /// What is held of a model. Devices that compute on the mapping hold nothing.
    pub(crate) fn of(model: &Model) -> Held {
        let mut weights: HashMap<String, Vec<HeldWeight>> = HashMap::new();
        for (name, weight) in model.weights().iter() {
            let device = &model.devices()[weight.device];
            let known = weights.entry(name.clone()).or_default();
            if is_mapped(&**device) || known.iter().any(|held| is_same(&held.device, device)) {
                continue;
            }
            if let Ok(buffer) = model.weights().buffers().get(weight.storage.buffer) {
                let (device, buffer) = (Arc::clone(device), Arc::clone(buffer));
                known.push(HeldWeight { device, weight: *weight, buffer });
            }
        }
        Held { file: Arc::clone(model.file()), mappings: model.mappings().to_vec(), weights }
    }

    pub(crate) fn file(&self) -> &Arc<ModelFile> {
        &self.file
    }

    pub(crate) fn mappings(&self) -> &[Arc<Mapping>] {
        &self.mappings
    }

    /// A weight that a device has.
    pub(crate) fn find(&self, device: &Arc<dyn Device>, name: &str) -> Option<(&Weight, &Arc<dyn Buffer>)> {
        let held = self.weights.get(name)?.iter().find(|held| is_same(&held.device, device))?;
        Some((&held.weight, &held.buffer))
    }

    /// The bytes of each buffer.
    pub(crate) fn all_bytes(&self) -> Vec<HeldBytes> {
        let mut seen = HashSet::new();
        let buffers = self.weights.values().flatten();
        let buffers = buffers.filter(|held| seen.insert(Arc::as_ptr(&held.buffer).cast::<()>()));
        buffers.map(|held| (Arc::clone(&held.device), held.buffer.len())).collect()
    }

    /// Gives back what a placement has no use for.
    pub(crate) fn retain(&mut self, placement: &Placement) {
        for (name, all) in &mut self.weights {
            all.retain(|held| {
                let mut needed = placement.tensors().iter().filter(|tensor| tensor.name == *name);
                needed.any(|tensor| is_same(&placement.devices()[tensor.device], &held.device))
            });
        }
    }
}

fn is_same(one: &Arc<dyn Device>, other: &Arc<dyn Device>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}
