//! MiniMax 01: linear attention in most blocks, attention in a few; parts add to what they have read, normed.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::RopeMode;

use super::{Architecture, ExpertUse, Traits};
use crate::model::error::Error;
use crate::model::hyper_parameters::{HyperParameters, RecurrentState};
use crate::model::keys::Keys;
use crate::model::net::{Moe, Net};

/// Every eighth block has attention.
const PERIOD: usize = 8;

pub(super) const FAMILY: &[Architecture] = &[Architecture {
    name: "minimax-01",
    traits: Traits { experts: ExpertUse::Always, ..Traits::plain(RopeMode::Neox) },
    complete,
    forward,
}];

fn complete(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let first = hyper.blocks[0];
    let state = first.key_size * first.key_size * first.heads;
    hyper.mark_recurrent(keys, PERIOD, RecurrentState { state, ..RecurrentState::default() })?;
    hyper.factors.stream = keys.factor("residual_scale")?.unwrap_or(1.0);
    Ok(())
}

fn forward(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let mut x = net.token_embeddings()?;
    let factor = net.hyper().factors.stream;
    for block in 0..net.block_count() {
        net.enter_block(block);
        let h = net.norm(x, "attn_norm")?;
        let a = match net.block().is_recurrent() {
            true => net.lightning_attention(h)?,
            false => net.plain_attention(h)?,
        };
        let [a, h] = net.keep_wanted([a, h])?;
        let h = net.scale(h, factor)?;
        let x1 = net.add(a, h)?;
        let h = net.norm(x1, "ffn_norm")?;
        let f = net.experts(h, Moe::PLAIN)?;
        let h = net.scale(h, factor)?;
        x = net.leave_block(f, h)?;
    }
    net.logits(x)
}
