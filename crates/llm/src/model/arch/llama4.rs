//! Llama 4: attention in chunks, and blocks without positions that see everything; experts weigh what they read.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertSize, ExpertUse, Pattern, Traits, WindowKey};
use crate::model::error::Error;
use crate::model::hyper_parameters::{Gating, HyperParameters, Temperature, Window};
use crate::model::keys::Keys;
use crate::model::limits::MAX_BLOCKS;
use crate::model::net::{Bias, Moe, Net, Norms};

const CHUNK: usize = 8192;

/// The large model has no norms of queries and keys.
const MAVERICK_EXPERTS: usize = 128;

pub(super) const FAMILY: &[Architecture] = &[Architecture {
    name: "llama4",
    traits: Traits {
        window: WindowKey::Default(CHUNK),
        pattern: Pattern::LastOf(4),
        experts: ExpertUse::Always,
        expert_size: ExpertSize::Own,
        ..Traits::plain(RopeMode::Normal)
    },
    complete,
    forward,
}];

fn complete(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let sees_all = keys.counts("attention.sliding_window", 1, usize::MAX)? == Some(vec![0]);
    let period = if sees_all { hyper.blocks.len() } else { 4 };
    for (index, block) in hyper.blocks.iter_mut().enumerate() {
        block.rotates = !(index + 1).is_multiple_of(period);
        block.windowed &= !sees_all;
    }
    hyper.window = (!sees_all).then_some(Window::Chunked(CHUNK));
    hyper.temperature = (!sees_all).then_some(Temperature { scale: 0.1, length: CHUNK, offset: 1 });
    let step = keys.need_count("interleave_moe_layer_step", MAX_BLOCKS)?;
    for (index, block) in hyper.blocks.iter_mut().enumerate() {
        block.has_experts = (index + 1).is_multiple_of(step);
    }
    Ok(())
}

fn forward(net: &mut Net<'_>) -> Result<TensorId, Error> {
    net.decoder(Norms::BEFORE, attention, feed_forward)
}

fn attention(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let (mut q, mut k, v) = net.qkv(h, Bias::Optional)?;
    (q, k) = (net.rope(q)?, net.rope(k)?);
    if !net.block().rotates {
        q = net.tempered(q)?;
    } else if net.hyper().experts.is_none_or(|experts| experts.count != MAVERICK_EXPERTS) {
        (q, k) = (net.norm_alone(q)?, net.norm_alone(k)?);
    }
    net.scaled_attention([q, k, v])
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let Some(experts) = net.hyper().experts.filter(|_| net.block().has_experts) else {
        return net.gated(h, GluKind::Swiglu, Bias::Optional);
    };
    let moe = Moe { gating: Gating::Sigmoid, normalized: false, weighs_inputs: true, ..Moe::PLAIN };
    net.experts_and_shared(h, moe, experts.feed_forward)
}
