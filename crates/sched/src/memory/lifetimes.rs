//! From a graph to blocks.
//!
//! Every root gets a block, or moves into the block of a source that dies under its hands.
//!
//! Invariant: a block has one tenant at a time. A tenant that is smaller than the one before narrows the block, never
//! widens it.

use oxcart_tensor::{TensorId, TensorRef};

use super::Request;
use super::blocks::{Blocks, NONE};
use super::error::PlanError;
use super::timeline::Timeline;
use super::uses::Uses;

/// A root that lies in a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tenant {
    pub(super) id: TensorId,
    pub(super) pool: u16,
    /// The source whose memory it took over.
    pub(super) in_place: Option<u8>,
    pub(super) block: u32,
    pub(super) birth: u32,
    pub(super) death: u32,
    /// Bytes it needs, padding included.
    pub(super) size: usize,
}

/// Which dying sources a result may replace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reuse {
    /// Those that own their memory.
    #[default]
    Roots,
    /// Also what shows the beginning of another tensor's memory.
    RootsAndViews,
}

/// What is to be placed, pool by pool.
#[derive(Debug, Default)]
pub(super) struct Lifetimes {
    pub(super) pools: Vec<Blocks>,
    pub(super) tenants: Vec<Tenant>,
    pub(super) reuse: Reuse,
    /// Per tensor, its block.
    block_of: Vec<u32>,
}

impl Lifetimes {
    pub(super) fn find(
        &mut self,
        request: &Request<'_>,
        timeline: &Timeline<'_>,
        uses: &Uses,
        reuse: Reuse,
    ) -> Result<(), PlanError> {
        self.pools.iter_mut().for_each(Blocks::clear);
        self.pools.resize_with(request.pools.len(), Blocks::default);
        self.tenants.clear();
        self.reuse = reuse;
        self.block_of.clear();
        self.block_of.resize(request.graph.len(), NONE);
        let mut moving = Moving { request, uses, to: self };
        for (now, tensor) in uses.newcomers(request, timeline) {
            moving.add(tensor, now)?;
        }
        Ok(())
    }
}

/// Finds room for tensors, one after the other.
struct Moving<'a, 'g> {
    request: &'a Request<'g>,
    uses: &'a Uses,
    to: &'a mut Lifetimes,
}

impl Moving<'_, '_> {
    /// Finds room for a tensor that comes to be at `now`, unless it was there before.
    fn add(&mut self, tensor: TensorRef<'_>, now: u32) -> Result<(), PlanError> {
        let index = tensor.id().index();
        if self.to.block_of[index] != NONE {
            return Ok(());
        }
        let pool = self.request.pool_of[index];
        let size = self.size(tensor, pool)?;
        let death = self.uses.death(tensor).max(now);
        let in_place = self.dying_source(tensor, pool, size, now);
        let blocks = &mut self.to.pools[usize::from(pool)];
        let block = match in_place {
            Some((_, block)) => {
                blocks.move_in(block, size, now, death);
                block
            }
            None => blocks
                .add(size, now, death)
                .ok_or_else(|| PlanError::Overflow { tensor: tensor.label(), pool: pool.into() })?,
        };
        self.to.block_of[index] = block;
        let in_place = in_place.map(|(slot, _)| slot);
        self.to.tenants.push(Tenant { id: tensor.id(), pool, in_place, block, birth: now, death, size });
        Ok(())
    }

    /// Bytes a tensor takes, padding included.
    fn size(&self, tensor: TensorRef<'_>, pool: u16) -> Result<usize, PlanError> {
        let index = usize::from(pool);
        let Some(&facts) = self.request.pools.get(index) else {
            let count = self.request.pools.len();
            return Err(PlanError::NoSuchPool { tensor: tensor.label(), pool: index, count });
        };
        let size = (self.request.size_of)(tensor, index);
        match facts.padded(size) {
            Some(padded) if padded <= facts.max_size => Ok(padded),
            _ => Err(PlanError::TooLarge {
                tensor: tensor.label(),
                size,
                pool: index,
                max_size: facts.max_size,
            }),
        }
    }

    /// The first source whose memory the result may take, and its block.
    fn dying_source(&self, node: TensorRef<'_>, pool: u16, size: usize, now: u32) -> Option<(u8, u32)> {
        if !self.uses.reuses_source(node) {
            return None;
        }
        (0..).zip(node.sources()).find_map(|(slot, source)| {
            let source = source?;
            let root = source.root().id().index();
            let block = self.to.block_of[root];
            let through_view = source.view().is_some();
            if block == NONE
                || !self.uses.may_replace(node, source, now)
                || (through_view && self.to.reuse == Reuse::Roots)
                || self.request.pool_of[root] != pool
            {
                return None;
            }
            let blocks = &self.to.pools[usize::from(pool)];
            let room = blocks.last(&blocks.first[block as usize]).size;
            (size <= room).then_some((slot, block))
        })
    }
}
