//! Indexes that say which tokens attention looks at.

use oxcart_tensor::ops::RopeMode;

use super::Block;
use crate::model::error::Error;
use crate::model::keys::Keys;
use crate::model::limits::{MAX_CONTEXT, MAX_HEAD_SIZE, MAX_HEADS};
use crate::runner::PAGE_TOKENS;

/// An index that says which tokens attention looks at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Indexer {
    /// Heads of its queries; its keys have one.
    pub heads: usize,
    /// Channels of a head.
    pub size: usize,
    /// How many tokens it finds; with blocks, how many of those.
    pub chosen: usize,
    /// What it looks for.
    pub rule: IndexRule,
    /// Which of its channels rotate together.
    pub mode: RopeMode,
    /// The first channel that rotates.
    pub first_channel: usize,
    /// Added to what the norm of its keys divides by.
    pub epsilon: f32,
}

/// What an index looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexRule {
    /// Tokens, by a key of each.
    Tokens,
    /// Runs of so many tokens, by their keys, weighed channel by channel by gates of theirs. A run that is not whole yet is always
    /// seen.
    GatedRuns(usize),
    /// Runs of so many tokens, by the mean of their keys. A run that is not whole yet is always seen.
    MeanRuns(usize),
    /// Blocks of tokens, by the best key of each, for every head of keys by itself.
    Blocks {
        /// Tokens of a block.
        size: usize,
        /// How many of the last ones are always seen.
        local: usize,
    },
}

/// What the norm of an index' keys has added to what it divides by, in most architectures.
const INDEX_EPSILON: f32 = 1e-6;

impl Indexer {
    /// Reads one that looks for tokens.
    pub(crate) fn read(keys: &Keys<'_>, rotated: usize, mode: RopeMode) -> Result<Indexer, Error> {
        let key = "attention.indexer.key_length";
        let indexer = Indexer {
            heads: keys.need_count("attention.indexer.head_count", MAX_HEADS)?,
            size: keys.need_count(key, MAX_HEAD_SIZE)?,
            chosen: keys.need_count("attention.indexer.top_k", MAX_CONTEXT)?,
            rule: IndexRule::Tokens,
            mode,
            first_channel: 0,
            epsilon: INDEX_EPSILON,
        };
        if indexer.size < rotated {
            let rule = format!("must not be less than the {rotated} rotated channels");
            return Err(keys.refuse(key, indexer.size, rule));
        }
        Ok(indexer)
    }

    /// Which blocks have an index of their own, where the file says so.
    pub(crate) fn owners(keys: &Keys<'_>, blocks: usize) -> Result<Option<Vec<usize>>, Error> {
        keys.counts("attention.indexer.types", blocks, usize::MAX)
    }

    /// Tells blocks that have an index of their own what they keep for it.
    pub(crate) fn give(&self, blocks: &mut [Block], owns: impl Fn(usize) -> bool) {
        let width = match self.rule {
            IndexRule::GatedRuns(_) => 2 * self.size,
            IndexRule::Tokens | IndexRule::MeanRuns(_) | IndexRule::Blocks { .. } => self.size,
        };
        for (index, block) in blocks.iter_mut().enumerate() {
            if let Some(rows) = block.state.rows.as_mut().filter(|_| owns(index) && !block.windowed) {
                rows.index = width;
            }
        }
    }

    /// As [`give`](Indexer::give), where blocks without one look at what the last one before them found.
    pub(crate) fn share(
        &self,
        keys: &Keys<'_>,
        blocks: &mut [Block],
        owns: impl Fn(usize) -> bool,
    ) -> Result<(), Error> {
        let looks = |block: &Block| block.state.rows.is_some() && !block.windowed;
        if blocks.iter().position(looks).is_some_and(|first| !owns(first)) {
            let rule = "the first block that looks at all tokens needs an index of its own";
            return Err(keys.refuse("attention.indexer.types", 0, rule));
        }
        self.give(blocks, owns);
        Ok(())
    }

    /// Refuses runs that pages do not hold whole.
    pub(crate) fn checked_run(keys: &Keys<'_>, key: &str, length: usize) -> Result<usize, Error> {
        match length > 1 && PAGE_TOKENS.is_multiple_of(length) {
            true => Ok(length),
            false => Err(keys.refuse(key, length, format!("must be above 1 and divide {PAGE_TOKENS}"))),
        }
    }
}
