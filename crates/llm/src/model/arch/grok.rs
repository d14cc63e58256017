//! Grok: bounded scores, factors, norms around both parts, experts beside a dense network.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertSize, ExpertUse, Traits};
use crate::model::error::Error;
use crate::model::hyper_parameters::HyperParameters;
use crate::model::keys::Keys;
use crate::model::net::{Attention, Bias, Moe, Net, Norms};

pub(super) const FAMILY: &[Architecture] = &[Architecture {
    name: "grok",
    traits: Traits {
        experts: ExpertUse::Always,
        expert_size: ExpertSize::OwnOrDense,
        attention_soft_cap: Some(30.0),
        has_logit_soft_cap: true,
        ..Traits::plain(RopeMode::Neox)
    },
    complete,
    forward,
}];

/// Defaults are those of the first Grok, whose files do not give them.
fn complete(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    hyper.factors.embedding = keys.factor("embedding_scale")?.unwrap_or(78.383_67);
    hyper.factors.attention = Some(keys.factor("attention.output_scale")?.unwrap_or(0.088_388_35));
    hyper.factors.logits = keys.factor("logit_scale")?.unwrap_or(0.577_350_26);
    if keys.positive("rope.scaling.yarn_beta_fast")?.is_none() {
        hyper.rope.beta_fast = 8.0;
    }
    Ok(())
}

fn forward(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let last = if net.has("blk.0.layer_output_norm.weight") { "layer_output_norm" } else { "post_ffw_norm" };
    let norms = Norms { after: Some(["attn_output_norm", last]), ..Norms::BEFORE };
    net.decoder(norms, attention, feed_forward)
}

fn attention(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let (q, k, v) = net.qkv(h, Bias::Optional)?;
    let (q, k) = (net.rope(q)?, net.rope(k)?);
    let (scale, soft_cap) = (net.head_scale(), net.hyper().attention_soft_cap);
    let a = net.attention([q, k, v], Attention { soft_cap, ..Attention::scaled(scale) })?;
    net.attention_output(a, Bias::Optional)
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let chosen = net.experts(h, Moe { kind: GluKind::Geglu.into(), ..Moe::PLAIN })?;
    if !net.has("ffn_up.weight") {
        return Ok(chosen);
    }
    let dense = net.gated(h, GluKind::Geglu, Bias::None)?;
    let both = net.add(dense, chosen)?;
    net.scale(both, std::f32::consts::FRAC_1_SQRT_2)
}
