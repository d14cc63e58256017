//! DeepSeek 1 to 3.2: shared experts, dense blocks first, since the second latent attention, and since 3.2 an index of what it looks at.
//! Also Kimi K2, GigaChat 3, GLM 4.7 Flash, Mistral 4, GLM 5, dots3.note.

use std::cell::Cell;

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode, Unary};

use super::{Architecture, ExpertSize, ExpertUse, ScaleUse, Traits, WindowKey, nothing_more};
use crate::model::error::Error;
use crate::model::hyper_parameters::{Block, Gating, HyperParameters, Indexer, Latent, Temperature};
use crate::model::keys::Keys;
use crate::model::limits::{MAX_CONTEXT, MAX_FEED_FORWARD};
use crate::model::net::{Attention, Bias, Gate, Moe, Net, Norms};

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
    DEEPSEEK32,
    Architecture { name: "glm-dsa", complete: complete_glm, ..DEEPSEEK32 },
    Architecture {
        name: "dots3note",
        traits: Traits { window: WindowKey::Required, ..DEEPSEEK32.traits },
        complete: complete_dots,
        forward: |net| forward_indexed(net, |net, a, h| net.gated_result(a, h, Gate::Heads, Unary::Sigmoid)),
    },
];

const DEEPSEEK32: Architecture = Architecture {
    name: "deepseek32",
    traits: Traits { scales: ScaleUse { logits: false, ..ScaleUse::ALL }, ..DEEPSEEK2.traits },
    complete: complete32,
    forward: |net| forward_indexed(net, |_, a, _| Ok(a)),
};

/// Contexts from here on have blocks that share the index of one before, where the file does not say which.
const GLM_SHARING_CONTEXT: usize = 1 << 20;

fn complete_indexed(
    hyper: &mut HyperParameters,
    keys: &Keys<'_>,
    mode: RopeMode,
    owns: impl Fn(usize) -> bool,
) -> Result<(), Error> {
    let query_rank = Some(keys.need_count("attention.q_lora_rank", MAX_FEED_FORWARD)?);
    let rotated = hyper.rope.n_dims;
    hyper.latent = Some(Latent::read(keys, &mut hyper.blocks, rotated, query_rank)?);
    let indexer = Indexer::read(keys, rotated, mode)?;
    indexer.share(keys, &mut hyper.blocks, owns)?;
    hyper.indexer = Some(indexer);
    Ok(())
}

/// Every block has an index of its own.
fn complete32(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    complete_indexed(hyper, keys, RopeMode::Neox, |_| true)?;
    hyper.factors.attention = Some(scale_by_yarn(hyper, keys)?);
    Ok(())
}

/// The first two blocks and then every fourth have an index of their own.
fn complete_glm(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let shares = hyper.context >= GLM_SHARING_CONTEXT;
    let stated = Indexer::owners(keys, hyper.blocks.len())?;
    let usual = |block: usize| !shares || block < 2 || block % 4 == 2;
    let owns = |block: usize| stated.as_ref().map_or_else(|| usual(block), |types| types[block] > 0);
    complete_indexed(hyper, keys, RopeMode::Normal, owns)?;
    hyper.factors.attention = Some(scale_by_yarn(hyper, keys)?);
    if let Some(experts) = &mut hyper.experts {
        experts.gating.get_or_insert(Gating::Sigmoid);
    }
    Ok(())
}

/// Blocks that see a window have latent rows of their own sizes, and no index; all others have one.
fn complete_dots(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let stated = Indexer::owners(keys, hyper.blocks.len())?;
    let missing = |(index, block): (usize, &Block)| {
        !block.windowed && stated.as_ref().is_none_or(|types| types[index] == 0)
    };
    if let Some((index, _)) = hyper.blocks.iter().enumerate().find(|&(index, block)| missing((index, block)))
    {
        let rule = format!("block {index} looks at all tokens and needs an index");
        return Err(keys.refuse("attention.indexer.types", 0, rule));
    }
    complete_indexed(hyper, keys, RopeMode::Neox, |_| true)?;
    let latent = hyper.latent.map_or((0, None), |latent| (latent.rotated, latent.query_rank));
    hyper.latent_windowed = Some(Latent::read_windowed(keys, &mut hyper.blocks, latent.0, latent.1)?);
    Ok(())
}

/// Attention to what an index finds, and what becomes of its results.
fn forward_indexed(
    net: &mut Net<'_>,
    finish: fn(&mut Net<'_>, TensorId, TensorId) -> Result<TensorId, Error>,
) -> Result<TensorId, Error> {
    let x = net.token_embeddings()?;
    let found = Cell::new(None);
    let attention = |net: &mut Net<'_>, h| {
        let attention = Attention::scaled(net.latent_scale());
        let a = net.indexed_latent_attention(h, attention, &found)?;
        let a = finish(net, a, h)?;
        net.attention_output(a, Bias::None)
    };
    let x = net.blocks(x, Norms::BEFORE, attention, feed_forward)?;
    net.logits(x)
}

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
    net.decoder(Norms::BEFORE, attention, feed_forward)
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
