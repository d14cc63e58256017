//! ChatGLM and GLM 4: gate and up in one matrix; norms around; experts beside a shared one.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertSize, ExpertUse, Part, Traits, nothing_more};
use crate::model::error::Error;
use crate::model::hyper_parameters::{Gating, HyperParameters, rope};
use crate::model::keys::Keys;
use crate::model::net::{Bias, Moe, Net, Norms};

const CHATGLM: Architecture = Architecture {
    name: "chatglm",
    traits: Traits::plain(RopeMode::Normal),
    complete: nothing_more,
    forward: |net| forward(net, Norms::BEFORE, Net::plain_attention),
};

pub(super) const FAMILY: &[Architecture] = &[
    CHATGLM,
    Architecture {
        name: "glm4",
        complete: rotate_by_sections,
        forward: |net| forward(net, Norms::AROUND, Net::plain_attention),
        ..CHATGLM
    },
    Architecture {
        name: "glm4moe",
        traits: Traits {
            experts: ExpertUse::Always,
            expert_size: ExpertSize::OwnOrShare,
            leading_dense: true,
            ..Traits::plain(RopeMode::Neox)
        },
        complete: rotate_by_sections,
        forward: |net| forward(net, Norms::BEFORE_BY_OTHER_NAME, attention_with_norms),
    },
];

/// Files of models that see pictures have sections of channels.
fn rotate_by_sections(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    rope::rotate_by_sections(&mut hyper.rope, keys)?;
    hyper.rope_windowed = hyper.rope;
    Ok(())
}

fn forward<'n>(net: &mut Net<'n>, norms: Norms, attention: Part<'n>) -> Result<TensorId, Error> {
    net.decoder(norms, attention, feed_forward)
}

/// Norms of queries and keys, where the file has them.
fn attention_with_norms(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let (mut q, mut k, v) = net.qkv(h, Bias::Optional)?;
    if net.has("attn_q_norm.weight") {
        q = net.head_norm(q, "attn_q_norm")?;
    }
    if net.has("attn_k_norm.weight") {
        k = net.head_norm(k, "attn_k_norm")?;
    }
    net.rotary_attention([q, k, v])
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let Some(experts) = net.hyper().experts else { return net.gated_fused(h, GluKind::Swiglu) };
    match net.block().has_experts {
        true => {
            let moe = Moe::stated(&experts, Gating::Sigmoid);
            net.experts_and_shared(h, moe, experts.shared * experts.feed_forward)
        }
        false => net.gated(h, GluKind::Swiglu, Bias::Optional),
    }
}
