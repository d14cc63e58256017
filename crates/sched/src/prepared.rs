//! A graph that is ready to run, again and again.
//!
//! Concurrency: the calling thread drives all streams. With several runs under way at the same time
//! ([`Options::runs`](crate::Options::runs)), each run has its own inputs and its own copies of what crosses from one
//! stream to another, and waits until an earlier run has read what it overwrites.
//!
//! Invariant: [`Prepared::compute`] allocates nothing in the scheduler but copies of inputs for streams that work later; all places and ranges were looked up
//! when the graph was prepared.

use std::ops::ControlFlow;
use std::sync::Arc;

use oxcart_backend::{Buffers, Place, Plan, Stream, Ticket, Work, copy_async, copy_place, same_buffer_type};
use oxcart_tensor::graph::Flags;
use oxcart_tensor::{Graph, TensorId, TensorRef};

use crate::assign::{Assignment, Assignments};
use crate::error::Error;
use crate::memory::MemoryPlan;
use crate::split::Split;
use crate::streams::{StreamId, Streams};

/// One of the runs that may be under way at the same time.
#[derive(Debug)]
pub(crate) struct Run {
    /// The graph with this run's leaves.
    pub(crate) graph: Graph,
    /// By split, what the device made of it, if it makes plans.
    pub(crate) plans: Vec<Option<Box<dyn Plan>>>,
    /// By split, its copies.
    pub(crate) copies: Vec<Vec<CopyStep>>,
    /// By graph input, where this run's is.
    pub(crate) inputs: Vec<Place>,
    /// By stream, the point at which it has read this run's inputs and copies; none before the first run.
    pub(crate) read: Vec<Option<Ticket>>,
}

/// One copy before a split.
#[derive(Debug)]
pub(crate) struct CopyStep {
    pub(crate) from: StreamId,
    /// Further streams that can get at the source. They could write to it while a copy is under way.
    pub(crate) others: Vec<StreamId>,
    pub(crate) source: Place,
    pub(crate) target: Place,
    /// Set by the caller, who may overwrite it as soon as `compute` returns.
    pub(crate) is_input: bool,
}

/// Looks at nodes while a graph runs.
pub trait Observer {
    /// Whether it wants to see this node's result. Nodes that it does not want to see are computed together.
    fn wants(&mut self, node: TensorRef<'_>) -> bool;

    /// Sees a node that was just computed, and may stop the run.
    fn look(&mut self, node: TensorRef<'_>, buffers: &Buffers) -> ControlFlow<()>;
}

/// A graph that is assigned, split, placed and planned.
#[derive(Debug)]
pub struct Prepared {
    pub(crate) streams: Arc<Streams>,
    pub(crate) buffers: Buffers,
    pub(crate) runs: Vec<Run>,
    pub(crate) current: usize,
    pub(crate) splits: Vec<Split>,
    pub(crate) assigned: Assignments,
    pub(crate) memory: Arc<MemoryPlan>,
    pub(crate) inputs: Vec<TensorId>,
}

impl Prepared {
    fn run(&self) -> &Run {
        &self.runs[self.current]
    }

    /// The graph as it runs next: sources that had to be copied are replaced by their copies.
    pub fn graph(&self) -> &Graph {
        &self.run().graph
    }

    /// What the buffer ids in the graph mean.
    pub const fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// The splits, in the order they run.
    pub fn splits(&self) -> &[Split] {
        &self.splits
    }

    /// How many tensors are copied from stream to stream in each run.
    pub fn copy_count(&self) -> usize {
        self.splits.iter().map(|split| split.inputs.len()).sum()
    }

    /// How many runs may be under way at the same time.
    pub fn run_count(&self) -> usize {
        self.runs.len()
    }

    /// Which stream has a tensor, and why.
    pub fn assignment(&self, id: TensorId) -> Option<Assignment> {
        self.graph().tensor(id).ok().and_then(|tensor| self.assigned.of_tensor(tensor))
    }

    /// Where tensors lie, and how good that is.
    pub fn memory(&self) -> &MemoryPlan {
        &self.memory
    }

    /// Sets an input for the next run.
    pub fn set_input(&mut self, id: TensorId, data: &[u8]) -> Result<(), Error> {
        let run = &self.runs[self.current];
        let tensor = run.graph.tensor(id)?;
        let Some(index) = self.inputs.iter().position(|&input| input == id) else {
            // It lies in memory the caller gave.
            if tensor.is_leaf() && tensor.storage().is_some() {
                return Ok(self.buffers.set(tensor, 0, data)?);
            }
            return Err(Error::NotAnInput { id, name: tensor.label() });
        };
        let place = &run.inputs[index];
        if data.len() != place.len {
            let what = run.graph.label(id);
            let error =
                oxcart_backend::Error::OutOfBounds { what, offset: 0, len: data.len(), size: place.len };
            return Err(error.into());
        }
        // Memory of a stream's own device is written when the stream gets there: another graph that is under way may use it.
        if let Some(stream) = self.only_stream().filter(|stream| is_late(*stream) && has(*stream, place)) {
            return Ok(stream.set_async(place, data.to_vec())?);
        }
        self.wait_for_readers(place)?;
        Ok(place.buffer.write(place.offset, data)?)
    }

    /// The stream that runs all splits, if there is only one.
    fn only_stream(&self) -> Option<&dyn Stream> {
        let first = self.splits.first()?.stream;
        self.splits.iter().all(|split| split.stream == first).then(|| self.streams.stream(first))
    }

    /// Waits until no earlier run reads an input of this run any more. Streams that cannot see its memory read copies, which were made
    /// before [`compute`](Prepared::compute) returned; so a device elsewhere is not waited for.
    fn wait_for_readers(&self, place: &Place) -> Result<(), Error> {
        let memory = place.buffer.buffer_type();
        let mut readers =
            self.streams.ids().filter(|&id| self.streams.device(id).supports_buffer_type(memory));
        readers.try_for_each(|id| self.wait_for_reader(id))
    }

    /// Waits until a stream reads this run's inputs and copies no more.
    fn wait_for_reader(&self, id: StreamId) -> Result<(), Error> {
        match self.run().read[id.index()] {
            Some(ticket) => Ok(self.streams.stream(id).finish(ticket)?),
            None => Ok(()),
        }
    }

    /// All bytes of a tensor, after everything that was asked for has been computed. Only outputs are sure to keep
    /// their contents.
    pub fn read(&self, id: TensorId) -> Result<Vec<u8>, Error> {
        self.synchronize()?;
        // After a run, `current` already means the next one.
        let last = &self.runs[(self.current + self.runs.len() - 1) % self.runs.len()];
        Ok(self.buffers.bytes(last.graph.tensor(id)?)?)
    }

    /// The first bytes of a tensor, after everything that its stream was asked for has been computed. Only outputs are sure
    /// to keep their contents.
    pub fn read_into(&self, id: TensorId, out: &mut [u8]) -> Result<(), Error> {
        // After a run, `current` already means the next one.
        let last = &self.runs[(self.current + self.runs.len() - 1) % self.runs.len()];
        let tensor = last.graph.tensor(id)?;
        let place = self.buffers.place_of(tensor)?;
        match self.assigned.of_tensor(tensor) {
            Some((stream, _)) => Ok(self.streams.stream(stream).read(&place, out)?),
            None => Ok(place.read(out)?),
        }
    }

    /// Runs the graph. Returns when everything has been handed to the devices; [`synchronize`](Prepared::synchronize)
    /// waits for the results.
    pub fn compute(&mut self) -> Result<(), Error> {
        for index in 0..self.splits.len() {
            self.fill_inputs(index)?;
            let Prepared { streams, buffers, runs, current, splits, .. } = self;
            let (run, split) = (&mut runs[*current], &splits[index]);
            let stream = streams.stream(split.stream);
            match &mut run.plans[index] {
                Some(plan) => plan.compute()?,
                None => {
                    if let Some(nodes) = run.graph.range(split.nodes.clone()) {
                        stream.compute(Work { nodes, buffers })?;
                    }
                }
            }
            self.mark_read(index)?;
        }
        self.current = (self.current + 1) % self.runs.len();
        Ok(())
    }

    /// As [`compute`](Prepared::compute), waiting for the results.
    pub fn compute_and_wait(&mut self) -> Result<(), Error> {
        self.compute()?;
        self.synchronize()
    }

    /// As [`compute`](Prepared::compute), showing results to an observer on the way. Returns whether it ran to the
    /// end.
    pub fn compute_observed(&mut self, observer: &mut dyn Observer) -> Result<bool, Error> {
        let mut finished = true;
        'splits: for index in 0..self.splits.len() {
            self.fill_inputs(index)?;
            let split = self.splits[index].clone();
            let mut start = split.nodes.start;
            for position in split.nodes.clone() {
                let graph = self.graph();
                let node = graph.tensor(graph.nodes()[position])?;
                let wanted = node.computes() && node.has(Flags::COMPUTE) && observer.wants(node);
                if !wanted && position + 1 < split.nodes.end {
                    continue;
                }
                let stream = self.streams.stream(split.stream);
                if let Some(nodes) = graph.range(start..position + 1) {
                    stream.compute(Work { nodes, buffers: &self.buffers })?;
                }
                start = position + 1;
                if wanted {
                    stream.synchronize()?;
                    if observer.look(node, &self.buffers).is_break() {
                        finished = false;
                        break 'splits;
                    }
                }
            }
            self.mark_read(index)?;
        }
        self.current = (self.current + 1) % self.runs.len();
        Ok(finished)
    }

    /// Copies what a split reads from elsewhere.
    fn fill_inputs(&self, index: usize) -> Result<(), Error> {
        let (run, split) = (self.run(), &self.splits[index]);
        let stream = self.streams.stream(split.stream);
        for &other in &split.after {
            self.streams.stream(other).synchronize()?;
        }
        for copy in &run.copies[index] {
            if copy.is_input && is_late(stream) {
                // The caller may overwrite it as soon as we return, so it is read now; but the stream may have another graph
                // under way that uses the same memory, so it is written when the stream gets there.
                stream.set_async(&copy.target, copy.source.bytes()?)?;
                continue;
            }
            if copy.is_input {
                self.wait_for_reader(split.stream)?;
                copy_place(&copy.source, &copy.target)?;
                continue;
            }
            if copy.others.is_empty() {
                copy_async(self.streams.stream(copy.from), &copy.source, stream, &copy.target)?;
                continue;
            }
            for &id in copy.others.iter().chain([&copy.from, &split.stream]) {
                self.streams.stream(id).synchronize()?;
            }
            copy_place(&copy.source, &copy.target)?;
        }
        Ok(())
    }

    /// Marks that the split's stream has read this run's copies.
    fn mark_read(&mut self, index: usize) -> Result<(), Error> {
        let id = self.splits[index].stream;
        let ticket = self.streams.stream(id).record()?;
        self.runs[self.current].read[id.index()] = Some(ticket);
        Ok(())
    }

    /// Waits until everything has been computed, and reports what failed on the way.
    pub fn synchronize(&self) -> Result<(), Error> {
        for id in self.streams.ids() {
            self.streams.stream(id).synchronize()?;
        }
        Ok(())
    }
}

/// Whether a stream's calls return before they have taken effect.
fn is_late(stream: &dyn Stream) -> bool {
    stream.device().caps().asynchronous
}

/// Whether a place is in the memory of a stream's device.
fn has(stream: &dyn Stream, place: &Place) -> bool {
    same_buffer_type(place.buffer.buffer_type(), &stream.device().buffer_type())
}
