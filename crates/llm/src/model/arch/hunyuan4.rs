//! Hunyuan 4: several residual streams; latent attention with sinks and gates, to what an index finds; experts beside a shared one.

use std::cell::Cell;

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode, Unary};

use super::{Architecture, ExpertSize, ExpertUse, ScaleUse, Traits};
use crate::model::error::Error;
use crate::model::hyper_parameters::{Gating, HyperParameters, Indexer, Latent, StreamRule, Streams};
use crate::model::keys::Keys;
use crate::model::limits::{MAX_CONTEXT, MAX_FEED_FORWARD, MAX_STREAMS};
use crate::model::net::{Attention, Bias, Gate, Moe, Net, Norms};

pub(super) const FAMILY: &[Architecture] = &[Architecture {
    name: "hy_v4",
    traits: Traits {
        experts: ExpertUse::Always,
        expert_size: ExpertSize::Own,
        leading_dense: true,
        scales: ScaleUse { attention_output: false, logits: false, ..ScaleUse::PLAIN },
        ..Traits::plain(RopeMode::Normal)
    },
    complete,
    forward,
}];

/// Files without an index have no key for how much it finds.
fn complete(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let query_rank = Some(keys.need_count("attention.q_lora_rank", MAX_FEED_FORWARD)?);
    let rotated = hyper.rope.n_dims;
    hyper.latent = Some(Latent::read(keys, &mut hyper.blocks, rotated, query_rank)?);
    if keys.count("attention.indexer.top_k", MAX_CONTEXT)?.is_some() {
        let stated = Indexer::owners(keys, hyper.blocks.len())?;
        let indexer = Indexer::read(keys, rotated, RopeMode::Normal)?;
        indexer
            .share(keys, &mut hyper.blocks, |block| stated.as_ref().is_some_and(|types| types[block] > 0))?;
        let first_channel = indexer.size - rotated;
        hyper.indexer = Some(Indexer { first_channel, epsilon: hyper.norm_epsilon, ..indexer });
    }
    let key = "hyper_connection.magnitude";
    let magnitude = keys.positive(key)?.ok_or_else(|| keys.refuse(key, 0, "must be above zero"))?;
    hyper.streams = Some(Streams {
        count: keys.need_count("hyper_connection.count", MAX_STREAMS)?,
        epsilon: keys.number("hyper_connection.epsilon")?.unwrap_or(0.0),
        rule: StreamRule::Weighed { magnitude },
    });
    hyper.read_limits(keys, false)
}

fn forward(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let found = Cell::new(None);
    let attention = |net: &mut Net<'_>, h| {
        let attention = Attention { sinks: true, ..Attention::scaled(net.latent_scale()) };
        let a = net.indexed_latent_attention(h, attention, &found)?;
        let a = net.gated_result(a, h, Gate::Channels, Unary::Sigmoid)?;
        net.attention_output(a, Bias::None)
    };
    let x = net.stream_blocks(Norms::BEFORE, attention, feed_forward)?;
    let x = net.end_streams(x, "output_hc")?;
    net.logits(x)
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let Some(experts) = net.hyper().experts.filter(|_| net.block().has_experts) else {
        return net.gated(h, GluKind::Swiglu, Bias::None);
    };
    let limit = net.block().expert_limit;
    let kind = limit.map_or(GluKind::Swiglu, |limit| GluKind::SwigluClamp { limit });
    let moe = Moe { kind: kind.into(), ..Moe::stated(&experts, Gating::Sigmoid) };
    net.experts_and_shared(h, moe, experts.feed_forward * experts.shared)
}
