//! A model on disk: its hyper-parameters, and every tensor it must have, checked.

use std::collections::HashSet;
use std::path::Path;

use oxcart_gguf::{ByteOrder, GgufSet, Metadata};

use super::error::Error;
use super::hyper_parameters::HyperParameters;
use super::net::{Needed, Net};

/// A model whose file has been checked and whose weights have not been touched.
#[derive(Debug)]
pub struct ModelFile {
    set: GgufSet,
    hyper: HyperParameters,
    needed: Vec<Needed>,
}

impl ModelFile {
    /// Opens a model by its first or only file.
    pub fn open(path: impl AsRef<Path>) -> Result<ModelFile, Error> {
        ModelFile::new(GgufSet::open(path)?)
    }

    /// Checks a model that is open.
    pub fn new(set: GgufSet) -> Result<ModelFile, Error> {
        if set.files().iter().any(|file| file.format().byte_order == ByteOrder::Big) {
            return Err(Error::BigEndian);
        }
        let hyper = HyperParameters::read(set.metadata())?;
        let needed = Net::survey(&hyper, &set)?;
        let known: HashSet<&str> = needed.iter().map(|needed| needed.name.as_str()).collect();
        let is_known = |name: &str| known.contains(name) || is_harmless(name);
        if let Some(extra) = set.tensors().find(|tensor| !is_known(tensor.info.name())) {
            return Err(Error::ExtraTensor { name: extra.info.name().to_owned() });
        }
        Ok(ModelFile { set, hyper, needed })
    }

    /// Its size and shape.
    pub fn hyper(&self) -> &HyperParameters {
        &self.hyper
    }

    /// Everything the file says, for tokenizers and templates.
    pub fn metadata(&self) -> Metadata<'_> {
        self.set.metadata()
    }

    /// The files.
    pub fn files(&self) -> &GgufSet {
        &self.set
    }

    pub(crate) fn needed(&self) -> &[Needed] {
        &self.needed
    }
}

/// Tensors that change nothing if they are left out: heads for other purposes, tables that are computed here.
fn is_harmless(name: &str) -> bool {
    name.starts_with("cls.") || name == "rope_freqs.weight" || name.contains(".attn_rot_embd")
}
