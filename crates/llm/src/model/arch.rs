//! Architectures. One is a small file: what is special about its hyper-parameters, and its graph, block by block.
//!
//! To add one: a file with a type that implements [`Architecture`], and a line in [`ALL`]. Tensors need not be listed
//! anywhere: the graph is built once without data to find out which there must be.

mod bert;
mod deepseek;
mod gemma;
mod gpt_oss;
mod granite;
mod lfm2;
mod llama;
mod mamba;
mod phi3;
mod qwen;
mod qwen_next;

use std::fmt;

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::RopeMode;

use super::error::Error;
use super::hyper_parameters::HyperParameters;
use super::keys::Keys;
use super::net::Net;

/// Where a sliding window comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Window {
    /// There is none, whatever the file says.
    Ignored,
    /// The file may have one.
    Optional,
    /// The file may have another one.
    Default(usize),
    /// The file must have one.
    Required,
}

/// Whether there are experts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExpertUse {
    Never,
    Maybe,
    Always,
}

/// Where the size of experts comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExpertSize {
    /// It is that of the dense network.
    Dense,
    /// It has a key of its own, or is a share of the dense network's.
    OwnOrShare,
    /// It has a key of its own.
    Own,
}

/// Which blocks have attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heads {
    /// All of them.
    Always,
    /// Those with heads of keys.
    Some,
    /// None, whatever the file says.
    None,
}

/// What hyper-parameters mean in an architecture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traits {
    /// Which channels rotate together; `None` when nothing rotates.
    pub(crate) rope: Option<RopeMode>,
    /// Whether all channels of a head must rotate.
    pub(crate) rotates_all: bool,
    /// Base and scale of windowed blocks, where they differ.
    pub(crate) rope_windowed: Option<(f32, f32)>,
    pub(crate) heads: Heads,
    pub(crate) window: Window,
    /// Every how many blocks one sees everything.
    pub(crate) window_period: usize,
    /// Layer norms with an epsilon of their own rather than RMS norms.
    pub(crate) layer_norm: bool,
    /// Sees all tokens at once, and has no cache.
    pub(crate) encoder: bool,
    /// Default bound of attention scores, where there is one.
    pub(crate) attention_soft_cap: Option<f32>,
    pub(crate) has_logit_soft_cap: bool,
    /// Default bound of logits.
    pub(crate) logit_soft_cap: Option<f32>,
    pub(crate) experts: ExpertUse,
    pub(crate) expert_size: ExpertSize,
    /// Whether the file says how many blocks come before the first one with experts.
    pub(crate) leading_dense: bool,
    /// Whether scales beside matrices of feed-forward networks count, whatever the type of the matrix.
    pub(crate) scales: bool,
}

impl Traits {
    /// What most have in common.
    pub(crate) const fn plain(rope: RopeMode) -> Traits {
        Traits {
            rope: Some(rope),
            rotates_all: false,
            rope_windowed: None,
            heads: Heads::Always,
            window: Window::Ignored,
            window_period: 1,
            layer_norm: false,
            encoder: false,
            attention_soft_cap: None,
            has_logit_soft_cap: false,
            logit_soft_cap: None,
            experts: ExpertUse::Never,
            expert_size: ExpertSize::Dense,
            leading_dense: false,
            scales: false,
        }
    }
}

/// A family of models that share a graph.
pub(crate) trait Architecture: Sync + fmt::Debug {
    /// Its name in files.
    fn name(&self) -> &'static str;

    /// What its hyper-parameters mean.
    fn traits(&self) -> Traits;

    /// Reads what only this architecture has, or has otherwise than others: what blocks remember, for example.
    fn complete(&self, _hyper: &mut HyperParameters, _keys: &Keys<'_>) -> Result<(), Error> {
        Ok(())
    }

    /// Builds the graph from tokens to logits, or to one row of embeddings per token.
    fn forward(&self, net: &mut Net<'_>) -> Result<TensorId, Error>;
}

/// All architectures.
static ALL: [&dyn Architecture; 15] = [
    &llama::Llama,
    &qwen::Qwen2,
    &qwen::Qwen3,
    &qwen::Qwen3Moe,
    &gemma::Gemma2,
    &gemma::Gemma3,
    &phi3::Phi3,
    &gpt_oss::GptOss,
    &deepseek::Deepseek2,
    &mamba::Mamba2,
    &granite::GraniteHybrid,
    &lfm2::Lfm2,
    &qwen_next::Qwen3Next,
    &bert::Bert,
    &bert::NomicBert,
];

/// Names of all architectures.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|architecture| architecture.name())
}

pub(crate) fn by_name(name: &str) -> Result<&'static dyn Architecture, Error> {
    let known = || names().collect::<Vec<_>>().join(", ");
    let unknown = || Error::UnknownArchitecture { name: name.to_owned(), known: known() };
    ALL.iter().copied().find(|architecture| architecture.name() == name).ok_or_else(unknown)
}
