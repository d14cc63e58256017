//! MiniCPM 3: latent attention, and factors.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, Traits};
use crate::model::error::Error;
use crate::model::hyper_parameters::{HyperParameters, Latent};
use crate::model::keys::Keys;
use crate::model::limits::MAX_FEED_FORWARD;
use crate::model::net::{Bias, Net, Norms};

pub(super) const FAMILY: &[Architecture] =
    &[Architecture { name: "minicpm3", traits: Traits::plain(RopeMode::Neox), complete, forward }];

fn complete(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let (depth, width) = (hyper.blocks.len() as f32, hyper.embedding as f32);
    hyper.factors.embedding = 12.0;
    hyper.factors.residual = 1.4 / depth.sqrt();
    hyper.factors.logits = 256.0 / width;
    let rank = keys.need_count("attention.q_lora_rank", MAX_FEED_FORWARD)?;
    hyper.latent = Some(Latent::read_expanded(keys, &mut hyper.blocks, hyper.rope.n_dims, Some(rank))?);
    Ok(())
}

fn forward(net: &mut Net<'_>) -> Result<TensorId, Error> {
    net.decoder(Norms::BEFORE, attention, |net, h| net.gated(h, GluKind::Swiglu, Bias::None))
}

fn attention(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let scale = net.head_scale();
    let a = net.latent_attention(h, scale)?;
    net.attention_output(a, Bias::None)
}
