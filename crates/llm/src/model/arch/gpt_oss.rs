//! GPT-OSS: sinks in attention, experts with biases, every other block windowed.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertSize, ExpertUse, Pattern, Traits, WindowKey, nothing_more};
use crate::model::error::Error;
use crate::model::hyper_parameters::Gating;
use crate::model::net::{Attention, Bias, Glu, Moe, Net, Norms};

pub(super) const FAMILY: &[Architecture] = &[Architecture {
    name: "gpt-oss",
    traits: Traits {
        rotates_all: true,
        window: WindowKey::Required,
        pattern: Pattern::LastOf(2),
        experts: ExpertUse::Always,
        expert_size: ExpertSize::Own,
        ..Traits::plain(RopeMode::Neox)
    },
    complete: nothing_more,
    forward,
}];

fn forward(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    let x = net.blocks(x, Norms::BEFORE_BY_OTHER_NAME, attention, |net, h| net.experts(h, EXPERTS))?;
    net.untied_logits(x)
}

const EXPERTS: Moe = Moe {
    gating: Gating::SoftmaxOfSelected,
    normalized: false,
    biases: true,
    kind: Glu::Kind(GluKind::SwigluOai { alpha: 1.702, limit: 7.0 }),
    ..Moe::PLAIN
};

fn attention(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let (q, k, v) = net.qkv(h, Bias::Required)?;
    let (q, k) = (net.rope(q)?, net.rope(k)?);
    let scale = net.head_scale();
    let a = net.attention([q, k, v], Attention { sinks: true, ..Attention::scaled(scale) })?;
    net.attention_output(a, Bias::Required)
}
