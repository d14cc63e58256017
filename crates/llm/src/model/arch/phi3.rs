//! Phi 3 and 4: fused projections, frequency factors for long contexts.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertUse, Traits};
use crate::model::error::Error;
use crate::model::net::{Attention, Bias, Moe, Net, Norms};

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
        let x = net.token_embeddings()?;
        let x = net.blocks(x, Norms::BEFORE, attention, feed_forward)?;
        net.logits(x)
    }
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
