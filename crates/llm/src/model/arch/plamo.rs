//! PLaMo 1 to 3; the second has Mamba in most blocks.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, Heads, Part, Pattern, ScaleUse, Traits, WindowKey, nothing_more};
use crate::model::error::Error;
use crate::model::hyper_parameters::{HyperParameters, StateSpace};
use crate::model::keys::Keys;
use crate::model::net::{Bias, Net, Norms};

pub(super) const FAMILY: &[Architecture] = &[
    Architecture {
        name: "plamo",
        traits: Traits { rotates_all: true, ..Traits::plain(RopeMode::Neox) },
        complete: nothing_more,
        forward: forward1,
    },
    Architecture {
        name: "plamo2",
        traits: Traits {
            heads: Heads::Some,
            scales: ScaleUse { qkv: false, ..ScaleUse::PLAIN },
            ..Traits::plain(RopeMode::Neox)
        },
        complete: complete2,
        forward: |net| forward_with_norms_around(net, mix),
    },
    Architecture {
        name: "plamo3",
        traits: Traits {
            window: WindowKey::Optional,
            pattern: Pattern::LastOf(8),
            rope_windowed: Some((10_000.0, 1.0)),
            scales: ScaleUse { qkv: false, ..ScaleUse::PLAIN },
            ..Traits::plain(RopeMode::Neox)
        },
        complete: nothing_more,
        forward: |net| forward_with_norms_around(net, Net::normed_attention),
    },
];

/// Both parts side by side.
fn forward1(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    let feed_forward = |net: &mut Net<'_>, h| net.gated(h, GluKind::Swiglu, Bias::None);
    let x = net.parallel_blocks(x, ["attn_norm", "attn_norm"], Net::plain_attention, feed_forward)?;
    net.logits(x)
}

/// Norms around both parts; the weights of those after have names without an ending.
fn forward_with_norms_around<'n>(net: &mut Net<'n>, mix: Part<'n>) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    let x = net.blocks(
        x,
        Norms::BEFORE,
        |net, h| {
            let a = mix(net, h)?;
            net.rms_norm_by(a, "post_attention_norm")
        },
        |net, h| {
            let f = net.gated_fused(h, GluKind::Swiglu)?;
            net.rms_norm_by(f, "post_ffw_norm")
        },
    )?;
    net.logits(x)
}

/// Time steps are made of a sixteenth of the channels, or of a few at least.
fn complete2(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let step_rank = (hyper.embedding / 16).max(64);
    hyper.recur_without_heads(StateSpace::read_ungrouped_heads(keys, step_rank)?);
    let size = hyper.blocks.iter().map(|block| block.value_size).max().unwrap_or(1);
    hyper.factors.attention = Some((size as f32).sqrt().recip());
    Ok(())
}

/// Mamba, or attention with norms of each head of queries and keys.
fn mix(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    if net.block().is_recurrent() {
        return net.mamba1_by_head(h);
    }
    let (q, k, v) = net.qkv(h, Bias::None)?;
    let (q, k) = (net.own_head_norm(q, "attn_q_norm")?, net.own_head_norm(k, "attn_k_norm")?);
    net.rotary_attention([q, k, v])
}
