//! Granite: factors everywhere; with experts, with windows and sinks, with Mamba 2 in most blocks and attention in a few. MiniCPM has
//! the graph of the first.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertUse, Heads, Traits, WindowKey};
use crate::model::error::Error;
use crate::model::hyper_parameters::{HyperParameters, StateSpace};
use crate::model::keys::Keys;
use crate::model::net::{Attention, Bias, Moe, Net, Norms};

const GRANITE: Architecture = Architecture {
    name: "granite",
    traits: Traits { experts: ExpertUse::Maybe, ..Traits::plain(RopeMode::Normal) },
    complete,
    forward,
};

/// With a window and sinks; experts and the shared one have gate and up in one matrix.
const GRANITE_SWA: Architecture = Architecture {
    name: "granite_swa",
    traits: Traits { window: WindowKey::Required, ..GRANITE.traits },
    complete: complete_swa,
    ..GRANITE
};

pub(super) const FAMILY: &[Architecture] = &[
    GRANITE,
    Architecture { name: "granitemoe", complete: complete_factors, ..GRANITE },
    GRANITE_SWA,
    Architecture {
        name: "granitehybrid",
        traits: Traits { heads: Heads::Some, ..GRANITE.traits },
        complete: complete_hybrid,
        ..GRANITE
    },
    Architecture { name: "minicpm", complete: complete_minicpm, ..GRANITE },
];

fn complete_factors(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    hyper.factors.embedding = keys.factor("embedding_scale")?.unwrap_or(1.0);
    hyper.factors.residual = keys.factor("residual_scale")?.unwrap_or(1.0);
    hyper.factors.logits = keys.factor("logit_scale")?.map_or(1.0, f32::recip);
    hyper.factors.attention = keys.factor("attention.scale")?;
    Ok(())
}

fn complete(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    complete_factors(hyper, keys)?;
    // What the key says elsewhere, here it says whether anything rotates.
    if keys.flag("rope.scaling.finetuned")? == Some(false) {
        hyper.blocks.iter_mut().for_each(|block| block.rotates = false);
    }
    Ok(())
}

fn complete_swa(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    complete_factors(hyper, keys)?;
    if let Some(rotates) = keys.counts("attention.rope_pattern", hyper.blocks.len(), 1)? {
        for (block, rotates) in hyper.blocks.iter_mut().zip(rotates) {
            block.rotates = rotates != 0;
        }
    }
    Ok(())
}

fn complete_hybrid(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    hyper.recur_without_heads(StateSpace::read(keys)?);
    complete(hyper, keys)
}

/// MiniCPM: the same factors, by other defaults.
fn complete_minicpm(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let (depth, width) = (hyper.blocks.len() as f32, hyper.embedding as f32);
    hyper.factors.embedding = keys.factor("embedding_scale")?.unwrap_or(12.0);
    hyper.factors.residual = keys.factor("residual_scale")?.unwrap_or(1.4 / depth.sqrt());
    hyper.factors.logits = keys.factor("logit_scale")?.unwrap_or(256.0 / width).recip();
    Ok(())
}

fn forward(net: &mut Net<'_>) -> Result<TensorId, Error> {
    net.decoder(Norms::BEFORE, mix, feed_forward)
}

fn mix(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    match net.block().is_recurrent() {
        true => net.mamba2(h),
        false => attention(net, h),
    }
}

fn attention(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let (q, k, v) = net.qkv(h, Bias::Optional)?;
    let (q, k) = (net.rope(q)?, net.rope(k)?);
    let (scale, sinks) = (net.head_scale(), is_swa(net));
    let a = net.attention([q, k, v], Attention { sinks, ..Attention::scaled(scale) })?;
    net.attention_output(a, Bias::Optional)
}

fn is_swa(net: &Net<'_>) -> bool {
    net.hyper().architecture() == GRANITE_SWA.name
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let Some(experts) = net.hyper().experts else { return net.gated(h, GluKind::Swiglu, Bias::Optional) };
    let chosen = net.experts(h, Moe::PLAIN)?;
    match experts.shared_feed_forward {
        Some(inner) => {
            let shared = match is_swa(net) {
                true => net.fused_shared_expert(h, inner, GluKind::Swiglu)?,
                false => net.shared_expert(h, inner, GluKind::Swiglu)?,
            };
            net.add(chosen, shared)
        }
        None => Ok(chosen),
    }
}
