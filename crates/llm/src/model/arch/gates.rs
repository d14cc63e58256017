//! Families whose attention has gates, and those without weights in their norms: Spark 2.5, Muse, Talkie.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode, Unary};

use super::{Architecture, NormKind, Pattern, ScaleUse, Traits, WindowKey};
use crate::model::error::Error;
use crate::model::hyper_parameters::HyperParameters;
use crate::model::keys::Keys;
use crate::model::net::{Attention, Bias, Gate, Net, Norms};

pub(super) const FAMILY: &[Architecture] = &[
    Architecture {
        name: "spark2_5",
        traits: Traits {
            window: WindowKey::Required,
            scales: ScaleUse { logits: false, ..ScaleUse::PLAIN },
            ..Traits::plain(RopeMode::Neox)
        },
        complete: super::nothing_more,
        forward: forward_spark,
    },
    Architecture {
        name: "muse-glimmer",
        traits: Traits {
            window: WindowKey::Required,
            pattern: Pattern::LastOf(4),
            has_logit_soft_cap: true,
            ..Traits::plain(RopeMode::Normal)
        },
        complete: complete_muse,
        forward: forward_muse,
    },
    Architecture {
        name: "talkie",
        traits: Traits {
            norm: NormKind::RmsAlone,
            scales: ScaleUse { feed_forward_output: true, logits: false, ..ScaleUse::PLAIN },
            ..Traits::plain(RopeMode::Neox)
        },
        complete: scale_logits,
        forward: forward_talkie,
    },
];

fn scale_logits(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    hyper.factors.logits = keys.factor("logit_scale")?.unwrap_or(1.0);
    Ok(())
}

/// Spark 2.5: a gate for each head.
fn forward_spark(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    let x = net.blocks(
        x,
        Norms::BEFORE,
        |net, h| {
            let (q, k, v) = net.qkv(h, Bias::Optional)?;
            let (q, k) = (net.rope(q)?, net.rope(k)?);
            gated(net, h, [q, k, v], Gate::Heads)
        },
        |net, h| net.gated(h, GluKind::Geglu, Bias::None),
    )?;
    net.logits(x)
}

fn gated(net: &mut Net<'_>, h: TensorId, qkv: [TensorId; 3], gate: Gate) -> Result<TensorId, Error> {
    let scale = net.head_scale();
    let a = net.attention(qkv, Attention::scaled(scale))?;
    let a = net.gated_result(a, h, gate, Unary::Sigmoid)?;
    net.attention_output(a, Bias::None)
}

/// What Muse adds to what its norms after each part divide by.
const MUSE_EPSILON: f32 = 1e-8;

/// Muse: blocks that see everything have no positions.
fn complete_muse(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    hyper.blocks.iter_mut().for_each(|block| block.rotates = block.windowed);
    scale_logits(hyper, keys)
}

fn forward_muse(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    let x = net.norm_alone(x)?;
    let x = net.blocks(
        x,
        Norms::BEFORE,
        |net, h| {
            let (q, k, v) = net.qkv(h, Bias::Optional)?;
            let (q, k) = (net.head_norm(q, "attn_q_norm")?, net.head_norm(k, "attn_k_norm")?);
            let (q, k) = (net.rope(q)?, net.rope(k)?);
            let a = gated(net, h, [q, k, v], Gate::Channels)?;
            net.rms_norm_within(a, "post_attention_norm.weight", MUSE_EPSILON)
        },
        |net, h| {
            let f = net.gated(h, GluKind::Swiglu, Bias::None)?;
            net.rms_norm_within(f, "post_ffw_norm.weight", MUSE_EPSILON)
        },
    )?;
    net.logits(x)
}

/// Talkie: embeddings come back after every block, times a number of the block.
fn forward_talkie(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    let embeddings = net.norm_alone(x)?;
    let mut x = embeddings;
    for block in 0..net.block_count() {
        net.enter_block(block);
        let h = net.norm_alone(x)?;
        let (q, k, v) = net.qkv(h, Bias::Optional)?;
        let (q, k) = (net.rope(q)?, net.rope(k)?);
        let (q, k) = (net.norm_alone(q)?, net.norm_alone(k)?);
        let weights = net.weight("attn_q_norm.weight", [1, net.block().heads])?;
        let q = net.mul(q, weights)?;
        let a = net.scaled_attention([q, k, v])?;
        let [a, residual, again] = net.keep_wanted([a, x, embeddings])?;
        let x1 = net.add(a, residual)?;
        let h = net.norm_alone(x1)?;
        let f = net.gated(h, GluKind::Swiglu, Bias::None)?;
        let x2 = net.add(f, x1)?;
        let factor = net.weight("layer_output_scale.weight", 1)?;
        let again = net.mul(again, factor)?;
        x = net.leave_block(again, x2)?;
    }
    net.logits(x)
}
