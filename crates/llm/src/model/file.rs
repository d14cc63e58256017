//! A model on disk: its hyper-parameters, and every tensor it must have, checked.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::Path;

use oxcart_gguf::{ByteOrder, GgufSet, Metadata};

use super::error::Error;
use super::hyper_parameters::{HyperParameters, Pooling};
use super::net::{AttentionPath, Built, Needed, Net, StepShape, Style};
use crate::runner::RunnerOptions;

/// A model whose file has been checked and whose weights have not been touched.
#[derive(Debug)]
pub struct ModelFile {
    set: GgufSet,
    hyper: HyperParameters,
    needed: Vec<Needed>,
    /// The graph that was built to find out what is needed: that of a large step, as most runners will have it.
    survey: Built,
    surveyed: (StepShape, Style),
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
        let options = RunnerOptions::default();
        let largest = options.largest_step();
        // The pooling that needs most.
        let pooling = if hyper.is_encoder() { Pooling::Mean } else { Pooling::None };
        let path =
            if hyper.is_encoder() { AttentionPath::Flash { mask_rows: 1 } } else { AttentionPath::Paged };
        let shape = StepShape { pooling, ..largest };
        let style = Style { path, cache_type: options.cache_type, long_context: false };
        let (survey, needed) = Net::survey(&hyper, &set, shape, style)?;
        let known: HashSet<&str> = needed.iter().map(|needed| needed.name.as_str()).collect();
        let is_known = |name: &str| known.contains(name) || is_harmless(name);
        if let Some(extra) = set.tensors().find(|tensor| !is_known(tensor.info.name())) {
            return Err(Error::ExtraTensor { name: extra.info.name().to_owned() });
        }
        Ok(ModelFile { set, hyper, needed, survey, surveyed: (shape, style) })
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

    /// A graph of this shape and style, without data.
    pub(crate) fn survey(&self, shape: StepShape, style: Style) -> Result<Cow<'_, Built>, Error> {
        if self.surveyed == (shape, style) {
            return Ok(Cow::Borrowed(&self.survey));
        }
        Ok(Cow::Owned(Net::survey(&self.hyper, &self.set, shape, style)?.0))
    }

    pub(crate) fn needed(&self) -> &[Needed] {
        &self.needed
    }
}

/// Tensors that change nothing if they are left out: heads for other purposes, tables that are computed here.
fn is_harmless(name: &str) -> bool {
    name.starts_with("cls.") || name == "rope_freqs.weight" || name.contains(".attn_rot_embd")
}
