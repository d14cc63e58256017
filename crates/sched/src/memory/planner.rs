//! From a request to a plan.

use super::error::PlanError;
use super::lifetimes::{Lifetimes, Reuse};
use super::plan::{MemoryPlan, PoolPlan, chunk_sizes};
use super::replay::{Address, Chunks, Replay};
use super::timeline::Timeline;
use super::uses::{Newcomer, Uses};
use super::whole::Whole;
use super::{Request, Strategy};

/// Makes plans; keeps its working memory from one to the next.
#[derive(Debug, Default)]
pub struct Planner {
    uses: Uses,
    /// Blocks as the whole picture has them, and as a running allocator would.
    shared: Lifetimes,
    plain: Lifetimes,
    replay: Replay,
    whole: Whole,
    /// Per moment, the bytes that are taken.
    live: Vec<usize>,
}

/// What was found for one pool.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) needs: PoolPlan,
    /// Per block.
    pub(super) addresses: Vec<Address>,
    /// Whose blocks these are.
    pub(super) reuse: Reuse,
}

/// Makes a single plan; see [`Planner::plan`].
pub fn plan(request: &Request<'_>, strategy: Strategy) -> Result<MemoryPlan, PlanError> {
    Planner::default().plan(request, strategy)
}

impl Planner {
    /// Without working memory yet.
    pub fn new() -> Planner {
        Planner::default()
    }

    /// Places all tensors of a graph that are in order and have no storage yet.
    pub fn plan(&mut self, request: &Request<'_>, strategy: Strategy) -> Result<MemoryPlan, PlanError> {
        check_pools(request)?;
        let timeline = Timeline::new(request)?;
        self.uses.find(request, &timeline)?;
        let placed = match strategy {
            Strategy::Whole => self.place_whole(request, timeline.end)?,
            Strategy::Online => {
                self.plain.find(request, &self.uses, Reuse::Roots)?;
                (0..request.pools.len()).map(|pool| self.place_online(request, pool, timeline.end)).collect()
            }
        };
        let mut plan = MemoryPlan::new(request);
        for lifetimes in [&self.shared, &self.plain] {
            // The other one may be left from an earlier plan.
            if placed.iter().any(|placed| placed.reuse == lifetimes.reuse) {
                plan.add(request, lifetimes, &placed);
            }
        }
        plan.pools.extend(placed.into_iter().map(|placed| placed.needs));
        Ok(plan)
    }

    /// Whether a plan can be used unchanged for another request: everything that needs a place has one, in the right
    /// pool, is not larger than it was and lives no longer, and takes over memory only where that is still right.
    /// Cheaper than planning anew.
    pub fn suits(&mut self, plan: &MemoryPlan, request: &Request<'_>) -> bool {
        if check_pools(request).is_err() || plan.pools().len() != request.pools.len() {
            return false;
        }
        let Ok(timeline) = Timeline::new(request) else { return false };
        if self.uses.find(request, &timeline).is_err() {
            return false;
        }
        self.uses.newcomers.iter().all(|newcomer| {
            let Some(old) = plan.resident(newcomer.id) else { return false };
            newcomer.pool == old.spot.pool
                && newcomer.size <= old.spot.size
                && newcomer.birth >= old.birth
                && self.uses.death(newcomer.id) <= old.death
                && old.spot.in_place.is_none_or(|slot| self.may_take_over(request, plan, newcomer, slot))
        })
    }

    /// Whether a result may still take the memory that it takes in the plan: that of the same source, which it uses up
    /// or which is dead already.
    fn may_take_over(&self, request: &Request<'_>, plan: &MemoryPlan, newcomer: &Newcomer, slot: u8) -> bool {
        let Ok(node) = request.graph.tensor(newcomer.id) else { return false };
        let Some(source) = node.source(slot.into()) else { return false };
        let owner = source.root().id();
        let (Some(old), Some(before)) = (plan.resident(newcomer.id), plan.resident(owner)) else {
            return false;
        };
        let is_that_source = before.death == old.birth
            && before.spot.offset == old.spot.offset
            && before.spot.contains(&old.spot);
        let uses_up = newcomer.reuses_source && self.uses.may_replace(node, source, newcomer.birth);
        is_that_source && (uses_up || self.uses.death(owner) < newcomer.birth)
    }

    fn place_whole(&mut self, request: &Request<'_>, end: u32) -> Result<Vec<Placed>, PlanError> {
        self.shared.find(request, &self.uses, Reuse::RootsAndViews)?;
        let mut placed = Vec::with_capacity(request.pools.len());
        for (&pool, blocks) in request.pools.iter().zip(&mut self.shared.pools) {
            let lower_bound = blocks.lower_bound(end, &mut self.live);
            blocks.stretch(lower_bound, end, &self.live);
            let addresses = self.whole.place(blocks, pool, lower_bound, end).to_vec();
            let needs = PoolPlan { chunks: chunk_sizes(blocks, &addresses, pool), lower_bound };
            placed.push(Placed { needs, addresses, reuse: Reuse::RootsAndViews });
        }
        // Sharing less makes for more bytes, but also for more freedom, and never to need more than a running
        // allocator is a promise. It is rare that this wins.
        if placed.iter().any(|placed| placed.needs.peak() > placed.needs.lower_bound) {
            self.plain.find(request, &self.uses, Reuse::Roots)?;
            for (pool, placed) in placed.iter_mut().enumerate() {
                let online = self.place_online(request, pool, end);
                if online.needs.peak() < placed.needs.peak() {
                    let lower_bound = placed.needs.lower_bound;
                    *placed = Placed { needs: PoolPlan { lower_bound, ..online.needs }, ..online };
                }
            }
        }
        Ok(placed)
    }

    fn place_online(&mut self, request: &Request<'_>, pool: usize, end: u32) -> Placed {
        let (blocks, pool) = (&self.plain.pools[pool], request.pools[pool]);
        let lower_bound = blocks.lower_bound(end, &mut self.live);
        self.replay.run(blocks, end, &mut Chunks::new(pool));
        let addresses = self.replay.addresses.clone();
        Placed {
            needs: PoolPlan { chunks: chunk_sizes(blocks, &addresses, pool), lower_bound },
            addresses,
            reuse: Reuse::Roots,
        }
    }
}

/// Whether pools are what they should be.
pub(super) fn check_pools(request: &Request<'_>) -> Result<(), PlanError> {
    let (given, tensors) = (request.pool_of.len(), request.graph.len());
    if given < tensors {
        return Err(PlanError::PoolsMissing { tensors, given });
    }
    match request.pools.iter().position(|pool| !pool.alignment.is_power_of_two()) {
        Some(pool) => Err(PlanError::Alignment { pool, alignment: request.pools[pool].alignment }),
        None => Ok(()),
    }
}
