//! Models that fill in text: Dream, LLaDA, RND1. Their blocks are those of other families, but a token sees those after it as well.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertSize, ExpertUse, Part, Purpose, Traits, nothing_more};
use crate::model::error::Error;
use crate::model::net::{Bias, Moe, Net, Norms};

const DREAM: Architecture = Architecture {
    name: "dream",
    traits: Traits {
        purpose: Purpose::FillIn,
        frequency_factors: false,
        logit_bias: false,
        ..Traits::plain(RopeMode::Neox)
    },
    complete: nothing_more,
    forward: |net| forward(net, Net::plain_attention, dense),
};

const RND1: Architecture = Architecture {
    name: "rnd1",
    traits: Traits { experts: ExpertUse::Always, expert_size: ExpertSize::OwnOrShare, ..DREAM.traits },
    complete: nothing_more,
    forward: |net| forward(net, Net::normed_attention, |net, h| net.experts(h, Moe::PLAIN)),
};

pub(super) const FAMILY: &[Architecture] = &[
    DREAM,
    Architecture {
        name: "llada",
        traits: Traits { rope: Some(RopeMode::Normal), ..DREAM.traits },
        forward: |net| forward(net, Net::unbiased_attention, dense),
        ..DREAM
    },
    Architecture {
        name: "llada-moe",
        forward: |net| {
            forward(net, Net::normed_attention, |net, h| {
                net.experts(h, Moe { normalized: false, ..Moe::PLAIN })
            })
        },
        ..RND1
    },
    RND1,
];

fn forward<'n>(net: &mut Net<'n>, attention: Part<'n>, feed_forward: Part<'n>) -> Result<TensorId, Error> {
    net.decoder(Norms::BEFORE, attention, feed_forward)
}

/// A network whose biases do not count, where files have any.
fn dense(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    for base in ["ffn_gate", "ffn_up", "ffn_down"] {
        net.pass_over(&format!("{base}.bias"));
    }
    net.gated(h, GluKind::Swiglu, Bias::None)
}
