//! Architectures. One is a small file: what is special about its hyper-parameters, and its graph, block by block.
//!
//! To add one: an [`Architecture`] in the file of its family; a new family is a file and a line in [`FAMILIES`]. Tensors need not
//! be listed anywhere: the graph is built once without data to find out which there must be.

mod bert;
mod command;
mod dbrx;
mod deci;
mod deepseek;
mod deepseek4;
mod diffusion;
mod ernie;
mod exaone;
mod gates;
mod gemma;
mod glm;
mod glm5;
mod gpt;
mod gpt_oss;
mod granite;
mod grok;
mod hrm;
mod hunyuan;
mod hunyuan4;
mod kimi;
mod kin;
mod lfm2;
mod llama;
mod llama4;
mod mamba;
mod minicpm3;
mod minimax;
mod minimax_m3;
mod mistral;
mod modern_bert;
mod nemotron_h;
mod olmo;
mod openelm;
mod phi;
mod plamo;
mod qwen;
mod qwen4;
mod qwen_next;
mod rwkv;
mod shared_experts;
mod sparse;
mod t5;

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::RopeMode;

use super::error::Error;
use super::hyper_parameters::HyperParameters;
use super::keys::Keys;
use super::net::Net;

/// Where a window comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WindowKey {
    /// There is none, whatever the file says.
    Ignored,
    /// The file may have one.
    Optional,
    /// The file may have another one.
    Default(usize),
    /// The file must have one.
    Required,
}

/// Which blocks see everything, where others see a window and the file does not say which.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pattern {
    /// None.
    Never,
    /// The last of every so many.
    LastOf(usize),
    /// The first of every so many.
    FirstOf(usize),
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
    /// It has a key of its own, or is that of the dense network.
    OwnOrDense,
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

/// What a model makes of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Logits of the next token; a token sees those before it, of which blocks remember what they need.
    Continue,
    /// Embeddings of texts that are seen whole.
    Embed,
    /// Logits of every token of a text that is seen whole, so that what is missing can be filled in.
    FillIn,
}

/// What an architecture's norms are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NormKind {
    /// By the root of the mean square, times weights.
    Rms,
    /// As `Rms`, without weights.
    RmsAlone,
    /// By mean and deviation, times weights, plus a bias if there is one.
    Layer,
    /// As `Layer`, without weights and bias.
    LayerAlone,
}

/// Which scales beside matrices count, whatever the type of the matrix. One beside a matrix of a type that needs it always
/// counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScaleUse {
    /// Of queries, keys and values.
    pub(crate) qkv: bool,
    /// Of what attention gives.
    pub(crate) attention_output: bool,
    /// Of feed-forward networks, experts included, but for their last matrices.
    pub(crate) feed_forward: bool,
    /// Of the last matrices of feed-forward networks.
    pub(crate) feed_forward_output: bool,
    /// Of logits.
    pub(crate) logits: bool,
}

impl ScaleUse {
    /// What most have.
    pub(crate) const PLAIN: ScaleUse = ScaleUse {
        qkv: true,
        attention_output: true,
        feed_forward: false,
        feed_forward_output: false,
        logits: true,
    };

    /// Everywhere.
    pub(crate) const ALL: ScaleUse =
        ScaleUse { feed_forward: true, feed_forward_output: true, ..ScaleUse::PLAIN };
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
    pub(crate) window: WindowKey,
    /// Which blocks see everything.
    pub(crate) pattern: Pattern,
    pub(crate) norm: NormKind,
    /// What it makes of tokens.
    pub(crate) purpose: Purpose,
    /// Default bound of attention scores, where there is one.
    pub(crate) attention_soft_cap: Option<f32>,
    pub(crate) has_logit_soft_cap: bool,
    /// Default bound of logits.
    pub(crate) logit_soft_cap: Option<f32>,
    pub(crate) experts: ExpertUse,
    pub(crate) expert_size: ExpertSize,
    /// Whether the file says how many blocks come before the first one with experts.
    pub(crate) leading_dense: bool,
    pub(crate) scales: ScaleUse,
    /// Whether factors of frequencies count, where a file has them.
    pub(crate) frequency_factors: bool,
    /// Whether a bias of logits counts, where a file has one.
    pub(crate) logit_bias: bool,
    /// Whether a head that ranks texts reads the mean of all rows, where a file does not say.
    pub(crate) ranks_by_mean: bool,
}

impl Traits {
    /// What most have in common.
    pub(crate) const fn plain(rope: RopeMode) -> Traits {
        Traits {
            rope: Some(rope),
            rotates_all: false,
            rope_windowed: None,
            heads: Heads::Always,
            window: WindowKey::Ignored,
            pattern: Pattern::Never,
            norm: NormKind::Rms,
            purpose: Purpose::Continue,
            attention_soft_cap: None,
            has_logit_soft_cap: false,
            logit_soft_cap: None,
            experts: ExpertUse::Never,
            expert_size: ExpertSize::Dense,
            leading_dense: false,
            scales: ScaleUse::PLAIN,
            frequency_factors: true,
            logit_bias: true,
            ranks_by_mean: false,
        }
    }
}

/// What builds one part of a block.
type Part<'n> = fn(&mut Net<'n>, TensorId) -> Result<TensorId, Error>;

/// Models that share a graph, by the name that files give them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Architecture {
    pub(crate) name: &'static str,
    /// What its hyper-parameters mean.
    pub(crate) traits: Traits,
    /// Reads what only this architecture has, or has otherwise than others: what blocks remember, for example.
    pub(crate) complete: fn(&mut HyperParameters, &Keys<'_>) -> Result<(), Error>,
    /// Builds the graph from tokens to logits, or to one row of embeddings per token.
    pub(crate) forward: fn(&mut Net<'_>) -> Result<TensorId, Error>,
}

/// For architectures whose hyper-parameters are those of most.
pub(crate) fn nothing_more(_: &mut HyperParameters, _: &Keys<'_>) -> Result<(), Error> {
    Ok(())
}

/// All architectures, a line for each file and what it serves.
static FAMILIES: [&[Architecture]; 43] = [
    llama::FAMILY,
    llama4::FAMILY,
    kin::FAMILY,
    deci::FAMILY,
    mistral::FAMILY,
    qwen::FAMILY,
    qwen_next::FAMILY,
    qwen4::FAMILY,
    gemma::FAMILY,
    phi::FAMILY,
    glm::FAMILY,
    glm5::FAMILY,
    command::FAMILY,
    olmo::FAMILY,
    exaone::FAMILY,
    gpt::FAMILY,
    hunyuan::FAMILY,
    hunyuan4::FAMILY,
    ernie::FAMILY,
    shared_experts::FAMILY,
    sparse::FAMILY,
    gates::FAMILY,
    dbrx::FAMILY,
    grok::FAMILY,
    plamo::FAMILY,
    openelm::FAMILY,
    minicpm3::FAMILY,
    deepseek::FAMILY,
    deepseek4::FAMILY,
    gpt_oss::FAMILY,
    granite::FAMILY,
    lfm2::FAMILY,
    mamba::FAMILY,
    rwkv::FAMILY,
    nemotron_h::FAMILY,
    kimi::FAMILY,
    minimax::FAMILY,
    minimax_m3::FAMILY,
    hrm::FAMILY,
    diffusion::FAMILY,
    bert::FAMILY,
    modern_bert::FAMILY,
    t5::FAMILY,
];

/// Names of all architectures.
pub fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().copied().flatten().map(|architecture| architecture.name)
}

pub(crate) fn by_name(name: &str) -> Result<&'static Architecture, Error> {
    let known = || names().collect::<Vec<_>>().join(", ");
    let unknown = || Error::UnknownArchitecture { name: name.to_owned(), known: known() };
    FAMILIES.iter().copied().flatten().find(|architecture| architecture.name == name).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    #[test]
    fn every_name_is_served_once() {
        let mut seen = HashSet::new();
        assert!(super::names().all(|name| seen.insert(name)));
    }
}
