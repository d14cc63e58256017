//! BERT and nomic-bert: encoders, whose rows become embeddings.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode, Unary};

use super::{Architecture, NormKind, Purpose, Traits, nothing_more};
use crate::model::error::Error;
use crate::model::net::{Attention, Bias, Net};

const ENCODER: Traits =
    Traits { norm: NormKind::Layer, purpose: Purpose::Embed, ..Traits::plain(RopeMode::Neox) };

pub(super) const FAMILY: &[Architecture] = &[
    Architecture {
        name: "bert",
        traits: Traits { rope: None, ..ENCODER },
        complete: nothing_more,
        forward: forward_bert,
    },
    Architecture { name: "nomic-bert", traits: ENCODER, complete: nothing_more, forward: forward_nomic },
];

/// Learnt positions, biases everywhere, a plain feed-forward network.
fn forward_bert(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = typed_embeddings(net)?;
    let positions = net.learnt_positions()?;
    let x = net.add(x, positions)?;
    let mut x = net.norm(x, "token_embd_norm")?;
    for block in 0..net.block_count() {
        net.enter_block(block);
        let (q, k, v) = net.qkv(x, Bias::Required)?;
        let x1 = attend(net, x, [q, k, v], Bias::Required)?;
        let f = net.plain(x1, Unary::Gelu, Bias::Required)?;
        x = end_block(net, f, x1)?;
    }
    Ok(x)
}

/// Rotary positions and a gated feed-forward network.
fn forward_nomic(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = typed_embeddings(net)?;
    let mut x = net.norm(x, "token_embd_norm")?;
    for block in 0..net.block_count() {
        net.enter_block(block);
        let (q, k, v) = net.qkv(x, Bias::Optional)?;
        let (q, k) = (net.rope(q)?, net.rope(k)?);
        let x1 = attend(net, x, [q, k, v], Bias::Optional)?;
        let f = net.gated(x1, GluKind::Swiglu, Bias::None)?;
        x = end_block(net, f, x1)?;
    }
    Ok(x)
}

fn typed_embeddings(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    match net.first_token_type()? {
        Some(first) => net.add(x, first),
        None => Ok(x),
    }
}

fn attend(net: &mut Net<'_>, x: TensorId, qkv: [TensorId; 3], bias: Bias) -> Result<TensorId, Error> {
    let scale = net.head_scale();
    let a = net.attention(qkv, Attention::scaled(scale))?;
    let a = net.attention_output(a, bias)?;
    let sum = net.add(a, x)?;
    net.norm(sum, "attn_output_norm")
}

fn end_block(net: &mut Net<'_>, f: TensorId, x1: TensorId) -> Result<TensorId, Error> {
    let sum = net.add(f, x1)?;
    let x = net.norm(sum, "layer_output_norm")?;
    net.name_block_result(x)?;
    Ok(x)
}
