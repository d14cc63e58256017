//! How a client decides that a worker is gone or frozen. No socket and no clock is in here.
//!
//! The client sends numbered beats, and the worker says each number back. A worker is lost once a beat has been without its echo for longer
//! than a limit while something waits for the worker; while nothing does, a network may be away for a minute, and no one is the worse for
//! it. An echo speaks for its beat and those before, never for a later one, so bytes that were under way when the worker stopped keep it
//! alive for no moment longer. Invariants: no worker is lost that says every beat back within the limit; one that stops is lost within the
//! limit, an interval and a tick, counted from when something waits for it; a client that was itself stopped, starved or asleep begins anew
//! and blames no worker for that. After sleep, its network may need longer than the limit to come back, so it gets a time of its own until
//! the first echo.

use std::collections::VecDeque;
use std::time::Duration;

use super::limits::{
    BEATS_PER_LIMIT, LONGEST_INTERVAL, MAX_UNANSWERED, QUIET_PATIENCE, SHORTEST_INTERVAL, SHORTEST_PATIENCE,
    SLEEP, WAKING_PATIENCE,
};

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PulseEvent {
    /// Time goes by. What has arrived until now has been handled before.
    Tick {
        /// Whether something waits for the worker, or for another one that waits for it.
        is_waited_for: bool,
    },
    /// The last beat has been handed to the system, as far as that takes it. Until then, it was the client that took its time.
    Sent,
    /// The worker says a beat back, and with it all earlier ones.
    Echo(u64),
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PulseAction {
    /// Send this beat.
    Beat(u64),
    /// The worker is gone or frozen: it has left a beat without an echo for so long. Nothing more is decided.
    Lost(Duration),
    /// The worker says back what was not said, or says it twice. Nothing more is decided.
    Lied,
}

/// What a client knows of the life of a worker.
#[derive(Debug)]
pub struct Pulse {
    limit: Duration,
    /// When it was last looked at.
    looked: Duration,
    /// Since when something has waited for the worker all the time, if something does.
    waited_since: Option<Duration>,
    /// When the next beat is due.
    due: Duration,
    /// The next beat.
    next: u64,
    /// The next beat that may be said back.
    next_echo: u64,
    /// Beats without an echo that count, and when they were sent.
    unanswered: VecDeque<(u64, Duration)>,
    /// The first beat after sleep, until that or a later one is answered.
    waking: Option<u64>,
    is_over: bool,
}

impl Pulse {
    /// Of a worker that may leave a beat without an echo for so long, from now on; for [`SHORTEST_PATIENCE`] at least.
    pub fn new(limit: Duration, now: Duration) -> Pulse {
        let limit = limit.max(SHORTEST_PATIENCE);
        Pulse {
            limit,
            looked: now,
            waited_since: None,
            due: now,
            next: 0,
            next_echo: 0,
            unanswered: VecDeque::new(),
            waking: None,
            is_over: false,
        }
    }

    /// Time between two beats, for a limit.
    pub fn interval(limit: Duration) -> Duration {
        (limit / BEATS_PER_LIMIT).clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL)
    }

    /// How often to tick, for a limit.
    pub fn tick(limit: Duration) -> Duration {
        Pulse::interval(limit) / 4
    }

    /// Takes in what happens at a time of a clock that goes on while the client sleeps.
    pub fn handle(&mut self, event: PulseEvent, now: Duration) -> Option<PulseAction> {
        if self.is_over {
            return None;
        }
        let action = match event {
            PulseEvent::Tick { is_waited_for } => self.tick_at(now, is_waited_for),
            PulseEvent::Sent => self.sent_at(now),
            PulseEvent::Echo(number) => self.echo(number),
        };
        self.is_over = matches!(action, Some(PulseAction::Lost(_) | PulseAction::Lied));
        action
    }

    fn tick_at(&mut self, now: Duration, is_waited_for: bool) -> Option<PulseAction> {
        let gap = now.saturating_sub(std::mem::replace(&mut self.looked, now));
        if gap > self.limit / 2 {
            // It was not the worker that let this time go by.
            self.unanswered.clear();
            self.waking = (gap >= SLEEP).then_some(self.next).or(self.waking);
        }
        self.waited_since = is_waited_for.then(|| self.waited_since.unwrap_or(now));
        if let Some(passed) = self.passed(now) {
            return Some(PulseAction::Lost(passed));
        }
        (now >= self.due && self.unanswered.len() < MAX_UNANSWERED).then(|| {
            let number = self.next;
            self.next += 1;
            self.due = now + Pulse::interval(self.limit);
            self.unanswered.push_back((number, now));
            PulseAction::Beat(number)
        })
    }

    /// The limit that has passed, if one has.
    fn passed(&self, now: Duration) -> Option<Duration> {
        let (_, sent) = *self.unanswered.front()?;
        let limit = if self.waking.is_some() { self.limit.max(WAKING_PATIENCE) } else { self.limit };
        let waited = self.waited_since.map(|since| (since.max(sent), limit));
        let quiet = (sent, self.limit.max(QUIET_PATIENCE));
        let mut all = waited.into_iter().chain([quiet]);
        all.find(|(since, limit)| now.saturating_sub(*since) > *limit).map(|(_, limit)| limit)
    }

    fn sent_at(&mut self, now: Duration) -> Option<PulseAction> {
        if let Some((number, sent)) = self.unanswered.back_mut()
            && *number + 1 == self.next
        {
            *sent = now;
        }
        None
    }

    fn echo(&mut self, number: u64) -> Option<PulseAction> {
        if !(self.next_echo..self.next).contains(&number) {
            return Some(PulseAction::Lied);
        }
        self.next_echo = number + 1;
        self.waking = self.waking.filter(|first| *first > number);
        self.unanswered.retain(|(sent, _)| *sent > number);
        None
    }
}

#[cfg(test)]
mod tests;
