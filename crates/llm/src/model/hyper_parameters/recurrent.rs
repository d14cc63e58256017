//! Blocks that remember all tokens together.

use super::{Block, RecurrentState};
use crate::model::error::Error;
use crate::model::keys::Keys;
use crate::model::limits::{MAX_CONVOLUTION, MAX_EMBEDDING, MAX_FEED_FORWARD, MAX_HEAD_SIZE, MAX_HEADS};

/// A recurrence over states of heads: Mamba's, or a delta net's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSpace {
    /// Tokens that the convolution before it sees.
    pub taps: usize,
    /// Channels of all heads together.
    pub inner: usize,
    /// Numbers of state per channel.
    pub state: usize,
    /// Heads.
    pub heads: usize,
    /// Groups of heads that share what reads and writes states, where that is convolved together with the heads; none where it
    /// is made of what was convolved, and all heads share it.
    pub groups: usize,
    /// Channels that time steps are made of, where there are no groups.
    pub step_rank: usize,
    /// Whether there must be norms: of results, where there are groups; of time steps and of what reads and writes states, where
    /// there are none.
    pub normed: bool,
}

impl StateSpace {
    /// Reads it; all of its keys must be there.
    pub(crate) fn read(keys: &Keys<'_>) -> Result<StateSpace, Error> {
        let space = StateSpace {
            taps: keys.need_count("ssm.conv_kernel", MAX_CONVOLUTION)?,
            inner: keys.need_count("ssm.inner_size", MAX_FEED_FORWARD)?,
            state: keys.need_count("ssm.state_size", MAX_HEAD_SIZE)?,
            heads: keys.need_count("ssm.time_step_rank", MAX_HEADS)?,
            groups: keys.need_count("ssm.group_count", MAX_HEADS)?,
            step_rank: 0,
            normed: true,
        };
        if !space.heads.is_multiple_of(space.groups) {
            let rule = format!("must divide the {} heads", space.heads);
            return Err(keys.refuse("ssm.group_count", space.groups, rule));
        }
        space.checked(keys)
    }

    /// Reads that of Mamba 1: every channel is a head of its own.
    pub(crate) fn read_ungrouped(keys: &Keys<'_>) -> Result<StateSpace, Error> {
        let inner = keys.need_count("ssm.inner_size", MAX_FEED_FORWARD)?;
        let space = StateSpace {
            taps: keys.need_count("ssm.conv_kernel", MAX_CONVOLUTION)?,
            inner,
            state: keys.need_count("ssm.state_size", MAX_HEAD_SIZE)?,
            heads: inner,
            groups: 0,
            step_rank: keys.need_count("ssm.time_step_rank", MAX_FEED_FORWARD)?,
            normed: keys.flag("ssm.dt_b_c_rms")?.unwrap_or(false),
        };
        space.checked(keys)
    }

    /// As Mamba 1, with heads of several channels, and time steps made of so many.
    pub(crate) fn read_ungrouped_heads(keys: &Keys<'_>, step_rank: usize) -> Result<StateSpace, Error> {
        let heads = keys.need_count("ssm.time_step_rank", MAX_HEADS)?;
        let space = StateSpace::read_ungrouped(keys)?;
        StateSpace { heads, step_rank, normed: true, ..space }.checked(keys)
    }

    fn checked(self, keys: &Keys<'_>) -> Result<StateSpace, Error> {
        if !self.inner.is_multiple_of(self.heads) {
            let rule = format!("must be a multiple of the {} heads", self.heads);
            return Err(keys.refuse("ssm.inner_size", self.inner, rule));
        }
        if self.taps == 1 {
            return Err(keys.refuse("ssm.conv_kernel", self.taps, "must be at least 2"));
        }
        Ok(self)
    }

    /// Channels of a head.
    pub(crate) fn head_size(&self) -> usize {
        self.inner / self.heads
    }

    /// Channels of what the convolution sees: those of the heads, and twice a state for each group.
    pub(crate) fn convolved(&self) -> usize {
        self.inner + 2 * self.groups * self.state
    }

    /// What a block remembers with it.
    pub(crate) fn remembered(&self) -> RecurrentState {
        let (convolution, state) = ((self.taps - 1) * self.convolved(), self.state * self.inner);
        RecurrentState { convolution, state, ..RecurrentState::default() }
    }
}

/// A delta net whose heads keep every channel by a measure of its own (Kimi delta attention).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChannelDelta {
    /// Tokens that the convolutions before it see.
    pub taps: usize,
    /// Heads.
    pub heads: usize,
    /// Channels of a head.
    pub size: usize,
    /// How the logarithm of what is kept comes about.
    pub decay: DecayRule,
    /// Added to the squared lengths that queries and keys are divided by; the norms' number unless it is given.
    pub epsilon: Option<f32>,
}

/// How the logarithm of what a channel keeps comes about, `a` being a number of its head and `x` one of the token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DecayRule {
    /// `a * softplus(x)`.
    Softplus,
    /// `least * sigmoid(factor * a * x)`.
    Sigmoid {
        /// What it does not fall below.
        least: f32,
        /// Whether files have `a` as it is, or below zero.
        factor: f32,
    },
}

impl ChannelDelta {
    /// Reads it; as many heads as attention has.
    pub(crate) fn read(keys: &Keys<'_>, blocks: &[Block], decay: DecayRule) -> Result<ChannelDelta, Error> {
        let taps = keys.need_count("ssm.conv_kernel", MAX_CONVOLUTION)?;
        if taps == 1 {
            return Err(keys.refuse("ssm.conv_kernel", taps, "must be at least 2"));
        }
        let heads = blocks.iter().map(|block| block.heads).find(|&heads| heads > 0).unwrap_or(1);
        let size = keys.need_count("kda.head_dim", MAX_HEAD_SIZE)?;
        Ok(ChannelDelta { taps, heads, size, decay, epsilon: None })
    }

    /// Channels of all heads together.
    pub(crate) fn inner(&self) -> usize {
        self.heads * self.size
    }

    /// What a block remembers with it.
    pub(crate) fn remembered(&self) -> RecurrentState {
        let (convolution, state) = (3 * (self.taps - 1) * self.inner(), self.size * self.inner());
        RecurrentState { convolution, state, ..RecurrentState::default() }
    }
}

/// A recurrence of RWKV 6 or 7, by which tokens are mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rwkv {
    /// Channels of a head.
    pub size: usize,
    /// Heads of keys and values; where they are fewer than heads of queries, several of these share one.
    pub kv_heads: usize,
    /// Rows of the last token that a block remembers: one, or one for each of its parts.
    pub shifts: usize,
    /// Channels that mixtures are made of, in version 6.
    pub mix_rank: usize,
    /// Channels that decays are made of.
    pub decay_rank: usize,
    /// Channels that rates of correction are made of, in version 7.
    pub rate_rank: usize,
    /// Channels that say how far values lean towards the first block's, in version 7.
    pub value_rank: usize,
    /// Channels that gates are made of, in version 7; none if there are no gates.
    pub gate_rank: usize,
    /// Every so many blocks the stream is halved, if it is.
    pub halving_period: Option<usize>,
}

impl Rwkv {
    /// Reads that of version 6.
    pub(crate) fn read6(keys: &Keys<'_>, embedding: usize, shifts: usize) -> Result<Rwkv, Error> {
        let rwkv = Rwkv::read(keys, embedding, shifts)?;
        let (key, heads) = ("attention.head_count_kv", embedding / rwkv.size);
        let kv_heads = keys.counts(key, 1, heads)?.map_or(0, |counts| counts[0]);
        let kv_heads = if kv_heads == 0 { heads } else { kv_heads };
        if !heads.is_multiple_of(kv_heads) {
            return Err(keys.refuse(key, kv_heads, format!("must divide the {heads} heads")));
        }
        Ok(Rwkv {
            kv_heads,
            mix_rank: keys.need_count("time_mix_extra_dim", MAX_EMBEDDING)?,
            decay_rank: keys.need_count("time_decay_extra_dim", MAX_EMBEDDING)?,
            ..rwkv
        })
    }

    /// Reads that of version 7.
    pub(crate) fn read7(keys: &Keys<'_>, embedding: usize, shifts: usize) -> Result<Rwkv, Error> {
        let rwkv = Rwkv::read(keys, embedding, shifts)?;
        let rank = |name: &str| keys.need_count(&format!("attention.{name}_lora_rank"), MAX_EMBEDDING);
        Ok(Rwkv {
            decay_rank: rank("decay")?,
            rate_rank: rank("iclr")?,
            value_rank: rank("value_residual_mix")?,
            gate_rank: keys.count("attention.gate_lora_rank", MAX_EMBEDDING)?.unwrap_or(0),
            ..rwkv
        })
    }

    fn read(keys: &Keys<'_>, embedding: usize, shifts: usize) -> Result<Rwkv, Error> {
        let key = "wkv.head_size";
        let size = keys.need_count(key, MAX_HEAD_SIZE)?;
        if !embedding.is_multiple_of(size) || embedding / size > MAX_HEADS {
            return Err(keys.refuse(key, size, format!("must divide the {embedding} channels")));
        }
        let key = "token_shift_count";
        if let Some(stated) = keys.count(key, MAX_CONVOLUTION)?.filter(|&stated| stated != shifts) {
            return Err(keys.refuse(key, stated, format!("must be {shifts}")));
        }
        Ok(Rwkv {
            size,
            kv_heads: embedding / size,
            shifts,
            mix_rank: 0,
            decay_rank: 0,
            rate_rank: 0,
            value_rank: 0,
            gate_rank: 0,
            halving_period: None,
        })
    }

    /// What a block remembers with it.
    pub(crate) fn remembered(&self, embedding: usize) -> RecurrentState {
        let (convolution, state) = (self.shifts * embedding, self.size * embedding);
        RecurrentState { convolution, state, ..RecurrentState::default() }
    }
}
