//! A worker of a command, over one connection after another: when one is lost, it is tried again, and what it lends is there anew. So is one that
//! could not be reached at first.
//!
//! Invariants: nothing here is waited for; connecting has a thread of its own, one at a time. A new connection takes the place of the lost one
//! only when `Absence` says that the worker is back, and nothing of the lost one is used with it. A worker that must be some machine is that
//! machine each time, and none that was revoked since.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use oxcart::backend::Registry;
use oxcart::rpc::client::RemoteRegistry;

use super::absence::{Absence, AbsenceAction, AbsenceEvent};
use super::{Heartbeat, Listed, Traffic};

/// A try to connect, and what it leads to.
type Attempt = JoinHandle<Result<Arc<RemoteRegistry>, String>>;

/// A worker, its connection, and how there will be another one.
#[derive(Debug)]
pub(super) struct Slot {
    /// Where it is tried again; nowhere if the command started it, because what is there after its end is something else.
    again: Option<Arc<Listed>>,
    heartbeat: Heartbeat,
    now: Mutex<Now>,
}

#[derive(Debug)]
struct Now {
    /// The connection that is used; none if there was none yet.
    used: Option<Arc<RemoteRegistry>>,
    /// What went over earlier connections.
    before: Traffic,
    /// How many answers came over this one, and when that was seen to change.
    answers: u64,
    answered: Duration,
    absence: Absence,
    attempt: Option<Attempt>,
    on_trial: Option<Arc<RemoteRegistry>>,
    /// Whether the log has the details of why the used connection failed.
    is_explained: bool,
}

impl Now {
    /// What has been sent and received, on all connections that were used.
    fn traffic(&self) -> Traffic {
        self.used.as_ref().map_or(self.before, |used| self.before.and(Traffic::of(used)))
    }
}

impl Slot {
    /// Of a worker that is connected.
    pub(super) fn new(
        used: Arc<RemoteRegistry>,
        again: Option<Listed>,
        heartbeat: Heartbeat,
        now: Duration,
    ) -> Slot {
        Slot::begun(Some(used), again, heartbeat, Absence::new(now), now)
    }

    /// Of a worker that could not be reached.
    pub(super) fn absent(again: Listed, heartbeat: Heartbeat, now: Duration) -> Slot {
        Slot::begun(None, Some(again), heartbeat, Absence::of_absent(now), now)
    }

    fn begun(
        used: Option<Arc<RemoteRegistry>>,
        again: Option<Listed>,
        heartbeat: Heartbeat,
        absence: Absence,
        now: Duration,
    ) -> Slot {
        let now = Now {
            used,
            before: Traffic::default(),
            answers: 0,
            answered: now,
            absence,
            attempt: None,
            on_trial: None,
            is_explained: false,
        };
        Slot { again: again.map(Arc::new), heartbeat, now: Mutex::new(now) }
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection that is used; none if there was none yet.
    pub(super) fn used(&self) -> Option<Arc<RemoteRegistry>> {
        self.lock().used.clone()
    }

    /// What has been sent and received, on all connections that were used.
    pub(super) fn traffic(&self) -> Traffic {
        self.lock().traffic()
    }

    /// Puts into the log, for `-v`, why the used connection failed, with the commands that were under way.
    pub(super) fn explain(&self) {
        let mut now = self.lock();
        if !now.is_explained
            && let Some(failure) = now.used.as_ref().and_then(|used| used.failure())
        {
            now.is_explained = true;
            tracing::debug!("{}", failure.detail());
        }
    }

    /// Looks after it at a time; says whether it has just come back.
    pub(super) fn look_after(&self, time: Duration) -> bool {
        let Some(again) = &self.again else { return false };
        let mut now = self.lock();
        if now.attempt.as_ref().is_some_and(JoinHandle::is_finished) {
            // One that panicked reached nothing either.
            let reached = now.attempt.take().and_then(|attempt| attempt.join().ok()?.ok());
            let event = if reached.is_some() { AbsenceEvent::Reached } else { AbsenceEvent::Unreached };
            now.on_trial = reached;
            now.absence.handle(event, time);
        }
        let answers = now.used.as_ref().map_or(0, |used| Traffic::of(used).waits);
        if std::mem::replace(&mut now.answers, answers) != answers {
            now.answered = time;
        }
        let watched = now.on_trial.as_ref().or(now.used.as_ref());
        if watched.is_some_and(|watched| watched.failure().is_some()) {
            now.on_trial = None;
            let answered = now.answered;
            now.absence.handle(AbsenceEvent::Lost { answered }, time);
        }
        match now.absence.handle(AbsenceEvent::Tick, time) {
            None => false,
            Some(AbsenceAction::Try) => {
                let (again, heartbeat) = (Arc::clone(again), self.heartbeat);
                let connect = move || {
                    let again = again.again().map_err(|failure| failure.to_string())?;
                    // Asking whether it has weights costs a hash; it may have kept those that it had.
                    let registry = again.connect(true, heartbeat)?;
                    // Answering heartbeats alone is not being back: plans ask for memory where all answers would wait for it.
                    for device in registry.devices() {
                        device.memory().map_err(|error| error.to_string())?;
                    }
                    Ok(registry)
                };
                match thread::Builder::new().name("return".into()).spawn(connect) {
                    Ok(attempt) => now.attempt = Some(attempt),
                    Err(_) => {
                        now.absence.handle(AbsenceEvent::Unreached, time);
                    }
                }
                false
            }
            Some(AbsenceAction::Back) => {
                let Some(back) = now.on_trial.take() else { return false };
                now.before = now.traffic();
                now.used = Some(back);
                now.answered = time;
                now.is_explained = false;
                true
            }
        }
    }
}
