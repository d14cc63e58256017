//! MiniMax M3: attention to blocks of tokens that an index finds for each head of keys, and experts beside a shared one; the first
//! blocks are dense in both.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, RopeMode};

use super::{Architecture, ExpertSize, ExpertUse, Traits};
use crate::model::error::Error;
use crate::model::hyper_parameters::{Gating, HyperParameters, IndexRule, Indexer};
use crate::model::keys::Keys;
use crate::model::limits::MAX_CONTEXT;
use crate::model::net::{Attention, Bias, Glu, Moe, Net, Norms};
use crate::runner::PAGE_TOKENS;

pub(super) const FAMILY: &[Architecture] = &[Architecture {
    name: "minimax-m3",
    traits: Traits {
        experts: ExpertUse::Always,
        expert_size: ExpertSize::Own,
        leading_dense: true,
        ..Traits::plain(RopeMode::Neox)
    },
    complete,
    forward: |net| net.decoder(Norms::BEFORE, attention, feed_forward),
}];

const GLU: Glu = Glu::Kind(GluKind::SwigluOai { alpha: 1.702, limit: 7.0 });

fn complete(hyper: &mut HyperParameters, keys: &Keys<'_>) -> Result<(), Error> {
    let key = "attention.indexer.block_size";
    let size = keys.need_count(key, MAX_CONTEXT)?;
    if !PAGE_TOKENS.is_multiple_of(size) && !size.is_multiple_of(PAGE_TOKENS) {
        let rule = format!("must divide {PAGE_TOKENS} or be a multiple of it");
        return Err(keys.refuse(key, size, rule));
    }
    let local = keys.count("attention.indexer.local_blocks", MAX_CONTEXT)?.unwrap_or(0);
    let indexer = Indexer::read(keys, hyper.rope.n_dims, hyper.rope.mode)?;
    if let Some(block) = hyper.blocks.iter().find(|block| block.kv_heads != indexer.heads) {
        let rule = format!("must be one for each of {} heads of keys", block.kv_heads);
        return Err(keys.refuse("attention.indexer.head_count", indexer.heads, rule));
    }
    let sparse: Vec<bool> = hyper.blocks.iter().map(|block| block.has_experts).collect();
    indexer.give(&mut hyper.blocks, |block| sparse[block]);
    hyper.indexer = Some(Indexer { rule: IndexRule::Blocks { size, local }, ..indexer });
    Ok(())
}

fn attention(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let (q, k, v) = net.qkv(h, Bias::Optional)?;
    let (q, k) = (net.head_norm(q, "attn_q_norm")?, net.head_norm(k, "attn_k_norm")?);
    let (q, k) = (net.rope(q)?, net.rope(k)?);
    let found = if net.block().has_experts { net.found_in_blocks(h)? } else { None };
    let scale = net.head_scale();
    let a = net.attention([q, k, v], Attention { found, ..Attention::scaled(scale) })?;
    net.attention_output(a, Bias::None)
}

fn feed_forward(net: &mut Net<'_>, h: TensorId) -> Result<TensorId, Error> {
    let Some(experts) = net.hyper().experts.filter(|_| net.block().has_experts) else {
        return net.gated(h, GLU, Bias::None);
    };
    let moe = Moe { kind: GLU, ..Moe::stated(&experts, Gating::Sigmoid) };
    net.experts_and_other_shared(h, moe, experts.feed_forward * experts.shared, GLU)
}
