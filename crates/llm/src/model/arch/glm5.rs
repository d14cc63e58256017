//! GLM 5.3 Flash (glm5-next): delta nets with decays by channel and, in some blocks, latent attention without positions to runs of tokens
//! that an index finds; residual streams that are mixed among each other; experts beside a shared one.

use std::cell::Cell;

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertSize, ExpertUse, Heads, ScaleUse, Traits};
use crate::model::error::Error;
use crate::model::hyper_parameters::{
    ChannelDelta, DecayRule, Gating, HyperParameters, IndexRule, Indexer, Latent, Streams,
};
use crate::model::keys::Keys;
use crate::model::limits::{MAX_CONTEXT, MAX_FEED_FORWARD, MAX_HEAD_SIZE};
use crate::model::net::{Attention, Bias, ChannelGates, Moe, Net, Norms};

pub(super) const FAMILY: &[Architecture] = &[Architecture {
    name: "glm5-next",
    traits: Traits {
        rope: None,
        heads: Heads::Some,
        experts: ExpertUse::Always,
        expert_size: ExpertSize::Own,
        leading_dense: true,
        scales: ScaleUse { attention_output: false, logits: false, ..ScaleUse::PLAIN },
        ..Traits::plain(RopeMode::Normal)
    },
    complete,
    forward,
}];

/// Added to the squared lengths of queries and keys of delta nets.
const UNIT_EPSILON: f32 = 1e-6;

fn complete(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let key = "rope.dimension_count";
    if let Some(dims) = keys.count(key, MAX_HEAD_SIZE)? {
        return Err(keys.refuse(key, dims, "must be 0: this architecture has no positions"));
    }
    let least = keys.number("kda.gate_lower_bound")?;
    let decay = least.map_or(DecayRule::Softplus, |least| DecayRule::Sigmoid { least, factor: -1.0 });
    let delta = ChannelDelta::read(keys, &hyper.blocks, decay)?;
    hyper.remember_without_heads(delta.remembered());
    hyper.channel_delta = Some(ChannelDelta { epsilon: Some(UNIT_EPSILON), ..delta });
    let query_rank = Some(keys.need_count("attention.q_lora_rank", MAX_FEED_FORWARD)?);
    hyper.latent = Some(Latent::read(keys, &mut hyper.blocks, 0, query_rank)?);
    complete_index(hyper, keys)?;
    hyper.streams = Some(Streams::read_mixed(keys)?);
    hyper.read_limits(keys, true)
}

fn complete_index(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let key = "attention.indexer.kpool";
    let length = Indexer::checked_run(keys, key, keys.need_count(key, MAX_CONTEXT)?)?;
    let (rule, epsilon) = (IndexRule::GatedRuns(length), keys.number("attention.layer_norm_epsilon")?);
    let indexer = Indexer::read(keys, 0, RopeMode::Normal)?;
    let indexer = Indexer { rule, epsilon: epsilon.unwrap_or(0.0), ..indexer };
    if !indexer.chosen.is_multiple_of(length) {
        let rule = format!("must be a multiple of {length}");
        return Err(keys.refuse("attention.indexer.top_k", indexer.chosen, rule));
    }
    let key = "attention.indexer.kpool_select_tail";
    if keys.flag(key)? == Some(false) {
        return Err(keys.refuse(key, false, "the first tokens would see nothing"));
    }
    let stated = Indexer::owners(keys, hyper.blocks.len())?;
    indexer.share(keys, &mut hyper.blocks, |block| stated.as_ref().is_none_or(|types| types[block] > 0))?;
    hyper.indexer = Some(indexer);
    Ok(())
}

fn forward(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let found = Cell::new(None);
    let x = net.stream_blocks(Norms::BEFORE, |net, h| mix(net, h, &found), feed_forward)?;
    let x = net.mean_of_streams(x)?;
    net.logits(x)
}

/// A delta net, or attention.
fn mix(net: &mut Net<'_>, h: TensorId, found: &Cell<Option<TensorId>>) -> Result<TensorId, Error> {
    if net.block().is_recurrent() {
        let gates = ChannelGates { decays: &["ssm_f_a", "ssm_f_b"], results: &["ssm_g_a", "ssm_g_b"] };
        return net.channel_delta_net(h, gates);
    }
    let attention = Attention::scaled(net.latent_scale());
    let a = net.indexed_latent_attention(h, attention, found)?;
    net.attention_output(a, Bias::None)
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let block = net.block();
    let limited = |limit: Option<f32>| limit.map_or(GluKind::Swiglu, |limit| GluKind::SwigluClamp { limit });
    let Some(experts) = net.hyper().experts.filter(|_| block.has_experts) else {
        return net.gated(h, limited(block.shared_limit), Bias::None);
    };
    let moe = Moe { kind: limited(block.expert_limit).into(), ..Moe::stated(&experts, Gating::Sigmoid) };
    let inner = experts.feed_forward * experts.shared;
    net.experts_and_other_shared(h, moe, inner, limited(block.shared_limit))
}
