//! ERNIE 4.5, dense and with experts, and the language part of PaddleOCR.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertSize, ExpertUse, Traits, nothing_more};
use crate::model::error::Error;
use crate::model::hyper_parameters::HyperParameters;
use crate::model::keys::Keys;
use crate::model::limits::MAX_BLOCKS;
use crate::model::net::{Bias, Moe, Net, Norms};

const DENSE: Architecture = Architecture {
    name: "ernie4_5",
    // Some files count experts and have none.
    traits: Traits { experts: ExpertUse::Maybe, ..Traits::plain(RopeMode::Normal) },
    complete: nothing_more,
    forward,
};

pub(super) const FAMILY: &[Architecture] = &[
    DENSE,
    Architecture {
        name: "paddleocr",
        traits: Traits { rope: Some(RopeMode::Mrope), ..DENSE.traits },
        forward: |net| net.decoder(Norms::BEFORE, Net::plain_attention, feed_forward),
        ..DENSE
    },
    Architecture {
        name: "ernie4_5-moe",
        traits: Traits {
            experts: ExpertUse::Always,
            expert_size: ExpertSize::Own,
            leading_dense: true,
            ..DENSE.traits
        },
        complete: experts_every_few,
        ..DENSE
    },
];

fn experts_every_few(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let step = keys.need_count("interleave_moe_layer_step", MAX_BLOCKS)?;
    for (index, block) in hyper.blocks.iter_mut().enumerate() {
        block.has_experts &= (index + 1).is_multiple_of(step);
    }
    Ok(())
}

/// ERNIE files may have a bias that the reference leaves out.
fn forward(net: &mut Net<'_>) -> Result<TensorId, Error> {
    net.decoder(Norms::BEFORE, Net::unbiased_attention, feed_forward)
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let is_moe = net.hyper().architecture() == "ernie4_5-moe" && net.block().has_experts;
    let Some(experts) = net.hyper().experts.filter(|_| is_moe) else {
        return net.gated(h, GluKind::Swiglu, Bias::None);
    };
    match experts.shared_feed_forward {
        Some(inner) => net.experts_and_shared(h, Moe::PLAIN, inner),
        None => net.experts(h, Moe::PLAIN),
    }
}
