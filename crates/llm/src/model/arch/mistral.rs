//! Mistral 3: queries that grow with their positions.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertUse, ScaleUse, Traits};
use crate::model::error::Error;
use crate::model::hyper_parameters::{HyperParameters, Temperature};
use crate::model::keys::Keys;
use crate::model::net::{Bias, Moe, Net, Norms};

pub(super) const FAMILY: &[Architecture] = &[Architecture {
    name: "mistral3",
    traits: Traits { experts: ExpertUse::Maybe, scales: ScaleUse::ALL, ..Traits::plain(RopeMode::Normal) },
    complete,
    forward,
}];

fn complete(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let length = hyper.rope.n_ctx_orig;
    let scale = keys.factor("attention.temperature_scale")?;
    hyper.temperature = scale.map(|scale| Temperature { scale, length, offset: 0 });
    let growth = keys.number("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0);
    if hyper.rope.ext_factor != 0.0 && growth != 0.0 {
        let log = hyper.rope.freq_scale.recip().ln().max(0.0);
        hyper.rope.attn_factor /= 1.0 + 0.1 * growth * log;
        hyper.rope_windowed = hyper.rope;
    }
    Ok(())
}

fn forward(net: &mut Net<'_>) -> Result<TensorId, Error> {
    net.decoder(Norms::BEFORE, attention, feed_forward)
}

fn attention(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let (q, k, v) = net.qkv(h, Bias::Optional)?;
    let (q, k) = (net.rope(q)?, net.rope(k)?);
    let q = net.tempered(q)?;
    net.scaled_attention([q, k, v])
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    match net.hyper().experts {
        Some(_) => net.experts(h, Moe::PLAIN),
        None => net.gated(h, GluKind::Swiglu, Bias::Optional),
    }
}
