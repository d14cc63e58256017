//! Deci: Llama with blocks that lack heads or a feed-forward network, or have one matrix instead of attention.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, Heads, Traits, nothing_more};
use crate::model::error::Error;
use crate::model::net::{Bias, Net};

pub(super) const FAMILY: &[Architecture] = &[Architecture {
    name: "deci",
    traits: Traits { rotates_all: true, heads: Heads::Some, ..Traits::plain(RopeMode::Normal) },
    complete: nothing_more,
    forward,
}];

fn forward(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let mut x = net.token_embeddings()?;
    for block in 0..net.block_count() {
        net.enter_block(block);
        let shape = net.block();
        let x1 = if shape.heads > 0 {
            let h = net.norm(x, "attn_norm")?;
            let a = match shape.kv_heads {
                0 => net.attention_output(h, Bias::None)?,
                _ => net.plain_attention(h)?,
            };
            let [a, residual] = net.keep_wanted([a, x])?;
            net.add(a, residual)?
        } else {
            net.keep_wanted([x])?[0]
        };
        x = match shape.feed_forward {
            // Such a block leaves the stream as it was.
            0 => net.keep_wanted([x])?[0],
            _ => {
                let h = net.norm(x1, "ffn_norm")?;
                let f = net.gated(h, GluKind::Swiglu, Bias::Optional)?;
                net.leave_block(f, x1)?
            }
        };
    }
    net.logits(x)
}
