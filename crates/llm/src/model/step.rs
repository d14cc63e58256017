//! Graphs made ready: built, pinned to where their weights are, scheduled; and what they are run with.
//!
//! Invariant: a step whose shape is that of the step before runs the very same prepared graph, so that nothing is
//! planned, bound or, on remote devices, sent again.

use std::sync::Arc;

use oxcart_backend::{Buffers, Stream};
use oxcart_sched::{Options, Prepared, Scheduler};
use oxcart_tensor::{Graph, Op, TensorId};

use super::cache::Caches;
use super::cells::Cells;
use super::error::Error;
use super::net::{AttentionPath, Built, BuiltShift, Inputs, Net, StepShape, Style, Supply};
use super::weights::Model;

/// A graph made ready.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) shape: StepShape,
    pub(crate) prepared: Prepared,
    pub(crate) inputs: Inputs,
    pub(crate) output: TensorId,
}

/// Makes graphs of one model ready on its devices.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) model: Arc<Model>,
    scheduler: Scheduler,
    /// Weights and caches.
    pub(crate) buffers: Buffers,
    pub(crate) caches: Option<Caches>,
    pub(crate) style: Style,
}

impl Stage {
    /// Streams must be on the devices that the model was loaded for, in the same order.
    pub(crate) fn new(
        model: Arc<Model>,
        streams: Vec<Box<dyn Stream>>,
        style: Style,
    ) -> Result<Stage, Error> {
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
        let buffers = model.weights().buffers().clone();
        Ok(Stage { model, scheduler, buffers, caches: None, style })
    }

    fn net(&self, shape: StepShape) -> Net<'_> {
        let supply = Supply::Loaded { weights: self.model.weights(), caches: self.caches.as_ref() };
        Net::new(self.model.hyper(), shape, self.style, supply)
    }

    /// Whether the devices can compute every attention of a graph in one op.
    pub(crate) fn attends_in_one_op(&self, shape: StepShape) -> Result<bool, Error> {
        let built = self.net(shape).build()?;
        let home =
            |id: TensorId| built.homes.iter().find(|(node, _)| *node == id).map_or(0, |&(_, home)| home);
        for &id in built.graph.nodes() {
            let node = built.graph.tensor(id)?;
            if matches!(node.op(), Op::FlashAttnExt(_)) && !self.model.devices()[home(id)].supports_op(node) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Allocates what the largest graph needs.
    pub(crate) fn reserve(&mut self, shape: StepShape) -> Result<(), Error> {
        let Built { graph, homes, .. } = self.net(shape).build()?;
        let pins = self.pins(&graph, &homes)?;
        self.scheduler.reserve_pinned(graph, &self.buffers, &pins)?;
        Ok(())
    }

    pub(crate) fn prepare(&mut self, shape: StepShape) -> Result<Step, Error> {
        let Built { graph, inputs, output, homes } = self.net(shape).build()?;
        let prepared = self.make_ready(graph, &homes)?;
        Ok(Step { shape, prepared, inputs, output })
    }

    pub(crate) fn prepare_shift(
        &mut self,
        shape: StepShape,
    ) -> Result<(Prepared, [Option<TensorId>; 2]), Error> {
        let BuiltShift { graph, moved, homes } = self.net(shape).build_shift()?;
        Ok((self.make_ready(graph, &homes)?, moved))
    }

    fn make_ready(&mut self, graph: Graph, homes: &[(TensorId, usize)]) -> Result<Prepared, Error> {
        let pins = self.pins(&graph, homes)?;
        Ok(self.scheduler.prepare_pinned(graph, self.buffers.clone(), &pins)?)
    }

    /// Nodes stay with their part of the model wherever that device can compute them; the scheduler finds a place for
    /// the others.
    fn pins(
        &self,
        graph: &Graph,
        homes: &[(TensorId, usize)],
    ) -> Result<Vec<(TensorId, oxcart_sched::StreamId)>, Error> {
        let mut pins = Vec::with_capacity(homes.len());
        for &(id, home) in homes {
            if self.model.devices()[home].supports_op(graph.tensor(id)?) {
                pins.push((id, self.scheduler.stream(home)?));
            }
        }
        Ok(pins)
    }

    /// Bytes of the buffers for results, on each device.
    pub(crate) fn result_bytes(&self) -> Result<Vec<usize>, Error> {
        let size = |index| Ok(self.scheduler.buffer_size(self.scheduler.stream(index)?));
        (0..self.scheduler.stream_count()).map(size).collect()
    }
}

/// Sets inputs and reads results of a prepared graph, through bytes that are kept for their memory.
#[derive(Debug, Default)]
pub(crate) struct TensorIo {
    bytes: Vec<u8>,
}

impl TensorIo {
    /// Sets an input of numbers, if the graph has it.
    pub(crate) fn set<const N: usize>(
        &mut self,
        prepared: &mut Prepared,
        input: Option<TensorId>,
        numbers: impl Iterator<Item = [u8; N]>,
    ) -> Result<(), Error> {
        let Some(id) = input else { return Ok(()) };
        self.bytes.clear();
        numbers.for_each(|number| self.bytes.extend_from_slice(&number));
        Ok(prepared.set_input(id, &self.bytes)?)
    }

    /// Sets a mask: which cells each token sees, and nothing in rows beyond.
    pub(crate) fn set_mask(
        &mut self,
        step: &mut Step,
        (kind, path): (usize, AttentionPath),
        cells: &Cells,
        first: usize,
    ) -> Result<(), Error> {
        let Some(id) = step.inputs.caches[kind].mask else { return Ok(()) };
        let (columns, tokens) = (step.shape.cells[kind], step.shape.tokens);
        let width = columns * path.mask_type().block_bytes();
        self.bytes.clear();
        self.bytes.resize(width * path.mask_rows(tokens), 0);
        // Minus infinity.
        let (half, single) = (0xFC00_u16.to_le_bytes(), f32::NEG_INFINITY.to_le_bytes());
        for (index, row) in self.bytes.chunks_exact_mut(width).enumerate() {
            match path {
                AttentionPath::Flash { .. } if index < tokens => cells.mask_row(first + index, half, row),
                AttentionPath::Flash { .. } => row.as_chunks_mut().0.fill(half),
                AttentionPath::Plain => cells.mask_row(first + index, single, row),
            }
        }
        Ok(step.prepared.set_input(id, &self.bytes)?)
    }

    /// Reads a result of `f32`, appending it.
    pub(crate) fn read(
        &mut self,
        prepared: &Prepared,
        id: TensorId,
        out: &mut Vec<f32>,
    ) -> Result<(), Error> {
        prepared.synchronize()?;
        let tensor = prepared.graph().tensor(id)?;
        self.bytes.resize(tensor.layout().byte_len(), 0);
        prepared.buffers().read(tensor, 0, &mut self.bytes)?;
        out.extend(self.bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)));
        Ok(())
    }
}
