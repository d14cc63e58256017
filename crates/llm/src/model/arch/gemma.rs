//! Gemma 1 to 3: norms around, windows, bounded scores; and EmbeddingGemma.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, Pattern, Purpose, Traits, WindowKey, nothing_more};
use crate::model::error::Error;
use crate::model::net::{Attention, Bias, Net, Norms};

pub(super) const FAMILY: &[Architecture] = &[
    Architecture {
        name: "gemma",
        traits: Traits::plain(RopeMode::Neox),
        complete: nothing_more,
        forward: forward1,
    },
    Architecture {
        name: "gemma2",
        traits: Traits {
            window: WindowKey::Default(4096),
            pattern: Pattern::LastOf(2),
            attention_soft_cap: Some(50.0),
            has_logit_soft_cap: true,
            logit_soft_cap: Some(30.0),
            ..Traits::plain(RopeMode::Neox)
        },
        complete: nothing_more,
        forward: forward2,
    },
    Architecture {
        name: "gemma3",
        traits: Traits {
            window: WindowKey::Optional,
            pattern: Pattern::LastOf(6),
            rope_windowed: Some((10_000.0, 1.0)),
            has_logit_soft_cap: true,
            ..Traits::plain(RopeMode::Neox)
        },
        complete: nothing_more,
        forward: forward3,
    },
    // As Gemma 3, but every token sees those after it as well.
    Architecture {
        name: "gemma-embedding",
        traits: Traits {
            purpose: Purpose::Embed,
            window: WindowKey::Required,
            pattern: Pattern::LastOf(6),
            rope_windowed: Some((10_000.0, 1.0)),
            ..Traits::plain(RopeMode::Neox)
        },
        complete: nothing_more,
        forward: |net| {
            let x = blocks(net, Norms::AROUND, |net, h| normed_attention(net, h, false))?;
            let x = net.final_norm(x, "output_norm")?;
            net.pass_over("output.weight");
            Ok(x)
        },
    },
];

/// The 27B models scale queries by another number than their siblings.
const GEMMA2_27B_BLOCKS: usize = 46;
const GEMMA3_27B_BLOCKS: usize = 62;

fn forward1(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = blocks(net, Norms::BEFORE, |net, h| {
        let (q, k, v) = net.qkv(h, Bias::Optional)?;
        attention(net, [q, k, v], false)
    })?;
    net.tied_logits(x)
}

fn forward2(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let is_large = net.block_count() == GEMMA2_27B_BLOCKS;
    let x = blocks(net, Norms::AROUND, |net, h| {
        let (q, k, v) = net.qkv(h, Bias::Optional)?;
        attention(net, [q, k, v], is_large)
    })?;
    net.tied_logits(x)
}

fn forward3(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let is_large = net.block_count() == GEMMA3_27B_BLOCKS;
    let x = blocks(net, Norms::AROUND, |net, h| normed_attention(net, h, is_large))?;
    net.logits(x)
}

fn normed_attention(net: &mut Net<'_>, h: TensorId, is_large: bool) -> Result<TensorId, Error> {
    let (q, k, v) = net.qkv(h, Bias::Optional)?;
    let (q, k) = (net.head_norm(q, "attn_q_norm")?, net.head_norm(k, "attn_k_norm")?);
    attention(net, [q, k, v], is_large)
}

fn blocks(
    net: &mut Net<'_>,
    norms: Norms,
    attention: impl Fn(&mut Net<'_>, TensorId) -> Result<TensorId, Error>,
) -> Result<TensorId, Error> {
    let embeddings = net.token_embeddings()?;
    let width = net.hyper().embedding as f32;
    let x = net.scale(embeddings, width.sqrt())?;
    net.blocks(x, norms, attention, |net, h| net.gated(h, GluKind::Geglu, Bias::None))
}

fn attention(net: &mut Net<'_>, [q, k, v]: [TensorId; 3], is_large: bool) -> Result<TensorId, Error> {
    let (q, k) = (net.rope(q)?, net.rope(k)?);
    let per_head = net.hyper().embedding as f32 / net.block().heads as f32;
    let scale = if is_large { per_head.sqrt().recip() } else { net.head_scale() };
    let q = net.scale(q, scale)?;
    let soft_cap = net.hyper().attention_soft_cap;
    let a = net.attention([q, k, v], Attention { soft_cap, ..Attention::scaled(1.0) })?;
    net.attention_output(a, Bias::None)
}
