//! From a graph to blocks: how many bytes, in which pool, from when to when.
//!
//! Two walks over the [timeline](super::timeline). The first finds out when each root is used last, and how often at
//! that moment; the second makes a block for every root, or lets a result move into the block of a source that dies
//! under its hands.
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
    /// The pieces of a block, from the widest to the narrowest.
    pub(super) fn pieces(&self, block: usize) -> impl Iterator<Item = Piece> + '_ {
        let mut next = Some(self.first[block]);
        std::iter::from_fn(move || {
            let piece = next?;
            next = self.narrowed.get(piece.next as usize).copied();
            Some(piece)
        })
    }

    /// The largest sum of bytes that are taken at the same moment. No plan can do with less.
    pub(super) fn lower_bound(&self, end: u32) -> usize {
        let mut change = vec![(0_usize, 0_usize); end as usize + 2];
        for piece in self.first.iter().chain(&self.narrowed) {
            change[piece.birth as usize].0 += piece.size;
            change[piece.death as usize + 1].1 += piece.size;
        }
        let mut live = 0;
        change.iter().fold(0, |most, (born, died)| {
            live = live + born - died;
            most.max(live)
        })
    }

    fn last_piece(&mut self, block: u32) -> &mut Piece {
        let mut at = self.first[block as usize].next;
        if at == NONE {
            return &mut self.first[block as usize];
        }
        while self.narrowed[at as usize].next != NONE {
            at = self.narrowed[at as usize].next;
        }
        &mut self.narrowed[at as usize]
    }

    /// Lets a tenant of `size` bytes that was made at moment `now` stay until `death`.
    fn move_in(&mut self, block: u32, size: usize, now: u32, death: u32) {
        let narrowed = self.narrowed.len() as u32;
        let piece = self.last_piece(block);
        if piece.size == size {
            piece.death = death;
        } else if death > now {
            piece.next = narrowed;
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

/// What is to be placed, pool by pool.
#[derive(Debug)]
pub(super) struct Lifetimes {
    pub(super) pools: Vec<Blocks>,
    pub(super) tenants: Vec<Tenant>,
    /// The moment after the run.
    pub(super) end: u32,
}

impl Lifetimes {
    pub(super) fn new(request: &Request<'_>, timeline: &Timeline<'_>) -> Result<Lifetimes, PlanError> {
        let uses = Uses::new(request, timeline);
        let graph = request.graph;
        let mut builder = Builder {
            request,
            uses: &uses,
            block_of: vec![NONE; graph.len()],
            lifetimes: Lifetimes {
                pools: request.pools.iter().map(|_| Blocks::default()).collect(),
                tenants: Vec::with_capacity(graph.nodes().len() + graph.leaves().len()),
                end: timeline.end,
            },
        };
        for leaf in in_order(graph, graph.leaves()).chain(uses.parameters.iter().copied()) {
            if !uses.of(leaf).arrives {
                builder.add(leaf, 0)?;
            }
        }
        for &(now, action) in &timeline.events {
            match action {
                Action::Run(node) if computes(node) => builder.add(node, now)?,
                Action::Run(_) => {}
                Action::Fill { to, .. } => builder.add(to, now)?,
            }
        }
        Ok(builder.lifetimes)
    }
}

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
}

/// Per tensor, its last use; only entries of roots are filled.
struct Uses<'g> {
    of: Vec<Use>,
    /// Trainable leaves, which stand among the nodes.
    parameters: Vec<TensorRef<'g>>,
    end: u32,
}

impl<'g> Uses<'g> {
    fn new(request: &Request<'g>, timeline: &Timeline<'g>) -> Uses<'g> {
        let graph = request.graph;
        let mut uses = Uses { of: vec![Use::default(); graph.len()], parameters: vec![], end: timeline.end };
        for leaf in in_order(graph, graph.leaves()) {
            uses.of[leaf.id().index()].kept = is_kept(request, leaf);
        }
        for &(now, action) in &timeline.events {
            match action {
                Action::Run(node) => uses.run(request, node, now),
                Action::Fill { from, to } => {
                    uses.touch(from, now);
                    uses.of[to.id().index()].arrives = true;
                    uses.of[to.id().index()].last = now;
                }
            }
        }
        uses
    }

    fn run(&mut self, request: &Request<'g>, node: TensorRef<'g>, now: u32) {
        if is_kept(request, node) {
            self.of[node.root().id().index()].kept = true;
        }
        if node.is_leaf() {
            self.parameters.push(node);
        } else if computes(node) {
            for source in node.sources().flatten() {
                self.touch(source, now);
            }
            match node.view() {
                Some(_) => self.touch(node, now),
                None => self.of[node.id().index()].last = now,
            }
        }
    }

    fn touch(&mut self, tensor: TensorRef<'g>, now: u32) {
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

/// Makes blocks and finds them tenants.
struct Builder<'a, 'g> {
    request: &'a Request<'g>,
    uses: &'a Uses<'g>,
    /// Per tensor, its block.
    block_of: Vec<u32>,
    lifetimes: Lifetimes,
}

impl Builder<'_, '_> {
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
        let blocks = &mut self.lifetimes.pools[usize::from(pool)];
        let block = match in_place {
            Some((_, block)) => {
                blocks.move_in(block, size, now, death);
                block
            }
            None => {
                blocks.total = blocks
                    .total
                    .checked_add(size)
                    .filter(|&total| total <= MOST_BYTES)
                    .ok_or_else(|| PlanError::Overflow { tensor: tensor.label(), pool: pool.into() })?;
                blocks.first.push(Piece { birth: now, death, size, next: NONE });
                blocks.first.len() as u32 - 1
            }
        };
        self.block_of[index] = block;
        let in_place = in_place.map(|(slot, _)| slot);
        self.lifetimes.tenants.push(Tenant { id: tensor.id(), pool, in_place, block, size });
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
        match size.checked_next_multiple_of(facts.alignment) {
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
            let block = self.block_of[root.id().index()];
            if kept || last != now || times != 1 || block == NONE {
                return None;
            }
            let starts_there = source.view().is_none_or(|view| view.offset == 0);
            let same = starts_there
                && self.request.pool_of[root.id().index()] == pool
                && source.layout() == node.layout();
            if !same {
                return None;
            }
            let room = self.lifetimes.pools[usize::from(pool)].pieces(block as usize).last()?.size;
            (size <= room).then_some((slot, block))
        })
    }
}
