//! GPT-OSS: sinks in attention, experts with biases, every other block windowed.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertSize, ExpertUse, Traits, Window};
use crate::model::error::Error;
use crate::model::hyper_parameters::Gating;
use crate::model::net::{Attention, Bias, Moe, Net};

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
        let mut x = net.token_embeddings()?;
        for block in 0..net.block_count() {
            net.enter_block(block);
            let h = net.rms_norm(x, "attn_norm")?;
            let (q, k, v) = net.qkv(h, Bias::Required)?;
            let (q, k) = (net.rope(q)?, net.rope(k)?);
            let scale = net.head_scale();
            let a = net.attention([q, k, v], Attention { sinks: true, ..Attention::scaled(scale) })?;
            let a = net.attention_output(a, Bias::Required)?;
            let [a, residual] = net.keep_wanted([a, x])?;
            let x1 = net.add(a, residual)?;
            // Its name notwithstanding, the norm of what the experts read.
            let h = net.rms_norm(x1, "post_attention_norm")?;
            let kind = GluKind::SwigluOai { alpha: 1.702, limit: 7.0 };
            let gating = Gating::SoftmaxOfSelected;
            let f = net.experts(h, Moe { gating, normalized: false, biases: true, kind })?;
            x = net.leave_block(f, x1)?;
        }
        net.untied_logits(x)
    }
}
