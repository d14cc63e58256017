//! What a command does when a worker is lost or comes back: it puts the model on the devices that are there, and says so.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oxcart::backend::{Device, Error as DeviceError, Registry};
use oxcart::llm::engine::{Recover, Recovery as Recovered};
use oxcart::llm::model::{Error, Placement};
use oxcart::llm::runner::{Lineup, Loss, LostDevice, Runner};

use crate::failure::Failure;
use crate::log;
use crate::plan::show_placement;
use crate::terminal::Terminal;
use crate::workers::{RemotePlace, Workers, device_name};

/// A placement without the devices of one worker, or why there would be none.
#[derive(Debug)]
pub(crate) struct Departure {
    /// What the worker is called.
    pub(crate) worker: String,
    pub(crate) placement: Result<Placement, Failure>,
}

/// For each worker that has a device in a lineup, the placement on all other devices.
pub(crate) fn departures(
    workers: &Workers,
    lineup: &Lineup,
    path: &Path,
    place: impl Fn(&Lineup) -> Result<Placement, Error>,
) -> Vec<Departure> {
    let mut departures = Vec::new();
    for registry in workers.registries() {
        let own = registry.devices();
        let is_own = |device: &Arc<dyn Device>| own.iter().any(|own| Arc::ptr_eq(own, device));
        if lineup.devices().iter().any(is_own) {
            let left = lineup.without(|at| is_own(&lineup.devices()[at]));
            let placement = place(&left).map_err(|error| Failure::run(path, error));
            departures.push(Departure { worker: registry.called().to_owned(), placement });
        }
    }
    departures
}

/// What is told of another placement, and of those without each of the workers that are left.
pub(crate) type Moved = Box<dyn FnMut(&Placement, &[Departure]) + Send>;

/// How a model is put on devices anew, and who is told.
pub(crate) struct Putting {
    pub(crate) workers: Arc<Workers>,
    pub(crate) path: PathBuf,
    /// Leaves out all but warnings.
    pub(crate) quiet: bool,
    /// Is told where the model is from now on: a server, which keeps requests while there is no room for it.
    pub(crate) moved: Option<Moved>,
}

impl Putting {
    /// Puts a runner that was released on the devices of a lineup.
    fn put(&mut self, lineup: &Lineup, runner: &mut Runner) -> Result<(), Error> {
        let placement = lineup.place_again(runner)?;
        placement.check_room()?;
        let departures = match self.moved {
            Some(_) => {
                departures(&self.workers, lineup, &self.path, |lineup: &Lineup| lineup.place_again(runner))
            }
            None => Vec::new(),
        };
        // Without a bar: the line may have the beginning of an answer.
        lineup.settle(runner, placement, &|_| {})?;
        if !self.quiet {
            let (placement, proportions) = (runner.model().placement(), &lineup.options().proportions);
            // A note that cannot be written does not keep anything from going on.
            let plain = Terminal { colour: false };
            let _ = log::note_lines(|out| show_placement(placement, proportions, plain, out));
        }
        if let Some(moved) = &mut self.moved {
            moved(runner.model().placement(), &departures);
        }
        Ok(())
    }
}

/// Goes on without workers that are lost, and with them again when they come back.
pub(crate) struct Recovery {
    lineup: Lineup,
    /// Where the first devices of the lineup come from.
    places: Vec<RemotePlace>,
    /// Those among them whose devices have not been used yet: of workers that could not be reached at first.
    unused: Vec<RemotePlace>,
    putting: Putting,
    /// How many returns of workers were looked at.
    seen: Option<u64>,
    /// What to change to, and the names of the devices that have come back for it.
    better: Option<(Lineup, Vec<String>)>,
    /// What has too little room, since that was said.
    lacking: Option<String>,
}

impl Recovery {
    /// A lineup whose first devices are in such places of workers.
    pub(crate) fn new(lineup: Lineup, places: Vec<RemotePlace>, putting: Putting) -> Recovery {
        Recovery { lineup, places, unused: Vec::new(), putting, seen: None, better: None, lacking: None }
    }

    /// Makes places for devices of workers that were not there before.
    fn make_places(&mut self) {
        for member in self.putting.workers.members() {
            let is_new = !self.places.contains(&member.place);
            if is_new && self.lineup.make_place(self.places.len(), member.device) {
                self.places.push(member.place);
                self.unused.push(member.place);
            }
        }
    }

    /// Devices of workers that have come, or have come back, over connections that the lineup does not know, for its places.
    fn back(&self) -> Vec<(usize, Arc<dyn Device>)> {
        let find = |(at, lost): (usize, &Arc<dyn Device>)| {
            let place = *self.places.get(at)?;
            let device = self.putting.workers.device(place)?;
            (!Arc::ptr_eq(&device, lost) || self.unused.contains(&place)).then_some((at, device))
        };
        self.lineup.left_out().filter_map(find).collect()
    }

    /// Plans with devices that have come back, as far as the plan is better with them.
    fn plan(&mut self, runner: &Runner) {
        self.make_places();
        let back = self.back();
        // If one of them was lost meanwhile, it comes back once more.
        let better = self.lineup.better(runner, &back).unwrap_or_default();
        self.better = better.map(|better| {
            let is_back = |device: &&Arc<dyn Device>| back.iter().any(|(_, back)| Arc::ptr_eq(back, device));
            let names = better.devices().iter().filter(is_back).map(|device| device.name().to_owned());
            let names = names.collect();
            (better, names)
        });
    }

    /// Puts a runner that was released on devices. If there is no room, and requests wait until there is, it is said once, and not again with every
    /// byte that is free.
    fn put(&mut self, runner: &mut Runner) -> Result<(), Error> {
        let done = self.put_where_there_is_room(runner);
        let lacking = done.as_ref().err().and_then(|error| Some((error, crowded(error)?.to_owned())));
        if let Some((error, device)) = &lacking
            && self.putting.moved.is_some()
            && self.lacking.as_ref() != Some(device)
        {
            tracing::warn!("requests wait until there is room for the model: {error}");
        }
        self.lacking = lacking.map(|(_, device)| device);
        done
    }

    /// Puts it on devices, on those that were planned with, too.
    fn put_where_there_is_room(&mut self, runner: &mut Runner) -> Result<(), Error> {
        let Recovery { lineup, places, unused, putting, better, .. } = self;
        let Some((better, names)) = better.take() else { return putting.put(lineup, runner) };
        let is_new = |name: &str| {
            let mut new = unused.iter().filter_map(|place| putting.workers.device(*place));
            new.any(|device| device.name() == name)
        };
        for name in &names {
            let came = if is_new(name) { "can be reached now" } else { "is back" };
            tracing::info!("{} {came}; continuing with it", device_name(name));
        }
        let settle = |lineup: &Lineup, runner: &mut Runner| putting.put(lineup, runner);
        let changed = lineup.change_to(better, runner, settle);
        // What is used from now on can be lost, and is then back only over another connection.
        let is_left_out = |at: usize| lineup.left_out().any(|(left_out, _)| left_out == at);
        unused.retain(|place| places.iter().position(|known| known == place).is_some_and(is_left_out));
        if let Some(error) = changed? {
            let failure = Failure::run(&putting.path, error);
            tracing::warn!("continuing as before, because the model cannot be moved: {failure}");
        }
        Ok(())
    }
}

/// What has too little memory, if that is what an error says.
fn crowded(error: &Error) -> Option<&str> {
    match error {
        Error::NoRoom { device, .. } => Some(device),
        Error::Device(DeviceError::OutOfMemory { buffer_type, .. }) => Some(buffer_type),
        _ => None,
    }
}

impl Recover for Recovery {
    fn recover(&mut self, loss: &Loss, runner: &mut Runner) -> Result<(), Error> {
        runner.release();
        let lost = self.lineup.leave_out_lost(loss)?;
        self.putting.workers.explain();
        if lost.is_empty() && !loss.is_gone {
            tracing::warn!(
                "{} was interrupted; continuing with it: {}",
                device_name(&loss.device),
                loss.reason
            );
        }
        for LostDevice { device, reason } in lost {
            tracing::warn!("{} is lost; continuing without it: {reason}", device_name(device.name()));
        }
        // Others may have come back by now, and one move is enough.
        self.plan(runner);
        self.put(runner)
    }

    fn returned(&mut self, runner: &Runner) -> Vec<String> {
        // A plan is made when a worker has come back, and not in every step.
        let returns = self.putting.workers.returns();
        if self.seen.replace(returns) != Some(returns) {
            self.plan(runner);
        }
        self.better.as_ref().map_or_else(Vec::new, |(_, names)| names.clone())
    }

    fn take_in(&mut self, runner: &mut Runner) -> Result<(), Error> {
        runner.release();
        self.put(runner)
    }

    fn recovered(&mut self, recovery: &Recovered) {
        let Recovered { requests, tokens, noticing, planning, loading, stall, numerics_changed, .. } =
            recovery;
        let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
        let of = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        tracing::info!(
            "continued after {}: {} to notice, {} to plan, {} to load, {} to compute {} of {} again",
            seconds(*stall),
            seconds(*noticing),
            seconds(*planning),
            seconds(*loading),
            seconds(recovery.recomputing()),
            of(*tokens, "token"),
            of(*requests, "answer"),
        );
        if *numerics_changed && *requests > 0 {
            tracing::warn!(
                "last digits may differ from here on, and with them words: parts of the model moved to or from a device that does not \
                 promise equal bits (a card, a worker of llama.cpp, or a processor with other instructions)"
            );
        }
    }

    fn draft_lost(&mut self, device: &str, reason: &str) {
        tracing::warn!(
            "{} is lost; continuing without the guesses of --draft: {reason}",
            device_name(device)
        );
    }
}
