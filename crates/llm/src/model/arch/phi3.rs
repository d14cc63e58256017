//! Phi 3 and 4: fused projections, frequency factors for long contexts.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertUse, Traits};
use crate::model::error::Error;
use crate::model::net::{Attention, Bias, Moe, Net};

#[derive(Debug)]
pub(super) struct Phi3;

impl Architecture for Phi3 {
    fn name(&self) -> &'static str {
        "phi3"
    }

    fn traits(&self) -> Traits {
        Traits { experts: ExpertUse::Maybe, ..Traits::plain(RopeMode::Neox) }
    }

    fn forward(&self, net: &mut Net<'_>) -> Result<TensorId, Error> {
        let mut x = net.token_embeddings()?;
        for block in 0..net.block_count() {
            net.enter_block(block);
            let h = net.rms_norm(x, "attn_norm")?;
            let (q, k, v) = net.qkv(h, Bias::Optional)?;
            let (q, k) = (net.rope(q)?, net.rope(k)?);
            let scale = net.head_scale();
            let q = net.scale(q, scale)?;
            let a = net.attention([q, k, v], Attention::scaled(1.0))?;
            let a = net.attention_output(a, Bias::Optional)?;
            let [a, residual] = net.keep_wanted([a, x])?;
            let x1 = net.add(a, residual)?;
            let h = net.rms_norm(x1, "ffn_norm")?;
            let f = match net.hyper().experts {
                Some(_) => net.experts(h, Moe::PLAIN)?,
                None => net.gated_fused(h, GluKind::Swiglu)?,
            };
            x = net.leave_block(f, x1)?;
        }
        net.logits(x)
    }
}
