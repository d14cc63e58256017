//! PLaMo 1 and 3.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, Pattern, ScaleUse, Traits, WindowKey, nothing_more};
use crate::model::error::Error;
use crate::model::net::{Bias, Net, Norms};

pub(super) const FAMILY: &[Architecture] = &[
    Architecture {
        name: "plamo",
        traits: Traits { rotates_all: true, ..Traits::plain(RopeMode::Neox) },
        complete: nothing_more,
        forward: forward1,
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
        forward: forward3,
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
fn forward3(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    let x = net.blocks(
        x,
        Norms::BEFORE,
        |net, h| {
            let a = net.normed_attention(h)?;
            net.rms_norm_by(a, "post_attention_norm")
        },
        |net, h| {
            let f = net.gated_fused(h, GluKind::Swiglu)?;
            net.rms_norm_by(f, "post_ffw_norm")
        },
    )?;
    net.logits(x)
}
