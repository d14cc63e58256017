//! OpenELM: heads and feed-forward networks of other sizes from block to block.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ScaleUse, Traits, nothing_more};
use crate::model::error::Error;
use crate::model::net::{Bias, Net, Norms};

pub(super) const FAMILY: &[Architecture] = &[Architecture {
    name: "openelm",
    traits: Traits { scales: ScaleUse { qkv: false, ..ScaleUse::PLAIN }, ..Traits::plain(RopeMode::Neox) },
    complete: nothing_more,
    forward,
}];

fn forward(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    let feed_forward = |net: &mut Net<'_>, h| net.gated(h, GluKind::Swiglu, Bias::None);
    let x = net.blocks(x, Norms::BEFORE, Net::normed_attention, feed_forward)?;
    net.tied_logits(x)
}
