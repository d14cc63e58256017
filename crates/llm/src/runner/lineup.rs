//! The devices that a model may be on, and how it is shared out among them: what puts a runner on devices, the first time, after
//! some of them were lost, and when some came back.
//!
//! Invariants: a device that was left out does not come back, but another one may take its place, and has its share then. A device that was not
//! there from the beginning gets a place of its own. Those that are
//! there keep their proportions for as long as they have room; otherwise all share by what they have free, and the last one gets what the
//! others have no room for.

use std::sync::Arc;
use std::time::Instant;

use oxcart_backend::{Device, Error as DeviceError, Stream, StreamOptions};

use super::Runner;
use crate::model::{Error, Model, ModelFile, Placement, PlacementOptions, Progress, Proportions};

/// What a runner lost: all that a device was to do, and perhaps the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The device's name.
    pub device: String,
    /// What is said about it.
    pub reason: String,
    /// Whether the device itself is lost. If not, it waited for another one, which may be.
    pub is_gone: bool,
    /// How often it has said, without a token of any request in between, that it waited in vain, this time included.
    pub in_vain: usize,
    /// How often there had been other devices before: [`Runner::epoch`].
    pub epoch: u64,
}

/// Interruptions of a device in a row, without a token of any request in between, after which it is left out: a worker that lies could go on
/// for ever. An honest one may be interrupted once by a worker that is lost, and again by one that is lost meanwhile.
const MAX_IN_VAIN: usize = 3;

/// A device that was left out.
#[derive(Clone, Debug)]
pub struct LostDevice {
    /// The device.
    pub device: Arc<dyn Device>,
    /// What is said about it.
    pub reason: String,
}

/// A place in a lineup, which keeps its number whichever others come and go.
#[derive(Clone, Debug)]
struct Seat {
    device: Arc<dyn Device>,
    is_left_out: bool,
}

/// Devices, the most preferred first, and how models are put on them; the last should be able to do everything.
#[derive(Clone, Debug)]
pub struct Lineup {
    seats: Vec<Seat>,
    /// How a model is shared out where none is left out.
    given: PlacementOptions,
    /// Those that are not left out.
    devices: Vec<Arc<dyn Device>>,
    /// How a model is shared out among them.
    options: PlacementOptions,
    stream: StreamOptions,
    /// Names of devices that were lost, and at which epoch of the runner.
    lost: Vec<(String, u64)>,
}

impl Lineup {
    /// Devices, how a model is shared out among them, and how their streams are opened.
    pub fn new(devices: Vec<Arc<dyn Device>>, options: PlacementOptions, stream: StreamOptions) -> Lineup {
        let seats = devices.iter().map(|device| Seat { device: Arc::clone(device), is_left_out: false });
        Lineup { seats: seats.collect(), given: options.clone(), devices, options, stream, lost: Vec::new() }
    }

    /// With these seats.
    fn seated(&self, seats: Vec<Seat>, lost: Vec<(String, u64)>) -> Lineup {
        let there = seats.iter().filter(|seat| !seat.is_left_out).map(|seat| Arc::clone(&seat.device));
        let devices = there.collect();
        let options = self.given.without(seats.len(), |at| seats[at].is_left_out);
        Lineup { seats, given: self.given.clone(), devices, options, stream: self.stream.clone(), lost }
    }

    /// The devices.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    /// How a model is shared out among them.
    pub fn options(&self) -> &PlacementOptions {
        &self.options
    }

    /// The same without some of the devices, by their positions.
    pub fn without(&self, is_gone: impl Fn(usize) -> bool) -> Lineup {
        let mut seats = self.seats.clone();
        let there = seats.iter_mut().filter(|seat| !seat.is_left_out);
        there.enumerate().for_each(|(at, seat)| seat.is_left_out = is_gone(at));
        self.seated(seats, self.lost.clone())
    }

    /// Devices that were left out, with their places in the list that the lineup was made of.
    pub fn left_out(&self) -> impl Iterator<Item = (usize, &Arc<dyn Device>)> {
        let seats = self.seats.iter().enumerate();
        seats.filter(|(_, seat)| seat.is_left_out).map(|(place, seat)| (place, &seat.device))
    }

    /// The same with devices in places of such that were left out. Where a place is not left out, its device stays.
    pub fn with(&self, returned: &[(usize, Arc<dyn Device>)]) -> Lineup {
        let (mut seats, mut lost) = (self.seats.clone(), self.lost.clone());
        for (place, device) in returned {
            if let Some(seat) = seats.get_mut(*place).filter(|seat| seat.is_left_out) {
                *seat = Seat { device: Arc::clone(device), is_left_out: false };
                // What was lost under this name is not what has it now.
                lost.retain(|(name, _)| name != device.name());
            }
        }
        self.seated(seats, lost)
    }

    /// Makes a place for a device that was not there before, at a position in the list that the lineup was made of; places from there on move up by
    /// one. The device is left out for now. Does nothing, and says so, where devices are meant by their numbers.
    pub fn make_place(&mut self, at: usize, device: Arc<dyn Device>) -> bool {
        let are_numbered =
            matches!(self.given.proportions, Proportions::Ratios(_)) || !self.given.overrides.is_empty();
        if are_numbered || at > self.seats.len() {
            return false;
        }
        let mut seats = self.seats.clone();
        seats.insert(at, Seat { device, is_left_out: true });
        *self = self.seated(seats, self.lost.clone());
        true
    }

    /// The lineup with those of these devices, in places of such that were left out, that a runner should be on as well; none if it should be
    /// on none of them. It should where they would have a part of the model and all have room for theirs.
    pub fn better(
        &self,
        runner: &Runner,
        returned: &[(usize, Arc<dyn Device>)],
    ) -> Result<Option<Lineup>, Error> {
        let returned = returned.iter().filter(|(place, _)| self.left_out().any(|(free, _)| free == *place));
        let mut returned: Vec<(usize, Arc<dyn Device>)> = returned.cloned().collect();
        while !returned.is_empty() {
            let with = self.with(&returned);
            let placement = with.place_again(runner)?;
            let has_part = |(_, device): &(usize, Arc<dyn Device>)| {
                let mut shares = placement.devices().iter().zip(placement.shares());
                shares.any(|(owner, share)| Arc::ptr_eq(owner, device) && share.weights > 0)
            };
            let count = returned.len();
            returned.retain(has_part);
            if returned.len() == count {
                return Ok(placement.shortfall().is_none().then_some(with));
            }
        }
        Ok(None)
    }

    /// Where a model would be.
    pub fn place(&self, file: &ModelFile) -> Result<Placement, Error> {
        Placement::new(file, self.devices.clone(), &self.options)
    }

    /// Where it would be on what a loss has left.
    pub fn place_what_is_left(&self, file: &ModelFile) -> Result<Placement, Error> {
        self.with_room(|options| Placement::new(file, self.devices.clone(), options))
    }

    /// Streams on the devices of a model, in their order.
    pub fn streams(&self, model: &Model) -> Result<Vec<Box<dyn Stream>>, Error> {
        let open = |device: &Arc<dyn Device>| Ok(Arc::clone(device).open(&self.stream)?);
        model.devices().iter().map(open).collect()
    }

    /// What computes, with a model that was loaded for these devices.
    pub fn runner(&self, model: Arc<Model>) -> Result<Runner, Error> {
        let streams = self.streams(&model)?;
        Runner::new(model, streams, self.options.runner)
    }

    /// Leaves out every device that is lost, and returns them, each with what is said about it. All are asked, because one that is lost is
    /// often not alone, and the one that a runner noticed may only have waited for it; if none of them says so, it is the one that was named, if
    /// that is gone or has been interrupted too often. None, if that one was left out before and what came after that is tried again, or if
    /// all are still there.
    pub fn leave_out_lost(&mut self, loss: &Loss) -> Result<Vec<LostDevice>, Error> {
        let Loss { device: name, reason, is_gone, in_vain, epoch } = loss;
        let ask = |device: &Arc<dyn Device>| match device.memory() {
            Err(DeviceError::DeviceLost { reason, .. }) => Some(reason),
            _ => None,
        };
        let is_stuck = !is_gone && *in_vain >= MAX_IN_VAIN;
        let mut gone: Vec<Option<String>> = self.devices.iter().map(ask).collect();
        if (*is_gone || is_stuck) && gone.iter().all(Option::is_none) {
            let said = match is_stuck {
                true => format!("it has waited in vain {in_vain} times in a row: {reason}"),
                false => reason.clone(),
            };
            let is_it = |device: &Arc<dyn Device>| (device.name() == name).then(|| said.clone());
            gone = self.devices.iter().map(is_it).collect();
        }
        let nothing_helps = || {
            let (device, reason) = (name.clone(), reason.clone());
            Err(DeviceError::DeviceFailed { device, reason }.into())
        };
        if is_stuck && gone.iter().all(Option::is_none) {
            // It is left out already, and nothing else can be.
            return nothing_helps();
        }
        if *is_gone {
            let met = (name.clone(), *epoch);
            let was_left_out = || self.lost.iter().any(|(known, at)| known == name && at != epoch);
            if gone.iter().all(Option::is_none) && was_left_out() {
                // Nothing would be better after this.
                return nothing_helps();
            }
            if !self.lost.contains(&met) {
                self.lost.push(met);
            }
        }
        let left = self.without(|at| gone[at].is_some());
        let lost = std::mem::replace(self, left).devices.into_iter().zip(gone);
        Ok(lost.filter_map(|(device, reason)| Some(LostDevice { device, reason: reason? })).collect())
    }

    /// Changes to a better lineup, on which a runner that was released is settled by the caller. If that fails although no device is lost, it
    /// is settled here again, and the error is returned.
    pub fn change_to(
        &mut self,
        better: Lineup,
        runner: &mut Runner,
        mut settle: impl FnMut(&Lineup, &mut Runner) -> Result<(), Error>,
    ) -> Result<Option<Error>, Error> {
        let former = std::mem::replace(self, better);
        match settle(self, runner) {
            Err(error) if error.lost_work().is_none() => {
                *self = former;
                settle(self, runner).map(|()| Some(error))
            }
            done => done.map(|()| None),
        }
    }

    /// Where the model of a runner would be if that was not on any devices, what they hold for it counted as free.
    pub fn place_again(&self, runner: &Runner) -> Result<Placement, Error> {
        let file = runner.model().file();
        let held = runner.held_bytes()?;
        let bytes = |device: &Arc<dyn Device>| {
            held.iter().filter(|(holder, _)| Arc::ptr_eq(holder, device)).map(|(_, bytes)| bytes).sum()
        };
        self.with_room(|options| Placement::beside(file, self.devices.clone(), options, bytes))
    }

    /// Where another model would be if that of a runner was not on any devices. Devices are told by their names, because those of a machine
    /// may have been found anew.
    pub fn place_instead_of(&self, runner: &Runner, file: &ModelFile) -> Result<Placement, Error> {
        let held = runner.held_bytes()?;
        let bytes = |device: &Arc<dyn Device>| {
            held.iter().filter(|(holder, _)| holder.name() == device.name()).map(|(_, bytes)| bytes).sum()
        };
        let place =
            |options: &PlacementOptions| Placement::beside(file, self.devices.clone(), options, bytes);
        match self.left_out().next() {
            Some(_) => self.with_room(place),
            None => place(&self.options),
        }
    }

    /// In the proportions that there were, if there is room for that.
    fn with_room(
        &self,
        place: impl Fn(&PlacementOptions) -> Result<Placement, Error>,
    ) -> Result<Placement, Error> {
        let placement = place(&self.options)?;
        if placement.shortfall().is_none() {
            return Ok(placement);
        }
        place(&PlacementOptions {
            proportions: Proportions::SpareLast { most: None },
            ..self.options.clone()
        })
    }

    /// Puts a runner that was released on these devices, as placed: loads what they do not hold yet and begins anew, without sequences. If it
    /// fails, the runner is still on none, and what was held is held, as far as this placement had a use for it.
    pub fn settle(
        &self,
        runner: &mut Runner,
        placement: Placement,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<(), Error> {
        let started = Instant::now();
        let done = self.try_to_settle(runner, placement, progress);
        runner.settling += started.elapsed();
        done
    }

    fn try_to_settle(
        &self,
        runner: &mut Runner,
        placement: Placement,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<(), Error> {
        placement.check_room()?;
        let held = runner.held.as_mut().ok_or(Error::Released)?;
        held.retain(&placement);
        let model = Model::load_beside(held, placement, progress)?;
        let streams = self.streams(&model)?;
        runner.settle(model, streams)
    }
}
