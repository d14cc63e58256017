//! The plan of the graph before, to be used again.
//!
//! A program makes the same graph for each batch, with other sizes at most. Then nothing needs to be planned.
//!
//! Invariant: a plan is given out again only for a graph that does the very same as the one it was made for, node by
//! node, in the same pools, with the same transfers, and none of whose tensors is larger. Lifetimes follow from the
//! rest, so they are the same, too. ([`Planner::suits`](crate::memory::Planner::suits) asks for less, and takes longer.)

use std::sync::Arc;

use crate::memory::{MemoryPlan, Request, Transfer};
use crate::program::Program;

/// A plan, and what it was made for.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    plan: Option<Arc<MemoryPlan>>,
    program: Program,
    pool_of: Vec<u16>,
    transfers: Vec<Transfer>,
}

impl Kept {
    /// Whether the plan is right for this, too; if so, the plan.
    pub(crate) fn plan_for(&self, request: &Request<'_>, program: &Program) -> Option<&Arc<MemoryPlan>> {
        let is_same = || {
            self.transfers == request.transfers && self.pool_of == request.pool_of && self.program == *program
        };
        let plan = self.plan.as_ref().filter(|_| is_same())?;
        let mut spots = plan.spots();
        let fits = spots.all(|(id, spot)| {
            let size = |tensor| (request.size_of)(tensor, spot.pool.into());
            request.graph.tensor(id).is_ok_and(|tensor| size(tensor) <= spot.size)
        });
        fits.then_some(plan)
    }

    /// Keeps a plan. What it was made for is exchanged for what the plan before was made for, so that its memory can be
    /// used again.
    pub(crate) fn keep(
        &mut self,
        plan: Arc<MemoryPlan>,
        program: &mut Program,
        pool_of: &mut Vec<u16>,
        transfers: Vec<Transfer>,
    ) {
        std::mem::swap(&mut self.program, program);
        std::mem::swap(&mut self.pool_of, pool_of);
        self.transfers = transfers;
        self.plan = Some(plan);
    }

    /// What the graph does that the plan is for.
    pub(crate) const fn program(&self) -> &Program {
        &self.program
    }

    /// Forgets the plan.
    pub(crate) fn clear(&mut self) {
        self.plan = None;
    }
}
