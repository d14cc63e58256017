//! Blocks that remember all tokens together.

use super::RecurrentState;
use crate::model::error::Error;
use crate::model::keys::Keys;
use crate::model::limits::{MAX_CONVOLUTION, MAX_FEED_FORWARD, MAX_HEAD_SIZE, MAX_HEADS};

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
    /// Groups of heads that share what reads and writes states.
    pub groups: usize,
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
        };
        if !space.inner.is_multiple_of(space.heads) {
            let rule = format!("must be a multiple of the {} heads", space.heads);
            return Err(keys.refuse("ssm.inner_size", space.inner, rule));
        }
        if !space.heads.is_multiple_of(space.groups) {
            let rule = format!("must divide the {} heads", space.heads);
            return Err(keys.refuse("ssm.group_count", space.groups, rule));
        }
        Ok(space)
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
        RecurrentState { convolution: (self.taps - 1) * self.convolved(), state: self.state * self.inner }
    }
}
