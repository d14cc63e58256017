//! A graph made ready: for each node that computes a kernel, the memory of its tensors, a number of threads, scratch.
//!
//! Binding is where the invariants of [`view`](crate::view) become true: every tensor lies inside a host buffer, aligned;
//! what a step writes overlaps nothing else it writes or reads, except a source that is the result element for element
//! where the op allows it. A source that overlaps the result in any other way is copied aside before the step runs.
//!
//! Concurrency: all buffers of a plan are locked while it runs, in the order of their addresses, for writing if some
//! step writes to them. The pool's threads take pieces of one stage after another; see [`run`].

mod bind;
mod run;
mod unit;

pub(crate) use bind::Binding;
pub(crate) use run::RunFailure;
pub(crate) use unit::Unit;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use oxcart_backend::{Error, Plan, Work};

use crate::job::{Effort, Grain};
use crate::pool::Pool;
use crate::simd::Level;

/// A plan of the CPU device.
#[derive(Debug)]
pub(crate) struct CpuPlan {
    level: Level,
    grain: Grain,
    pool: Arc<Pool>,
    cancel: Arc<AtomicBool>,
    binding: Binding,
    scratch: Arc<StreamScratch>,
    effort: Arc<Effort>,
}

/// Scratch memory of a stream, for the one plan that runs; plans that only exist have none.
#[derive(Debug)]
pub(crate) struct StreamScratch {
    lines: Mutex<Vec<Line>>,
    /// Bytes that a plan may need.
    limit: usize,
}

impl StreamScratch {
    /// Scratch memory of at most so many bytes; where there is a limit, much of it is not kept either.
    pub(crate) fn new(limit: Option<usize>) -> StreamScratch {
        StreamScratch { lines: Mutex::new(Vec::new()), limit: limit.unwrap_or(usize::MAX) }
    }
}

/// Bytes of scratch that a stream with a limit keeps from one run to the next.
const KEPT_SCRATCH: usize = 64 << 20;

/// Scratch memory comes in cache lines.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line([u8; 64]);

impl CpuPlan {
    pub(crate) fn new(
        (level, grain): (Level, Grain),
        pool: Arc<Pool>,
        cancel: Arc<AtomicBool>,
        (scratch, effort): (Arc<StreamScratch>, Arc<Effort>),
        work: Work<'_>,
    ) -> Result<CpuPlan, Error> {
        let mut plan = CpuPlan { level, grain, pool, cancel, binding: Binding::default(), scratch, effort };
        plan.update(work)?;
        Ok(plan)
    }
}

impl Plan for CpuPlan {
    fn update(&mut self, work: Work<'_>) -> Result<(), Error> {
        self.binding = Binding::new(work, (self.level, self.grain), self.pool.threads())?;
        let size = self.binding.scratch_bytes();
        if size > self.scratch.limit {
            return Err(no_scratch(size));
        }
        Ok(())
    }

    fn compute(&mut self) -> Result<(), Error> {
        let mut scratch = self.scratch.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let size = self.binding.scratch_bytes();
        let lines = size.div_ceil(size_of::<Line>());
        if lines > scratch.len() {
            // What a node needs follows from a graph that may come from anywhere: too much is an error, not an abort.
            let more = lines - scratch.len();
            scratch.try_reserve_exact(more).map_err(|_| no_scratch(size))?;
            scratch.resize(lines, Line([0; 64]));
        }
        let done = run::run(&self.binding, &self.pool, &mut scratch, &self.cancel, &self.effort);
        if self.scratch.limit < usize::MAX && size_of_val(scratch.as_slice()) > KEPT_SCRATCH {
            *scratch = Vec::new();
        }
        done.map_err(RunFailure::into_error)
    }

    fn held_bytes(&self) -> usize {
        size_of::<CpuPlan>() + self.binding.held_bytes()
    }
}

fn no_scratch(size: usize) -> Error {
    Error::OutOfMemory { buffer_type: "scratch".into(), size }
}
