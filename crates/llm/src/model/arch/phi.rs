//! Phi 2, 3, 4 and Phi MoE.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode, Unary};

use super::{Architecture, ExpertUse, NormKind, Traits, nothing_more};
use crate::model::error::Error;
use crate::model::net::{Attention, Bias, Moe, Net, Norms};

pub(super) const FAMILY: &[Architecture] = &[
    Architecture {
        name: "phi2",
        traits: Traits { norm: NormKind::Layer, ..PHI },
        complete: nothing_more,
        forward: forward2,
    },
    Architecture {
        name: "phi3",
        traits: Traits { experts: ExpertUse::Maybe, ..PHI },
        complete: nothing_more,
        forward: forward3,
    },
    Architecture {
        name: "phimoe",
        traits: Traits { experts: ExpertUse::Always, ..PHI },
        complete: nothing_more,
        forward: forward3,
    },
];

const PHI: Traits = Traits::plain(RopeMode::Neox);

/// Attention and a plain feed-forward network side by side.
fn forward2(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    let x = net.parallel_blocks(x, ["attn_norm", "attn_norm"], attention, |net, h| {
        net.plain(h, Unary::Gelu, Bias::Required)
    })?;
    net.logits(x)
}

/// Fused projections, frequency factors for long contexts.
fn forward3(net: &mut Net<'_>) -> Result<TensorId, Error> {
    net.decoder(Norms::BEFORE, attention, feed_forward)
}

fn attention(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let (q, k, v) = net.qkv(h, Bias::Optional)?;
    let (q, k) = (net.rope(q)?, net.rope(k)?);
    let scale = net.head_scale();
    let q = net.scale(q, scale)?;
    let a = net.attention([q, k, v], Attention::scaled(1.0))?;
    net.attention_output(a, Bias::Optional)
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    match net.hyper().experts {
        Some(_) => net.experts(h, Moe::PLAIN),
        None => net.gated_fused(h, GluKind::Swiglu),
    }
}
