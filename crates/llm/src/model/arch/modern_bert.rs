//! ModernBERT, NeoBERT and EuroBERT: encoders with the blocks of later decoders. Norms come first, positions rotate, networks are gated.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode, Unary};

use super::{Architecture, NormKind, Pattern, Purpose, Traits, WindowKey, nothing_more};
use crate::model::error::Error;
use crate::model::hyper_parameters::HyperParameters;
use crate::model::keys::Keys;
use crate::model::net::{Bias, Net, Norms};

const EURO: Architecture = Architecture {
    name: "eurobert",
    traits: Traits { purpose: Purpose::Embed, ..Traits::plain(RopeMode::Neox) },
    complete: nothing_more,
    forward: |net| {
        let x = net.token_embeddings()?;
        let feed_forward = |net: &mut Net<'_>, h| net.gated(h, GluKind::Swiglu, Bias::None);
        let x = net.blocks(x, Norms::BEFORE, Net::plain_attention, feed_forward)?;
        net.final_norm(x, "output_norm")
    },
};

pub(super) const FAMILY: &[Architecture] = &[
    EURO,
    Architecture {
        name: "neo-bert",
        traits: Traits { rope: Some(RopeMode::Normal), ..EURO.traits },
        forward: |net| {
            let x = net.token_embeddings()?;
            let feed_forward = |net: &mut Net<'_>, h| net.gated_fused(h, GluKind::Swiglu);
            let x = net.blocks(x, Norms::BEFORE, Net::plain_attention, feed_forward)?;
            net.final_norm(x, "enc.output_norm")
        },
        ..EURO
    },
    Architecture {
        name: "modern-bert",
        traits: Traits {
            norm: NormKind::Layer,
            window: WindowKey::Optional,
            pattern: Pattern::FirstOf(3),
            rope_windowed: Some((10_000.0, 1.0)),
            ranks_by_mean: true,
            ..EURO.traits
        },
        complete: complete_modern,
        forward: forward_modern,
    },
];

fn complete_modern(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let key = "hidden_activation";
    hyper.gated_by_silu = match keys.text(key)? {
        None | Some("gelu" | "geglu") => false,
        Some("silu" | "swish" | "swiglu") => true,
        Some(other) => return Err(keys.refuse(key, other, "must be gelu or silu")),
    };
    hyper.ranking.function = Unary::Gelu;
    Ok(())
}

fn forward_modern(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    let mut x = net.norm(x, "token_embd_norm")?;
    let kind = if net.hyper().gated_by_silu { GluKind::Swiglu } else { GluKind::Geglu };
    for block in 0..net.block_count() {
        let attention = |net: &mut Net<'_>, x| {
            // The embeddings have just been normed.
            let is_normed = block == 0 && !net.has("attn_norm.weight");
            let h = if is_normed { x } else { net.norm(x, "attn_norm")? };
            net.plain_attention(h)
        };
        x = net.one_block(block, x, Norms::NONE, attention, |net, x| {
            let h = net.norm(x, "ffn_norm")?;
            net.gated_fused(h, kind)
        })?;
    }
    net.final_norm(x, "output_norm")
}
