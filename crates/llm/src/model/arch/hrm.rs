//! HRM Text: two stacks of blocks over the same tokens, a low one that is gone through several times for each time of the high one.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode, Unary};

use super::{Architecture, NormKind, Traits};
use crate::model::error::Error;
use crate::model::hyper_parameters::HyperParameters;
use crate::model::keys::Keys;
use crate::model::limits::MAX_BLOCKS;
use crate::model::net::{Attention, Bias, Gate, Net, Norms};

pub(super) const FAMILY: &[Architecture] = &[Architecture {
    name: "hrm_text",
    traits: Traits { norm: NormKind::RmsAlone, ..Traits::plain(RopeMode::Neox) },
    complete,
    forward,
}];

/// The blocks of the file are those of the low stack and then those of the high one. What is computed is one block after another,
/// each time with keys and values of its own.
fn complete(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let stack = keys.need_count("hrm.layers_per_stack", MAX_BLOCKS)?;
    let rounds = keys.need_count("hrm.h_cycles", MAX_BLOCKS)?;
    let low = keys.need_count("hrm.l_cycles", MAX_BLOCKS)?;
    if hyper.blocks.len() != stack * rounds * (low + 1) {
        let rule = format!("must be {}, those of all rounds", stack * rounds * (low + 1));
        return Err(keys.refuse("block_count", hyper.blocks.len(), rule));
    }
    for (index, block) in hyper.blocks.iter_mut().enumerate() {
        let is_high = (index / stack) % (low + 1) == low;
        block.tensors = index % stack + if is_high { stack } else { 0 };
    }
    hyper.stacks = Some((stack, low));
    hyper.factors.embedding = keys.factor("embedding_scale")?.unwrap_or(1.0);
    Ok(())
}

/// Both stacks read the sum of what they gave last, and norm what they give; the last norm is that before logits.
fn forward(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let (stack, low) = net.hyper().stacks.unwrap_or((1, 1));
    let mut high_state = net.token_embeddings()?;
    let mut low_state = net.weight("hrm.z_l_init", net.hyper().embedding)?;
    let passes = net.block_count() / stack;
    for pass in 0..passes {
        let mut x = net.add(high_state, low_state)?;
        for block in pass * stack..(pass + 1) * stack {
            x = net.one_block(block, x, Norms::BEFORE, gated_attention, |net, h| {
                net.gated(h, GluKind::Swiglu, Bias::None)
            })?;
        }
        if pass + 1 == passes {
            return net.logits(x);
        }
        let given = net.norm_alone(x)?;
        match pass % (low + 1) == low {
            true => high_state = given,
            false => low_state = given,
        }
    }
    Ok(high_state)
}

/// Attention weighed by gates of what it read.
fn gated_attention(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let (q, k, v) = net.qkv(h, Bias::Optional)?;
    let (q, k) = (net.rope(q)?, net.rope(k)?);
    let scale = net.head_scale();
    let a = net.attention([q, k, v], Attention::scaled(scale))?;
    let a = net.gated_result(a, h, Gate::Channels, Unary::Sigmoid)?;
    net.attention_output(a, Bias::None)
}
