//! Gemma 2 and 3: norms before and after, windows, bounded scores.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, Traits, Window};
use crate::model::error::Error;
use crate::model::net::{Attention, Bias, Net, Norms};

#[derive(Debug)]
pub(super) struct Gemma2;

#[derive(Debug)]
pub(super) struct Gemma3;

/// The 27B models scale queries by another number than their siblings.
const GEMMA2_27B_BLOCKS: usize = 46;
const GEMMA3_27B_BLOCKS: usize = 62;

impl Architecture for Gemma2 {
    fn name(&self) -> &'static str {
        "gemma2"
    }

    fn traits(&self) -> Traits {
        Traits {
            window: Window::Default(4096),
            window_period: 2,
            attention_soft_cap: Some(50.0),
            has_logit_soft_cap: true,
            logit_soft_cap: Some(30.0),
            ..Traits::plain(RopeMode::Neox)
        }
    }

    fn forward(&self, net: &mut Net<'_>) -> Result<TensorId, Error> {
        let x = forward(net, GEMMA2_27B_BLOCKS, false)?;
        net.tied_logits(x)
    }
}

impl Architecture for Gemma3 {
    fn name(&self) -> &'static str {
        "gemma3"
    }

    fn traits(&self) -> Traits {
        Traits {
            window: Window::Optional,
            window_period: 6,
            rope_windowed: Some((10_000.0, 1.0)),
            has_logit_soft_cap: true,
            ..Traits::plain(RopeMode::Neox)
        }
    }

    fn forward(&self, net: &mut Net<'_>) -> Result<TensorId, Error> {
        let x = forward(net, GEMMA3_27B_BLOCKS, true)?;
        net.logits(x)
    }
}

fn forward(net: &mut Net<'_>, large: usize, norms: bool) -> Result<TensorId, Error> {
    let embeddings = net.token_embeddings()?;
    let width = net.hyper().embedding as f32;
    let x = net.scale(embeddings, width.sqrt())?;
    net.blocks(
        x,
        Norms::AROUND,
        |net, h| attention(net, h, large, norms),
        |net, h| net.gated(h, GluKind::Geglu, Bias::None),
    )
}

fn attention(net: &mut Net<'_>, h: TensorId, large: usize, norms: bool) -> Result<TensorId, Error> {
    let (mut q, mut k, v) = net.qkv(h, Bias::None)?;
    if norms {
        (q, k) = (net.head_norm(q, "attn_q_norm")?, net.head_norm(k, "attn_k_norm")?);
    }
    let (q, k) = (net.rope(q)?, net.rope(k)?);
    let per_head = net.hyper().embedding as f32 / net.block().heads as f32;
    let scale = if net.block_count() == large { per_head.sqrt().recip() } else { net.head_scale() };
    let q = net.scale(q, scale)?;
    let soft_cap = net.hyper().attention_soft_cap;
    let a = net.attention([q, k, v], Attention { scale: 1.0, soft_cap, sinks: false })?;
    net.attention_output(a, Bias::None)
}
