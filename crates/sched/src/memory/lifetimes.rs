//! From a graph to blocks: how many bytes, in which pool, from when to when.
//!
//! [`Uses`] finds out when each root is used last, and how often at that moment. [`Lifetimes`] then makes a block for
//! every root, or lets a result move into the block of a source that dies under its hands.
//!
//! Invariant: a block has one tenant at a time. A tenant that is smaller than the one before narrows the block, never
//! widens it, and all tenants begin at the block's first byte.

use oxcart_tensor::graph::Flags;
use oxcart_tensor::{TensorId, TensorRef};

use super::Request;
use super::error::PlanError;
use super::timeline::{Action, Timeline, in_order};

/// No block, or no further piece.
pub(super) const NONE: u32 = u32::MAX;

/// The most bytes all blocks of a pool may have together, so that offsets and sums of them cannot overflow.
const MOST_BYTES: usize = usize::MAX / 8;

/// Whether running the graph does anything for this node.
pub(super) fn computes(node: TensorRef<'_>) -> bool {
    node.computes() && node.has(Flags::COMPUTE)
}

/// Whether a tensor must survive the run.
pub(super) fn is_kept(request: &Request<'_>, tensor: TensorRef<'_>) -> bool {
    let flags = tensor.flags();
    flags.contains(Flags::OUTPUT)
        || flags.contains(Flags::PARAM)
        || (request.keep_inputs && flags.contains(Flags::INPUT))
        // What nothing reads is a result, whether or not the caller said so.
        || (flags.contains(Flags::COMPUTE) && request.graph.use_count(tensor.id()) == 0)
}

/// When a root is used last.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    last: u32,
    /// How often at that moment, its own making aside.
    times: u16,
    /// It must survive the run.
    kept: bool,
    /// It is filled by a transfer.
    arrives: bool,
    /// It is a node that computes something, root or not.
    runs: bool,
}

/// Per tensor, its last use. For views only [`Use::runs`] is filled in.
#[derive(Debug, Default)]
pub(super) struct Uses {
    of: Vec<Use>,
    end: u32,
    /// Whether there are parameters, which are leaves that stand among the nodes.
    has_parameters: bool,
}

impl Uses {
    pub(super) fn find(&mut self, request: &Request<'_>, timeline: &Timeline<'_>) {
        let graph = request.graph;
        self.of.clear();
        self.of.resize(graph.len(), Use::default());
        self.end = timeline.end;
        self.has_parameters = false;
        for leaf in in_order(graph, graph.leaves()) {
            self.of[leaf.id().index()].kept = is_kept(request, leaf);
        }
        for (now, action) in timeline.actions() {
            match action {
                Action::Run(node) => self.run(request, node, now),
                Action::Fill { from, to } => {
                    self.touch(from, now);
                    let target = &mut self.of[to.id().index()];
                    (target.arrives, target.last) = (true, now);
                }
            }
        }
    }

    fn run(&mut self, request: &Request<'_>, node: TensorRef<'_>, now: u32) {
        let root = node.root().id();
        if is_kept(request, node) {
            self.of[root.index()].kept = true;
        }
        self.has_parameters |= node.is_leaf();
        if computes(node) {
            self.of[node.id().index()].runs = true;
            for source in node.sources().flatten() {
                self.touch(source, now);
            }
            if root == node.id() {
                self.of[root.index()].last = now;
            } else {
                self.touch(node, now);
            }
        }
    }

    fn touch(&mut self, tensor: TensorRef<'_>, now: u32) {
        let root = &mut self.of[tensor.root().id().index()];
        root.times = if root.last == now { root.times.saturating_add(1) } else { 1 };
        root.last = now;
    }

    fn of(&self, root: TensorRef<'_>) -> Use {
        self.of[root.id().index()]
    }

    fn death(&self, root: TensorRef<'_>) -> u32 {
        let Use { last, kept, .. } = self.of(root);
        if kept { self.end } else { last }
    }
}

/// Bytes that are taken from one moment to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) birth: u32,
    pub(super) death: u32,
    /// A multiple of the pool's alignment.
    pub(super) size: usize,
    /// The piece that follows at the same offset, smaller than this one; [`NONE`] for almost all.
    pub(super) next: u32,
}

/// All that is to be placed in one pool.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// The first piece of each block, in order of birth.
    pub(super) first: Vec<Piece>,
    /// What is left of blocks whose later tenants are smaller.
    pub(super) narrowed: Vec<Piece>,
    /// All first pieces together.
    total: usize,
}

impl Blocks {
    fn clear(&mut self) {
        self.first.clear();
        self.narrowed.clear();
        self.total = 0;
    }

    /// The piece after this one.
    pub(super) fn after(&self, piece: &Piece) -> Option<&Piece> {
        self.narrowed.get(piece.next as usize)
    }

    /// The last piece of a block.
    pub(super) fn last<'a>(&'a self, mut piece: &'a Piece) -> &'a Piece {
        while let Some(next) = self.after(piece) {
            piece = next;
        }
        piece
    }

    /// The largest sum of bytes that are taken at the same moment: no placement can do with less. Fills in the sums.
    pub(super) fn lower_bound(&self, end: u32, live: &mut Vec<usize>) -> usize {
        live.clear();
        live.resize(end as usize + 2, 0);
        for piece in self.first.iter().chain(&self.narrowed) {
            let (birth, death) = (piece.birth as usize, piece.death as usize + 1);
            live[birth] = live[birth].wrapping_add(piece.size);
            live[death] = live[death].wrapping_sub(piece.size);
        }
        let (mut sum, mut most) = (0_usize, 0);
        for live in live {
            sum = sum.wrapping_add(*live);
            *live = sum;
            most = most.max(sum);
        }
        most
    }

    /// Lets blocks that are there from the beginning stay to the end where that does not raise the lower bound. What
    /// lives all the time is easy to place, and not in the way of anything.
    pub(super) fn stretch(&mut self, lower_bound: usize, end: u32, live: &[usize]) {
        let leaves = self.first.iter_mut().take_while(|piece| piece.birth == 0);
        let mut leaves: Vec<_> = leaves.filter(|piece| piece.next == NONE && piece.death < end).collect();
        leaves.sort_by_key(|piece| std::cmp::Reverse(piece.death));
        // The most that is taken after the death of a leaf, those that were stretched before included.
        let (mut most, mut since) = (0, end as usize + 1);
        for leaf in leaves {
            let death = leaf.death as usize + 1;
            most = live[death..since].iter().copied().fold(most, usize::max);
            since = death;
            if most + leaf.size <= lower_bound {
                leaf.death = end;
                most += leaf.size;
            }
        }
    }

    fn add(&mut self, size: usize, birth: u32, death: u32) -> Option<u32> {
        self.total = self.total.checked_add(size).filter(|&total| total <= MOST_BYTES)?;
        self.first.push(Piece { birth, death, size, next: NONE });
        Some(self.first.len() as u32 - 1)
    }

    /// Lets a tenant of `size` bytes that is made at moment `now` stay until `death`.
    fn move_in(&mut self, block: u32, size: usize, now: u32, death: u32) {
        let count = self.narrowed.len() as u32;
        let mut piece = &mut self.first[block as usize];
        while piece.next != NONE {
            let next = piece.next as usize;
            piece = &mut self.narrowed[next];
        }
        if piece.size == size {
            piece.death = death;
        } else if death > now {
            piece.next = count;
            self.narrowed.push(Piece { birth: now + 1, death, size, next: NONE });
        }
    }
}

/// A root that lies in a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tenant {
    pub(super) id: TensorId,
    pub(super) pool: u16,
    /// The source whose memory it took over.
    pub(super) in_place: Option<u8>,
    pub(super) block: u32,
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
        let graph = request.graph;
        self.pools.iter_mut().for_each(Blocks::clear);
        self.pools.resize_with(request.pools.len(), Blocks::default);
        self.tenants.clear();
        self.reuse = reuse;
        self.block_of.clear();
        self.block_of.resize(graph.len(), NONE);
        let mut moving = Moving { request, uses, to: self };
        let parameters = if uses.has_parameters { graph.nodes() } else { &[] };
        let parameters = in_order(graph, parameters).filter(|node| node.is_leaf());
        for leaf in in_order(graph, graph.leaves()).chain(parameters) {
            if !uses.of(leaf).arrives {
                moving.add(leaf, 0)?;
            }
        }
        for (now, action) in timeline.actions() {
            match action {
                Action::Run(node) if uses.of(node).runs => moving.add(node, now)?,
                Action::Run(_) => {}
                Action::Fill { to, .. } => moving.add(to, now)?,
            }
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
    /// Finds room for a tensor that comes to be at `now`, unless it has some already.
    fn add(&mut self, tensor: TensorRef<'_>, now: u32) -> Result<(), PlanError> {
        if tensor.view().is_some() || tensor.storage().is_some() {
            return Ok(());
        }
        let index = tensor.id().index();
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
        self.to.tenants.push(Tenant { id: tensor.id(), pool, in_place, block, size });
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

    /// The first source whose memory the result may take: this node is the last to use it, reads it exactly once, and
    /// sees it with the result's own layout from its first byte on.
    fn dying_source(&self, node: TensorRef<'_>, pool: u16, size: usize, now: u32) -> Option<(u8, u32)> {
        if !node.reuses_source() {
            return None;
        }
        (0..).zip(node.sources()).find_map(|(slot, source)| {
            let source = source?;
            let root = source.root();
            let Use { last, times, kept, .. } = self.uses.of(root);
            let block = self.to.block_of[root.id().index()];
            if kept || last != now || times != 1 || block == NONE {
                return None;
            }
            let starts_there = match source.view() {
                None => true,
                Some(view) => self.to.reuse == Reuse::RootsAndViews && view.offset == 0,
            };
            if !starts_there
                || self.request.pool_of[root.id().index()] != pool
                || source.layout() != node.layout()
            {
                return None;
            }
            let blocks = &self.to.pools[usize::from(pool)];
            let room = blocks.last(&blocks.first[block as usize]).size;
            (size <= room).then_some((slot, block))
        })
    }
}
