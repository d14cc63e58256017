//! The result of planning.

use oxcart_tensor::TensorId;

use super::blocks::{Blocks, NONE};
use super::lifetimes::{Lifetimes, Tenant};
use super::planner::Placed;
use super::replay::Address;
use super::{Pool, Request};

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

impl Spot {
    /// Whether all bytes of another spot are among its own.
    pub(super) fn contains(&self, other: &Spot) -> bool {
        (self.pool, self.chunk) == (other.pool, other.chunk)
            && self.offset <= other.offset
            && other.offset + other.size <= self.offset + self.size
    }
}

/// A spot, and the moments between which it is a tensor's own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resident {
    pub(super) spot: Spot,
    pub(super) birth: u32,
    pub(super) death: u32,
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
    spots: Vec<(TensorId, Spot)>,
    /// Per spot, the moments between which it is the tensor's own.
    lives: Vec<(u32, u32)>,
    /// Per tensor, its place among the spots.
    spot_of: Vec<u32>,
    pub(super) pools: Vec<PoolPlan>,
}

/// How far the blocks reach into each chunk.
pub(super) fn chunk_sizes(blocks: &Blocks, addresses: &[Address], pool: Pool) -> Vec<usize> {
    let mut sizes = Vec::new();
    for (piece, &address) in blocks.first.iter().zip(addresses) {
        let (chunk, offset) = pool.split(address);
        if chunk >= sizes.len() {
            sizes.resize(chunk + 1, 0);
        }
        sizes[chunk] = sizes[chunk].max(offset + piece.size);
    }
    sizes
}

impl MemoryPlan {
    /// Room for as many spots, none of them taken.
    pub(super) fn new(request: &Request<'_>, spots: usize) -> MemoryPlan {
        MemoryPlan {
            spots: Vec::with_capacity(spots),
            lives: Vec::with_capacity(spots),
            spot_of: vec![NONE; request.graph.len()],
            pools: Vec::with_capacity(request.pools.len()),
        }
    }

    /// Adds the tenants of those pools whose placement is made of these blocks.
    pub(super) fn add(&mut self, request: &Request<'_>, lifetimes: &Lifetimes, placed: &[Placed]) {
        for tenant in &lifetimes.tenants {
            let index = usize::from(tenant.pool);
            if placed[index].reuse != lifetimes.reuse {
                continue;
            }
            let (chunk, offset) = request.pools[index].split(placed[index].addresses[tenant.block as usize]);
            let Tenant { id, pool, in_place, birth, death, size, .. } = *tenant;
            self.spot_of[id.index()] = self.spots.len() as u32;
            self.lives.push((birth, death));
            self.spots.push((id, Spot { pool, in_place, chunk: chunk as u32, offset, size }));
        }
    }

    /// Where a tensor lies. `None` for views, for tensors that had storage, and for nodes that need no memory.
    pub fn spot(&self, id: TensorId) -> Option<Spot> {
        let place = *self.spot_of.get(id.index())?;
        self.spots.get(place as usize).map(|&(_, spot)| spot)
    }

    /// All tensors that have a place.
    pub fn spots(&self) -> impl ExactSizeIterator<Item = (TensorId, Spot)> + '_ {
        self.spots.iter().copied()
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

    #[cfg(test)]
    pub(super) fn spot_mut(&mut self, id: TensorId) -> Option<&mut Spot> {
        self.spots.iter_mut().find(|(other, _)| *other == id).map(|(_, spot)| spot)
    }

    /// Where a tensor lies, and when.
    pub(super) fn resident(&self, id: TensorId) -> Option<Resident> {
        let place = *self.spot_of.get(id.index())? as usize;
        let &(_, spot) = self.spots.get(place)?;
        let (birth, death) = self.lives[place];
        Some(Resident { spot, birth, death })
    }
}
