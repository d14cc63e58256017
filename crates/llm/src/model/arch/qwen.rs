//! Qwen 2, 2.5 and 3, dense and with experts.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertSize, ExpertUse, Traits};
use crate::model::error::Error;
use crate::model::net::{Attention, Bias, Moe, Net};

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
    let mut x = net.token_embeddings()?;
    for block in 0..net.block_count() {
        net.enter_block(block);
        let h = net.rms_norm(x, "attn_norm")?;
        let (mut q, mut k, v) = net.qkv(h, bias)?;
        if norms {
            (q, k) = (net.head_norm(q, "attn_q_norm")?, net.head_norm(k, "attn_k_norm")?);
        }
        let (q, k) = (net.rope(q)?, net.rope(k)?);
        let scale = net.head_scale();
        let a = net.attention([q, k, v], Attention::scaled(scale))?;
        let a = net.attention_output(a, Bias::Optional)?;
        let [a, residual] = net.keep_wanted([a, x])?;
        let x1 = net.add(a, residual)?;
        let h = net.rms_norm(x1, "ffn_norm")?;
        let f = match net.hyper().experts {
            Some(_) => net.experts(h, Moe::PLAIN)?,
            None => net.gated(h, GluKind::Swiglu, Bias::None)?,
        };
        x = net.leave_block(f, x1)?;
    }
    net.logits(x)
}
