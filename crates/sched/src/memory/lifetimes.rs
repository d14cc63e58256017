//! From a graph to blocks.
//!
//! Every root gets a block, or moves into the block of a source that dies under its hands.
//!
//! Invariant: a block has one tenant at a time. A tenant that is smaller than the one before narrows the block, never
//! widens it.

use oxcart_tensor::TensorId;

use super::Request;
use super::blocks::{Blocks, NONE};
use super::error::MemoryPlanError;
use super::uses::{Newcomer, Uses};
use crate::program::Program;

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
        program: &Program,
        uses: &Uses,
        reuse: Reuse,
    ) -> Result<(), MemoryPlanError> {
        self.pools.iter_mut().for_each(Blocks::clear);
        self.pools.resize_with(request.pools.len(), Blocks::default);
        self.tenants.clear();
        self.tenants.reserve(uses.newcomers.len());
        self.reuse = reuse;
        self.block_of.clear();
        self.block_of.resize(request.graph.len(), NONE);
        let mut moving = Moving { request, program, uses, to: self };
        uses.newcomers.iter().try_for_each(|newcomer| moving.add(newcomer))
    }
}

/// Finds room for tensors, one after the other.
struct Moving<'a, 'g> {
    request: &'a Request<'g>,
    program: &'a Program,
    uses: &'a Uses,
    to: &'a mut Lifetimes,
}

impl Moving<'_, '_> {
    /// Finds room for a tensor, unless it was there before.
    fn add(&mut self, newcomer: &Newcomer) -> Result<(), MemoryPlanError> {
        let Newcomer { id, pool, birth, size, .. } = *newcomer;
        if self.to.block_of[id.index()] != NONE {
            return Ok(());
        }
        let death = self.uses.death(id).max(birth);
        let in_place = self.dying_source(newcomer);
        let blocks = &mut self.to.pools[usize::from(pool)];
        let block = match in_place {
            Some((_, block)) => {
                blocks.move_in(block, size, birth, death);
                block
            }
            None => blocks.add(size, birth, death).ok_or_else(|| {
                let tensor = self.request.graph.label(id);
                MemoryPlanError::Overflow { tensor, pool: pool.into() }
            })?,
        };
        self.to.block_of[id.index()] = block;
        let in_place = in_place.map(|(slot, _)| slot);
        self.to.tenants.push(Tenant { id, pool, in_place, block, birth, death, size });
        Ok(())
    }

    /// The first source whose memory the result may take, and its block.
    fn dying_source(&self, newcomer: &Newcomer) -> Option<(u8, u32)> {
        if newcomer.maker == NONE {
            return None;
        }
        self.program.reads(newcomer.maker as usize).iter().find_map(|read| {
            if !self.uses.may_replace(read, newcomer.birth)
                || (read.is_view() && self.to.reuse == Reuse::Roots)
            {
                return None;
            }
            let root = read.root.index();
            let block = self.to.block_of[root];
            if block == NONE || self.request.pool_of[root] != newcomer.pool {
                return None;
            }
            let blocks = &self.to.pools[usize::from(newcomer.pool)];
            let room = blocks.last(&blocks.first[block as usize]).size;
            (newcomer.size <= room).then_some((read.slot, block))
        })
    }
}
