//! EXAONE 3 and 4, and with experts.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertSize, ExpertUse, Part, Pattern, Traits, WindowKey, nothing_more};
use crate::model::error::Error;
use crate::model::hyper_parameters::{Gating, HyperParameters};
use crate::model::keys::Keys;
use crate::model::net::{Bias, Moe, Net, Norms};

/// The only size of EXAONE 4 with windows.
const WINDOWED_BLOCKS: usize = 64;

pub(super) const FAMILY: &[Architecture] = &[
    Architecture {
        name: "exaone",
        traits: Traits::plain(RopeMode::Neox),
        complete: nothing_more,
        forward: |net| forward(net, Norms::BEFORE, Net::plain_attention),
    },
    Architecture {
        name: "exaone4",
        traits: Traits {
            window: WindowKey::Default(4096),
            pattern: Pattern::LastOf(4),
            ..Traits::plain(RopeMode::Neox)
        },
        complete: complete4,
        forward: |net| forward(net, Norms::AFTER, Net::normed_attention),
    },
    Architecture {
        name: "exaone-moe",
        traits: Traits {
            window: WindowKey::Required,
            pattern: Pattern::LastOf(4),
            experts: ExpertUse::Always,
            expert_size: ExpertSize::Own,
            leading_dense: true,
            ..Traits::plain(RopeMode::Neox)
        },
        complete: rotate_windowed,
        forward: |net| forward(net, Norms::BEFORE, Net::normed_attention),
    },
];

fn complete4(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    if hyper.blocks.len() == WINDOWED_BLOCKS {
        return rotate_windowed(hyper, keys);
    }
    hyper.window = None;
    hyper.blocks.iter_mut().for_each(|block| block.windowed = false);
    Ok(())
}

/// Blocks that see everything have no positions.
fn rotate_windowed(hyper: &mut HyperParameters, _: &Keys<'_>) -> Result<(), Error> {
    hyper.blocks.iter_mut().for_each(|block| block.rotates = block.windowed);
    hyper.rope_windowed = hyper.rope;
    Ok(())
}

fn forward<'n>(net: &mut Net<'n>, norms: Norms, attention: Part<'n>) -> Result<TensorId, Error> {
    net.decoder(norms, attention, feed_forward)
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let Some(experts) = net.hyper().experts.filter(|_| net.block().has_experts) else {
        return net.gated(h, GluKind::Swiglu, Bias::None);
    };
    let inner = experts.shared_feed_forward.unwrap_or(experts.feed_forward);
    net.experts_and_shared(h, Moe::stated(&experts, Gating::Softmax), inner)
}
