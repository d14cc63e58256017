//! Qwen 1 to 3, dense and with experts, and the language parts of Qwen VL and Qwen TTS.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertSize, ExpertUse, Part, ScaleUse, Traits, nothing_more};
use crate::model::error::Error;
use crate::model::hyper_parameters::HyperParameters;
use crate::model::keys::Keys;
use crate::model::net::{Bias, Moe, Net, Norms};

const QWEN2: Architecture = Architecture {
    name: "qwen2",
    traits: Traits::plain(RopeMode::Neox),
    complete: nothing_more,
    forward: |net| forward(net, Net::plain_attention, feed_forward),
};

/// Norms on the queries and keys of each head.
const QWEN3: Architecture = Architecture {
    name: "qwen3",
    traits: Traits { scales: ScaleUse::ALL, ..QWEN2.traits },
    complete: nothing_more,
    forward: |net| forward(net, Net::normed_attention, feed_forward),
};

const EXPERTS: Traits = Traits {
    experts: ExpertUse::Always,
    expert_size: ExpertSize::OwnOrShare,
    ..Traits::plain(RopeMode::Neox)
};

pub(super) const FAMILY: &[Architecture] = &[
    Architecture { name: "qwen", complete: halve_feed_forward, ..QWEN2 },
    QWEN2,
    Architecture {
        name: "qwen2vl",
        traits: Traits { logit_bias: false, ..Traits::plain(RopeMode::Mrope) },
        ..QWEN2
    },
    Architecture {
        name: "qwen2moe",
        traits: EXPERTS,
        forward: |net| forward(net, Net::plain_attention, experts_beside_a_shared_one),
        ..QWEN2
    },
    QWEN3,
    Architecture { name: "qwen3moe", traits: Traits { scales: ScaleUse::ALL, ..EXPERTS }, ..QWEN3 },
    Architecture { name: "qwen3vl", traits: Traits::plain(RopeMode::Imrope), ..QWEN3 },
    Architecture { name: "qwen3vlmoe", traits: Traits { rope: Some(RopeMode::Imrope), ..EXPERTS }, ..QWEN3 },
    Architecture {
        name: "qwen3tts",
        traits: Traits::plain(RopeMode::Imrope),
        forward: forward_speech,
        ..QWEN3
    },
];

/// Codes of speech that Qwen TTS chooses from; they come last among its tokens.
const CODES: usize = 3072;

/// What the file gives is twice the size of the feed-forward network.
fn halve_feed_forward(hyper: &mut HyperParameters, _: &Keys<'_>) -> Result<(), Error> {
    hyper.blocks.iter_mut().for_each(|block| block.feed_forward /= 2);
    Ok(())
}

fn forward<'n>(net: &mut Net<'n>, attention: Part<'n>, feed_forward: Part<'n>) -> Result<TensorId, Error> {
    net.decoder(Norms::BEFORE, attention, feed_forward)
}

fn forward_speech(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    let x = net.blocks(x, Norms::BEFORE, Net::normed_attention, feed_forward)?;
    net.logits_of_last(x, CODES)
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    match net.hyper().experts {
        Some(_) => net.experts(h, Moe::PLAIN),
        None => net.gated(h, GluKind::Swiglu, Bias::None),
    }
}

fn experts_beside_a_shared_one(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let chosen = net.experts(h, Moe { normalized: false, ..Moe::PLAIN })?;
    let shared = net.gated_shared_expert(h)?;
    net.add(chosen, shared)
}
