//! A graph made ready: launches with all their parameters, in order, and the memory they use.
//!
//! Concurrency: a plan belongs to the stream it was made by and runs there. From its second run on it is recorded: the
//! driver then does all launches at once.
//!
//! Invariant: a plan holds every buffer whose address is in one of its steps, and the scratch memory they share.

mod build;

pub(crate) use build::{Builder, Done, Refused, Tensor, Words};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use oxcart_backend::{Buffer, Error, Plan, Work};
use oxcart_tensor::TensorRef;
use oxcart_tensor::graph::Flags;

use crate::card::Card;
use crate::driver::{Address, Function, Queue, Recording, Shape};
use crate::images::Family;
use crate::kernels;
use crate::stream::Lane;

/// One thing that a card does.
#[derive(Debug)]
pub(crate) enum Step {
    /// A kernel.
    Launch { family: Family, name: String, shape: Shape, params: Vec<u8> },
    /// Bytes from one place to another.
    Copy { to: Address, from: Address, bytes: usize },
    /// Bytes set to a value.
    Fill { to: Address, value: u8, bytes: usize },
}

/// A step whose kernel was found.
#[derive(Debug)]
enum Ready {
    Launch { function: Function, shape: Shape, params: Vec<u8> },
    Copy { to: Address, from: Address, bytes: usize },
    Fill { to: Address, value: u8, bytes: usize },
}

/// Runs after which a plan is recorded. The first one may be the only one.
const RUNS_BEFORE_RECORDING: u32 = 1;

/// Fewer steps than this are not worth a recording.
const LEAST_RECORDED_STEPS: usize = 4;

/// What the driver is taken to hold in this machine's memory for a step of a recording. It does not say.
const RECORDED_STEP_BYTES: usize = 2 << 10;

/// A plan of a stream.
#[derive(Debug)]
pub(crate) struct CudaPlan {
    lane: Arc<Lane>,
    cancel: Arc<AtomicBool>,
    steps: Vec<Ready>,
    buffers: Vec<Arc<dyn Buffer>>,
    scratch: Option<Arc<crate::memory::Allocation>>,
    recording: Option<Recording>,
    runs: u32,
}

impl CudaPlan {
    pub(crate) fn new(lane: &Arc<Lane>, cancel: &Arc<AtomicBool>, work: Work<'_>) -> Result<CudaPlan, Error> {
        let mut plan = CudaPlan {
            lane: Arc::clone(lane),
            cancel: Arc::clone(cancel),
            steps: Vec::new(),
            buffers: Vec::new(),
            scratch: None,
            recording: None,
            runs: 0,
        };
        plan.update(work)?;
        Ok(plan)
    }

    fn card(&self) -> &Arc<Card> {
        &self.lane.card
    }

    fn forget_recording(&mut self) {
        if let Some(recording) = self.recording.take() {
            // It may be under way; then the driver waits for it.
            let _ = self.card().driver.drop_recording(self.card().number, recording);
        }
    }

    /// Gives all steps to the queue.
    fn submit(&self, queue: Queue) -> Result<(), Error> {
        let card = self.card();
        for step in &self.steps {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            card.with(|driver, number| match step {
                Ready::Launch { function, shape, params } => {
                    // SAFETY: the builder of the step wrote the structure that the kernel takes, whose addresses are those
                    // of tensors that it checked against buffers that this plan holds, or of scratch memory.
                    unsafe { driver.launch(number, queue, *function, *shape, params) }
                }
                Ready::Copy { to, from, bytes } => driver.copy(number, queue, *to, *from, *bytes),
                Ready::Fill { to, value, bytes } => driver.fill(number, queue, *to, *value, *bytes),
            })?;
        }
        Ok(())
    }

    fn record(&mut self) -> Result<(), Error> {
        let (card, queue) = (Arc::clone(self.card()), self.lane.queue);
        card.with(|driver, number| driver.begin_recording(number, queue))?;
        let submitted = self.submit(queue);
        // It has to be ended whatever happened, or the queue stays as it is.
        let ended = card.with(|driver, number| driver.end_recording(number, queue));
        match (submitted, ended) {
            (Ok(()), Ok(recording)) => {
                self.recording = Some(recording);
                Ok(())
            }
            (Err(error), Ok(part)) => {
                let _ = card.driver.drop_recording(card.number, part);
                Err(error)
            }
            (Err(error), Err(_)) | (Ok(()), Err(error)) => Err(error),
        }
    }
}

impl Plan for CudaPlan {
    fn update(&mut self, work: Work<'_>) -> Result<(), Error> {
        self.forget_recording();
        let nodes = computed_nodes(work)?;
        let card = Arc::clone(self.card());
        // Twice: how much scratch memory there must be is known after the first time.
        let mut builder = Builder::new(&card, work, self.lane.words(), None, self.lane.exact);
        kernels::add_all(&nodes, &mut builder)?;
        let needed = builder.scratch_bytes();
        let scratch = self.lane.scratch(needed)?;
        let base = scratch.as_ref().map_or(Address(0), |scratch| scratch.start);
        let mut builder = Builder::new(&card, work, self.lane.words(), Some(base), self.lane.exact);
        kernels::add_all(&nodes, &mut builder)?;
        let (steps, buffers) = builder.finish();
        let ready = |step: Step| {
            Ok(match step {
                Step::Launch { family, name, shape, params } => {
                    Ready::Launch { function: card.function(family, &name, shape.shared)?, shape, params }
                }
                Step::Copy { to, from, bytes } => Ready::Copy { to, from, bytes },
                Step::Fill { to, value, bytes } => Ready::Fill { to, value, bytes },
            })
        };
        let steps = steps.into_iter().map(ready).collect::<Result<_, Error>>()?;
        // All at once, when nothing can fail any more: steps and what they use belong together. What the old ones used may still be
        // in use; where it is freed, the driver waits.
        (self.steps, self.buffers, self.scratch) = (steps, buffers, scratch);
        self.runs = 0;
        Ok(())
    }

    fn compute(&mut self) -> Result<(), Error> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        if self.recording.is_none()
            && self.runs >= RUNS_BEFORE_RECORDING
            && self.steps.len() >= LEAST_RECORDED_STEPS
        {
            self.record()?;
        }
        self.runs = self.runs.saturating_add(1);
        let queue = self.lane.queue;
        match self.recording {
            Some(recording) => self.card().with(|driver, number| driver.replay(number, recording, queue)),
            None => self.submit(queue),
        }
    }

    fn held_bytes(&self) -> usize {
        let params = |step: &Ready| match step {
            // The allocator adds something to each.
            Ready::Launch { params, .. } => params.capacity().next_multiple_of(16) + 16,
            Ready::Copy { .. } | Ready::Fill { .. } => 0,
        };
        let recorded = if self.steps.len() < LEAST_RECORDED_STEPS { 0 } else { self.steps.len() };
        size_of::<CudaPlan>()
            + self.steps.capacity() * size_of::<Ready>()
            + self.steps.iter().map(params).sum::<usize>()
            + self.buffers.capacity() * size_of::<Arc<dyn Buffer>>()
            + recorded * RECORDED_STEP_BYTES
    }
}

impl Drop for CudaPlan {
    fn drop(&mut self) {
        // Memory that launches use must outlive them.
        if self.runs > 0 {
            let _ = self.card().driver.drain(self.card().number, self.lane.queue);
        }
        self.forget_recording();
    }
}

/// The nodes of some work that really have to be computed.
fn computed_nodes<'g>(work: Work<'g>) -> Result<Vec<TensorRef<'g>>, Error> {
    let graph = work.nodes.graph();
    let mut nodes = Vec::with_capacity(work.nodes.nodes().len());
    for &id in work.nodes.nodes() {
        let node = graph.tensor(id)?;
        if node.computes() && node.has(Flags::COMPUTE) && !node.layout().is_empty() {
            nodes.push(node);
        }
    }
    Ok(nodes)
}
