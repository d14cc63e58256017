//! GPT 2 and those of its time: layer norms with biases, plain feed-forward networks; learnt positions, falling scores or rotations.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode, Unary};

use super::{Architecture, NormKind, Part, Traits, nothing_more};
use crate::model::error::Error;
use crate::model::hyper_parameters::HyperParameters;
use crate::model::keys::Keys;
use crate::model::net::{Attention, Bias, Net, Norms};

/// Learnt positions.
const GPT2: Architecture = Architecture {
    name: "gpt2",
    traits: Traits { rope: None, norm: NormKind::Layer, ..Traits::plain(RopeMode::Neox) },
    complete: nothing_more,
    forward: |net| {
        let x = net.token_embeddings()?;
        let positions = net.learnt_positions()?;
        let x = net.add(x, positions)?;
        blocks(net, x)
    },
};

/// Rotary positions.
const NEOX: Traits = Traits { norm: NormKind::Layer, ..Traits::plain(RopeMode::Neox) };

const STARCODER2: Architecture = Architecture {
    name: "starcoder2",
    traits: NEOX,
    complete: nothing_more,
    forward: |net| {
        let x = net.token_embeddings()?;
        blocks(net, x)
    },
};

pub(super) const FAMILY: &[Architecture] = &[
    GPT2,
    Architecture { name: "starcoder", ..GPT2 },
    STARCODER2,
    Architecture {
        name: "codeshell",
        forward: |net| {
            // Some files have one table for both ends.
            let x =
                if net.has("token_embd.weight") { net.token_embeddings()? } else { net.output_embeddings()? };
            blocks(net, x)
        },
        ..STARCODER2
    },
    Architecture { name: "gptneox", complete: complete_neox, forward: forward_neox, ..STARCODER2 },
    Architecture {
        name: "bloom",
        complete: |hyper, _| {
            hyper.position_bias = Some(8.0);
            Ok(())
        },
        forward: |net| {
            let x = net.token_embeddings()?;
            let x = net.norm(x, "token_embd_norm")?;
            blocks(net, x)
        },
        ..GPT2
    },
    Architecture { name: "mpt", complete: complete_mpt, forward: forward_mpt, ..GPT2 },
    Architecture { name: "jais", complete: bias_by_key, forward: forward_jais, ..GPT2 },
    Architecture { name: "jais2", forward: |net| squared_blocks(net, Bias::Required), ..STARCODER2 },
    Architecture { name: "nemotron", forward: |net| squared_blocks(net, Bias::Optional), ..STARCODER2 },
    Architecture {
        name: "falcon",
        traits: Traits { rotates_all: true, ..NEOX },
        forward: forward_falcon,
        ..STARCODER2
    },
    Architecture { name: "orion", forward: |net| gated_blocks(net, Net::plain_attention), ..STARCODER2 },
    Architecture { name: "stablelm", forward: forward_stablelm, ..STARCODER2 },
    Architecture {
        name: "pockettts",
        traits: Traits { norm: NormKind::Layer, ..Traits::plain(RopeMode::Normal) },
        forward: |net| {
            let x = net.token_embeddings()?;
            let feed_forward = |net: &mut Net<'_>, h| net.plain(h, Unary::Gelu, Bias::None);
            let x = net.blocks(x, Norms::BEFORE, Net::plain_attention, feed_forward)?;
            net.tied_logits(x)
        },
        ..STARCODER2
    },
];

fn blocks(net: &mut Net<'_>, x: TensorId) -> Result<TensorId, Error> {
    let x = net.blocks(x, Norms::BEFORE, Net::plain_attention, gelu)?;
    net.logits(x)
}

fn gelu(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    net.plain(h, Unary::Gelu, Bias::Required)
}

fn gated_blocks<'n>(net: &mut Net<'n>, attention: Part<'n>) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    let x =
        net.blocks(x, Norms::BEFORE, attention, |net, h| net.gated(h, GluKind::Swiglu, Bias::Optional))?;
    net.logits(x)
}

/// With the square of what the activation gives.
fn squared_blocks(net: &mut Net<'_>, bias: Bias) -> Result<TensorId, Error> {
    let feed_forward = |net: &mut Net<'_>, h| net.squared(h, bias);
    net.decoder(Norms::BEFORE, Net::plain_attention, feed_forward)
}

fn complete_neox(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    keys.metadata().require(&keys.name("use_parallel_residual"))?;
    hyper.is_parallel = keys.flag("use_parallel_residual")?.unwrap_or(true);
    Ok(())
}

fn forward_neox(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    if !net.hyper().is_parallel {
        return blocks(net, x);
    }
    let x = net.parallel_blocks(x, ["attn_norm", "ffn_norm"], Net::plain_attention, gelu)?;
    net.logits(x)
}

fn bias_by_key(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    hyper.position_bias = keys.positive("attention.max_alibi_bias")?;
    Ok(())
}

fn complete_mpt(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    hyper.qkv_limit = keys.positive("attention.clamp_kqv")?;
    bias_by_key(hyper, keys)
}

/// MPT has everything else only if the file has it.
fn forward_mpt(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let mut x = net.token_embeddings()?;
    if net.has("position_embd.weight") {
        let positions = net.learnt_positions()?;
        x = net.add(x, positions)?;
    }
    let x =
        net.blocks(x, Norms::BEFORE, attention_mpt, |net, h| net.plain(h, Unary::Gelu, Bias::Optional))?;
    net.logits(x)
}

fn attention_mpt(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let (mut q, mut k, v) = net.qkv(h, Bias::Optional)?;
    match net.has("attn_q_norm.weight") {
        true => (q, k) = (net.joint_head_norm(q, "attn_q_norm")?, net.joint_head_norm(k, "attn_k_norm")?),
        false => {
            net.pass_over("attn_k_norm.weight");
            net.pass_over("attn_k_norm.bias");
        }
    }
    net.scaled_attention([q, k, v])
}

/// Scores are divided by the size of heads rather than by its root.
fn forward_jais(net: &mut Net<'_>) -> Result<TensorId, Error> {
    gated_blocks(net, |net, h| {
        let (q, k, v) = net.qkv(h, Bias::Optional)?;
        let scale = (net.block().key_size as f32).recip();
        let a = net.attention([q, k, v], Attention::scaled(scale))?;
        net.attention_output(a, Bias::Optional)
    })
}

/// Both parts side by side; the larger models read through a norm for each.
fn forward_falcon(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    let attention = if net.has("blk.0.attn_norm_2.weight") { "attn_norm_2" } else { "attn_norm" };
    let feed_forward = |net: &mut Net<'_>, h| net.plain(h, Unary::Gelu, Bias::None);
    let x = net.parallel_blocks(x, [attention, "attn_norm"], Net::plain_attention, feed_forward)?;
    net.logits(x)
}

/// The models without a second norm have both parts side by side.
fn forward_stablelm(net: &mut Net<'_>) -> Result<TensorId, Error> {
    if net.has("blk.0.ffn_norm.weight") {
        return gated_blocks(net, attention_stablelm);
    }
    let x = net.token_embeddings()?;
    let feed_forward = |net: &mut Net<'_>, h| net.gated(h, GluKind::Swiglu, Bias::None);
    let x = net.parallel_blocks(x, ["attn_norm", "attn_norm"], attention_stablelm, feed_forward)?;
    net.logits(x)
}

fn attention_stablelm(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let (q, k, v) = net.qkv(h, Bias::Optional)?;
    let (q, k) = (net.own_head_norm(q, "attn_q_norm")?, net.own_head_norm(k, "attn_k_norm")?);
    net.rotary_attention([q, k, v])
}
