//! Graphs made ready: built for a shape, kept with the part of the model they compute, scheduled; and what they are run with.
//!
//! Invariant: a step whose shape was met lately runs a graph that is ready, so that nothing is built, planned, bound or, on
//! remote devices, sent again. The number of graphs that are kept is bounded; the longest unused make way.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oxcart_backend::{Buffers, Stream};
use oxcart_sched::{Options, Prepared, Scheduler, StreamId};
use oxcart_tensor::{Graph, Op, TensorId};

use super::state::State;
use crate::model::net::{Built, BuiltShift, Inputs, Leaf, Net, ShiftInputs, StepShape, Style, Supply};
use crate::model::{Error, Model, Section};

/// Graphs that are kept ready.
const KEPT: usize = 96;

/// A graph made ready.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) shape: StepShape,
    pub(crate) prepared: Prepared,
    pub(crate) inputs: Inputs,
    pub(crate) output: TensorId,
    /// What tells the largest of the output, if that was asked for.
    pub(crate) largest: Option<TensorId>,
    /// When it was used last.
    used: u64,
}

/// Graphs of one model on its devices.
#[derive(Debug)]
pub(crate) struct Graphs {
    // Before the scheduler and the state, whose buffers they use.
    steps: Vec<Step>,
    /// None after it was taken off its devices.
    scheduler: Option<Scheduler>,
    model: Arc<Model>,
    state: Option<State>,
    pub(crate) style: Style,
    /// Whether results come from a device that wants them small.
    wants_small_results: bool,
    clock: u64,
    /// Graphs that had to be made ready so far, and how long that took.
    pub(crate) made: usize,
    pub(crate) making: Duration,
}

impl Graphs {
    /// Streams must be on the devices that the model was loaded for, in the same order.
    pub(crate) fn new(
        model: Arc<Model>,
        streams: Vec<Box<dyn Stream>>,
        style: Style,
    ) -> Result<Graphs, Error> {
        let devices = model.devices();
        if streams.len() != devices.len() {
            let rule = format!("the model was loaded for {} devices", devices.len());
            return Err(Error::setting("the number of streams", streams.len(), rule));
        }
        for (index, (stream, wanted)) in streams.iter().zip(devices).enumerate() {
            if !std::ptr::addr_eq(Arc::as_ptr(stream.device()), Arc::as_ptr(wanted)) {
                let (found, wanted) = (stream.device().name().to_owned(), wanted.name().to_owned());
                return Err(Error::OtherDevice { index, found, wanted });
            }
        }
        let scheduler = Scheduler::new(streams, Options::default())?;
        Ok(Graphs {
            steps: Vec::new(),
            scheduler: Some(scheduler),
            model,
            state: None,
            style,
            wants_small_results: false,
            clock: 0,
            made: 0,
            making: Duration::ZERO,
        })
    }

    pub(crate) fn model(&self) -> &Arc<Model> {
        &self.model
    }

    pub(crate) fn state(&self) -> Option<&State> {
        self.state.as_ref()
    }

    /// From now on, graphs use this state.
    pub(crate) fn set_state(&mut self, state: State) {
        self.steps.clear();
        self.state = Some(state);
    }

    /// Gives up streams, state, graphs and weights; what is left of the model is its size and shape. Returns it as it was.
    pub(crate) fn release(&mut self) -> Arc<Model> {
        self.steps.clear();
        self.scheduler = None;
        self.state = None;
        let hollow = Arc::new(self.model.without_weights());
        std::mem::replace(&mut self.model, hollow)
    }

    pub(crate) fn is_released(&self) -> bool {
        self.scheduler.is_none()
    }

    fn scheduler(&self) -> Result<&Scheduler, Error> {
        self.scheduler.as_ref().ok_or(Error::Released)
    }

    fn scheduler_mut(&mut self) -> Result<&mut Scheduler, Error> {
        self.scheduler.as_mut().ok_or(Error::Released)
    }

    fn net(&self, shape: StepShape) -> Net<'_> {
        let supply = Supply::Loaded { weights: self.model.weights(), state: self.state.as_ref() };
        Net::new(self.model.hyper(), shape, self.style, supply)
    }

    /// Whether devices can compute every attention of a graph that is one op.
    pub(crate) fn attends(&self, built: &Built) -> Result<bool, Error> {
        for &id in built.graph.nodes() {
            let node = built.graph.tensor(id)?;
            let device = self.model.weights().device_of(built.part_of(id));
            let is_attention = matches!(node.op(), Op::PagedAttn(_) | Op::FlashAttnExt(_));
            if is_attention && !self.model.devices()[device].supports_op(node) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Allocates what a graph needs, so that smaller ones allocate nothing.
    pub(crate) fn reserve(&mut self, built: Built) -> Result<(), Error> {
        let pins = self.pins(&built.graph, &built.parts, &built.leaves)?;
        self.wants_small_results = self.ends_where_small_results_are_wanted(built.output, &pins)?;
        let buffers = self.buffers().clone();
        self.scheduler_mut()?.reserve_pinned(built.graph, &buffers, &pins)?;
        Ok(())
    }

    /// Whether a result that stands for a larger one should be computed and read in its place. Known once room was reserved.
    pub(crate) fn wants_small_results(&self) -> bool {
        self.wants_small_results
    }

    /// Whether the output is computed where the part of the model behind it is, on a device that wants small results.
    fn ends_where_small_results_are_wanted(
        &self,
        output: TensorId,
        pins: &[(TensorId, StreamId)],
    ) -> Result<bool, Error> {
        let (devices, home) = (self.model.devices(), self.model.weights().device_of(Section::Output));
        let is_there = match devices.len() {
            1 => true,
            _ => pins.contains(&(output, self.scheduler()?.stream(home)?)),
        };
        Ok(is_there && devices[home].wants_small_results())
    }

    /// The graph for steps of a shape.
    pub(crate) fn step(&mut self, shape: StepShape) -> Result<&mut Step, Error> {
        self.clock += 1;
        let found = self.steps.iter().position(|step| step.shape == shape);
        let index = match found {
            Some(index) => index,
            None => {
                let started = Instant::now();
                let Built { graph, inputs, output, largest, leaves, parts } = self.net(shape).build()?;
                let prepared = self.make_ready(graph, &parts, &leaves)?;
                if self.steps.len() >= KEPT
                    && let Some(oldest) = (0..self.steps.len()).min_by_key(|&index| self.steps[index].used)
                {
                    self.steps.swap_remove(oldest);
                }
                self.steps.push(Step { shape, prepared, inputs, output, largest, used: 0 });
                self.made += 1;
                self.making += started.elapsed();
                self.steps.len() - 1
            }
        };
        let step = &mut self.steps[index];
        step.used = self.clock;
        Ok(step)
    }

    /// A graph that rotates the keys of so many cells of each kind.
    pub(crate) fn shift(
        &mut self,
        shape: StepShape,
        cells: [usize; 2],
    ) -> Result<(Prepared, [Option<ShiftInputs>; 2]), Error> {
        let BuiltShift { graph, inputs, parts } = self.net(shape).build_shift(cells)?;
        Ok((self.make_ready(graph, &parts, &[])?, inputs))
    }

    fn make_ready(
        &mut self,
        graph: Graph,
        parts: &[(usize, Section)],
        leaves: &[(TensorId, Leaf)],
    ) -> Result<Prepared, Error> {
        let pins = self.pins(&graph, parts, leaves)?;
        let buffers = self.buffers().clone();
        let before = self.result_bytes()?;
        let prepared = self.scheduler_mut()?.prepare_pinned(graph, buffers, &pins)?;
        if self.result_bytes()? != before {
            // Graphs that are ready would keep the smaller buffers alive.
            self.steps.clear();
        }
        Ok(prepared)
    }

    /// Where nodes are computed: beside the weights they read, else with their part of the model, wherever that device can;
    /// the scheduler finds a place for the others.
    fn pins(
        &self,
        graph: &Graph,
        parts: &[(usize, Section)],
        leaves: &[(TensorId, Leaf)],
    ) -> Result<Vec<(TensorId, StreamId)>, Error> {
        let (weights, devices) = (self.model.weights(), self.model.devices());
        if devices.len() == 1 {
            return Ok(Vec::new());
        }
        let mut beside: HashMap<TensorId, usize> = HashMap::with_capacity(leaves.len());
        for (id, leaf) in leaves {
            if let Leaf::Weight(name, section) = leaf {
                beside.extend(weights.find(name, *section).map(|weight| (*id, weight.device)));
            }
        }
        let mut pins = Vec::with_capacity(graph.nodes().len());
        let mut part = 0;
        for &id in graph.nodes() {
            let node = graph.tensor(id)?;
            if !node.computes() {
                continue;
            }
            // Nodes are executed in another order than they were made in.
            if parts[part].0 > id.index() || parts.get(part + 1).is_some_and(|next| next.0 <= id.index()) {
                part = parts.partition_point(|(first, _)| *first <= id.index()).saturating_sub(1);
            }
            let sources = node.source_ids().iter().flatten();
            let weight = sources.filter_map(|source| beside.get(source).copied()).next();
            let device = weight.unwrap_or_else(|| weights.device_of(parts[part].1));
            if devices[device].supports_op(node) {
                pins.push((id, self.scheduler()?.stream(device)?));
            }
        }
        Ok(pins)
    }

    /// Bytes of the buffers for results, on each device.
    pub(crate) fn result_bytes(&self) -> Result<Vec<usize>, Error> {
        let scheduler = self.scheduler()?;
        let size = |index| Ok(scheduler.buffer_size(scheduler.stream(index)?));
        (0..scheduler.stream_count()).map(size).collect()
    }

    /// What buffer ids in graphs mean.
    fn buffers(&self) -> &Buffers {
        self.state.as_ref().map_or_else(|| self.model.weights().buffers(), State::buffers)
    }

    /// A graph that is ready, the last that was used.
    pub(crate) fn latest(&self) -> Option<&Prepared> {
        self.steps.iter().max_by_key(|step| step.used).map(|step| &step.prepared)
    }
}

/// Bytes on their way to inputs, kept for their memory.
#[derive(Debug, Default)]
pub(crate) struct InputBytes(Vec<u8>);

impl InputBytes {
    /// Sets an input of numbers, if the graph has it.
    pub(crate) fn set<const N: usize>(
        &mut self,
        prepared: &mut Prepared,
        input: Option<TensorId>,
        numbers: impl Iterator<Item = [u8; N]>,
    ) -> Result<(), Error> {
        let Some(id) = input else { return Ok(()) };
        self.0.clear();
        numbers.for_each(|number| self.0.extend_from_slice(&number));
        Ok(prepared.set_input(id, &self.0)?)
    }

    /// Sets an input to bytes that are written by the caller into a zeroed buffer, if the graph has it.
    pub(crate) fn fill(
        &mut self,
        prepared: &mut Prepared,
        input: Option<TensorId>,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<(), Error> {
        let Some(id) = input else { return Ok(()) };
        self.0.clear();
        self.0.resize(len, 0);
        write(&mut self.0);
        Ok(prepared.set_input(id, &self.0)?)
    }
}
