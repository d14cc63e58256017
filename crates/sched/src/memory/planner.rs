//! From a request to a plan.

use super::blocks::NONE;
use super::error::MemoryPlanError;
use super::lifetimes::{Lifetimes, Reuse};
use super::plan::{MemoryPlan, PoolPlan, Resident, chunk_sizes};
use super::replay::{Address, Chunks, Replay};
use super::timeline::Timeline;
use super::uses::{Newcomer, Uses};
use super::whole::Whole;
use super::{Request, Strategy};
use crate::program::Program;

/// Makes plans; keeps its working memory from one to the next.
#[derive(Debug, Default)]
pub struct Planner {
    program: Program,
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
pub fn plan(request: &Request<'_>, strategy: Strategy) -> Result<MemoryPlan, MemoryPlanError> {
    Planner::default().plan(request, strategy)
}

impl Planner {
    /// Without working memory yet.
    pub fn new() -> Planner {
        Planner::default()
    }

    /// Places all tensors of a graph that are in order and have no storage yet.
    pub fn plan(&mut self, request: &Request<'_>, strategy: Strategy) -> Result<MemoryPlan, MemoryPlanError> {
        self.with_program(request, |planner, program| planner.plan_program(request, program, strategy))
    }

    /// Whether a plan can be used unchanged for another request: everything that needs a place has one, in the right
    /// pool, is not larger than it was and lives no longer, and takes over memory only where that is still right.
    /// Cheaper than planning anew.
    pub fn suits(&mut self, plan: &MemoryPlan, request: &Request<'_>) -> bool {
        let suits = self.with_program(request, |planner, program| {
            planner.find_uses(request, program)?;
            let suited = Suited { plan, uses: &planner.uses, program };
            let mut newcomers = planner.uses.newcomers.iter();
            Ok(plan.pools().len() == request.pools.len()
                && newcomers.all(|newcomer| {
                    plan.resident(newcomer.id).is_some_and(|old| suited.may_stay(newcomer, &old))
                }))
        });
        suits.unwrap_or(false)
    }

    /// As [`plan`](Planner::plan), for a graph whose program is known.
    pub(crate) fn plan_program(
        &mut self,
        request: &Request<'_>,
        program: &Program,
        strategy: Strategy,
    ) -> Result<MemoryPlan, MemoryPlanError> {
        self.find_uses(request, program)?;
        self.place(request, program, strategy)
    }

    /// Does something with the program of a request, in memory that is kept for the next one.
    fn with_program<T>(
        &mut self,
        request: &Request<'_>,
        work: impl FnOnce(&mut Planner, &Program) -> Result<T, MemoryPlanError>,
    ) -> Result<T, MemoryPlanError> {
        let timeline = Timeline::new(request)?;
        let mut program = std::mem::take(&mut self.program);
        program.read(request.graph, timeline.positions());
        let done = work(self, &program);
        self.program = program;
        done
    }

    fn find_uses(&mut self, request: &Request<'_>, program: &Program) -> Result<(), MemoryPlanError> {
        check_pools(request)?;
        self.uses.find(request, &Timeline::new(request)?, program)
    }

    /// Places everything uses were found for.
    fn place(
        &mut self,
        request: &Request<'_>,
        program: &Program,
        strategy: Strategy,
    ) -> Result<MemoryPlan, MemoryPlanError> {
        let placed = match strategy {
            Strategy::Whole => self.place_whole(request, program)?,
            Strategy::Online => {
                self.plain.find(request, program, &self.uses, Reuse::Roots)?;
                (0..request.pools.len()).map(|pool| self.place_online(request, pool)).collect()
            }
        };
        let mut plan = MemoryPlan::new(request, self.uses.newcomers.len());
        for lifetimes in [&self.shared, &self.plain] {
            // The other one may be left from an earlier plan.
            if placed.iter().any(|placed| placed.reuse == lifetimes.reuse) {
                plan.add(request, lifetimes, &placed);
            }
        }
        plan.pools.extend(placed.into_iter().map(|placed| placed.needs));
        Ok(plan)
    }

    fn place_whole(
        &mut self,
        request: &Request<'_>,
        program: &Program,
    ) -> Result<Vec<Placed>, MemoryPlanError> {
        self.shared.find(request, program, &self.uses, Reuse::RootsAndViews)?;
        let mut placed = Vec::with_capacity(request.pools.len());
        for (&pool, blocks) in request.pools.iter().zip(&mut self.shared.pools) {
            let lower_bound = blocks.lower_bound(&mut self.live);
            blocks.stretch(lower_bound, &self.live);
            let addresses = self.whole.place(blocks, pool, lower_bound).to_vec();
            let needs = PoolPlan { chunks: chunk_sizes(blocks, &addresses, pool), lower_bound };
            placed.push(Placed { needs, addresses, reuse: Reuse::RootsAndViews });
        }
        // Sharing less makes for more bytes, but also for more freedom, and never to need more than a running
        // allocator is a promise. It is rare that this wins.
        if placed.iter().any(|placed| placed.needs.peak() > placed.needs.lower_bound) {
            self.plain.find(request, program, &self.uses, Reuse::Roots)?;
            for (pool, placed) in placed.iter_mut().enumerate() {
                let online = self.place_online(request, pool);
                if online.needs.peak() < placed.needs.peak() {
                    let lower_bound = placed.needs.lower_bound;
                    *placed = Placed { needs: PoolPlan { lower_bound, ..online.needs }, ..online };
                }
            }
        }
        Ok(placed)
    }

    fn place_online(&mut self, request: &Request<'_>, pool: usize) -> Placed {
        let (blocks, pool) = (&self.plain.pools[pool], request.pools[pool]);
        let lower_bound = blocks.lower_bound(&mut self.live);
        self.replay.run(blocks, &mut Chunks::new(pool));
        let addresses = self.replay.addresses.clone();
        Placed {
            needs: PoolPlan { chunks: chunk_sizes(blocks, &addresses, pool), lower_bound },
            addresses,
            reuse: Reuse::Roots,
        }
    }
}

/// Compares a plan with a request it was not made for.
struct Suited<'a> {
    plan: &'a MemoryPlan,
    uses: &'a Uses,
    program: &'a Program,
}

impl Suited<'_> {
    /// Whether a tensor may lie where one was in the plan.
    fn may_stay(&self, newcomer: &Newcomer, old: &Resident) -> bool {
        newcomer.pool == old.spot.pool
            && newcomer.size <= old.spot.size
            && newcomer.birth >= old.birth
            && self.uses.death(newcomer.id) <= old.death
            && old.spot.in_place.is_none_or(|slot| self.may_take_over(newcomer, slot, old))
    }

    /// Whether a result may still take the memory that it takes in the plan: that of the same source, which it uses up
    /// or which is dead already.
    fn may_take_over(&self, newcomer: &Newcomer, slot: u8, old: &Resident) -> bool {
        if newcomer.maker == NONE {
            return false;
        }
        let Some(read) = self.program.reads(newcomer.maker as usize).iter().find(|read| read.slot == slot)
        else {
            return false;
        };
        let Some(before) = self.plan.resident(read.root) else { return false };
        let is_that_source = before.death == old.birth
            && before.spot.offset == old.spot.offset
            && before.spot.contains(&old.spot);
        let is_dead = || self.uses.death(read.root) < newcomer.birth;
        let uses_up = || self.uses.may_replace(read, newcomer.birth);
        is_that_source && (uses_up() || is_dead())
    }
}

/// Whether pools are what they should be.
pub(super) fn check_pools(request: &Request<'_>) -> Result<(), MemoryPlanError> {
    let (given, tensors) = (request.pool_of.len(), request.graph.len());
    if given < tensors {
        return Err(MemoryPlanError::PoolsMissing { tensors, given });
    }
    match request.pools.iter().position(|pool| !pool.alignment.is_power_of_two()) {
        Some(pool) => Err(MemoryPlanError::Alignment { pool, alignment: request.pools[pool].alignment }),
        None => Ok(()),
    }
}
