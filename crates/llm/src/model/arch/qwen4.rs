//! Qwen 4 (experimental): delta nets and, in every fourth block, attention to runs of tokens that an index finds; several residual
//! streams, gated channel by channel; embeddings of n-grams; experts.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::Unary;

use super::Architecture;
use super::qwen_next::{self, QWEN35_MOE};
use crate::model::error::Error;
use crate::model::hyper_parameters::{HyperParameters, IndexRule, Indexer, Ngrams, StreamRule, Streams};
use crate::model::keys::Keys;
use crate::model::limits::{MAX_CONTEXT, MAX_FEED_FORWARD, MAX_STREAMS};
use crate::model::net::{Bias, DeltaLayout, Net, Norms};

pub(super) const FAMILY: &[Architecture] =
    &[Architecture { name: "qwen4exp", complete, forward, ..QWEN35_MOE }];

fn complete(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    qwen_next::complete(hyper, keys)?;
    let key = "hyper_connection.count";
    let count = keys.need_count(key, MAX_STREAMS)?;
    if count < 2 {
        return Err(keys.refuse(key, count, "must be at least 2"));
    }
    let rank = keys.need_count("hyper_connection.low_rank", MAX_FEED_FORWARD)?;
    hyper.streams = Some(Streams { count, epsilon: 0.0, rule: StreamRule::Gated { rank } });
    hyper.ngrams = Ngrams::read(keys, hyper)?;
    if let Some(ngrams) = &hyper.ngrams {
        let history = ngrams.history(count * hyper.embedding);
        if let Some(state) = &mut hyper.blocks[ngrams.block].state.recurrent {
            state.ngrams = history;
        }
    }
    complete_index(hyper, keys)
}

/// Blocks without runs look at all tokens.
fn complete_index(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let (key, count) = ("attention.compress_ratios", hyper.blocks.len() + hyper.guessing_blocks);
    let lengths = keys.counts(key, count, MAX_CONTEXT)?.unwrap_or_else(|| vec![0; count]);
    let mut stated = lengths.iter().copied().filter(|&length| length > 0);
    let Some(length) = stated.next() else { return Ok(()) };
    if let Some(other) = stated.find(|&other| other != length) {
        return Err(keys.refuse(key, other, format!("must be {length} in all blocks that have one")));
    }
    let rule = IndexRule::MeanRuns(Indexer::checked_run(keys, key, length)?);
    let indexer = Indexer { rule, ..Indexer::read(keys, hyper.rope.n_dims, hyper.rope.mode)? };
    if indexer.chosen < length {
        let rule = format!("must not be less than a run of {length}");
        return Err(keys.refuse("attention.indexer.top_k", indexer.chosen, rule));
    }
    indexer.give(&mut hyper.blocks, |block| lengths[block] > 0);
    hyper.indexer = Some(indexer);
    Ok(())
}

fn forward(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let x = net.stream_blocks(Norms::NONE, mix, qwen_next::feed_forward)?;
    let x = net.end_streams(x, "output_hc")?;
    net.logits_alone(x)
}

/// A delta net, or attention.
fn mix(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    match net.block().is_recurrent() {
        true => net.gated_delta_net(h, DeltaLayout::Apart, Unary::Sigmoid),
        false => attention(net, h),
    }
}

fn attention(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    // Biases do not count, where files have any.
    for base in ["attn_q", "attn_k", "attn_v"] {
        net.pass_over(&format!("{base}.bias"));
    }
    if net.block().state.rows.is_some_and(|rows| rows.index > 0) {
        let found = net.found_by_means(h)?;
        return qwen_next::gated_attention(net, h, Bias::None, found);
    }
    for base in ["k_proj", "q_proj", "k_norm", "q_norm"] {
        net.pass_over(&format!("indexer.{base}.weight"));
    }
    qwen_next::gated_attention(net, h, Bias::None, None)
}
