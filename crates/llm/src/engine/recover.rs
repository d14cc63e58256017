//! Going on when a device is lost, or when one comes back: requests are put back to their logs, and what computes is put on other devices.
//!
//! Invariants: neither fails a request. Tokens that were handed out do not change, and none is handed out twice: a step chooses tokens only
//! after all that it computes was computed. Whatever chooses tokens is a request's own and does not notice; only what devices held is computed
//! again, in pieces as prompts are. Every loss is told once, and sequences from before a move are refused. Between two moves that nothing
//! forced, every request that was interrupted by the first gets a token.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::Engine;
use super::request::{Event, RequestId};
use crate::model::{ComputedBy, Error, Share};
use crate::runner::{Lineup, Loss, Runner};

/// How an engine went on after a loss or a return, or after several of which one came before it had recovered from the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// Since when there are these devices: [`Runner::epoch`].
    pub epoch: u64,
    /// Requests that were interrupted.
    pub requests: usize,
    /// Tokens that devices held of these and that were lost with the state of all of them.
    pub tokens: usize,
    /// How long steps took, from their beginning, to find that a device was lost.
    pub noticing: Duration,
    /// How long it took to find out which devices remain or are there again, and which part of the model each shall have, and
    /// to wait while there was no room for it.
    pub planning: Duration,
    /// How long it took to put the model there: weights that were missing, memory, graphs.
    pub loading: Duration,
    /// How long it took until all of these requests had their next token, from the beginning of the step that met the loss, or from when the
    /// return was noticed.
    pub stall: Duration,
    /// Whether something is computed by a device that is not known to add up in the same order as the one before, so that last digits, and with
    /// them perhaps words, differ from what they would have been.
    pub numerics_changed: bool,
    /// What each device had before.
    pub before: Vec<Share>,
    /// What each device has now.
    pub after: Vec<Share>,
}

impl Recovery {
    /// How long it took to compute again what was lost, and each request's next token: what is left of the stall.
    pub fn recomputing(&self) -> Duration {
        self.stall.saturating_sub(self.noticing + self.planning + self.loading)
    }
}

/// Devices that have come back, or are new, and that a model moves to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Return {
    /// Their names.
    pub devices: Vec<String>,
    /// How often there had been other devices before: [`Runner::epoch`].
    pub epoch: u64,
}

/// What finds other devices when one is lost, and takes in those that come back.
pub trait Recover: Send {
    /// [Releases](Runner::release) a runner and puts it on the devices that remain, with the same model. If that fails because another device
    /// was lost, it is asked again; after other errors, when the engine is asked for a step again.
    fn recover(&mut self, loss: &Loss, runner: &mut Runner) -> Result<(), Error>;

    /// The names of devices that have come back and with which a plan would be better; none if there are none. Is asked on the engine's
    /// thread before every step in which nothing is amiss, so it must neither wait for a device that may not answer nor plan each time.
    fn returned(&mut self, _runner: &Runner) -> Vec<String> {
        Vec::new()
    }

    /// [Releases](Runner::release) a runner and puts it on its devices and those that it [named](Recover::returned); if these cannot be
    /// used after all, on the former ones. Is asked again as [`recover`](Recover::recover) is.
    fn take_in(&mut self, runner: &mut Runner) -> Result<(), Error>;

    /// Is told how it went.
    fn recovered(&mut self, _recovery: &Recovery) {}

    /// Is told that a device of the draft model was lost, and that there are no more guesses.
    fn draft_lost(&mut self, _device: &str, _reason: &str) {}
}

/// Loads without saying anything. Nothing comes back by itself.
impl Recover for Lineup {
    fn recover(&mut self, loss: &Loss, runner: &mut Runner) -> Result<(), Error> {
        runner.release();
        self.leave_out_lost(loss)?;
        self.take_in(runner)
    }

    fn take_in(&mut self, runner: &mut Runner) -> Result<(), Error> {
        runner.release();
        let placement = self.place_again(runner)?;
        self.settle(runner, placement, &|_| {})
    }
}

/// Why devices are to be found.
#[derive(Clone, Debug)]
enum Change {
    Lost(Loss),
    Returned,
}

/// What is to be made good since a device was lost or came back.
pub(super) struct Interruption {
    /// What nothing was done about yet.
    change: Option<Change>,
    /// When the last try found too little room.
    lacks_room: Option<Duration>,
    since: Duration,
    noticing: Duration,
    planning: Duration,
    loading: Duration,
    interrupted: BTreeSet<RequestId>,
    tokens: usize,
    /// Requests that were under way and got no token since, and how many they had.
    paused: BTreeMap<RequestId, usize>,
    /// What each device had.
    before: Vec<Share>,
    /// What computed with each tensor.
    computed_by: Vec<ComputedBy>,
}

impl fmt::Debug for Interruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interruption").field("change", &self.change).finish_non_exhaustive()
    }
}

impl Engine {
    /// Says what is done when a device is lost. Without it, the step and all that follow fail.
    pub fn recover_with(&mut self, recover: impl Recover + 'static) {
        self.recover = Some(Box::new(recover));
    }

    /// Whether the last step failed because the devices that are left have no room for the model. Requests are kept, each step tries again, and
    /// there may be room once a device has come back or others have given memory back.
    pub fn lacks_room(&self) -> bool {
        self.interruption.as_ref().is_some_and(|interruption| interruption.lacks_room.is_some())
    }

    /// Whether the error of a step, which began at that time, is a loss that can be recovered from; if so, requests are back to their logs, and
    /// the next step goes on from there.
    pub(super) fn is_interrupted_by(&mut self, error: &Error, began: Duration) -> bool {
        let Some((device, reason, is_gone)) = error.lost_work().filter(|_| self.recover.is_some()) else {
            return false;
        };
        let (device, reason) = (device.to_owned(), reason.to_owned());
        let in_vain = match is_gone {
            true => 0,
            false => {
                let times = self.in_vain.entry(device.clone()).or_default();
                *times += 1;
                *times
            }
        };
        let loss = Loss { device, reason, is_gone, in_vain, epoch: self.runner.epoch() };
        // What finding devices took is counted there, although it came to nothing.
        let noticing = match self.runner.is_released() {
            true => Duration::ZERO,
            false => (self.clock)().saturating_sub(began),
        };
        self.interrupt(Change::Lost(loss.clone()), began).noticing += noticing;
        self.events.push_back(Event::Lost(loss));
        true
    }

    /// Interrupts requests for devices that have come back, where a plan is better with them. Nothing is done about these before all that an
    /// earlier interruption paused have gone on.
    pub(super) fn look_who_came_back(&mut self) {
        if self.interruption.is_some() || self.jobs.is_empty() || self.runner.is_released() {
            return;
        }
        let Some(recover) = &mut self.recover else { return };
        let since = (self.clock)();
        let devices = recover.returned(&self.runner);
        if !devices.is_empty() {
            let epoch = self.runner.epoch();
            self.interrupt(Change::Returned, since);
            self.events.push_back(Event::Returned(Return { devices, epoch }));
        }
    }

    /// Puts all requests back to their logs and takes the runner off its devices.
    fn interrupt(&mut self, change: Change, since: Duration) -> &mut Interruption {
        let before = self.runner.model().placement();
        let interruption = self.interruption.get_or_insert_with(|| Interruption {
            change: None,
            lacks_room: None,
            since,
            noticing: Duration::ZERO,
            planning: Duration::ZERO,
            loading: Duration::ZERO,
            interrupted: BTreeSet::new(),
            tokens: 0,
            paused: BTreeMap::new(),
            before: before.shares().to_vec(),
            computed_by: before.computed_by(),
        });
        interruption.change = Some(change);
        for job in self.jobs.values_mut() {
            let Some(sequence) = job.sequence.take() else { continue };
            interruption.tokens += self.runner.tokens(sequence).map_or(0, <[_]>::len);
            interruption.interrupted.insert(job.id);
            interruption.paused.insert(job.id, job.made());
        }
        self.parked.clear();
        self.runner.release();
        interruption
    }

    /// Finds other devices after a loss or a return; says whether it had to.
    pub(super) fn find_devices(&mut self) -> Result<bool, Error> {
        let Some(interruption) = self.interruption.as_mut().filter(|_| !self.jobs.is_empty()) else {
            return Ok(false);
        };
        let (Some(change), Some(recover)) = (&interruption.change, &mut self.recover) else {
            return Ok(false);
        };
        let (start, settled) = ((self.clock)(), self.runner.settling());
        let done = match change {
            Change::Lost(loss) => recover.recover(loss, &mut self.runner),
            Change::Returned => recover.take_in(&mut self.runner),
        };
        let now = (self.clock)();
        // Time in which there was no room counts, too.
        let moving = now.saturating_sub(interruption.lacks_room.unwrap_or(start));
        let loading = moving.min(self.runner.settling() - settled);
        interruption.loading += loading;
        interruption.planning += moving - loading;
        interruption.lacks_room = done.as_ref().is_err_and(Error::lacks_room).then_some(now);
        done?;
        interruption.change = None;
        Ok(true)
    }

    /// An interruption may end before a request goes on.
    pub(super) fn wait_no_longer_for(&mut self, id: RequestId) {
        if let Some(interruption) = &mut self.interruption {
            interruption.paused.remove(&id);
        }
    }

    /// Ends an interruption once all requests that were under way have had another token, or have ended.
    pub(super) fn look_who_goes_on(&mut self) {
        let Some(interruption) = &mut self.interruption else { return };
        let is_paused =
            |id: &RequestId, made: &mut usize| self.jobs.get(id).is_some_and(|job| job.made() == *made);
        interruption.paused.retain(is_paused);
        if interruption.change.is_some() || !interruption.paused.is_empty() {
            return;
        }
        let placement = self.runner.model().placement();
        let computed_by = placement.computed_by();
        let mut pairs = interruption.computed_by.iter().zip(&computed_by);
        let recovery = Recovery {
            epoch: self.runner.epoch(),
            requests: interruption.interrupted.len(),
            tokens: interruption.tokens,
            noticing: interruption.noticing,
            planning: interruption.planning,
            loading: interruption.loading,
            stall: (self.clock)().saturating_sub(interruption.since),
            numerics_changed: !pairs.all(|(before, after)| before.computes_like(after)),
            after: placement.shares().to_vec(),
            before: std::mem::take(&mut interruption.before),
        };
        self.interruption = None;
        if let Some(recover) = &mut self.recover {
            recover.recovered(&recovery);
        }
        self.events.push_back(Event::Recovered(recovery));
    }
}
