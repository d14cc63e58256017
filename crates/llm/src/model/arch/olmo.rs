//! OLMo 1 and 2, OLMoE.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertUse, NormKind, Part, Pattern, Traits, WindowKey, nothing_more};
use crate::model::error::Error;
use crate::model::hyper_parameters::HyperParameters;
use crate::model::keys::Keys;
use crate::model::net::{Bias, Moe, Net, Norms};

pub(super) const FAMILY: &[Architecture] = &[
    Architecture {
        name: "olmo",
        traits: Traits { norm: NormKind::LayerAlone, ..Traits::plain(RopeMode::Normal) },
        complete: limit_qkv,
        forward: |net| forward(net, Norms::BEFORE, Net::plain_attention),
    },
    Architecture {
        name: "olmo2",
        traits: Traits {
            window: WindowKey::Optional,
            pattern: Pattern::LastOf(4),
            ..Traits::plain(RopeMode::Neox)
        },
        complete: windows_unscaled,
        forward: |net| forward(net, Norms::AFTER, attention_with_joint_norms),
    },
    Architecture {
        name: "olmoe",
        traits: Traits { experts: ExpertUse::Always, ..Traits::plain(RopeMode::Neox) },
        complete: nothing_more,
        forward: |net| forward(net, Norms::BEFORE, attention_with_joint_norms),
    },
];

fn limit_qkv(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    hyper.qkv_limit = keys.positive("attention.clamp_kqv")?;
    Ok(())
}

/// Rotations are scaled in blocks that see everything only.
fn windows_unscaled(hyper: &mut HyperParameters, _: &Keys<'_>) -> Result<(), Error> {
    hyper.leave_windows_unscaled();
    Ok(())
}

fn forward<'n>(net: &mut Net<'n>, norms: Norms, attention: Part<'n>) -> Result<TensorId, Error> {
    net.decoder(norms, attention, feed_forward)
}

fn attention_with_joint_norms(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let (q, k, v) = net.qkv(h, Bias::Optional)?;
    let (q, k) = (net.joint_head_norm(q, "attn_q_norm")?, net.joint_head_norm(k, "attn_k_norm")?);
    net.rotary_attention([q, k, v])
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    match net.hyper().experts {
        Some(_) => net.experts(h, Moe { normalized: false, ..Moe::PLAIN }),
        None => net.gated(h, GluKind::Swiglu, Bias::None),
    }
}
