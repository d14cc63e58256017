//! Which models are loaded: a thread loads those that are asked for and unloads those that are not used.
//!
//! Requests hold a [`Lease`] of their model for as long as they run. A request for a model that is not loaded waits for it; the loader
//! thread takes such models in the order in which they were first asked for. Where there is no room, the model that was not used for
//! longest makes way: if requests still run on it, it gets no new ones until they have ended, so that a busy model cannot
//! keep another one out. A model that has failed is loaded anew when it is asked for.
//!
//! Invariants: a model that is leased is not unloaded. Asking never blocks. Every request that waits gets a lease or an error. One
//! model is loaded at a time, by the loader thread alone, and without a lock.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::oneshot;

use super::{Entry, Keeping, LoadError, Served};
use crate::cluster::Presence;
use crate::error::ApiError;
use crate::service::{Client, Refused, RequestFailure, Totals};
use crate::turns::Lines;

/// A model that is in use: it stays loaded until the last of these is dropped.
#[derive(Clone)]
pub(crate) struct Lease(Arc<Use>);

struct Use {
    model: Arc<Served>,
    shelf: Arc<Shelf>,
    at: usize,
}

impl Lease {
    /// How long the model stays after it was used, from now on; says how long that is. Where clients share it, none of them has it stay for
    /// less than it would.
    pub(crate) fn keep(&self, idle: Duration, is_shared: bool) -> Duration {
        let Use { shelf, at, .. } = &*self.0;
        let slot = &mut shelf.lock().slots[*at];
        let least = if is_shared { slot.keep.unwrap_or(shelf.keeping.idle) } else { Duration::ZERO };
        *slot.keep.insert(idle.max(least))
    }
}

impl Deref for Lease {
    type Target = Served;

    fn deref(&self) -> &Served {
        &self.0.model
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&self.0.model).finish()
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut state = self.shelf.lock();
        let slot = &mut state.slots[self.at];
        slot.leases -= 1;
        slot.used = Instant::now();
        drop(state);
        self.shelf.wake.notify_all();
    }
}

/// What a request that waits is told.
type Granted = Result<Lease, ApiError>;

#[derive(Clone)]
enum Stage {
    Away,
    Loading,
    Here(Arc<Served>),
}

/// A model's place.
pub(super) struct Slot {
    stage: Stage,
    leases: usize,
    /// It makes way for another, and gets no new requests.
    is_leaving: bool,
    /// When it was last asked for, or its last lease ended.
    used: Instant,
    /// How long it stays after that, if a request has said so.
    keep: Option<Duration>,
    waiting: Lines<oneshot::Sender<Granted>>,
    past: Totals,
    loads: u64,
    failure: Option<String>,
}

impl Slot {
    pub(super) fn away() -> Slot {
        Slot {
            stage: Stage::Away,
            leases: 0,
            is_leaving: false,
            used: Instant::now(),
            keep: None,
            waiting: Lines::default(),
            past: Totals::default(),
            loads: 0,
            failure: None,
        }
    }

    pub(super) fn loaded(model: Served) -> Slot {
        Slot { stage: Stage::Here(Arc::new(model)), loads: 1, ..Slot::away() }
    }

    fn is_here(&self) -> bool {
        matches!(self.stage, Stage::Here(_))
    }

    /// Forgets requests whose clients are gone; whether any are left.
    fn is_wanted(&mut self) -> bool {
        self.waiting.retain(|waiting| !waiting.is_closed());
        self.waiting.len() > 0
    }
}

#[derive(Default)]
struct State {
    slots: Vec<Slot>,
    /// Models that are to be loaded, in the order in which they were asked for.
    wanted: VecDeque<usize>,
    /// The model that makes way for the first of them.
    leaving: Option<usize>,
    has_ended: bool,
}

/// How a model is at one moment.
pub(super) struct Look {
    pub(super) model: Option<Arc<Served>>,
    pub(super) presence: Presence,
    pub(super) is_leaving: bool,
    pub(super) expires: Option<SystemTime>,
    pub(super) past: Totals,
    pub(super) loads: u64,
    pub(super) waiting: usize,
    pub(super) failure: Option<String>,
}

/// All models, and which of them are loaded.
pub(super) struct Shelf {
    pub(super) entries: Vec<Entry>,
    keeping: Keeping,
    state: Mutex<State>,
    /// Told whenever the loader may have something to do.
    wake: Condvar,
}

/// A request that waits for a model. The loader is told when it does no longer.
struct Waiting<'s> {
    shelf: &'s Shelf,
    granted: oneshot::Receiver<Granted>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.granted.close();
        self.shelf.wake.notify_all();
    }
}

impl Shelf {
    /// Starts the loader, if any model needs it.
    pub(super) fn start(
        entries: Vec<Entry>,
        slots: Vec<Slot>,
        keeping: Keeping,
    ) -> std::io::Result<Arc<Shelf>> {
        let has_sources = entries.iter().any(|entry| entry.source.is_some());
        let state = Mutex::new(State { slots, ..State::default() });
        let shelf = Arc::new(Shelf { entries, keeping, state, wake: Condvar::new() });
        if has_sources {
            let loader = Arc::clone(&shelf);
            std::thread::Builder::new().name("loader".into()).spawn(move || loader.run())?;
        }
        Ok(shelf)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done by code that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How a model is.
    pub(super) fn look(&self, at: usize) -> Look {
        let state = self.lock();
        let slot = &state.slots[at];
        let (presence, model) = match &slot.stage {
            Stage::Away => (Presence::Unloaded, None),
            Stage::Loading => (Presence::Loading, None),
            Stage::Here(model) => (Presence::Loaded, Some(Arc::clone(model))),
        };
        let stays = match slot.leases {
            0 => self.expiry(at, slot).map(|end| end.saturating_duration_since(Instant::now())),
            _ => Some(slot.keep.unwrap_or(self.keeping.idle)),
        };
        Look {
            model,
            presence,
            is_leaving: slot.is_leaving,
            expires: stays
                .filter(|_| self.entries[at].source.is_some())
                .and_then(|stays| SystemTime::now().checked_add(stays)),
            past: slot.past,
            loads: slot.loads,
            waiting: slot.waiting.len(),
            failure: slot.failure.clone(),
        }
    }

    /// A model, to be used.
    pub(super) async fn lease(self: &Arc<Shelf>, at: usize, client: Client) -> Granted {
        let mut waiting = match self.ask(at, client)? {
            Ok(lease) => return Ok(lease),
            Err(waiting) => waiting,
        };
        let granted = tokio::time::timeout(self.keeping.time, &mut waiting.granted).await;
        match granted {
            Err(_) => Err(RequestFailure::WaitedTooLong.into()),
            Ok(Err(_)) => Err(Refused::Closed.into()),
            Ok(Ok(granted)) => granted,
        }
    }

    /// A lease if the model is here, or what to wait for.
    fn ask(self: &Arc<Shelf>, at: usize, client: Client) -> Result<Result<Lease, Waiting<'_>>, ApiError> {
        let mut state = self.lock();
        if state.has_ended {
            return Err(Refused::Closed.into());
        }
        if !state.slots[at].is_leaving
            && self.is_usable(&state, at)
            && let Some(lease) = self.grant(&mut state, at)
        {
            return Ok(Ok(lease));
        }
        let slot = &mut state.slots[at];
        // Those who are gone do not count.
        slot.is_wanted();
        let busy = Refused::Busy { waiting: slot.waiting.len(), retry_after: Duration::from_secs(5) };
        let displaced = slot.waiting.make_room(client, self.keeping.queue).map_err(|_| busy)?;
        let (sender, granted) = oneshot::channel();
        slot.waiting.push(client, sender);
        if !matches!(slot.stage, Stage::Loading) && !state.wanted.contains(&at) {
            state.wanted.push_back(at);
        }
        drop(state);
        if let Some(displaced) = displaced {
            // Its client may be gone.
            let _ = displaced.send(Err(busy.into()));
        }
        self.wake.notify_all();
        Ok(Err(Waiting { shelf: self, granted }))
    }

    /// Whether a model is here and has not failed; one that cannot be loaded again is as good as it gets.
    fn is_usable(&self, state: &State, at: usize) -> bool {
        match &state.slots[at].stage {
            Stage::Here(model) => self.entries[at].source.is_none() || !model.is_broken(),
            Stage::Away | Stage::Loading => false,
        }
    }

    /// A lease of a model that is here.
    fn grant(self: &Arc<Shelf>, state: &mut State, at: usize) -> Option<Lease> {
        let slot = &mut state.slots[at];
        let Stage::Here(model) = &slot.stage else { return None };
        slot.leases += 1;
        slot.used = Instant::now();
        Some(Lease(Arc::new(Use { model: Arc::clone(model), shelf: Arc::clone(self), at })))
    }

    /// Gives leases to all who wait for a model that is here. What could not be handed over is to be dropped without the lock.
    fn grant_all(self: &Arc<Shelf>, state: &mut State, at: usize) -> Vec<Granted> {
        let mut unwanted = Vec::new();
        if !self.is_usable(state, at) {
            return unwanted;
        }
        while let Some((_, waiting)) = state.slots[at].waiting.next() {
            match self.grant(state, at) {
                Some(lease) => unwanted.extend(waiting.send(Ok(lease)).err()),
                None => break,
            }
        }
        unwanted
    }

    /// When a model that is not used is to be unloaded, if ever.
    fn expiry(&self, at: usize, slot: &Slot) -> Option<Instant> {
        let can_leave = self.entries[at].source.is_some() && slot.is_here();
        let idle = slot.keep.unwrap_or(self.keeping.idle);
        (can_leave && slot.leases == 0).then(|| slot.used.checked_add(idle)).flatten()
    }

    /// Takes no more requests, gives those that run so much time, and returns when all engines are gone.
    pub(super) fn shutdown(&self, grace: Duration) {
        let mut state = self.lock();
        state.has_ended = true;
        let (mut here, mut waiting) = (Vec::new(), Vec::new());
        for slot in &mut state.slots {
            waiting.extend(slot.waiting.drain());
            if let Stage::Here(model) = &slot.stage {
                here.push(Arc::clone(model));
            }
        }
        drop(state);
        self.wake.notify_all();
        // Who is gone needs no answer.
        waiting.into_iter().for_each(|waiting| drop(waiting.send(Err(Refused::Closed.into()))));
        std::thread::scope(|scope| here.iter().for_each(|model| drop(scope.spawn(|| model.shutdown(grace)))));
    }

    /// Loads and unloads until the server ends.
    fn run(self: Arc<Shelf>) {
        let mut state = self.lock();
        while !state.has_ended {
            state = self.turn(state);
        }
    }

    /// Does one thing, or waits until there is something to do.
    fn turn<'s>(self: &'s Arc<Shelf>, mut state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        let now = Instant::now();
        let ends: Vec<(Instant, usize)> = state
            .slots
            .iter()
            .enumerate()
            .filter_map(|(at, slot)| Some((self.expiry(at, slot)?, at)))
            .collect();
        if let Some(&(_, at)) = ends.iter().find(|(end, _)| *end <= now) {
            return self.unload(state, at);
        }
        let wanted = loop {
            match state.wanted.front().copied() {
                Some(at) if !state.slots[at].is_wanted() => drop(state.wanted.pop_front()),
                first => break first,
            }
        };
        match (wanted, state.leaving) {
            // Who it was to make way for is gone.
            (None, Some(leaving)) => self.stay(state, leaving),
            (Some(wanted), Some(leaving)) if wanted == leaving => self.stay(state, leaving),
            (Some(_), Some(leaving)) if state.slots[leaving].leases == 0 => self.unload(state, leaving),
            // It has failed.
            (Some(wanted), None) if state.slots[wanted].is_here() && state.slots[wanted].leases == 0 => {
                self.unload(state, wanted)
            }
            (Some(wanted), None) if !state.slots[wanted].is_here() => {
                let is_counted =
                    |(at, slot): (usize, &Slot)| self.entries[at].source.is_some() && slot.is_here();
                let count = state.slots.iter().enumerate().filter(|&all| is_counted(all)).count();
                match count >= self.keeping.most {
                    true => self.make_way(state, wanted).unwrap_or_else(|state| state),
                    false => self.load(state, wanted),
                }
            }
            _ => {
                let next = ends.iter().map(|(end, _)| end.saturating_duration_since(now)).min();
                match next {
                    Some(time) => self
                        .wake
                        .wait_timeout(state, time)
                        .map(|(state, _)| state)
                        .unwrap_or_else(|poisoned| poisoned.into_inner().0),
                    None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            }
        }
    }

    /// Has the model that was not used for longest make way; those that are not in use come first. An error if there is none.
    fn make_way<'s>(
        &'s self,
        mut state: MutexGuard<'s, State>,
        wanted: usize,
    ) -> Result<MutexGuard<'s, State>, MutexGuard<'s, State>> {
        let others = state
            .slots
            .iter()
            .enumerate()
            .filter(|&(at, slot)| at != wanted && self.entries[at].source.is_some() && slot.is_here());
        let first = others.min_by_key(|(_, slot)| (slot.leases > 0, slot.used)).map(|(at, _)| at);
        match first {
            Some(at) => {
                state.slots[at].is_leaving = true;
                state.leaving = Some(at);
                Ok(state)
            }
            None => Err(state),
        }
    }

    /// A model that was to make way stays, and those who waited for it get it.
    fn stay<'s>(self: &'s Arc<Shelf>, mut state: MutexGuard<'s, State>, at: usize) -> MutexGuard<'s, State> {
        state.leaving = None;
        state.slots[at].is_leaving = false;
        if self.is_usable(&state, at) {
            state.wanted.retain(|wanted| *wanted != at);
        }
        let unwanted = self.grant_all(&mut state, at);
        drop(state);
        drop(unwanted);
        self.lock()
    }

    /// Unloads a model that is not in use.
    fn unload<'s>(&'s self, mut state: MutexGuard<'s, State>, at: usize) -> MutexGuard<'s, State> {
        let slot = &mut state.slots[at];
        let Stage::Here(model) = slot.stage.clone() else { return state };
        // From now on, who asks for it waits.
        slot.is_leaving = true;
        drop(state);
        model.shutdown(Duration::ZERO);
        let totals = model.totals();
        drop(model);
        let mut state = self.lock();
        let slot = &mut state.slots[at];
        slot.past = slot.past + totals;
        (slot.is_leaving, slot.keep) = (false, None);
        let model = std::mem::replace(&mut slot.stage, Stage::Away);
        if state.leaving == Some(at) {
            state.leaving = None;
        }
        drop(state);
        // Its memory is free when this is.
        drop(model);
        if let Some(source) = &self.entries[at].source {
            source.unloaded();
        }
        self.lock()
    }

    /// Loads a model, unless another has to make way first.
    fn load<'s>(self: &'s Arc<Shelf>, mut state: MutexGuard<'s, State>, at: usize) -> MutexGuard<'s, State> {
        state.slots[at].stage = Stage::Loading;
        drop(state);
        let loaded = match &self.entries[at].source {
            Some(source) => catch_unwind(AssertUnwindSafe(|| source.load()))
                .unwrap_or_else(|_| Err(LoadError::Failed("internal error (a bug) while loading it".into()))),
            None => Err(LoadError::Failed("it has no source".into())),
        };
        let mut state = self.lock();
        let mut unwanted = Vec::new();
        match loaded {
            Ok(model) => {
                let slot = &mut state.slots[at];
                slot.stage = Stage::Here(Arc::new(model));
                (slot.loads, slot.used, slot.failure) = (slot.loads + 1, Instant::now(), None);
                state.wanted.retain(|wanted| *wanted != at);
                unwanted = self.grant_all(&mut state, at);
            }
            Err(error) => {
                state.slots[at].stage = Stage::Away;
                if matches!(error, LoadError::NoRoom(_)) {
                    state = match self.make_way(state, at) {
                        // It is tried again when the other one is gone.
                        Ok(state) => return state,
                        Err(state) => state,
                    };
                }
                let slot = &mut state.slots[at];
                slot.failure = Some(error.to_string());
                let told = ApiError::from(match error {
                    LoadError::NoRoom(why) => {
                        LoadError::NoRoom(format!("there is no room for the model: {why}"))
                    }
                    LoadError::Failed(why) => LoadError::Failed(format!("the model cannot be loaded: {why}")),
                });
                let waiting = slot.waiting.drain();
                state.wanted.retain(|wanted| *wanted != at);
                unwanted
                    .extend(waiting.into_iter().filter_map(|waiting| waiting.send(Err(told.clone())).err()));
            }
        }
        drop(state);
        drop(unwanted);
        self.lock()
    }
}
