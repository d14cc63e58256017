//! RWKV 6 and 7: recurrent blocks whose parts read each token beside the one before it. Their mixing of tokens also stands in place of
//! attention in models of Qwen's kind.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, Heads, NormKind, Traits};
use crate::model::error::Error;
use crate::model::hyper_parameters::{HyperParameters, Rwkv};
use crate::model::keys::Keys;
use crate::model::limits::MAX_BLOCKS;
use crate::model::net::{Bias, Net, Shifted};

const RWKV6: Architecture = Architecture {
    name: "rwkv6",
    traits: Traits { norm: NormKind::Layer, ..WITHOUT_HEADS },
    complete: complete6,
    forward: |net| forward(net, |net, x, _| net.rwkv6(x, true), true),
};

/// Blocks of Qwen 2, with a recurrence in place of attention.
const IN_QWEN: Architecture = Architecture {
    name: "rwkv6qwen2",
    traits: WITHOUT_HEADS,
    complete: |hyper, keys| {
        // It stands in files of this kind, and nothing follows from it.
        keys.count("rescale_every_n_layers", MAX_BLOCKS)?;
        hyper.recur_by(Rwkv::read6(keys, hyper.embedding, 1)?);
        Ok(())
    },
    forward: |net| forward_in_qwen(net, |net, x, _| net.rwkv6(x, false)),
};

const WITHOUT_HEADS: Traits = Traits { rope: None, heads: Heads::None, ..Traits::plain(RopeMode::Normal) };

pub(super) const FAMILY: &[Architecture] = &[
    RWKV6,
    IN_QWEN,
    Architecture {
        name: "rwkv7",
        complete: |hyper, keys| {
            hyper.recur_by(Rwkv::read7(keys, hyper.embedding, 2)?);
            Ok(())
        },
        forward: |net| forward(net, |net, x, values| net.rwkv7(x, values, true), false),
        ..RWKV6
    },
    Architecture {
        name: "arwkv7",
        complete: |hyper, keys| {
            hyper.recur_by(Rwkv::read7(keys, hyper.embedding, 1)?);
            Ok(())
        },
        forward: |net| forward_in_qwen(net, |net, x, values| net.rwkv7(x, values, false)),
        ..IN_QWEN
    },
];

fn complete6(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let rwkv = Rwkv::read6(keys, hyper.embedding, 2)?;
    let halving_period = keys.count("rescale_every_n_layers", MAX_BLOCKS)?;
    hyper.recur_by(Rwkv { halving_period, ..rwkv });
    Ok(())
}

/// Mixes tokens, given the values of the first block.
type Mix<'n> = fn(&mut Net<'n>, Shifted, &mut Option<TensorId>) -> Result<TensorId, Error>;

/// Both parts read the token before. `weighed`: whether receptance weighs what the second one gives.
fn forward<'n>(net: &mut Net<'n>, mix: Mix<'n>, weighed: bool) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    let mut x = net.norm(x, "token_embd_norm")?;
    let halving_period = net.hyper().rwkv.and_then(|rwkv| rwkv.halving_period);
    let mut values = None;
    for block in 0..net.block_count() {
        net.enter_block(block);
        let mut last = net.last_tokens()?;
        let h = net.norm(x, "attn_norm")?;
        let h = net.shifted(h, &mut last)?;
        let mixed = mix(net, h, &mut values)?;
        let x1 = net.add(mixed, x)?;
        let h = net.norm(x1, "attn_norm_2")?;
        let h = net.shifted(h, &mut last)?;
        net.keep_last(last)?;
        let [rows, change, x1] = net.keep_wanted([h.rows, h.change, x1])?;
        let f = net.channel_mix(Shifted { rows, change }, weighed)?;
        x = net.leave_block(f, x1)?;
        if halving_period.is_some_and(|period| (block + 1).is_multiple_of(period)) {
            x = net.scale(x, 0.5)?;
        }
    }
    net.logits(x)
}

/// The first part alone reads the token before.
fn forward_in_qwen<'n>(net: &mut Net<'n>, mix: Mix<'n>) -> Result<TensorId, Error> {
    let mut x = net.token_embeddings()?;
    let mut values = None;
    for block in 0..net.block_count() {
        net.enter_block(block);
        let mut last = net.last_tokens()?;
        let h = net.norm(x, "attn_norm")?;
        let h = net.shifted(h, &mut last)?;
        net.keep_last(last)?;
        let mixed = mix(net, h, &mut values)?;
        let [mixed, residual] = net.keep_wanted([mixed, x])?;
        let x1 = net.add(mixed, residual)?;
        let h = net.norm(x1, "ffn_norm")?;
        let f = net.gated(h, GluKind::Swiglu, Bias::None)?;
        x = net.leave_block(f, x1)?;
    }
    net.logits(x)
}
