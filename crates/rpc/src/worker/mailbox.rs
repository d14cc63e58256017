//! What another worker has sent for a session and the session has not taken yet.
//!
//! Concurrency: one thread puts in what arrives, the session's takes it out, in the same order. Invariants: no more bytes wait than fit,
//! unless it is one delivery alone; after the end nothing is put in, but what is there can still be taken.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::budget::Lease;
use super::limits::{MAILBOX_BYTES, MAILBOX_DELIVERIES, WATCH_EVERY};
use crate::wire::NotDelivered;

/// Bytes that another worker has sent.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) ticket: u64,
    pub(crate) bytes: Vec<u8>,
    /// What they count as long as they are here; none only in tests of the mailbox itself.
    pub(crate) _charge: Option<Lease>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Delivery>,
    bytes: usize,
    end: Option<NotDelivered>,
}

impl State {
    fn has_room(&self, bytes: usize) -> bool {
        let fits =
            self.bytes.saturating_add(bytes) <= MAILBOX_BYTES && self.waiting.len() < MAILBOX_DELIVERIES;
        self.waiting.is_empty() || fits
    }
}

/// Deliveries on their way from one connection of the worker to another.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    state: Mutex<State>,
    changed: Condvar,
}

impl Mailbox {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until so many bytes fit; `false` if they are not wanted any more.
    pub(crate) fn wait_for_room(&self, bytes: usize, gives_up: impl Fn() -> bool) -> bool {
        let mut state = self.state();
        loop {
            if state.end.is_some() || gives_up() {
                return false;
            }
            if state.has_room(bytes) {
                return true;
            }
            state = self.wait(state, WATCH_EVERY);
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Puts a delivery in, unless none is wanted any more.
    pub(crate) fn put(&self, delivery: Delivery) {
        let mut state = self.state();
        if state.end.is_none() {
            state.bytes += delivery.bytes.len();
            state.waiting.push_back(delivery);
            self.changed.notify_all();
        }
    }

    /// Takes the next delivery, which must be the one with this ticket and of this length; waits for it no longer than that.
    pub(crate) fn take(
        &self,
        ticket: u64,
        bytes: usize,
        limit: Duration,
        gives_up: impl Fn() -> bool,
    ) -> Result<Delivery, NotDelivered> {
        let since = Instant::now();
        let mut state = self.state();
        loop {
            if let Some(delivery) = state.waiting.pop_front() {
                state.bytes -= delivery.bytes.len();
                self.changed.notify_all();
                let is_it = delivery.ticket == ticket && delivery.bytes.len() == bytes;
                return if is_it { Ok(delivery) } else { Err(NotDelivered::Other) };
            }
            if let Some(end) = state.end {
                return Err(end);
            }
            let left = limit.saturating_sub(since.elapsed());
            if left.is_zero() || gives_up() {
                return Err(NotDelivered::Late);
            }
            state = self.wait(state, left.min(WATCH_EVERY));
        }
    }

    /// Nothing more will come.
    pub(crate) fn close(&self, why: NotDelivered) {
        self.state().end.get_or_insert(why);
        self.changed.notify_all();
    }

    /// Nothing more is wanted, and what is there neither.
    pub(crate) fn abandon(&self) {
        let mut state = self.state();
        state.end.get_or_insert(NotDelivered::Lost);
        state.bytes = 0;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.changed.notify_all();
        drop(waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(20);
    const LATER: Duration = Duration::from_secs(60);

    fn delivery(ticket: u64, bytes: usize) -> Delivery {
        Delivery { ticket, bytes: vec![0; bytes], _charge: None }
    }

    fn never() -> bool {
        false
    }

    #[test]
    fn deliveries_are_taken_in_order_and_as_they_were_sent() {
        let mailbox = Mailbox::default();
        (0..3).for_each(|ticket| mailbox.put(delivery(ticket, 10)));
        assert_eq!(mailbox.take(0, 10, LATER, never).unwrap().ticket, 0);
        assert_eq!(mailbox.take(2, 10, LATER, never).unwrap_err(), NotDelivered::Other);
        assert_eq!(mailbox.take(2, 11, LATER, never).unwrap_err(), NotDelivered::Other);
        assert_eq!(mailbox.take(3, 10, SOON, never).unwrap_err(), NotDelivered::Late);
    }

    #[test]
    fn what_has_come_is_there_after_the_end() {
        let mailbox = Mailbox::default();
        mailbox.put(delivery(0, 1));
        mailbox.close(NotDelivered::Full);
        mailbox.close(NotDelivered::Lost);
        mailbox.put(delivery(1, 1));
        assert!(mailbox.take(0, 1, LATER, never).is_ok());
        assert_eq!(mailbox.take(1, 1, LATER, never).unwrap_err(), NotDelivered::Full);
        assert!(!mailbox.wait_for_room(1, never));
    }

    /// It holds so many bytes, so many deliveries, and any one alone.
    #[test]
    fn a_mailbox_is_bounded() {
        let mailbox = Mailbox::default();
        assert!(mailbox.wait_for_room(MAILBOX_BYTES + 1, never));
        mailbox.put(delivery(0, MAILBOX_BYTES));
        let asked = std::cell::Cell::new(0);
        let twice = || {
            asked.set(asked.get() + 1);
            asked.get() > 1
        };
        assert!(!mailbox.wait_for_room(1, twice));
        drop(mailbox.take(0, MAILBOX_BYTES, LATER, never).unwrap());
        (0..MAILBOX_DELIVERIES).for_each(|ticket| mailbox.put(delivery(ticket as u64, 1)));
        asked.set(0);
        assert!(!mailbox.wait_for_room(1, twice));
        mailbox.abandon();
        assert_eq!(mailbox.state().bytes, 0);
        assert_eq!(mailbox.take(0, 1, LATER, never).unwrap_err(), NotDelivered::Lost);
    }

    #[test]
    fn who_waits_is_woken() {
        let mailbox = Mailbox::default();
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| mailbox.take(0, 5, LATER, never).map(|delivery| delivery.bytes.len()));
            let ended = scope.spawn(|| {
                mailbox.put(delivery(0, 5));
                mailbox.close(NotDelivered::Lost);
            });
            ended.join().unwrap();
            assert_eq!(taken.join().unwrap(), Ok(5));
        });
    }
}
