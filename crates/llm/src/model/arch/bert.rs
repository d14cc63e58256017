//! BERT and its kin: encoders whose parts have their norms behind them, and whose rows become embeddings.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode, Unary};

use super::{Architecture, ExpertUse, NormKind, Purpose, Traits, nothing_more};
use crate::model::error::Error;
use crate::model::hyper_parameters::{Gating, HyperParameters};
use crate::model::keys::Keys;
use crate::model::limits::MAX_BLOCKS;
use crate::model::net::{Attention, Bias, Moe, Net};

const ENCODER: Traits =
    Traits { norm: NormKind::Layer, purpose: Purpose::Embed, ..Traits::plain(RopeMode::Neox) };

pub(super) const FAMILY: &[Architecture] = &[
    Architecture {
        name: "bert",
        traits: Traits { rope: None, ..ENCODER },
        complete: nothing_more,
        forward: forward_bert,
    },
    Architecture {
        name: "nomic-bert",
        traits: ENCODER,
        complete: nothing_more,
        forward: |net| forward(net, rotated, |net, h| net.gated(h, GluKind::Swiglu, Bias::None)),
    },
    Architecture {
        name: "nomic-bert-moe",
        traits: Traits { experts: ExpertUse::Maybe, ..ENCODER },
        complete: place_experts,
        forward: |net| forward(net, rotated, plain_or_experts),
    },
    Architecture {
        name: "jina-bert-v2",
        traits: Traits { rope: None, ..ENCODER },
        complete: |hyper, _| {
            hyper.position_bias = Some(JINA_BIAS);
            Ok(())
        },
        forward: forward_jina,
    },
    Architecture {
        name: "jina-bert-v3",
        traits: ENCODER,
        complete: nothing_more,
        forward: |net| forward(net, rotated, |net, h| net.plain(h, Unary::Gelu, Bias::Optional)),
    },
];

/// How much scores fall with the distance, at most.
const JINA_BIAS: f32 = 8.0;

/// Every so many blocks there is one with experts: the second of them.
fn place_experts(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let period = keys.count("moe_every_n_layers", MAX_BLOCKS)?;
    for (index, block) in hyper.blocks.iter_mut().enumerate() {
        block.has_experts = period.is_some_and(|period| index % period == 1);
    }
    if hyper.experts.is_none() && hyper.blocks.iter().any(|block| block.has_experts) {
        return Err(keys.refuse("expert_count", 0, "some blocks need experts"));
    }
    Ok(())
}

/// Learnt positions, biases everywhere, a plain feed-forward network.
fn forward_bert(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = typed_embeddings(net)?;
    let positions = net.learnt_positions()?;
    let x = net.add(x, positions)?;
    blocks(
        net,
        x,
        |net, x| {
            let (q, k, v) = net.qkv(x, Bias::Required)?;
            attend(net, [q, k, v], Bias::Required)
        },
        |net, h| net.plain(h, Unary::Gelu, Bias::Required),
    )
}

fn forward<'n>(
    net: &mut Net<'n>,
    attention: impl Fn(&mut Net<'n>, TensorId) -> Result<TensorId, Error>,
    feed_forward: impl Fn(&mut Net<'n>, TensorId) -> Result<TensorId, Error>,
) -> Result<TensorId, Error> {
    let x = typed_embeddings(net)?;
    blocks(net, x, attention, feed_forward)
}

/// Scores that fall with the distance, and norms of queries and keys in some of its files.
fn forward_jina(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let attention = |net: &mut Net<'_>, x| {
        let (mut q, mut k, v) = net.qkv(x, Bias::Optional)?;
        if net.has("attn_q_norm.weight") {
            q = net.joint_head_norm(q, "attn_q_norm")?;
        }
        if net.has("attn_k_norm.weight") {
            k = net.joint_head_norm(k, "attn_k_norm")?;
        }
        attend(net, [q, k, v], Bias::Required)
    };
    forward(net, attention, |net, h| match (net.has("ffn_gate.weight"), net.widens_twice()) {
        (true, _) => net.gated(h, GluKind::Geglu, Bias::Optional),
        (false, true) => net.gated_fused_with_biases(h, GluKind::Geglu),
        (false, false) => net.plain(h, Unary::Gelu, Bias::Optional),
    })
}

/// Attention whose positions rotate queries and keys.
fn rotated(net: &mut Net<'_>, x: TensorId) -> Result<TensorId, Error> {
    let (q, k, v) = net.qkv(x, Bias::Optional)?;
    let (q, k) = (net.rope(q)?, net.rope(k)?);
    attend(net, [q, k, v], Bias::Optional)
}

/// Experts are plain networks, too, and weighed by their share among all.
fn plain_or_experts(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    match net.block().has_experts {
        true => {
            let plain = Some(Unary::Gelu);
            net.experts(h, Moe { gating: Gating::Softmax, normalized: false, plain, ..Moe::PLAIN })
        }
        false => net.plain(h, Unary::Gelu, Bias::Optional),
    }
}

/// Every part adds to what it has read, and the sum is normed.
fn blocks<'n>(
    net: &mut Net<'n>,
    x: TensorId,
    attention: impl Fn(&mut Net<'n>, TensorId) -> Result<TensorId, Error>,
    feed_forward: impl Fn(&mut Net<'n>, TensorId) -> Result<TensorId, Error>,
) -> Result<TensorId, Error> {
    let mut x = net.norm(x, "token_embd_norm")?;
    for block in 0..net.block_count() {
        net.enter_block(block);
        let a = attention(net, x)?;
        let sum = net.add(a, x)?;
        let mut x1 = net.norm(sum, "attn_output_norm")?;
        if net.has("attn_norm_2.weight") {
            let sum = net.add(x1, x)?;
            x1 = net.norm(sum, "attn_norm_2")?;
        }
        let f = feed_forward(net, x1)?;
        let sum = net.add(f, x1)?;
        x = net.norm(sum, "layer_output_norm")?;
        net.name_block_result(x)?;
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

fn attend(net: &mut Net<'_>, qkv: [TensorId; 3], bias: Bias) -> Result<TensorId, Error> {
    let scale = net.head_scale();
    let a = net.attention(qkv, Attention::scaled(scale))?;
    net.attention_output(a, bias)
}
