//! BERT and nomic-bert: encoders, whose rows become embeddings.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode, Unary};

use super::{Architecture, Traits};
use crate::model::error::Error;
use crate::model::net::{Attention, Bias, Net};

/// Learnt positions, biases everywhere, a plain feed-forward network.
#[derive(Debug)]
pub(super) struct Bert;

/// Rotary positions and a gated feed-forward network.
#[derive(Debug)]
pub(super) struct NomicBert;

const ENCODER: Traits = Traits { layer_norm: true, encoder: true, ..Traits::plain(RopeMode::Neox) };

impl Architecture for Bert {
    fn name(&self) -> &'static str {
        "bert"
    }

    fn traits(&self) -> Traits {
        Traits { rope: None, ..ENCODER }
    }

    fn forward(&self, net: &mut Net<'_>) -> Result<TensorId, Error> {
        let x = typed_embeddings(net)?;
        let positions = net.learnt_positions()?;
        let x = net.add(x, positions)?;
        let mut x = net.layer_norm(x, "token_embd_norm")?;
        for block in 0..net.block_count() {
            net.enter_block(block);
            let (q, k, v) = net.qkv(x, Bias::Required)?;
            let x1 = attend(net, x, [q, k, v], Bias::Required)?;
            let f = net.plain(x1, Unary::Gelu, Bias::Required)?;
            x = end_block(net, f, x1)?;
        }
        Ok(x)
    }
}

impl Architecture for NomicBert {
    fn name(&self) -> &'static str {
        "nomic-bert"
    }

    fn traits(&self) -> Traits {
        ENCODER
    }

    fn forward(&self, net: &mut Net<'_>) -> Result<TensorId, Error> {
        let x = typed_embeddings(net)?;
        let mut x = net.layer_norm(x, "token_embd_norm")?;
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
    net.layer_norm(sum, "attn_output_norm")
}

fn end_block(net: &mut Net<'_>, f: TensorId, x1: TensorId) -> Result<TensorId, Error> {
    let sum = net.add(f, x1)?;
    let x = net.layer_norm(sum, "layer_output_norm")?;
    net.name_block_result(x)?;
    Ok(x)
}
