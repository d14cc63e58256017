//! An engine on a thread of its own: requests in, a bounded stream of updates out for each.
//!
//! The engine knows nothing of connections or tasks. One thread, the driver, owns it and calls [`Engine::step`] as long as
//! requests run; all that have a [`Service`] may submit requests from anywhere, and read an [`Updates`] in async code.
//!
//! Invariants: `submit` never waits. Requests wait in one bounded `Queue`, from which the driver takes the next as soon as
//! the engine has a sequence for it; among clients, the one that has had least is next, if need be in the place of a request of
//! one that has had much more, which goes on later. A request whose `Updates` is dropped ends within a step. Every `Updates` ends with
//! one [`Update::Finished`] or [`Update::Failed`]. A reader that is slow is never waited for: its answer ends when it falls too
//! far behind.

mod driver;
mod embedding;
mod interruptions;
mod queue;
mod telling;
mod updates;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use oxcart_llm::engine::{Engine, Request};
use oxcart_llm::model::Error;
use tokio::sync::broadcast;

use crate::limits::MAX_EVENTS;
use driver::Driver;
use interruptions::Interruptions;
use queue::{Queue, Waiting};
use updates::Backlog;

pub use embedding::EmbeddingService;
pub use interruptions::Interruption;
pub use queue::Client;
pub use telling::{Event, Running, Snapshot, Ticket, Totals};
pub use updates::{RequestFailure, Update, Updates};

/// How a service treats its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests that may wait at a time; more are refused.
    pub queue: usize,
    /// How long a request may take, waiting included.
    pub time: Duration,
    /// Whether beginnings of prompts are computed for each client anew, so that none can find out by the time that an answer takes, or by
    /// the tokens that were held already, what another has asked.
    pub separate_prompts: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { queue: 256, time: Duration::from_secs(3600), separate_prompts: false }
    }
}

/// Why a request was not taken on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Too many wait already.
    #[error("{waiting} requests are already waiting; try again in {} s", .retry_after.as_secs())]
    Busy {
        /// How many.
        waiting: usize,
        /// When one of them may have been answered.
        retry_after: Duration,
    },
    /// The service ends.
    #[error("the server is shutting down")]
    Closed,
    /// What computes has panicked.
    #[error("the model has failed, and cannot answer until it is loaded again")]
    Broken,
}

/// Says in words for people why a step failed.
pub type Explain = Box<dyn Fn(Error) -> String + Send + Sync>;

/// What the driver and everyone else share.
struct SharedService {
    state: Mutex<State>,
    /// Told when there is something to do for a driver that has nothing.
    wake: Condvar,
    events: broadcast::Sender<Event>,
    limits: Limits,
    /// Where there is none, errors speak for themselves.
    explain: OnceLock<Explain>,
}

#[derive(Default)]
struct State {
    queue: Queue,
    /// By ticket.
    running: BTreeMap<Ticket, Running>,
    /// Requests that made way for others; they count among those that wait.
    aside: BTreeMap<Ticket, Running>,
    totals: Totals,
    /// Of the last step that failed, until one succeeds.
    trouble: Option<String>,
    interruptions: Interruptions,
    next_ticket: u64,
    /// When nothing may run any longer.
    end: Option<Instant>,
    /// Whether the driver has ended.
    is_over: bool,
}

impl SharedService {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done by code that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, event: Event) {
        // Without watchers it is told to none.
        let _ = self.events.send(event);
    }

    /// Forgets a request that its reader no longer wants, if it still waits.
    fn withdraw(&self, ticket: Ticket) {
        drop(self.lock().queue.remove(ticket));
    }
}

/// An engine that runs on a thread of its own, and takes requests from any.
pub struct Service {
    shared: Arc<SharedService>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("limits", &self.shared.limits).finish_non_exhaustive()
    }
}

impl Service {
    /// Starts the thread. The engine must have no requests yet; it is dropped there when the service ends.
    pub fn start(engine: Engine, limits: Limits) -> std::io::Result<Service> {
        let shared = Arc::new(SharedService {
            state: Mutex::default(),
            wake: Condvar::new(),
            events: broadcast::Sender::new(MAX_EVENTS),
            limits,
            explain: OnceLock::new(),
        });
        let driver = Driver::new(engine, Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("engine".into()).spawn(move || driver.run())?;
        Ok(Service { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Says how errors of steps are put into words, for clients and for all who look; the first time it is said counts.
    pub fn explain_by(&self, explain: Explain) {
        let _ = self.shared.explain.set(explain);
    }

    /// Takes a request on for a client. Its deadline is the service's to set; its `cancel` is set when the updates are
    /// dropped.
    pub fn submit(&self, client: Client, request: Request) -> Result<Updates, Refused> {
        let mut all = self.submit_all(client, vec![request])?;
        all.pop().ok_or(Refused::Closed)
    }

    /// As [`submit`](Service::submit), all of them or none. They have one reader, for whom no more updates wait than of a single one.
    pub fn submit_all(&self, client: Client, requests: Vec<Request>) -> Result<Vec<Updates>, Refused> {
        let mut state = self.shared.lock();
        if state.end.is_some() {
            return Err(Refused::Closed);
        }
        if state.is_over {
            return Err(Refused::Broken);
        }
        let mut displaced = Vec::new();
        let room = state.queue.make_room(client, requests.len(), self.shared.limits.queue, &mut displaced);
        let retry_after = state.totals.mean_time().clamp(Duration::from_secs(1), Duration::from_secs(60));
        let refused = Refused::Busy { waiting: state.queue.len(), retry_after };
        let mut submitted = Vec::with_capacity(requests.len());
        let backlog = Backlog::default();
        if room {
            for mut request in requests {
                request.scope = if self.shared.limits.separate_prompts { client.0 } else { 0 };
                let ticket = Ticket(state.next_ticket);
                state.next_ticket += 1;
                let (sink, updates) = updates::pair(ticket, request.cancel.clone(), &self.shared, &backlog);
                self.shared.tell(Event::Queued { ticket, client, prompt_tokens: request.prompt.len() });
                state.queue.push(Waiting { ticket, client, request, sink, since: Instant::now() });
                submitted.push(updates);
            }
        } else {
            state.totals.refused += requests.len() as u64;
        }
        state.totals.refused += displaced.len() as u64;
        drop(state);
        for waiting in displaced {
            waiting.sink.fail(RequestFailure::Refused(refused));
        }
        match room {
            true => {
                self.shared.wake.notify_one();
                Ok(submitted)
            }
            false => Err(refused),
        }
    }

    /// What happens from now on, for any number of watchers.
    pub fn watch(&self) -> broadcast::Receiver<Event> {
        self.shared.events.subscribe()
    }

    /// How things are.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.shared.lock();
        Snapshot {
            running: state.running.values().cloned().collect(),
            aside: state.aside.values().cloned().collect(),
            waiting: state.queue.len(),
            totals: state.totals,
            trouble: state.trouble.clone(),
            interruptions: state.interruptions.past().cloned().collect(),
            is_open: !state.is_over && state.end.is_none(),
        }
    }

    /// Whether the engine has panicked.
    pub(crate) fn is_broken(&self) -> bool {
        let state = self.shared.lock();
        state.is_over && state.end.is_none()
    }

    /// Takes no more requests, gives those that are there so much time to end, and returns when the engine is gone.
    pub fn shutdown(&self, grace: Duration) {
        self.shared.lock().end.get_or_insert(Instant::now() + grace);
        self.shared.wake.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // If it panicked, its requests were told.
            let _ = thread.join();
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shutdown(Duration::ZERO);
    }
}
