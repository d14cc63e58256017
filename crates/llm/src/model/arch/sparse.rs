//! Families with experts and nothing shared, each with a detail of its own: MiniMax M2, Mellum, Maple, MiMo 2, SmallThinker, GroveMoE.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertSize, ExpertUse, Part, Pattern, ScaleUse, Traits, WindowKey, nothing_more};
use crate::model::error::Error;
use crate::model::hyper_parameters::{Gating, HyperParameters, Window};
use crate::model::keys::Keys;
use crate::model::limits::{MAX_EXPERTS, MAX_FEED_FORWARD};
use crate::model::net::{Attention, Bias, Moe, Net, Norms};

const EXPERTS: Traits = Traits {
    experts: ExpertUse::Always,
    expert_size: ExpertSize::OwnOrShare,
    ..Traits::plain(RopeMode::Neox)
};

pub(super) const FAMILY: &[Architecture] = &[
    Architecture {
        name: "minimax-m2",
        traits: Traits { expert_size: ExpertSize::Dense, ..EXPERTS },
        complete: nothing_more,
        forward: forward_minimax,
    },
    Architecture {
        name: "mellum",
        traits: Traits {
            window: WindowKey::Optional,
            pattern: Pattern::LastOf(4),
            scales: ScaleUse::ALL,
            ..EXPERTS
        },
        complete: |hyper, _| {
            hyper.leave_windows_unscaled();
            Ok(())
        },
        forward: |net| forward(net, Net::normed_attention, |net, h| net.experts(h, Moe::PLAIN)),
    },
    Architecture {
        name: "maple",
        traits: Traits { window: WindowKey::Required, ..EXPERTS },
        complete: complete_maple,
        forward: |net| forward(net, Net::normed_attention, limited_experts),
    },
    Architecture {
        name: "mimo2",
        traits: Traits {
            window: WindowKey::Required,
            rope_windowed: Some((10_000.0, 1.0)),
            expert_size: ExpertSize::Own,
            scales: ScaleUse { qkv: false, ..ScaleUse::PLAIN },
            ..EXPERTS
        },
        complete: |hyper, keys| {
            hyper.factors.values = keys.factor("attention.value_scale")?.unwrap_or(1.0);
            Ok(())
        },
        forward: |net| forward(net, attention_mimo, feed_forward_mimo),
    },
    Architecture {
        name: "smallthinker",
        traits: Traits { window: WindowKey::Optional, pattern: Pattern::FirstOf(4), ..EXPERTS },
        complete: complete_smallthinker,
        forward: forward_smallthinker,
    },
    Architecture {
        name: "grovemoe",
        traits: EXPERTS,
        complete: complete_grove,
        forward: |net| forward(net, Net::normed_attention, feed_forward_grove),
    },
];

fn forward<'n>(net: &mut Net<'n>, attention: Part<'n>, feed_forward: Part<'n>) -> Result<TensorId, Error> {
    net.decoder(Norms::BEFORE, attention, feed_forward)
}

/// MiniMax M2: norms of all heads together; few channels rotate.
fn forward_minimax(net: &mut Net<'_>) -> Result<TensorId, Error> {
    forward(
        net,
        |net, h| {
            let (q, k, v) = net.qkv(h, Bias::Optional)?;
            let (q, k) = (net.joint_head_norm(q, "attn_q_norm")?, net.joint_head_norm(k, "attn_k_norm")?);
            net.rotary_attention([q, k, v])
        },
        |net, h| {
            let stated = net.hyper().experts.and_then(|experts| experts.gating);
            net.experts(h, Moe { gating: stated.unwrap_or(Gating::Softmax), ..Moe::PLAIN })
        },
    )
}

/// Maple: blocks that see everything have no positions; what is inside experts is bounded.
fn complete_maple(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    hyper.blocks.iter_mut().for_each(|block| block.rotates = block.windowed);
    hyper.read_limits(keys, false)
}

fn limited_experts(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let limit = net.block().expert_limit;
    let kind = limit.map_or(GluKind::Swiglu, |limit| GluKind::SwigluClamp { limit });
    net.experts(h, Moe { kind: kind.into(), ..Moe::PLAIN })
}

/// MiMo 2: sinks where the file has them, values of another size than keys.
fn attention_mimo(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let (q, k, v) = net.qkv(h, Bias::None)?;
    for name in ["attn_q.bias", "attn_k.bias", "attn_v.bias"] {
        net.pass_over(name);
    }
    let (q, k) = (net.rope(q)?, net.rope(k)?);
    let (scale, sinks) = (net.head_scale(), net.has("attn_sinks.weight"));
    let a = net.attention([q, k, v], Attention { sinks, ..Attention::scaled(scale) })?;
    let a = net.attention_output(a, Bias::None)?;
    match net.hyper().factors.values {
        1.0 => Ok(a),
        factor => net.scale(a, factor),
    }
}

/// Blocks with a router have experts.
fn feed_forward_mimo(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    if !net.has("ffn_gate_inp.weight") {
        return net.gated(h, GluKind::Swiglu, Bias::Optional);
    }
    net.pass_over_dense();
    net.experts(h, Moe { gating: Gating::Sigmoid, ..Moe::PLAIN })
}

/// SmallThinker: the first of four blocks sees everything and has no positions.
fn complete_smallthinker(hyper: &mut HyperParameters, _: &Keys<'_>) -> Result<(), Error> {
    if hyper.window.is_some() {
        hyper.window = Some(Window::Sliding(4096));
        for (index, block) in hyper.blocks.iter_mut().enumerate() {
            block.rotates = !index.is_multiple_of(4);
        }
    }
    Ok(())
}

/// Experts are chosen by what a block reads, before any norm.
fn forward_smallthinker(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let mut x = net.token_embeddings()?;
    for block in 0..net.block_count() {
        net.enter_block(block);
        let stated = net.hyper().experts.and_then(|experts| experts.gating);
        let moe =
            Moe { gating: stated.unwrap_or(Gating::Softmax), kind: GluKind::Reglu.into(), ..Moe::PLAIN };
        let scores = net.expert_scores(x, moe)?;
        let h = net.norm(x, "attn_norm")?;
        let a = net.plain_attention(h)?;
        let [a, residual, scores] = net.keep_wanted([a, x, scores])?;
        let x1 = net.add(a, residual)?;
        let h = net.norm(x1, "ffn_norm")?;
        let f = net.scored_experts(h, scores, moe)?;
        x = net.leave_block(f, x1)?;
    }
    net.logits(x)
}

/// GroveMoE: experts come in groups, and each group has a small expert that works on what the others gave.
fn complete_grove(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let Some(experts) = &mut hyper.experts else { return Ok(()) };
    let group = keys.need_count("experts_per_group", MAX_EXPERTS)?;
    if !experts.count.is_multiple_of(group) {
        let rule = format!("must divide the {} experts", experts.count);
        return Err(keys.refuse("experts_per_group", group, rule));
    }
    let size = keys.count("expert_chunk_feed_forward_length", MAX_FEED_FORWARD)?;
    experts.groves = Some((group, size.unwrap_or(hyper.blocks[0].key_size)));
    hyper.factors.groves = keys.number("expert_group_scale")?.unwrap_or(1.0);
    Ok(())
}

fn feed_forward_grove(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let scores = net.expert_scores(h, Moe::PLAIN)?;
    let chosen = net.scored_experts(h, scores, Moe::PLAIN)?;
    let small = net.grove_experts(chosen, scores)?;
    let small = net.scale(small, net.hyper().factors.groves)?;
    net.add(chosen, small)
}
