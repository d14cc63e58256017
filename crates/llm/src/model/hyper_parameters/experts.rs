//! Feed-forward networks of which each token uses a few.

use super::Block;
use crate::model::arch::{ExpertSize, ExpertUse, Traits};
use crate::model::error::Error;
use crate::model::keys::Keys;
use crate::model::limits::{MAX_BLOCKS, MAX_EXPERTS, MAX_FEED_FORWARD};

/// How scores of experts become weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    /// Each by itself.
    Sigmoid,
    /// Softmax over those used.
    SoftmaxOfSelected,
    /// Each by itself: `sqrt(ln(1 + exp(x)))`.
    RootOfSoftplus,
}

/// Experts of every block that has any.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many compute each token.
    pub used: usize,
    /// Channels of each.
    pub feed_forward: usize,
    /// How many compute every token besides.
    pub shared: usize,
    /// Channels of those together, where the file gives them.
    pub shared_feed_forward: Option<usize>,
    /// How their scores become weights, where the file says so.
    pub gating: Option<Gating>,
    /// Whether the file asks for weights that sum to one.
    pub normalized: bool,
    /// Factor of their weights.
    pub weights_scale: f32,
    /// Groups they come in, and from how many of them a token's experts are.
    pub groups: Option<(usize, usize)>,
    /// In how many of the first blocks the token itself says which compute it.
    pub by_token: usize,
    /// How many of them share one more small expert, and its channels, if they do.
    pub groves: Option<(usize, usize)>,
}

pub(super) fn experts(
    keys: &Keys<'_>,
    traits: &Traits,
    blocks: &mut [Block],
) -> Result<Option<Experts>, Error> {
    let count = keys.count("expert_count", MAX_EXPERTS)?.unwrap_or(0);
    let used = keys.count("expert_used_count", MAX_EXPERTS)?.unwrap_or(0);
    if used > count {
        let rule = format!("must not exceed the {count} experts there are");
        return Err(keys.refuse("expert_used_count", used, rule));
    }
    if (used == 0) != (count == 0) {
        return Err(keys.refuse("expert_used_count", used, format!("cannot be with {count} experts")));
    }
    let wrong = match (traits.experts, count) {
        (ExpertUse::Never, 1..) => Some("this architecture has no experts"),
        (ExpertUse::Always, 0) => Some("this architecture needs experts"),
        _ => None,
    };
    if let Some(rule) = wrong {
        return Err(keys.refuse("expert_count", count, rule));
    }
    if count == 0 {
        return Ok(None);
    }
    let dense = blocks.iter().map(|block| block.feed_forward).find(|&channels| channels > 0).unwrap_or(0);
    let own = keys.count("expert_feed_forward_length", MAX_FEED_FORWARD)?;
    let feed_forward = match (traits.expert_size, own) {
        (ExpertSize::Dense, _) => dense,
        (_, Some(own)) => own,
        (ExpertSize::OwnOrDense, None) => dense,
        (ExpertSize::OwnOrShare, None) => dense / used,
        (ExpertSize::Own, None) => keys.need_count("expert_feed_forward_length", MAX_FEED_FORWARD)?,
    };
    if feed_forward == 0 {
        return Err(keys.refuse("expert_feed_forward_length", 0, "experts need channels"));
    }
    let first = match traits.leading_dense {
        true => keys.count("leading_dense_block_count", MAX_BLOCKS)?.unwrap_or(0),
        false => 0,
    };
    for block in blocks.iter_mut().skip(first) {
        block.has_experts = true;
    }
    Ok(Some(Experts {
        count,
        used,
        feed_forward,
        shared: keys.count("expert_shared_count", MAX_EXPERTS)?.unwrap_or(0),
        shared_feed_forward: keys.count("expert_shared_feed_forward_length", MAX_FEED_FORWARD)?,
        gating: gating(keys)?,
        normalized: keys.flag("expert_weights_norm")?.unwrap_or(false),
        weights_scale: keys.factor("expert_weights_scale")?.unwrap_or(1.0),
        groups: groups(keys, count, used)?,
        by_token: 0,
        groves: None,
    }))
}

fn gating(keys: &Keys<'_>) -> Result<Option<Gating>, Error> {
    let key = "expert_gating_func";
    Ok(match keys.count(key, usize::MAX)? {
        None => None,
        Some(1) => Some(Gating::Softmax),
        Some(2) => Some(Gating::Sigmoid),
        Some(3) => Some(Gating::SoftmaxOfSelected),
        Some(4) => Some(Gating::RootOfSoftplus),
        Some(other) => return Err(keys.refuse(key, other, "must be from 1 to 4")),
    })
}

/// Groups are equal, and hold at least as many experts as a token uses and as a group is judged by.
fn groups(keys: &Keys<'_>, count: usize, used: usize) -> Result<Option<(usize, usize)>, Error> {
    let (key, used_key) = ("expert_group_count", "expert_group_used_count");
    let (groups, chosen) = (keys.count(key, MAX_EXPERTS)?, keys.count(used_key, MAX_EXPERTS)?);
    let Some(groups) = groups.filter(|&groups| groups > 1) else { return Ok(None) };
    if !count.is_multiple_of(groups) || count / groups < 2 {
        return Err(keys.refuse(
            key,
            groups,
            format!("must divide {count} experts into groups of two or more"),
        ));
    }
    let chosen = chosen.unwrap_or(0);
    if chosen == 0 || chosen >= groups || chosen * (count / groups) < used {
        let rule = format!("must be below {groups}, and enough for {used} experts");
        return Err(keys.refuse(used_key, chosen, rule));
    }
    Ok(Some((groups, chosen)))
}
