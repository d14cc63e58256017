//! A model on disk: its hyper-parameters, and every tensor it must have, checked.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::Path;

use oxcart_gguf::{ByteOrder, GgufSet, Metadata};
use oxcart_tensor::Shape;

use super::contents::Contents;
use super::error::Error;
use super::hyper_parameters::{HyperParameters, Pooling};
use super::net::{AttentionPath, Built, Needed, Net, StepShape, Style, Survey};
use crate::runner::RunnerOptions;
use crate::runner::pages::PAGE;
use crate::runner::sequence::KINDS;

/// A model whose file has been checked and whose weights have not been touched.
#[derive(Debug)]
pub struct ModelFile {
    set: GgufSet,
    /// Of each file, what its tensors are known by.
    contents: Vec<Contents>,
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
        let (shape, style) = large_step(&hyper);
        let (survey, Survey { mut needed, mut unused }) = Net::survey(&hyper, &set, shape, style)?;
        if hyper.source.is_some() {
            let (_, reading) = Net::survey(&hyper, &set, StepShape::reading(1), style)?;
            let is_new = |other: &Needed| {
                needed.iter().all(|known| (&known.name, known.section) != (&other.name, other.section))
            };
            let more: Vec<Needed> = reading.needed.into_iter().filter(is_new).collect();
            needed.extend(more);
            unused.extend(reading.unused);
        }
        let names = needed.iter().map(|needed| &needed.name);
        let known: HashSet<&str> = names.chain(&unused).map(String::as_str).collect();
        let is_known = |name: &str| known.contains(name) || is_harmless(name, &hyper);
        if let Some(extra) = set.tensors().find(|tensor| !is_known(tensor.info.name())) {
            return Err(Error::ExtraTensor { name: extra.info.name().to_owned() });
        }
        let contents = set.files().iter().map(Contents::of).collect();
        Ok(ModelFile { set, contents, hyper, needed, survey, surveyed: (shape, style) })
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

    /// Of each file, what its tensors are known by.
    pub fn contents(&self) -> &[Contents] {
        &self.contents
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

impl HyperParameters {
    /// The tensors that a file with these hyper-parameters must have, and their extents.
    pub fn tensors(&self) -> Result<Vec<(String, Shape)>, Error> {
        let (shape, style) = large_step(self);
        let mut tensors: Vec<(String, Shape)> = Vec::new();
        let mut all = Net::wish(self, shape, style)?;
        if self.source.is_some() {
            all.extend(Net::wish(self, StepShape::reading(1), style)?);
        }
        for needed in all {
            if !tensors.iter().any(|(name, _)| *name == needed.name) {
                tensors.push((needed.name, needed.layout.ne()));
            }
        }
        Ok(tensors)
    }
}

/// A large step, as most runners will have it.
fn large_step(hyper: &HyperParameters) -> (StepShape, Style) {
    let options = RunnerOptions::default();
    let pooling = hyper.widest_pooling();
    let path = AttentionPath::usual(hyper);
    let cells = if path == AttentionPath::Plain { [PAGE; KINDS] } else { [0; KINDS] };
    let shape = StepShape { pooling, cells, ..options.largest_step(hyper) };
    (shape, Style { path, cache: options.cache_types(), long_context: false })
}

/// Tensors that change nothing if they are left out: heads for other purposes, tables that are computed here, what activations
/// were scaled by when the file was made, and blocks that guess several tokens at once.
fn is_harmless(name: &str, hyper: &HyperParameters) -> bool {
    let block = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')?.0.parse().ok());
    // Some use blocks of the file several times.
    let count = hyper.blocks.iter().map(|block| block.tensors + 1).max().unwrap_or(0);
    let guessing = count..count + hyper.guessing_blocks;
    let ranks = hyper.pooling == Pooling::Rank;
    let traits = &hyper.architecture.traits;
    // Where nothing rotates there are no frequencies.
    let has_factors = traits.frequency_factors && traits.rope.is_some();
    name.starts_with("cls.") && !ranks
        || name == "rope_freqs.weight" && !has_factors
        || name.contains(".attn_rot_embd")
        || name.ends_with(".input_scale")
        || block.is_some_and(|block: usize| guessing.contains(&block))
}
