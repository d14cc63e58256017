//! Granite 4: Mamba 2 in most blocks, attention in a few, factors everywhere.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertUse, Heads, Traits};
use crate::model::error::Error;
use crate::model::hyper_parameters::{HyperParameters, StateSpace};
use crate::model::keys::Keys;
use crate::model::net::{Attention, Bias, Moe, Net, Norms};

#[derive(Debug)]
pub(super) struct GraniteHybrid;

impl Architecture for GraniteHybrid {
    fn name(&self) -> &'static str {
        "granitehybrid"
    }

    fn traits(&self) -> Traits {
        Traits { heads: Heads::Some, experts: ExpertUse::Maybe, ..Traits::plain(RopeMode::Normal) }
    }

    fn complete(&self, hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
        let space = StateSpace::read(keys)?;
        for block in hyper.blocks.iter_mut().filter(|block| block.kv_heads == 0) {
            block.state.recurrent = Some(space.remembered());
        }
        hyper.state_space = Some(space);
        hyper.factors.embedding = keys.factor("embedding_scale")?.unwrap_or(1.0);
        hyper.factors.residual = keys.factor("residual_scale")?.unwrap_or(1.0);
        hyper.factors.logits = keys.factor("logit_scale")?.map_or(1.0, f32::recip);
        hyper.factors.attention = keys.factor("attention.scale")?;
        // What the key says elsewhere, here it says whether anything rotates.
        hyper.rotates = keys.flag("rope.scaling.finetuned")?.unwrap_or(true);
        Ok(())
    }

    fn forward(&self, net: &mut Net<'_>) -> Result<TensorId, Error> {
        let x = net.token_embeddings()?;
        let x = net.blocks(x, Norms::BEFORE, mix, feed_forward)?;
        net.logits(x)
    }
}

fn mix(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    match net.block().is_recurrent() {
        true => net.mamba2(h),
        false => attention(net, h),
    }
}

fn attention(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let (mut q, mut k, v) = net.qkv(h, Bias::Optional)?;
    if net.hyper().rotates {
        (q, k) = (net.rope(q)?, net.rope(k)?);
    }
    let scale = net.head_scale();
    let a = net.attention([q, k, v], Attention::scaled(scale))?;
    net.attention_output(a, Bias::Optional)
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let Some(experts) = net.hyper().experts else { return net.gated(h, GluKind::Swiglu, Bias::Optional) };
    let chosen = net.experts(h, Moe::PLAIN)?;
    match experts.shared_feed_forward {
        Some(inner) => {
            let shared = net.shared_expert(h, inner, GluKind::Swiglu)?;
            net.add(chosen, shared)
        }
        None => Ok(chosen),
    }
}
