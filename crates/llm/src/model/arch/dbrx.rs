//! DBRX and Arctic: many experts.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertUse, NormKind, Traits, nothing_more};
use crate::model::error::Error;
use crate::model::net::{Bias, Moe, Net, Norms};

pub(super) const FAMILY: &[Architecture] = &[
    Architecture {
        name: "dbrx",
        traits: Traits { norm: NormKind::Layer, experts: ExpertUse::Always, ..Traits::plain(RopeMode::Neox) },
        complete: |hyper, keys| {
            hyper.qkv_limit = keys.positive("attention.clamp_kqv")?;
            Ok(())
        },
        forward: forward_dbrx,
    },
    Architecture {
        name: "arctic",
        traits: Traits { experts: ExpertUse::Always, ..Traits::plain(RopeMode::Normal) },
        complete: nothing_more,
        forward: forward_arctic,
    },
];

fn forward_dbrx(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let norms = Norms { before: Some(["attn_norm", "attn_output_norm"]), after: None };
    net.decoder(norms, Net::plain_attention, |net, h| net.experts(h, Moe::PLAIN))
}

/// A small dense network after attention, and experts that read what attention read.
fn forward_arctic(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let mut x = net.token_embeddings()?;
    for block in 0..net.block_count() {
        net.enter_block(block);
        let h = net.norm(x, "attn_norm")?;
        let a = net.plain_attention(h)?;
        let [a, residual] = net.keep_wanted([a, x])?;
        let x1 = net.add(a, residual)?;
        let h = net.norm(x1, "ffn_norm")?;
        let dense = net.gated_of(h, net.hyper().embedding, GluKind::Swiglu, Bias::None)?;
        let x2 = net.add(dense, x1)?;
        let h = net.norm(residual, "ffn_norm_exps")?;
        let chosen = net.experts(h, Moe::PLAIN)?;
        x = net.leave_block(chosen, x2)?;
    }
    net.logits(x)
}
