//! Families with experts beside shared ones, dense blocks first: dots.llm1, Ling (Bailing), AFMoE, Laguna.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode, Unary};

use super::{Architecture, ExpertSize, ExpertUse, Part, Pattern, ScaleUse, Traits, WindowKey, nothing_more};
use crate::model::error::Error;
use crate::model::hyper_parameters::{Experts, Gating, HyperParameters};
use crate::model::keys::Keys;
use crate::model::net::{Attention, Bias, Gate, Moe, Net, Norms};

const EXPERTS: Traits = Traits {
    experts: ExpertUse::Always,
    expert_size: ExpertSize::Own,
    leading_dense: true,
    ..Traits::plain(RopeMode::Neox)
};

const DOTS1: Architecture = Architecture {
    name: "dots1",
    traits: EXPERTS,
    complete: nothing_more,
    forward: |net| forward(net, Norms::BEFORE, Net::normed_attention),
};

pub(super) const FAMILY: &[Architecture] = &[
    DOTS1,
    Architecture {
        name: "bailingmoe",
        traits: Traits { rope: Some(RopeMode::Normal), leading_dense: false, ..EXPERTS },
        complete: scale_by_rotated,
        forward: |net| forward(net, Norms::BEFORE, Net::plain_attention),
    },
    Architecture { name: "bailingmoe2", ..DOTS1 },
    Architecture {
        name: "afmoe",
        traits: Traits { window: WindowKey::Optional, pattern: Pattern::LastOf(4), ..EXPERTS },
        complete: complete_afmoe,
        forward: |net| {
            forward(net, Norms::AROUND, |net, h| gated_attention(net, h, Gate::Channels, Unary::Sigmoid))
        },
    },
    Architecture {
        name: "laguna",
        traits: Traits {
            window: WindowKey::Optional,
            pattern: Pattern::FirstOf(4),
            scales: ScaleUse { logits: false, ..ScaleUse::PLAIN },
            ..EXPERTS
        },
        complete: complete_laguna,
        forward: |net| {
            forward(net, Norms::BEFORE, |net, h| {
                let gate = if net.gates_heads() { Gate::Heads } else { Gate::Channels };
                gated_attention(net, h, gate, Unary::Softplus)
            })
        },
    },
];

/// Scores are scaled by the number of channels that rotate.
fn scale_by_rotated(hyper: &mut HyperParameters, _: &Keys<'_>) -> Result<(), Error> {
    hyper.factors.attention = Some((hyper.rope.n_dims as f32).sqrt().recip());
    Ok(())
}

/// Embeddings are scaled, and every fourth block has no positions.
fn complete_afmoe(hyper: &mut HyperParameters, _: &Keys<'_>) -> Result<(), Error> {
    hyper.factors.embedding = (hyper.embedding as f32).sqrt();
    for (index, block) in hyper.blocks.iter_mut().enumerate() {
        block.rotates = !(index + 1).is_multiple_of(4);
    }
    Ok(())
}

fn complete_laguna(hyper: &mut HyperParameters, _: &Keys<'_>) -> Result<(), Error> {
    let (base, dims) = (hyper.rope_windowed.freq_base, hyper.rope_windowed.n_dims);
    hyper.leave_windows_unscaled();
    (hyper.rope_windowed.freq_base, hyper.rope_windowed.n_dims) = (base, dims);
    Ok(())
}

fn forward<'n>(net: &mut Net<'n>, norms: Norms, attention: Part<'n>) -> Result<TensorId, Error> {
    net.decoder(norms, attention, feed_forward)
}

/// Attention whose results are multiplied by gates of their own.
fn gated_attention(net: &mut Net<'_>, h: TensorId, gate: Gate, function: Unary) -> Result<TensorId, Error> {
    let (q, k, v) = net.qkv(h, Bias::Optional)?;
    let (q, k) = (net.head_norm(q, "attn_q_norm")?, net.head_norm(k, "attn_k_norm")?);
    let (q, k) = (net.rope(q)?, net.rope(k)?);
    let scale = net.head_scale();
    let a = net.attention([q, k, v], Attention::scaled(scale))?;
    let a = net.gated_result(a, h, gate, function)?;
    net.attention_output(a, Bias::None)
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let Some(experts) = net.hyper().experts.filter(|_| net.block().has_experts) else {
        return net.gated(h, GluKind::Swiglu, Bias::None);
    };
    let (gating, inner) = details(net.hyper().architecture(), &experts);
    match inner {
        0 => net.experts(h, Moe::stated(&experts, gating)),
        inner => net.experts_and_shared(h, Moe::stated(&experts, gating), inner),
    }
}

/// How experts are chosen where the file does not say, and the size of the shared ones together.
fn details(architecture: &str, experts: &Experts) -> (Gating, usize) {
    let Experts { feed_forward, shared, shared_feed_forward, .. } = *experts;
    match architecture {
        "bailingmoe2" => (Gating::Softmax, shared_feed_forward.unwrap_or(feed_forward) * shared),
        "afmoe" => (Gating::Sigmoid, feed_forward * shared),
        "laguna" => (Gating::Sigmoid, shared_feed_forward.unwrap_or(feed_forward * shared.max(1))),
        _ => (Gating::Softmax, feed_forward * shared),
    }
}
