//! What is told of one request, to its reader.
//!
//! Invariant: at most [`MAX_UPDATES`] wait for a reader, of all requests together that were submitted together, and there is always room for
//! the last one of each. Dropping the reader's end ends the request.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use oxcart_llm::engine::{Cancel, End, Report, RequestError, TokenEvent};
use tokio::sync::mpsc::{OwnedPermit, Receiver, Sender, channel};

use super::{Refused, SharedService, Ticket};
use crate::limits::MAX_UPDATES;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestFailure {
    /// The engine refused it, or could not compute it.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// It had to make way for others while it waited.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// It waited for longer than a request may take.
    #[error("the request waited longer than a request may take")]
    WaitedTooLong,
    /// Its reader fell behind.
    #[error("the answer was read too slowly")]
    ReadTooSlowly,
    /// The service ended before it was answered.
    #[error("the server is shutting down")]
    Closed,
    /// A step failed: a device or a worker.
    #[error("{0}")]
    Step(String),
}

/// What is told of a request.
#[derive(Debug)]
pub enum Update {
    /// It got a token.
    Token(TokenEvent),
    /// It ended as it should.
    Finished {
        /// Why.
        end: End,
        /// Text that was held back until now.
        text: String,
        /// Which of its stop strings came, if it ended at one.
        stopped_by: Option<usize>,
        /// How it came about.
        report: Report,
    },
    /// It failed.
    Failed(RequestFailure),
}

/// Updates that wait for one reader.
pub(super) type Backlog = Arc<AtomicUsize>;

/// The updates of one request. Dropping them ends it.
pub struct Updates {
    receiver: Receiver<Update>,
    ticket: Ticket,
    cancel: Cancel,
    shared: Weak<SharedService>,
    backlog: Backlog,
    has_ended: bool,
}

impl fmt::Debug for Updates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Updates").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

impl Updates {
    /// What is told next; `None` once it has ended.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Update>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        // A driver that is gone without a last word has panicked.
        let update = std::task::ready!(self.receiver.poll_recv(context));
        let update =
            update.unwrap_or_else(|| Update::Failed(RequestFailure::Step("the engine has failed".into())));
        match update {
            Update::Token(_) => drop(self.backlog.fetch_sub(1, Ordering::Relaxed)),
            _ => self.has_ended = true,
        }
        Poll::Ready(Some(update))
    }

    /// What is told next; `None` once it has ended.
    pub async fn next(&mut self) -> Option<Update> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }
}

impl Drop for Updates {
    fn drop(&mut self) {
        if !self.has_ended {
            self.cancel.cancel();
            if let Some(shared) = self.shared.upgrade() {
                shared.withdraw(self.ticket);
            }
        }
    }
}

/// The driver's end.
pub(super) struct Sink {
    sender: Sender<Update>,
    last: OwnedPermit<Update>,
    backlog: Backlog,
}

impl Sink {
    /// Tells of a token; `false` if the reader is too far behind.
    pub(super) fn token(&self, token: TokenEvent) -> bool {
        use tokio::sync::mpsc::error::TrySendError;
        // Before it is there to be taken.
        if self.backlog.fetch_add(1, Ordering::Relaxed) >= MAX_UPDATES {
            return false;
        }
        // A reader that is gone has set `cancel`, which the engine looks at.
        !matches!(self.sender.try_send(Update::Token(token)), Err(TrySendError::Full(_)))
    }

    pub(super) fn finish(self, end: End, text: String, stopped_by: Option<usize>, report: Report) {
        self.last.send(Update::Finished { end, text, stopped_by, report });
    }

    pub(super) fn fail(self, failure: RequestFailure) {
        self.last.send(Update::Failed(failure));
    }
}

pub(super) fn pair(
    ticket: Ticket,
    cancel: Cancel,
    shared: &Arc<SharedService>,
    backlog: &Backlog,
) -> (Sink, Updates) {
    let (sink, receiver) = sink(backlog);
    let (shared, backlog) = (Arc::downgrade(shared), Arc::clone(backlog));
    (sink, Updates { receiver, ticket, cancel, shared, backlog, has_ended: false })
}

fn sink(backlog: &Backlog) -> (Sink, Receiver<Update>) {
    let (sender, receiver) = channel(MAX_UPDATES + 1);
    let last = match sender.clone().try_reserve_owned() {
        Ok(last) => last,
        Err(_) => unreachable!("the channel is new and its receiver is here"),
    };
    (Sink { sender, last, backlog: Arc::clone(backlog) }, receiver)
}

/// A pair without a service.
#[cfg(test)]
pub(super) fn detached(ticket: Ticket) -> (Sink, Updates) {
    let backlog = Backlog::default();
    let (sink, receiver) = sink(&backlog);
    let (cancel, shared) = (Cancel::default(), Weak::new());
    (sink, Updates { receiver, ticket, cancel, shared, backlog, has_ended: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxcart_llm::engine::Report;

    #[test]
    fn there_is_always_room_for_the_last_word() {
        let (sink, updates) = detached(Ticket(1));
        // An engine's event that is cheap to make: no token at all is told.
        for _ in 0..MAX_UPDATES {
            assert!(sink.sender.try_send(Update::Failed(RequestFailure::Closed)).is_ok());
        }
        assert!(sink.sender.try_send(Update::Failed(RequestFailure::Closed)).is_err());
        sink.finish(End::Length, String::new(), None, Report::default());
        assert_eq!(updates.receiver.len(), MAX_UPDATES + 1);
    }

    #[test]
    fn a_reader_that_goes_away_ends_the_request() {
        let (_sink, updates) = detached(Ticket(1));
        let cancel = updates.cancel.clone();
        drop(updates);
        assert_eq!(format!("{cancel:?}"), "Cancel(true)");
    }
}
