//! Connections that wait for their clients, and which of them makes way when there is no room for another.
//!
//! Invariant: a connection waits here exactly while no request of it is under way: from when it was accepted, and again from when all of a
//! response was handed over to be sent. Only those that wait here are dismissed, so a client that says nothing, or says it slowly, cannot keep another
//! one out, and no answer that is being made is cut off for a newcomer.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct Lobby(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    /// By turn: the first has waited longest.
    bells: BTreeMap<u64, Arc<Notify>>,
    next_turn: u64,
}

impl Lobby {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing is left half done by code that could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Dismisses the connection that has waited longest, if there is one.
    pub(crate) fn dismiss(&self) {
        if let Some((_, bell)) = self.lock().bells.pop_first() {
            bell.notify_one();
        }
    }

    fn enter(&self, bell: &Arc<Notify>) -> u64 {
        let mut waiting = self.lock();
        let turn = waiting.next_turn;
        waiting.next_turn += 1;
        waiting.bells.insert(turn, Arc::clone(bell));
        turn
    }

    fn leave(&self, turn: u64) {
        self.lock().bells.remove(&turn);
    }
}

/// The place of one connection.
pub(crate) struct Seat {
    lobby: Arc<Lobby>,
    bell: Arc<Notify>,
    /// None while a request is under way.
    turn: Mutex<Option<u64>>,
}

impl Seat {
    /// A connection waits from now on.
    pub(crate) fn take(lobby: &Arc<Lobby>) -> Arc<Seat> {
        let bell = Arc::new(Notify::new());
        let turn = Mutex::new(Some(lobby.enter(&bell)));
        Arc::new(Seat { lobby: Arc::clone(lobby), bell, turn })
    }

    fn turn(&self) -> MutexGuard<'_, Option<u64>> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the connection is dismissed. A request may have come in the meantime; see [`is_waiting`](Seat::is_waiting).
    pub(crate) async fn dismissed(&self) {
        self.bell.notified().await;
    }

    /// Whether no request is under way.
    pub(crate) fn is_waiting(&self) -> bool {
        self.turn().is_some()
    }

    /// A request is under way until what is returned is dropped.
    pub(crate) fn rise(self: &Arc<Seat>) -> Busy {
        if let Some(turn) = self.turn().take() {
            self.lobby.leave(turn);
        }
        Busy(Arc::clone(self))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(turn) = self.turn().take() {
            self.lobby.leave(turn);
        }
    }
}

/// A request that is under way.
pub(crate) struct Busy(Arc<Seat>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.turn().get_or_insert_with(|| self.0.lobby.enter(&self.0.bell));
    }
}

/// The body of a response; its request is under way until it was sent.
pub(crate) struct Sending<B> {
    body: B,
    _busy: Busy,
}

impl<B> Sending<B> {
    pub(crate) fn new(body: B, busy: Busy) -> Sending<B> {
        Sending { body, _busy: busy }
    }
}

impl<B: Body + Unpin> Body for Sending<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_dismissed(seat: &Seat) -> bool {
        let mut dismissed = std::pin::pin!(seat.dismissed());
        dismissed.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())).is_ready()
    }

    #[test]
    fn the_one_that_has_waited_longest_makes_way() {
        let lobby = Arc::new(Lobby::default());
        let [first, second, third] = [(); 3].map(|()| Seat::take(&lobby));
        // Its request was answered, so it has not waited for long.
        drop(first.rise());
        let busy = second.rise();
        lobby.dismiss();
        assert!(is_dismissed(&third) && !is_dismissed(&first) && !is_dismissed(&second));
        lobby.dismiss();
        assert!(is_dismissed(&first) && !is_dismissed(&second));
        lobby.dismiss();
        assert!(!is_dismissed(&second), "a request of it is under way");
        drop(busy);
        lobby.dismiss();
        assert!(is_dismissed(&second) && second.is_waiting());
    }

    #[test]
    fn connections_that_are_gone_are_forgotten() {
        let lobby = Arc::new(Lobby::default());
        let seats = [(); 3].map(|()| Seat::take(&lobby));
        let busy = seats[1].rise();
        drop(seats);
        assert!(lobby.lock().bells.is_empty());
        drop(busy);
        assert!(lobby.lock().bells.is_empty(), "a response may outlive its connection");
    }
}
