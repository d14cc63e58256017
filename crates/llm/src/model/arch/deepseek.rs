//! DeepSeek 1 to 3: shared experts, dense blocks first, and since the second latent attention. Also Kimi K2, GigaChat 3, GLM 4.7 Flash,
//! Mistral 4.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertSize, ExpertUse, Traits, nothing_more};
use crate::model::error::Error;
use crate::model::hyper_parameters::{Gating, HyperParameters, Latent, Temperature};
use crate::model::keys::Keys;
use crate::model::limits::{MAX_CONTEXT, MAX_FEED_FORWARD};
use crate::model::net::{Bias, Moe, Net, Norms};

const DEEPSEEK2: Architecture = Architecture {
    name: "deepseek2",
    traits: Traits {
        experts: ExpertUse::Always,
        expert_size: ExpertSize::Own,
        leading_dense: true,
        ..Traits::plain(RopeMode::Normal)
    },
    complete: complete2,
    forward: forward2,
};

pub(super) const FAMILY: &[Architecture] = &[
    Architecture { name: "deepseek", complete: nothing_more, forward: forward1, ..DEEPSEEK2 },
    DEEPSEEK2,
    Architecture { name: "mistral4", ..DEEPSEEK2 },
];

/// The first has attention as most have it.
fn forward1(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    let x = net.blocks(x, Norms::BEFORE, Net::plain_attention, |net, h| {
        let Some(experts) = net.hyper().experts.filter(|_| net.block().has_experts) else {
            return net.gated(h, GluKind::Swiglu, Bias::None);
        };
        let moe = Moe { normalized: false, ..Moe::PLAIN };
        net.experts_and_shared(h, moe, experts.shared * experts.feed_forward)
    })?;
    net.logits(x)
}

fn complete2(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let query_rank = match is_lite(hyper) {
        true => None,
        false => Some(keys.need_count("attention.q_lora_rank", MAX_FEED_FORWARD)?),
    };
    hyper.latent = Some(Latent::read(keys, &mut hyper.blocks, hyper.rope.n_dims, query_rank)?);
    hyper.factors.attention = Some(scale_by_yarn(hyper, keys)?);
    let scale = keys.factor("attention.temperature_scale")?;
    let length = keys.count("attention.temperature_length", MAX_CONTEXT)?;
    hyper.temperature = scale.zip(length).map(|(scale, length)| Temperature { scale, length, offset: 0 });
    if let Some(experts) = &mut hyper.experts {
        // Older files leave it out.
        let is_glm = matches!(hyper.blocks.len(), 47 | 48) && hyper.vocabulary == 154_880;
        experts.gating.get_or_insert(if is_glm { Gating::Sigmoid } else { Gating::Softmax });
    }
    Ok(())
}

fn forward2(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    let x = net.blocks(x, Norms::BEFORE, attention, feed_forward)?;
    net.logits(x)
}

fn attention(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let scale = net.head_scale();
    let a = net.latent_attention(h, scale)?;
    net.attention_output(a, Bias::None)
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let Some(experts) = net.hyper().experts.filter(|_| net.block().has_experts) else {
        return net.gated(h, GluKind::Swiglu, Bias::None);
    };
    let inner = experts.shared * experts.feed_forward;
    net.experts_and_shared(h, Moe::stated(&experts, Gating::Softmax), inner)
}

/// DeepSeek V2 Lite, GigaChat 3 and Kanana 2 make queries with one matrix.
fn is_lite(hyper: &HyperParameters) -> bool {
    let blocks = hyper.blocks.len();
    matches!(blocks, 26 | 27) || blocks == 48 && hyper.vocabulary == 128_256
}

/// The factor of attention scores. Where the context was extended, scores grow with it, by a factor that the rotation would
/// otherwise apply to some channels only; so that is taken out of the rotation.
fn scale_by_yarn(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<f32, Error> {
    // Files have a tenth of it.
    let growth = keys.number("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0) / 0.1;
    let log = hyper.rope.freq_scale.recip().ln();
    if hyper.rope.ext_factor != 0.0 && growth != 0.0 && log > 0.0 {
        hyper.rope.attn_factor /= 1.0 + 0.1 * log;
    }
    let unscaled = hyper.rope.attn_factor * (1.0 + 0.1 * log);
    let magnitude = unscaled * (1.0 + 0.1 * growth * log);
    let size = hyper.latent.map_or(1, |latent| latent.key_size);
    Ok(magnitude * magnitude / (size as f32).sqrt())
}
