//! GPT-OSS: sinks in attention, experts with biases, every other block windowed.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertSize, ExpertUse, Traits, Window};
use crate::model::error::Error;
use crate::model::hyper_parameters::Gating;
use crate::model::net::{Attention, Bias, Moe, Net, Norms};

#[derive(Debug)]
pub(super) struct GptOss;

impl Architecture for GptOss {
    fn name(&self) -> &'static str {
        "gpt-oss"
    }

    fn traits(&self) -> Traits {
        Traits {
            rotates_all: true,
            window: Window::Required,
            window_period: 2,
            experts: ExpertUse::Always,
            expert_size: ExpertSize::Own,
            ..Traits::plain(RopeMode::Neox)
        }
    }

    fn forward(&self, net: &mut Net<'_>) -> Result<TensorId, Error> {
        let x = net.token_embeddings()?;
        let x = net.blocks(x, Norms::BEFORE_BY_OTHER_NAME, attention, |net, h| net.experts(h, EXPERTS))?;
        net.untied_logits(x)
    }
}

const EXPERTS: Moe = Moe {
    gating: Gating::SoftmaxOfSelected,
    normalized: false,
    biases: true,
    kind: GluKind::SwigluOai { alpha: 1.702, limit: 7.0 },
};

fn attention(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let (q, k, v) = net.qkv(h, Bias::Required)?;
    let (q, k) = (net.rope(q)?, net.rope(k)?);
    let scale = net.head_scale();
    let a = net.attention([q, k, v], Attention { sinks: true, ..Attention::scaled(scale) })?;
    net.attention_output(a, Bias::Required)
}
