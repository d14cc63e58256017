//! Llama 1 to 3, Mistral, SmolLM, TinyLlama and many others; Mixtral with experts.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertUse, Purpose, ScaleUse, Traits, nothing_more};
use crate::model::error::Error;
use crate::model::hyper_parameters::HyperParameters;
use crate::model::keys::Keys;
use crate::model::net::{Bias, Moe, Net, Norms};

pub(super) const FAMILY: &[Architecture] = &[
    Architecture { name: "llama", traits: LLAMA, complete: nothing_more, forward },
    // Every token sees all others, and rows become embeddings.
    Architecture {
        name: "llama-embed",
        traits: Traits { purpose: Purpose::Embed, ..LLAMA },
        complete: must_see_whole,
        forward: |net| {
            let x = net.token_embeddings()?;
            let x = net.blocks(x, Norms::BEFORE, attention, feed_forward)?;
            let x = net.final_norm(x, "output_norm")?;
            net.pass_over("output.weight");
            Ok(x)
        },
    },
];

/// Without a word about it, tokens of such a file see only those before them.
fn must_see_whole(_: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    match keys.flag("attention.causal")? {
        Some(false) => Ok(()),
        _ => Err(keys.refuse("attention.causal", true, "must be false")),
    }
}

const LLAMA: Traits = Traits {
    rotates_all: true,
    experts: ExpertUse::Maybe,
    scales: ScaleUse::ALL,
    ..Traits::plain(RopeMode::Normal)
};

fn forward(net: &mut Net<'_>) -> Result<TensorId, Error> {
    net.decoder(Norms::BEFORE, attention, feed_forward)
}

fn attention(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let (q, k, v) = net.qkv(h, Bias::Optional)?;
    net.rotary_attention([q, k, v])
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    match net.hyper().experts {
        Some(_) => net.experts(h, Moe::PLAIN),
        None => net.gated(h, GluKind::Swiglu, Bias::Optional),
    }
}
