//! Work for a client that is long but can be interrupted: done in parts, each in a turn of its own, so that others have theirs in
//! between.

use super::client::Client;
use super::limits::WATCH_EVERY;
use super::turnstile::{Turn, Turnstile};

/// Work in parts of bounded size. The turn is given up when this is dropped.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    turnstile: &'a Turnstile,
    client: &'a Client,
    /// What may be done in a turn.
    each: usize,
    turn: Option<Turn<'a>>,
    /// What is left of that in this one.
    left: usize,
}

impl<'a> Parts<'a> {
    /// Work at something that there are turns at, of which so much may be done in each.
    pub(crate) fn new(turnstile: &'a Turnstile, client: &'a Client, each: usize) -> Parts<'a> {
        Parts { turnstile, client, each, turn: None, left: 0 }
    }

    /// Waits for another turn if need be; says whether to do the next piece, of this size. It is not wanted any more once the
    /// client is gone.
    pub(crate) fn go_on(&mut self, size: usize) -> bool {
        if self.turn.is_none() || self.left < size {
            self.turn = None;
            self.turn = self.turnstile.enter(self.client.holder(), WATCH_EVERY, || self.client.is_gone());
            self.left = self.each;
        }
        self.left = self.left.saturating_sub(size);
        self.turn.is_some() && !self.client.is_gone()
    }
}
