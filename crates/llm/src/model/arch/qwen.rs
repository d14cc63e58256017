//! Qwen 2, 2.5 and 3, dense and with experts.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertSize, ExpertUse, Traits};
use crate::model::error::Error;
use crate::model::net::{Bias, Moe, Net, Norms};

/// Biases on queries, keys and values.
#[derive(Debug)]
pub(super) struct Qwen2;

/// Norms on the queries and keys of each head.
#[derive(Debug)]
pub(super) struct Qwen3;

/// As [`Qwen3`], with experts.
#[derive(Debug)]
pub(super) struct Qwen3Moe;

impl Architecture for Qwen2 {
    fn name(&self) -> &'static str {
        "qwen2"
    }

    fn traits(&self) -> Traits {
        Traits::plain(RopeMode::Neox)
    }

    fn forward(&self, net: &mut Net<'_>) -> Result<TensorId, Error> {
        forward(net, Bias::Required, false)
    }
}

impl Architecture for Qwen3 {
    fn name(&self) -> &'static str {
        "qwen3"
    }

    fn traits(&self) -> Traits {
        Traits { scales: true, ..Traits::plain(RopeMode::Neox) }
    }

    fn forward(&self, net: &mut Net<'_>) -> Result<TensorId, Error> {
        forward(net, Bias::Optional, true)
    }
}

impl Architecture for Qwen3Moe {
    fn name(&self) -> &'static str {
        "qwen3moe"
    }

    fn traits(&self) -> Traits {
        let (experts, expert_size) = (ExpertUse::Always, ExpertSize::OwnOrShare);
        Traits { experts, expert_size, scales: true, ..Traits::plain(RopeMode::Neox) }
    }

    fn forward(&self, net: &mut Net<'_>) -> Result<TensorId, Error> {
        forward(net, Bias::Optional, true)
    }
}

fn forward(net: &mut Net<'_>, bias: Bias, norms: bool) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    let x = net.blocks(x, Norms::BEFORE, |net, h| attention(net, h, bias, norms), feed_forward)?;
    net.logits(x)
}

fn attention(net: &mut Net<'_>, h: TensorId, bias: Bias, norms: bool) -> Result<TensorId, Error> {
    let (mut q, mut k, v) = net.qkv(h, bias)?;
    if norms {
        (q, k) = (net.head_norm(q, "attn_q_norm")?, net.head_norm(k, "attn_k_norm")?);
    }
    net.rotary_attention([q, k, v])
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    match net.hyper().experts {
        Some(_) => net.experts(h, Moe::PLAIN),
        None => net.gated(h, GluKind::Swiglu, Bias::None),
    }
}
