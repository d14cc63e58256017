//! Penalties for tokens that were seen lately.
//!
//! Invariant: the counts are those of the tokens in the window.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::{Changing, SamplerSettings};
use crate::text::vocab::Token;

/// Tokens of a window that there is room for from the beginning.
pub(super) const ROOM: usize = 1024;

#[derive(Clone, Debug)]
pub(super) struct Penalties {
    repeat: f32,
    frequency: f32,
    presence: f32,
    window: usize,
    seen: VecDeque<Token>,
    counts: HashMap<Token, u32>,
}

impl Penalties {
    pub(super) fn new(settings: &SamplerSettings) -> Penalties {
        let mut penalties = Penalties {
            repeat: settings.repeat_penalty,
            frequency: settings.frequency_penalty,
            presence: settings.presence_penalty,
            window: settings.penalty_window,
            seen: VecDeque::new(),
            counts: HashMap::new(),
        };
        if penalties.repeat == 1.0 && penalties.frequency == 0.0 && penalties.presence == 0.0 {
            penalties.window = 0;
        }
        // Twice as many as there can be: then room is made anew without asking for memory, however tokens come and go.
        let room = penalties.window.min(ROOM);
        penalties.seen.reserve(room);
        penalties.counts.reserve(2 * room);
        penalties
    }

    /// Whether they change anything now.
    pub(super) fn are_active(&self) -> bool {
        !self.counts.is_empty()
    }

    /// The tokens of the window, the oldest first.
    pub(super) fn seen(&self) -> &VecDeque<Token> {
        &self.seen
    }

    pub(super) fn clear(&mut self) {
        self.seen.clear();
        self.counts.clear();
    }

    pub(super) fn accept(&mut self, token: Token) {
        if self.window == 0 {
            return;
        }
        while self.seen.len() >= self.window {
            let Some(oldest) = self.seen.pop_front() else { break };
            if let Some(count) = self.counts.get_mut(&oldest) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&oldest);
                }
            }
        }
        self.seen.push_back(token);
        *self.counts.entry(token).or_default() += 1;
    }

    /// How many tokens are lowered at most after so many further ones, if none is raised.
    pub(super) fn lowered(&self, further: usize) -> Option<usize> {
        if self.window == 0 {
            return Some(0);
        }
        let only_lower = self.repeat >= 1.0 && self.frequency >= 0.0 && self.presence >= 0.0;
        let lowered = self.counts.len() + further;
        (only_lower || lowered == 0).then_some(lowered)
    }

    pub(super) fn apply(&self, logits: &mut (impl Changing + ?Sized)) {
        for (&token, &count) in &self.counts {
            let Some(logit) = logits.of(token) else { continue };
            let repeated = if *logit > 0.0 { *logit / self.repeat } else { *logit * self.repeat };
            let changed = repeated - (count as f32 * self.frequency + self.presence);
            // Large settings make large numbers, but no infinite ones and no others than numbers.
            *logit = if changed.is_nan() { f32::NEG_INFINITY } else { changed.min(f32::MAX) };
        }
    }
}

impl PartialEq for Penalties {
    /// The rest follows from the settings and from what was seen.
    fn eq(&self, other: &Penalties) -> bool {
        self.seen == other.seen
    }
}
