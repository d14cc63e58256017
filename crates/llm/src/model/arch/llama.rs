//! Llama 1 to 3, Mistral, SmolLM, TinyLlama and many others; Mixtral with experts.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertUse, Traits};
use crate::model::error::Error;
use crate::model::net::{Attention, Bias, Moe, Net};

#[derive(Debug)]
pub(super) struct Llama;

impl Architecture for Llama {
    fn name(&self) -> &'static str {
        "llama"
    }

    fn traits(&self) -> Traits {
        Traits {
            rotates_all: true,
            experts: ExpertUse::Maybe,
            scales: true,
            ..Traits::plain(RopeMode::Normal)
        }
    }

    fn forward(&self, net: &mut Net<'_>) -> Result<TensorId, Error> {
        let mut x = net.token_embeddings()?;
        for block in 0..net.block_count() {
            net.enter_block(block);
            let h = net.rms_norm(x, "attn_norm")?;
            let (q, k, v) = net.qkv(h, Bias::Optional)?;
            let (q, k) = (net.rope(q)?, net.rope(k)?);
            let scale = net.head_scale();
            let a = net.attention([q, k, v], Attention::scaled(scale))?;
            let a = net.attention_output(a, Bias::Optional)?;
            let [a, residual] = net.keep_wanted([a, x])?;
            let x1 = net.add(a, residual)?;
            let h = net.rms_norm(x1, "ffn_norm")?;
            let f = match net.hyper().experts {
                Some(_) => net.experts(h, Moe::PLAIN)?,
                None => net.gated(h, GluKind::Swiglu, Bias::Optional)?,
            };
            x = net.leave_block(f, x1)?;
        }
        net.logits(x)
    }
}
