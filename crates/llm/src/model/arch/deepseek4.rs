//! DeepSeek 4: attention to a window and to compressed runs of tokens before it; residual streams that are mixed among each other;
//! experts, in the first blocks chosen by the token itself.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, Rope, RopeMode};

use super::{Architecture, ExpertSize, ExpertUse, ScaleUse, Traits, WindowKey};
use crate::model::error::Error;
use crate::model::hyper_parameters::{
    CompressedRows, Gating, HyperParameters, Indexer, OneRow, Streams, TokenRows,
};
use crate::model::keys::Keys;
use crate::model::limits::{MAX_BLOCKS, MAX_CONTEXT, MAX_FEED_FORWARD, MAX_HEADS};
use crate::model::net::{Moe, Net, Norms};
use crate::runner::PAGE_TOKENS;

pub(super) const FAMILY: &[Architecture] = &[Architecture {
    name: "deepseek4",
    traits: Traits {
        window: WindowKey::Required,
        experts: ExpertUse::Always,
        expert_size: ExpertSize::Own,
        scales: ScaleUse { qkv: false, attention_output: false, logits: false, ..ScaleUse::PLAIN },
        ..Traits::plain(RopeMode::Normal)
    },
    complete,
    forward,
}];

/// Tokens of a run in blocks with an index, whose runs overlap, and in others.
const RUNS: [usize; 2] = [4, 128];

fn complete(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    complete_rotation(hyper, keys)?;
    for block in &mut hyper.blocks {
        let key = "attention.head_count_kv";
        if block.kv_heads != 1 || block.key_size != block.value_size {
            return Err(keys.refuse(key, block.kv_heads, "must be 1, of as many channels as values have"));
        }
        // All blocks see a window, whatever pattern the file has.
        block.windowed = true;
        block.state.rows = Some(TokenRows { keys: block.key_size, values: 0, index: 0 });
    }
    complete_runs(hyper, keys)?;
    complete_matrices(hyper, keys)?;
    hyper.streams = Some(Streams::read_mixed(keys)?);
    if let Some(experts) = &mut hyper.experts {
        let key = "expert_gating_func";
        if experts.gating != Some(Gating::RootOfSoftplus) {
            return Err(keys.refuse(key, "another", "must be 4, the root of softplus"));
        }
        experts.by_token = keys.count("hash_layer_count", MAX_BLOCKS)?.unwrap_or(0);
    }
    hyper.read_limits(keys, true)
}

/// Blocks with runs have another base, and scale where the context was extended; lengths stay as they are.
fn complete_rotation(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let (rope, key) = (hyper.rope, "attention.compress_rope_freq_base");
    let base = keys.positive(key)?.ok_or_else(|| keys.refuse(key, 0, "must be above zero"))?;
    let neutral = 1.0 - 0.1 * rope.freq_scale.ln();
    let attn_factor = if rope.ext_factor == 0.0 { 1.0 } else { neutral.recip() };
    hyper.rope = Rope { freq_base: base, attn_factor, ..rope };
    hyper.rope_windowed = Rope { freq_scale: 1.0, ext_factor: 0.0, attn_factor: 1.0, ..rope };
    Ok(())
}

fn complete_runs(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let (key, count) = ("attention.compress_ratios", hyper.blocks.len());
    let runs = keys.list(key, MAX_CONTEXT)?.unwrap_or_default();
    if runs.len() < count {
        return Err(keys.refuse(key, format!("{} numbers", runs.len()), format!("must be {count}")));
    }
    let runs = &runs[..count];
    if let Some(other) = runs.iter().find(|&&run| run != 0 && !RUNS.contains(&run)) {
        return Err(keys.refuse(key, other, format!("must be 0, {} or {}", RUNS[0], RUNS[1])));
    }
    let indexer = match runs.contains(&RUNS[0]) {
        false => None,
        true => {
            let indexer = Indexer::read(keys, hyper.rope.n_dims, RopeMode::Normal)?;
            Some(Indexer { first_channel: indexer.size - hyper.rope.n_dims, ..indexer })
        }
    };
    hyper.indexer = indexer;
    for (block, &run) in hyper.blocks.iter_mut().zip(runs).filter(|(_, run)| **run > 0) {
        let overlaps = run == RUNS[0];
        let index = indexer.filter(|_| overlaps).map_or(0, |indexer| indexer.size);
        let times = if overlaps { 2 } else { 1 };
        let pending = 2 * times * block.key_size + 2 * times * index;
        block.state.compressed = Some(CompressedRows { run, overlaps, keys: block.key_size, index, pending });
    }
    Ok(())
}

fn complete_matrices(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let key = "attention.output_group_count";
    let output_groups = keys.need_count(key, MAX_HEADS)?;
    if let Some(block) = hyper.blocks.iter().find(|block| !block.heads.is_multiple_of(output_groups)) {
        return Err(keys.refuse(key, output_groups, format!("must divide {} heads", block.heads)));
    }
    hyper.one_row = Some(OneRow {
        query_rank: keys.need_count("attention.q_lora_rank", MAX_FEED_FORWARD)?,
        output_groups,
        output_rank: keys.need_count("attention.output_lora_rank", MAX_FEED_FORWARD)?,
    });
    Ok(())
}

fn forward(net: &mut Net<'_>) -> Result<TensorId, Error> {
    let attention = |net: &mut Net<'_>, h| {
        let a = net.compressed_attention(h)?;
        net.grouped_output(a)
    };
    let x = net.stream_blocks(Norms::BEFORE, attention, feed_forward)?;
    let x = net.end_streams(x, "output_hc")?;
    net.untied_logits(x)
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let (block, Some(experts)) = (net.block(), net.hyper().experts) else { return Ok(h) };
    // It is for pictures.
    net.pass_over("exp_probs_b_vl.bias");
    let limited = |limit: Option<f32>| limit.map_or(GluKind::Swiglu, |limit| GluKind::SwigluClamp { limit });
    let moe =
        Moe { kind: limited(block.expert_limit).into(), ..Moe::stated(&experts, Gating::RootOfSoftplus) };
    let inner = experts.feed_forward * experts.shared;
    net.experts_and_other_shared(h, moe, inner, limited(block.shared_limit))
}

const _: () = assert!(PAGE_TOKENS.is_multiple_of(RUNS[0]) && RUNS[1].is_multiple_of(PAGE_TOKENS));
