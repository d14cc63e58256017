//! Families whose graph is Llama's but for a detail: other channels rotate together, another activation, blocks without positions,
//! blocks used several times.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode, Unary};

use super::{Architecture, ExpertUse, Part, ScaleUse, Traits, nothing_more};
use crate::model::error::Error;
use crate::model::hyper_parameters::HyperParameters;
use crate::model::keys::Keys;
use crate::model::limits::MAX_BLOCKS;
use crate::model::net::{Attention, Bias, Net, Norms};

const KIN: Architecture = Architecture {
    name: "internlm2",
    traits: Traits::plain(RopeMode::Normal),
    complete: nothing_more,
    forward: |net| forward(net, Norms::BEFORE, Net::plain_attention, swiglu),
};

const NEOX: Architecture = Architecture {
    name: "pangu-embedded",
    traits: Traits { frequency_factors: false, ..Traits::plain(RopeMode::Neox) },
    ..KIN
};

pub(super) const FAMILY: &[Architecture] = &[
    KIN,
    Architecture { name: "xverse", ..KIN },
    Architecture { name: "smollm3", complete: every_fourth_still, ..KIN },
    Architecture {
        name: "arcee",
        forward: |net| forward(net, Norms::BEFORE, Net::plain_attention, squared_relu),
        ..KIN
    },
    Architecture {
        name: "maincoder",
        forward: |net| forward(net, Norms::BEFORE, norms_after_rotation, swiglu),
        ..KIN
    },
    Architecture { name: "baichuan", complete: complete_baichuan, ..KIN },
    Architecture {
        name: "refact",
        traits: Traits { rope: None, experts: ExpertUse::Maybe, ..KIN.traits },
        complete: complete_refact,
        forward: |net| forward(net, Norms::BEFORE, attention_refact, feed_forward_refact),
    },
    Architecture {
        name: "nanbeige",
        traits: Traits { scales: ScaleUse::ALL, ..KIN.traits },
        complete: complete_nanbeige,
        forward: forward_nanbeige,
    },
    NEOX,
    Architecture {
        name: "seed_oss",
        forward: |net| forward(net, Norms::BEFORE_BY_OTHER_NAME, Net::plain_attention, swiglu),
        ..NEOX
    },
    Architecture {
        name: "cogvlm",
        traits: Traits { scales: ScaleUse { qkv: false, ..ScaleUse::PLAIN }, ..NEOX.traits },
        forward: forward_cogvlm,
        ..NEOX
    },
];

fn forward<'n>(
    net: &mut Net<'n>,
    norms: Norms,
    attention: Part<'n>,
    feed_forward: Part<'n>,
) -> Result<TensorId, Error> {
    net.decoder(norms, attention, feed_forward)
}

fn swiglu(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    net.gated(h, GluKind::Swiglu, Bias::Optional)
}

fn squared_relu(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    net.squared(h, Bias::Optional)
}

fn norms_after_rotation(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let (q, k, v) = net.qkv(h, Bias::Optional)?;
    let (q, k) = (net.rope(q)?, net.rope(k)?);
    let (q, k) = (net.head_norm(q, "attn_q_norm")?, net.head_norm(k, "attn_k_norm")?);
    net.scaled_attention([q, k, v])
}

/// SmolLM 3: every fourth block has no positions.
fn every_fourth_still(hyper: &mut HyperParameters, _: &Keys<'_>) -> Result<(), Error> {
    for (index, block) in hyper.blocks.iter_mut().enumerate() {
        block.rotates = !(index + 1).is_multiple_of(4);
    }
    Ok(())
}

/// Baichuan: the 7B model rotates, in the 13B model scores fall with the distance, and there is no other one.
fn complete_baichuan(hyper: &mut HyperParameters, _: &Keys<'_>) -> Result<(), Error> {
    let count = hyper.blocks.len();
    hyper.blocks.iter_mut().for_each(|block| block.rotates = count == 32);
    hyper.position_bias = (count == 40).then_some(8.0);
    Ok(())
}

fn complete_refact(hyper: &mut HyperParameters, _: &Keys<'_>) -> Result<(), Error> {
    hyper.position_bias = Some(8.0);
    Ok(())
}

/// Biases of what attention and feed-forward networks give are left out, as the reference does.
fn attention_refact(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let (q, k, v) = net.qkv(h, Bias::Optional)?;
    let scale = net.head_scale();
    let a = net.attention([q, k, v], Attention::scaled(scale))?;
    net.pass_over("attn_output.bias");
    net.attention_output(a, Bias::None)
}

/// Refact with experts has never been: what the reference makes of such a file is the activation alone.
fn feed_forward_refact(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    if net.hyper().experts.is_none() {
        for name in ["ffn_gate", "ffn_up", "ffn_down"] {
            net.pass_over(&format!("{name}.bias"));
        }
        return net.gated(h, GluKind::Swiglu, Bias::None);
    }
    for name in ["ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"] {
        net.pass_over(&format!("{name}.weight"));
        net.pass_over(&format!("{name}.scale"));
    }
    net.activated(h, Unary::Silu)
}

/// Nanbeige: the blocks of the file, several times over; every time they remember anew.
fn complete_nanbeige(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let loops = keys.count("num_loops", MAX_BLOCKS)?.unwrap_or(1);
    let once = hyper.blocks.clone();
    if once.len() * loops > MAX_BLOCKS {
        let rule = format!("{} blocks so often are more than {MAX_BLOCKS}", once.len());
        return Err(keys.refuse("num_loops", loops, rule));
    }
    hyper.blocks = once.repeat(loops);
    hyper.norm_between_loops = !keys.flag("skip_loop_final_norm")?.unwrap_or(false);
    Ok(())
}

fn forward_nanbeige(net: &mut Net<'_>) -> Result<TensorId, Error> {
    net.decoder(Norms::BEFORE, Net::plain_attention, swiglu)
}

/// The language part of CogVLM, which has one more set of matrices for pictures.
fn forward_cogvlm(net: &mut Net<'_>) -> Result<TensorId, Error> {
    forward(
        net,
        Norms::BEFORE,
        |net, h| {
            for name in ["vis_attn_qkv", "vis_attn_output", "vis_gate", "vis_down", "vis_up"] {
                net.pass_over(&format!("{name}.weight"));
            }
            net.plain_attention(h)
        },
        swiglu,
    )
}
