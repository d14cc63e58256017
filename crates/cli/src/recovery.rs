//! What a command does when a worker is lost: it puts the model on the devices that remain, and says so.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use oxcart::backend::{Device, Registry};
use oxcart::llm::engine::{Recover, Recovery as Recovered};
use oxcart::llm::model::{Error, Placement};
use oxcart::llm::runner::{Lineup, Loss, LostDevice, Runner};

use crate::failure::Failure;
use crate::loaded::show_placement;
use crate::log;
use crate::terminal::Terminal;
use crate::workers::{Workers, device_name};

/// A placement without the devices of one worker, or why there would be none.
#[derive(Debug)]
pub(crate) struct Departure {
    /// Where the worker is.
    pub(crate) endpoint: String,
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
            departures.push(Departure { endpoint: registry.endpoint().to_owned(), placement });
        }
    }
    departures
}

/// What is told of another placement, and of those without each of the workers that are left.
pub(crate) type Moved = Box<dyn FnMut(&Placement, &[Departure]) + Send>;

/// Goes on without workers that are lost.
pub(crate) struct Recovery {
    pub(crate) lineup: Lineup,
    pub(crate) workers: Arc<Workers>,
    pub(crate) path: PathBuf,
    /// Leaves out all but warnings.
    pub(crate) quiet: bool,
    /// Is told where the model is from now on.
    pub(crate) moved: Option<Moved>,
}

impl Recover for Recovery {
    fn recover(&mut self, loss: &Loss, runner: &mut Runner) -> Result<(), Error> {
        runner.release();
        let lost = self.lineup.leave_out_lost(loss)?;
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
        let placement = self.lineup.place_again(runner)?;
        let departures = match self.moved {
            Some(_) => {
                let place = |lineup: &Lineup| lineup.place_again(runner);
                departures(&self.workers, &self.lineup, &self.path, place)
            }
            None => Vec::new(),
        };
        if !self.quiet {
            // A note that cannot be written does not keep anything from going on.
            let _ = log::note_lines(|out| show_placement(&placement, Terminal { colour: false }, out));
        }
        // Without a bar: the line may have the beginning of an answer.
        self.lineup.settle(runner, placement, &|_| {})?;
        if let Some(moved) = &mut self.moved {
            moved(runner.model().placement(), &departures);
        }
        Ok(())
    }

    fn recovered(&mut self, recovery: &Recovered) {
        let Recovered { requests, tokens, moved, stall, .. } = recovery;
        tracing::info!(
            "continued after {:.2} s, {:.2} s of which went into loading; recomputed {tokens} token{} of {requests} answer{}",
            stall.as_secs_f64(),
            moved.as_secs_f64(),
            if *tokens == 1 { "" } else { "s" },
            if *requests == 1 { "" } else { "s" },
        );
    }

    fn draft_lost(&mut self, device: &str, reason: &str) {
        tracing::warn!(
            "{} is lost; continuing without the guesses of --draft: {reason}",
            device_name(device)
        );
    }
}
