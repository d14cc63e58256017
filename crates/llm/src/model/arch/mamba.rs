//! Mamba 2: recurrent blocks and nothing else.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::RopeMode;

use super::{Architecture, Heads, Traits};
use crate::model::error::Error;
use crate::model::hyper_parameters::{HyperParameters, StateSpace};
use crate::model::keys::Keys;
use crate::model::net::Net;

pub(super) const FAMILY: &[Architecture] = &[Architecture {
    name: "mamba2",
    traits: Traits { rope: None, heads: Heads::None, ..Traits::plain(RopeMode::Normal) },
    complete: complete_mamba2,
    forward: forward_mamba2,
}];

fn complete_mamba2(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let space = StateSpace::read(keys)?;
    for block in &mut hyper.blocks {
        block.state.recurrent = Some(space.remembered());
    }
    hyper.state_space = Some(space);
    Ok(())
}

fn forward_mamba2(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let mut x = net.token_embeddings()?;
    for block in 0..net.block_count() {
        net.enter_block(block);
        let h = net.norm(x, "attn_norm")?;
        let m = net.mamba2(h)?;
        let [m, residual] = net.keep_wanted([m, x])?;
        x = net.leave_block(m, residual)?;
    }
    net.logits(x)
}
