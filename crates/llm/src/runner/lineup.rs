//! The devices that a model may be on, and how it is shared out among them: what puts a runner on devices, the first time and after
//! some of them were lost.
//!
//! Invariants: a device that was left out does not come back. Those that remain keep their proportions for as long as they have room;
//! otherwise all share by what they have free, and the last one gets what the others have no room for.

use std::sync::Arc;

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
    /// How often there had been other devices before: [`Runner::epoch`].
    pub epoch: u64,
}

/// A device that was left out.
#[derive(Clone, Debug)]
pub struct LostDevice {
    /// The device.
    pub device: Arc<dyn Device>,
    /// What is said about it.
    pub reason: String,
}

/// Devices, the most preferred first, and how models are put on them; the last should be able to do everything.
#[derive(Clone, Debug)]
pub struct Lineup {
    devices: Vec<Arc<dyn Device>>,
    options: PlacementOptions,
    stream: StreamOptions,
    /// Names of devices that were lost, and at which epoch of the runner.
    lost: Vec<(String, u64)>,
}

impl Lineup {
    /// Devices, how a model is shared out among them, and how their streams are opened.
    pub fn new(devices: Vec<Arc<dyn Device>>, options: PlacementOptions, stream: StreamOptions) -> Lineup {
        Lineup { devices, options, stream, lost: Vec::new() }
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
        let left = self.devices.iter().enumerate().filter(|&(at, _)| !is_gone(at));
        Lineup {
            devices: left.map(|(_, device)| Arc::clone(device)).collect(),
            options: self.options.without(self.devices.len(), is_gone),
            stream: self.stream.clone(),
            lost: self.lost.clone(),
        }
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
    /// that is gone. None, if that one was left out before and what came after that is tried again, or if all are still there.
    pub fn leave_out_lost(&mut self, loss: &Loss) -> Result<Vec<LostDevice>, Error> {
        let Loss { device: name, reason, is_gone, epoch } = loss;
        let ask = |device: &Arc<dyn Device>| match device.memory() {
            Err(DeviceError::DeviceLost { reason, .. }) => Some(reason),
            _ => None,
        };
        let mut gone: Vec<Option<String>> = self.devices.iter().map(ask).collect();
        if *is_gone && gone.iter().all(Option::is_none) {
            let is_it = |device: &Arc<dyn Device>| (device.name() == name).then(|| reason.clone());
            gone = self.devices.iter().map(is_it).collect();
        }
        if *is_gone {
            let met = (name.clone(), *epoch);
            let was_left_out = || self.lost.iter().any(|(known, at)| known == name && at != epoch);
            if gone.iter().all(Option::is_none) && was_left_out() {
                // Nothing would be better after this.
                let (device, reason) = (name.clone(), reason.clone());
                return Err(DeviceError::DeviceFailed { device, reason }.into());
            }
            if !self.lost.contains(&met) {
                self.lost.push(met);
            }
        }
        let left = self.without(|at| gone[at].is_some());
        let lost = std::mem::replace(self, left).devices.into_iter().zip(gone);
        Ok(lost.filter_map(|(device, reason)| Some(LostDevice { device, reason: reason? })).collect())
    }

    /// Where the model of a runner that was [released](Runner::release) would be, what its devices hold of it counted as free.
    pub fn place_again(&self, runner: &Runner) -> Result<Placement, Error> {
        let held = runner.held.as_ref().ok_or(Error::Released)?;
        let bytes = |device: &Arc<dyn Device>| held.bytes_on(device);
        self.with_room(|options| Placement::beside(held.file(), self.devices.clone(), options, bytes))
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
        placement.check_room()?;
        let held = runner.held.as_mut().ok_or(Error::Released)?;
        held.retain(&placement);
        let model = Model::load_beside(held, placement, progress)?;
        let streams = self.streams(&model)?;
        runner.settle(model, streams)
    }
}
