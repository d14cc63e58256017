//! Command R and its successors: attention and feed-forward network side by side, read through one norm.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertSize, ExpertUse, NormKind, Pattern, ScaleUse, Traits, WindowKey};
use crate::model::error::Error;
use crate::model::hyper_parameters::{Gating, HyperParameters};
use crate::model::keys::Keys;
use crate::model::net::{Bias, Moe, Net};

const COMMAND_R: Architecture = Architecture {
    name: "command-r",
    traits: Traits { norm: NormKind::Layer, ..Traits::plain(RopeMode::Normal) },
    complete: scale_logits,
    forward: |net| {
        let x = net.token_embeddings()?;
        let x = net.parallel_blocks(x, SAME_NORM, attention, feed_forward)?;
        net.tied_logits(x)
    },
};

pub(super) const FAMILY: &[Architecture] = &[
    COMMAND_R,
    Architecture {
        name: "cohere2",
        traits: Traits {
            window: WindowKey::Required,
            pattern: Pattern::LastOf(4),
            scales: ScaleUse::ALL,
            ..COMMAND_R.traits
        },
        complete: rotate_windowed,
        ..COMMAND_R
    },
    Architecture {
        name: "cohere2moe",
        traits: Traits {
            window: WindowKey::Required,
            pattern: Pattern::FirstOf(4),
            scales: ScaleUse { logits: false, ..ScaleUse::ALL },
            norm: NormKind::Rms,
            experts: ExpertUse::Always,
            expert_size: ExpertSize::OwnOrDense,
            leading_dense: true,
            ..COMMAND_R.traits
        },
        complete: rotate_windowed_and_dense,
        forward: |net| {
            let x = net.token_embeddings()?;
            let x = net.parallel_blocks(x, SAME_NORM, attention, feed_forward)?;
            net.logits(x)
        },
    },
];

const SAME_NORM: [&str; 2] = ["attn_norm", "attn_norm"];

fn scale_logits(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    hyper.factors.logits = keys.factor("logit_scale")?.unwrap_or(1.0);
    Ok(())
}

/// Blocks that see everything have no positions.
fn rotate_windowed(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    hyper.blocks.iter_mut().for_each(|block| block.rotates = block.windowed);
    hyper.rope_windowed = hyper.rope;
    scale_logits(hyper, keys)
}

fn rotate_windowed_and_dense(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    hyper.blocks.iter_mut().for_each(|block| block.rotates = block.windowed || !block.has_experts);
    hyper.rope_windowed = hyper.rope;
    scale_logits(hyper, keys)
}

fn attention(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let (q, k, v) = net.qkv(h, Bias::Optional)?;
    // Only the largest has norms, which are of each head.
    let (q, k) = (net.own_head_norm(q, "attn_q_norm")?, net.own_head_norm(k, "attn_k_norm")?);
    net.rotary_attention([q, k, v])
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let Some(experts) = net.hyper().experts.filter(|_| net.block().has_experts) else {
        return net.gated(h, GluKind::Swiglu, Bias::None);
    };
    let moe = Moe::stated(&experts, Gating::Sigmoid);
    if experts.shared == 0 {
        return net.experts(h, moe);
    }
    let inner = experts.shared_feed_forward.unwrap_or(experts.feed_forward * experts.shared);
    let both = net.experts_and_shared(h, moe, inner)?;
    net.scale(both, 0.5)
}
