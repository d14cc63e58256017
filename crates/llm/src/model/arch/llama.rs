//! Llama 1 to 3, Mistral, SmolLM, TinyLlama and many others; Mixtral with experts.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertUse, ScaleUse, Traits, nothing_more};
use crate::model::error::Error;
use crate::model::net::{Bias, Moe, Net, Norms};

pub(super) const FAMILY: &[Architecture] =
    &[Architecture { name: "llama", traits: LLAMA, complete: nothing_more, forward }];

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
