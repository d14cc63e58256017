//! Hunyuan: norms of queries and keys after they are rotated (before, in the third generation).

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertSize, ExpertUse, Part, ScaleUse, Traits, nothing_more};
use crate::model::error::Error;
use crate::model::hyper_parameters::{Gating, HyperParameters, rope};
use crate::model::keys::Keys;
use crate::model::net::{Bias, Moe, Net, Norms};

const DENSE: Architecture = Architecture {
    name: "hunyuan-dense",
    traits: Traits { experts: ExpertUse::Maybe, ..Traits::plain(RopeMode::Neox) },
    complete: complete_dense,
    forward: |net| forward(net, attention),
};

pub(super) const FAMILY: &[Architecture] = &[
    DENSE,
    Architecture { name: "hunyuan_vl", ..DENSE },
    Architecture {
        name: "hunyuan-moe",
        traits: Traits { experts: ExpertUse::Always, ..DENSE.traits },
        complete: nothing_more,
        ..DENSE
    },
    Architecture {
        name: "hy_v3",
        traits: Traits {
            experts: ExpertUse::Always,
            expert_size: ExpertSize::OwnOrShare,
            scales: ScaleUse::ALL,
            ..DENSE.traits
        },
        complete: nothing_more,
        forward: |net| forward(net, Net::normed_attention),
    },
];

/// A longer context has a larger base; models that see pictures have sections of channels. One expert is none.
fn complete_dense(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    hyper.experts = hyper.experts.filter(|experts| experts.count > 1);
    if let Some(alpha) = keys.positive("rope.scaling.alpha")? {
        let size = hyper.blocks[0].key_size as f32;
        hyper.rope.freq_base *= alpha.powf(size / (size - 2.0));
    }
    let sections = rope::sections(keys)?;
    if sections[0] > 0 && sections[1] > 0 {
        hyper.rope.mode = RopeMode::Mrope;
        rope::set_sections(&mut hyper.rope, sections);
    }
    hyper.rope_windowed = hyper.rope;
    Ok(())
}

fn forward<'n>(net: &mut Net<'n>, attention: Part<'n>) -> Result<TensorId, Error> {
    net.decoder(Norms::BEFORE, attention, feed_forward)
}

fn attention(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let (q, k, v) = net.qkv(h, Bias::Optional)?;
    let (q, k) = (net.rope(q)?, net.rope(k)?);
    let (q, k) = (net.head_norm(q, "attn_q_norm")?, net.head_norm(k, "attn_k_norm")?);
    net.scaled_attention([q, k, v])
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let Some(experts) = net.hyper().experts else { return net.gated(h, GluKind::Swiglu, Bias::Optional) };
    if net.hyper().architecture() == "hunyuan-moe" {
        let inner = experts.shared_feed_forward.unwrap_or(net.block().feed_forward);
        return net.experts_and_shared(h, Moe::PLAIN, inner);
    }
    // The third generation: blocks with a router have experts.
    if !net.has("ffn_gate_inp.weight") {
        return net.gated(h, GluKind::Swiglu, Bias::Optional);
    }
    net.pass_over_dense();
    let inner = experts.shared_feed_forward.unwrap_or(experts.feed_forward);
    net.experts_and_shared(h, Moe::stated(&experts, Gating::Sigmoid), inner)
}
