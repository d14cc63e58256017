//! A graph made ready: for each node that computes a kernel, the memory of its tensors, a number of threads, scratch.
//!
//! Binding is where the invariants of [`view`](crate::view) become true: every tensor lies inside a host buffer, aligned;
//! what a step writes overlaps nothing else it writes or reads, except a source that is the result element for element
//! where the op allows it. A source that overlaps the result in any other way is copied aside before the step runs.
//!
//! Concurrency: all buffers of a plan are locked while it runs, in the order of their addresses, for writing if some
//! step writes to them. All threads walk the steps together; see [`Steps::run`].

mod bind;
mod run;
mod unit;

pub(crate) use bind::Binding;
pub(crate) use run::Failure;
pub(crate) use unit::Unit;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use oxcart_backend::{Error, Plan, Work};

use crate::pool::Pool;
use crate::simd::Level;

/// A plan of the CPU device.
#[derive(Debug)]
pub(crate) struct CpuPlan {
    level: Level,
    pool: Arc<Pool>,
    cancel: Arc<AtomicBool>,
    binding: Binding,
    scratch: Vec<Line>,
}

/// Scratch memory comes in cache lines.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line([u8; 64]);

impl CpuPlan {
    pub(crate) fn new(
        level: Level,
        pool: Arc<Pool>,
        cancel: Arc<AtomicBool>,
        work: Work<'_>,
    ) -> Result<CpuPlan, Error> {
        let mut plan = CpuPlan { level, pool, cancel, binding: Binding::default(), scratch: Vec::new() };
        plan.update(work)?;
        Ok(plan)
    }
}

impl Plan for CpuPlan {
    fn update(&mut self, work: Work<'_>) -> Result<(), Error> {
        self.binding = Binding::new(work, self.level, self.pool.threads())?;
        let size = self.binding.scratch_bytes();
        let lines = size.div_ceil(size_of::<Line>());
        // What a node needs follows from a graph that may come from anywhere: too much is an error, not an abort.
        let more = lines.saturating_sub(self.scratch.len());
        if self.scratch.try_reserve_exact(more).is_err() {
            return Err(Error::OutOfMemory { buffer_type: "scratch".into(), size });
        }
        self.scratch.resize(lines, Line([0; 64]));
        Ok(())
    }

    fn compute(&mut self) -> Result<(), Error> {
        run::run(&self.binding, &self.pool, &mut self.scratch, &self.cancel).map_err(Failure::into_error)
    }
}
