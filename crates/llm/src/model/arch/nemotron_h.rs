//! Nemotron H: blocks of one part each, Mamba 2, attention or a feed-forward network, the last also with experts.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::RopeMode;

use super::{Architecture, ExpertSize, ExpertUse, Heads, ScaleUse, Traits};
use crate::model::error::Error;
use crate::model::hyper_parameters::{Gating, HyperParameters, StateSpace};
use crate::model::keys::Keys;
use crate::model::net::{Bias, Moe, Net};

const NEMOTRON_H: Architecture = Architecture {
    name: "nemotron_h",
    traits: Traits {
        rope: None,
        heads: Heads::Some,
        experts: ExpertUse::Maybe,
        expert_size: ExpertSize::OwnOrShare,
        scales: ScaleUse::ALL,
        ..Traits::plain(RopeMode::Normal)
    },
    complete,
    forward,
};

pub(super) const FAMILY: &[Architecture] =
    &[NEMOTRON_H, Architecture { name: "nemotron_h_moe", ..NEMOTRON_H }];

/// A block with a feed-forward network has nothing else, whatever its heads; one with neither is recurrent.
fn complete(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let space = StateSpace::read(keys)?;
    for block in &mut hyper.blocks {
        if block.feed_forward > 0 {
            block.state.rows = None;
        } else if block.kv_heads == 0 {
            block.state.recurrent = Some(space.remembered());
        }
    }
    hyper.state_space = Some(space);
    hyper.factors.attention = keys.factor("attention.scale")?;
    Ok(())
}

fn forward(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    let x = net.single_blocks(x, |net, h| match net.block() {
        block if block.is_recurrent() => net.mamba2(h),
        block if block.feed_forward == 0 => net.plain_attention(h),
        _ => feed_forward(net, h),
    })?;
    net.logits(x)
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let Some(experts) = net.hyper().experts else { return net.squared(h, Bias::Optional) };
    let moe = Moe { gating: Gating::Sigmoid, squared: true, ..Moe::stated(&experts, Gating::Sigmoid) };
    let chosen = net.narrowed_experts(h, moe, ["ffn_latent_down", "ffn_latent_norm", "ffn_latent_up"])?;
    let shared = net.squared_shared_expert(h, experts.shared_feed_forward.unwrap_or(0))?;
    net.add(chosen, shared)
}
