//! Qwen3-Next: gated delta nets in most blocks, gated attention in every fourth, experts in all.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::RopeMode;

use super::{Architecture, ExpertSize, ExpertUse, ScaleUse, Traits};
use crate::model::error::Error;
use crate::model::hyper_parameters::{HyperParameters, StateSpace};
use crate::model::keys::Keys;
use crate::model::net::{Attention, Bias, Moe, Net, Norms};

pub(super) const FAMILY: &[Architecture] = &[Architecture {
    name: "qwen3next",
    traits: Traits {
        experts: ExpertUse::Always,
        expert_size: ExpertSize::OwnOrShare,
        scales: ScaleUse::ALL,
        ..Traits::plain(RopeMode::Neox)
    },
    complete,
    forward,
}];

fn complete(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let space = StateSpace::read(keys)?;
    hyper.mark_recurrent(keys, 4, space.remembered())?;
    hyper.state_space = Some(space);
    hyper.factors.attention = keys.factor("attention.scale")?;
    Ok(())
}

fn forward(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    let x = net.blocks(x, Norms::BEFORE_BY_OTHER_NAME, mix, feed_forward)?;
    net.logits(x)
}

fn mix(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    match net.block().is_recurrent() {
        true => net.gated_delta_net(h),
        false => gated_attention(net, h),
    }
}

/// Attention whose results are weighed by gates that come with the queries.
fn gated_attention(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let ([q, gate], k, v) = net.gated_qkv(h)?;
    let (q, k) = (net.head_norm(q, "attn_q_norm")?, net.head_norm(k, "attn_k_norm")?);
    let (q, k) = (net.rope(q)?, net.rope(k)?);
    let scale = net.head_scale();
    let a = net.attention([q, k, v], Attention::scaled(scale))?;
    let a = net.weigh(a, gate)?;
    net.attention_output(a, Bias::None)
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let chosen = net.experts(h, Moe::PLAIN)?;
    let shared = net.gated_shared_expert(h)?;
    net.add(chosen, shared)
}
