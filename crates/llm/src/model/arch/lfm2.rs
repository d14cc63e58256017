//! LFM 2: short convolutions in most blocks, attention in a few; also with experts.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertSize, ExpertUse, Heads, Traits, WindowKey};
use crate::model::error::Error;
use crate::model::hyper_parameters::{Gating, HyperParameters, RecurrentState};
use crate::model::keys::Keys;
use crate::model::limits::MAX_CONVOLUTION;
use crate::model::net::{Bias, Moe, Net, Norms};

const LFM2: Architecture = Architecture {
    name: "lfm2",
    // With a window, all blocks with attention have it.
    traits: Traits { heads: Heads::Some, window: WindowKey::Optional, ..Traits::plain(RopeMode::Neox) },
    complete,
    forward,
};

pub(super) const FAMILY: &[Architecture] = &[
    LFM2,
    Architecture {
        name: "lfm2moe",
        traits: Traits {
            window: WindowKey::Ignored,
            experts: ExpertUse::Always,
            expert_size: ExpertSize::Own,
            leading_dense: true,
            ..LFM2.traits
        },
        ..LFM2
    },
];

fn complete(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let taps = keys.need_count("shortconv.l_cache", MAX_CONVOLUTION)?;
    if taps == 1 {
        return Err(keys.refuse("shortconv.l_cache", taps, "must be at least 2"));
    }
    hyper.short_convolution = taps;
    let convolution = (taps - 1) * hyper.embedding;
    for block in hyper.blocks.iter_mut().filter(|block| block.kv_heads == 0) {
        block.state.recurrent = Some(RecurrentState { convolution, ..RecurrentState::default() });
    }
    Ok(())
}

fn forward(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    let x = net.blocks(x, Norms::BEFORE, mix, feed_forward)?;
    net.logits_after(x, "token_embd_norm")
}

fn mix(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    match net.block().is_recurrent() {
        true => net.short_convolution(h),
        false => net.normed_attention(h),
    }
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    match net.hyper().experts.filter(|_| net.block().has_experts) {
        Some(experts) => {
            let moe = Moe::stated(&experts, Gating::Softmax);
            net.experts(h, Moe { normalized: true, ..moe })
        }
        None => net.gated(h, GluKind::Swiglu, Bias::None),
    }
}
