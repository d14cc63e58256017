//! Qwen3-Next and Qwen 3.5: gated delta nets in most blocks, gated attention in every fourth; the first has experts in all, the others
//! are dense or have them.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode, Unary};

use super::{Architecture, ExpertSize, ExpertUse, ScaleUse, Traits};
use crate::model::error::Error;
use crate::model::hyper_parameters::{HyperParameters, StateSpace};
use crate::model::keys::Keys;
use crate::model::net::{Attention, Bias, DeltaLayout, Moe, Net, Norms};

const QWEN3_NEXT: Architecture = Architecture {
    name: "qwen3next",
    traits: Traits {
        experts: ExpertUse::Always,
        expert_size: ExpertSize::OwnOrShare,
        scales: ScaleUse::ALL,
        ..Traits::plain(RopeMode::Neox)
    },
    complete,
    forward: |net| forward(net, DeltaLayout::Grouped),
};

pub(super) const QWEN35_MOE: Architecture = Architecture {
    name: "qwen35moe",
    traits: Traits { rope: Some(RopeMode::Imrope), ..QWEN3_NEXT.traits },
    complete,
    forward: |net| forward(net, DeltaLayout::Apart),
};

pub(super) const FAMILY: &[Architecture] = &[
    QWEN3_NEXT,
    Architecture {
        name: "qwen35",
        traits: Traits { experts: ExpertUse::Never, ..QWEN35_MOE.traits },
        ..QWEN35_MOE
    },
    QWEN35_MOE,
];

pub(super) fn complete(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let space = StateSpace::read(keys)?;
    hyper.mark_recurrent(keys, 4, space.remembered())?;
    hyper.state_space = Some(space);
    hyper.factors.attention = keys.factor("attention.scale")?;
    Ok(())
}

fn forward(net: &mut Net<'_>, layout: DeltaLayout) -> Result<TensorId, Error> {
    let mix = |net: &mut Net<'_>, h| match net.block().is_recurrent() {
        true => net.gated_delta_net(h, layout, Unary::Silu),
        false => gated_attention(net, h, Bias::Optional, None),
    };
    net.decoder(Norms::BEFORE_BY_OTHER_NAME, mix, feed_forward)
}

/// Attention whose results are weighed by gates that come with the queries, to what was found, if it was looked for.
pub(super) fn gated_attention(
    net: &mut Net<'_>,
    h: TensorId,
    bias: Bias,
    found: Option<TensorId>,
) -> Result<TensorId, Error> {
    let ([q, gate], k, v) = net.gated_qkv(h, bias)?;
    let (q, k) = (net.head_norm(q, "attn_q_norm")?, net.head_norm(k, "attn_k_norm")?);
    let (q, k) = (net.rope(q)?, net.rope(k)?);
    let scale = net.head_scale();
    let a = net.attention([q, k, v], Attention { found, ..Attention::scaled(scale) })?;
    let a = net.weigh(a, gate)?;
    net.attention_output(a, Bias::None)
}

pub(super) fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    if net.hyper().experts.is_none() {
        return net.gated(h, GluKind::Swiglu, Bias::None);
    }
    let chosen = net.experts(h, Moe::PLAIN)?;
    let shared = net.gated_shared_expert(h)?;
    net.add(chosen, shared)
}
