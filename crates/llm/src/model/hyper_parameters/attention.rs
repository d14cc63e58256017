//! Heads, windows and the blocks that have them.

use super::{Block, BlockState, Half, TokenRows};
use crate::model::arch::{Heads, Pattern, Purpose, Traits, WindowKey};
use crate::model::error::Error;
use crate::model::keys::Keys;
use crate::model::limits::{MAX_BLOCKS, MAX_CONTEXT, MAX_FEED_FORWARD, MAX_HEAD_SIZE, MAX_HEADS};

/// Attention with keys and values of one short row per token (multi-head latent attention).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Channels between the two matrices of queries; one matrix if there are none.
    pub query_rank: Option<usize>,
    /// Channels of the row that keys and values are made of, without the part that rotates.
    pub rank: usize,
    /// Channels of a head of queries and keys, the rotated ones included.
    pub key_size: usize,
    /// Channels of a head of values.
    pub value_size: usize,
    /// Channels of a head of queries and keys that positions rotate; the last ones.
    pub rotated: usize,
    /// Whether rows are kept as they are and heads of queries are brought to them; else keys and values are made and kept.
    pub absorbed: bool,
}

impl Latent {
    /// Reads and checks what attention of this kind needs, and tells blocks what they remember.
    pub(crate) fn read(
        keys: &Keys<'_>,
        blocks: &mut [Block],
        rotated: usize,
        query_rank: Option<usize>,
    ) -> Result<Latent, Error> {
        let sizes = (
            keys.count("attention.key_length_mla", MAX_HEAD_SIZE)?,
            keys.count("attention.value_length_mla", MAX_HEAD_SIZE)?,
        );
        let (Some(key_size), Some(value_size)) = sizes else {
            return Latent::read_expanded(keys, blocks, rotated, query_rank);
        };
        let rank = keys.need_count("attention.kv_lora_rank", MAX_HEAD_SIZE)?;
        let latent = Latent { query_rank, rank, key_size, value_size, rotated, absorbed: true };
        latent.checked(keys)?.tell(blocks.iter_mut());
        Ok(latent)
    }

    /// As [`read`](Latent::read), for architectures that make and keep keys and values.
    pub(crate) fn read_expanded(
        keys: &Keys<'_>,
        blocks: &mut [Block],
        rotated: usize,
        query_rank: Option<usize>,
    ) -> Result<Latent, Error> {
        let rank = keys.need_count("attention.kv_lora_rank", MAX_HEAD_SIZE)?;
        let Block { key_size, value_size, .. } = blocks[0];
        let latent = Latent { query_rank, rank, key_size, value_size, rotated, absorbed: false };
        latent.checked(keys)?.tell(blocks.iter_mut());
        Ok(latent)
    }

    /// As [`read`](Latent::read), of blocks that see a window and have sizes of their own.
    pub(crate) fn read_windowed(
        keys: &Keys<'_>,
        blocks: &mut [Block],
        rotated: usize,
        query_rank: Option<usize>,
    ) -> Result<Latent, Error> {
        let latent = Latent {
            query_rank,
            rank: keys.need_count("attention.kv_lora_rank_swa", MAX_HEAD_SIZE)?,
            key_size: keys.need_count("attention.key_length_mla_swa", MAX_HEAD_SIZE)?,
            value_size: keys.need_count("attention.value_length_mla_swa", MAX_HEAD_SIZE)?,
            rotated,
            absorbed: true,
        };
        latent.checked(keys)?.tell(blocks.iter_mut().filter(|block| block.windowed));
        Ok(latent)
    }

    fn checked(self, keys: &Keys<'_>) -> Result<Latent, Error> {
        let rotated = self.rotated;
        if self.key_size < rotated || self.absorbed && self.key_size == rotated {
            let rule = format!("must be more than the {rotated} rotated channels");
            return Err(keys.refuse("attention.key_length", self.key_size, rule));
        }
        Ok(self)
    }

    /// Tells blocks with heads what they remember.
    fn tell<'b>(&self, blocks: impl Iterator<Item = &'b mut Block>) {
        for block in blocks.filter(|block| block.kv_heads > 0) {
            (block.kv_heads, block.key_size, block.value_size) = match self.absorbed {
                true => (1, self.rank + self.rotated, self.rank),
                false => (block.heads, self.key_size, self.value_size),
            };
            let values = if self.absorbed { 0 } else { block.kv_heads * self.value_size };
            block.state.rows = Some(TokenRows { keys: block.kv_heads * block.key_size, values, index: 0 });
        }
    }
}

/// Attention with one row per token that is key and value of all heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneRow {
    /// Channels between the two matrices of queries.
    pub query_rank: usize,
    /// Groups of heads that have a matrix each for what attention gives.
    pub output_groups: usize,
    /// Channels that each of these matrices gives.
    pub output_rank: usize,
}

pub(super) fn window(keys: &Keys<'_>, traits: &Traits) -> Result<Option<usize>, Error> {
    let key = "attention.sliding_window";
    match traits.window {
        WindowKey::Ignored => Ok(None),
        WindowKey::Optional => keys.count(key, MAX_CONTEXT),
        WindowKey::Default(window) => Ok(Some(keys.count(key, MAX_CONTEXT)?.unwrap_or(window))),
        WindowKey::Required => keys.need_count(key, MAX_CONTEXT).map(Some),
    }
}

/// Which blocks see a window only: as an array says, or all but one of so many.
fn windowed(keys: &Keys<'_>, traits: &Traits, blocks: usize) -> Result<Vec<bool>, Error> {
    let key = "attention.sliding_window_pattern";
    if let Some(flags) = keys.flags(key, blocks)? {
        return Ok(flags);
    }
    let stated = keys.counts(key, 1, MAX_BLOCKS)?.map(|period| period[0]);
    let (period, exception) = match traits.pattern {
        Pattern::Never => (stated.unwrap_or(0), None),
        Pattern::LastOf(period) => (stated.unwrap_or(period), None),
        Pattern::FirstOf(period) => (stated.unwrap_or(period), Some(0)),
    };
    let exception = exception.unwrap_or(period.saturating_sub(1));
    Ok((0..blocks).map(|block| period == 0 || block % period != exception).collect())
}

/// All blocks of the file, of which each is known to be possible.
pub(super) fn blocks(
    keys: &Keys<'_>,
    traits: &Traits,
    count: usize,
    embedding: usize,
    window: Option<usize>,
) -> Result<Vec<Block>, Error> {
    let key = "attention.head_count";
    let heads = match (keys.counts(key, count, MAX_HEADS)?, traits.heads) {
        (_, Heads::None) => vec![0; count],
        (Some(heads), _) => heads,
        (None, _) => vec![keys.need_count(key, MAX_HEADS)?; count],
    };
    let kv_heads = keys.counts("attention.head_count_kv", count, MAX_HEADS)?;
    let kv_heads = kv_heads.filter(|_| traits.heads != Heads::None).unwrap_or_else(|| heads.clone());
    let feed_forward =
        keys.counts("feed_forward_length", count, MAX_FEED_FORWARD)?.unwrap_or_else(|| vec![0; count]);
    let windowed = match window {
        Some(_) => windowed(keys, traits, count)?,
        None => vec![false; count],
    };
    let sizes = head_sizes(keys, traits, embedding, &heads)?;
    let block = |index: usize| {
        let (heads, kv_heads, windowed) = (heads[index], kv_heads[index], windowed[index]);
        if heads == 0 && traits.heads == Heads::Always {
            return Err(keys.refuse(key, 0, format!("block {index} needs heads")));
        }
        let attends = kv_heads > 0 && heads > 0;
        if traits.heads == Heads::Always && !attends || attends && !heads.is_multiple_of(kv_heads) {
            let rule = format!("must divide the {heads} heads of block {index}");
            return Err(keys.refuse("attention.head_count_kv", kv_heads, rule));
        }
        let (key_size, value_size) = sizes[usize::from(windowed)];
        let rows = TokenRows { keys: kv_heads * key_size, values: kv_heads * value_size, index: 0 };
        let state = BlockState {
            rows: (attends && traits.purpose == Purpose::Continue).then_some(rows),
            ..BlockState::default()
        };
        Ok(Block {
            heads,
            kv_heads,
            key_size,
            value_size,
            feed_forward: feed_forward[index],
            windowed,
            rotates: attends && traits.rope.is_some(),
            has_experts: false,
            expert_limit: None,
            shared_limit: None,
            tensors: index,
            half: Half::Whole,
            state,
        })
    };
    (0..count).map(block).collect()
}

/// Channels of a head of keys and of values: of blocks that see everything, and of those that see a window.
fn head_sizes(
    keys: &Keys<'_>,
    traits: &Traits,
    embedding: usize,
    heads: &[usize],
) -> Result<[(usize, usize); 2], Error> {
    let Some(&heads) = heads.iter().find(|&&heads| heads > 0) else {
        return match traits.heads {
            Heads::None => Ok([(0, 0); 2]),
            _ => Err(keys.refuse("attention.head_count", 0, "block 0 needs heads")),
        };
    };
    let share = || match embedding.is_multiple_of(heads) && embedding / heads <= MAX_HEAD_SIZE {
        true => Ok(embedding / heads),
        false => {
            let rule = format!("must divide {} ({embedding})", keys.name("embedding_length"));
            Err(keys.refuse("attention.head_count", heads, rule))
        }
    };
    let size = |key, default: Option<usize>| match (keys.count(key, MAX_HEAD_SIZE)?, default) {
        (Some(size), _) => Ok(size),
        (None, Some(default)) => Ok(default),
        (None, None) => share(),
    };
    let key_size = size("attention.key_length", None)?;
    let value_size = size("attention.value_length", None)?;
    let windowed = (
        size("attention.key_length_swa", Some(key_size))?,
        size("attention.value_length_swa", Some(value_size))?,
    );
    Ok([(key_size, value_size), windowed])
}
