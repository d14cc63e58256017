//! Mamba 1 and 2: recurrent blocks and nothing else. Jamba has attention in a few blocks, and a feed-forward network in each; Falcon
//! H1 has attention beside Mamba 2 in every block.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertUse, Heads, Traits};
use crate::model::error::Error;
use crate::model::hyper_parameters::{HyperParameters, StateSpace};
use crate::model::keys::Keys;
use crate::model::net::{Attention, Bias, Moe, Net, Norms};

const MAMBA: Architecture = Architecture {
    name: "mamba",
    traits: Traits { rope: None, heads: Heads::None, ..Traits::plain(RopeMode::Normal) },
    complete: complete_ungrouped,
    forward: |net| forward_recurrent(net, Net::mamba1),
};

pub(super) const FAMILY: &[Architecture] = &[
    MAMBA,
    Architecture {
        name: "mamba2",
        complete: complete_grouped,
        forward: |net| forward_recurrent(net, Net::mamba2),
        ..MAMBA
    },
    Architecture {
        name: "jamba",
        traits: Traits { heads: Heads::Some, experts: ExpertUse::Maybe, ..MAMBA.traits },
        complete: complete_ungrouped,
        forward: forward_jamba,
    },
    Architecture {
        name: "falcon-h1",
        traits: Traits { frequency_factors: false, ..Traits::plain(RopeMode::Neox) },
        complete: complete_beside,
        forward: forward_falcon,
    },
];

fn complete_ungrouped(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    hyper.recur_without_heads(StateSpace::read_ungrouped(keys)?);
    Ok(())
}

fn complete_grouped(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    hyper.recur_without_heads(StateSpace::read(keys)?);
    Ok(())
}

/// Every block is recurrent, and has attention as well.
fn complete_beside(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    // Some of its files have no norms of results.
    let space = StateSpace { normed: false, ..StateSpace::read(keys)? };
    hyper.blocks.iter_mut().for_each(|block| block.state.recurrent = Some(space.remembered()));
    hyper.state_space = Some(space);
    hyper.factors.attention = keys.factor("attention.scale")?;
    Ok(())
}

fn forward_recurrent<'n>(net: &mut Net<'n>, mamba: super::Part<'n>) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    let x = net.single_blocks(x, mamba)?;
    net.logits(x)
}

fn forward_jamba(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let mix = |net: &mut Net<'_>, h| match net.block().is_recurrent() {
        true => net.mamba1(h),
        false => net.plain_attention(h),
    };
    net.decoder(Norms::BEFORE, mix, |net, h| match net.has("ffn_gate_inp.weight") {
        true => net.experts(h, Moe { normalized: false, ..Moe::PLAIN }),
        false => net.gated(h, GluKind::Swiglu, Bias::None),
    })
}

fn forward_falcon(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    let x = net.blocks(x, Norms::NONE, attention_and_mamba, |net, x| {
        // Its weights have a name without an ending.
        let h = net.rms_norm_by(x, "ffn_norm")?;
        net.gated(h, GluKind::Swiglu, Bias::Optional)
    })?;
    net.logits(x)
}

/// Attention and a recurrence of the same tokens, added up.
fn attention_and_mamba(net: &mut Net<'_>, x: TensorId) -> Result<TensorId, Error> {
    let h = net.norm(x, "attn_norm")?;
    let (q, k, v) = net.qkv(h, Bias::Optional)?;
    let (q, k) = (net.rope(q)?, net.rope(k)?);
    let scale = net.head_scale();
    let a = net.attention([q, k, v], Attention::scaled(scale))?;
    net.pass_over("attn_output.bias");
    let a = net.attention_output(a, Bias::None)?;
    let m = net.mamba2(h)?;
    net.add(a, m)
}
