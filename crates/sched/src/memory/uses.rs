//! What needs memory, and which node uses it last.
//!
//! One walk over what runs gathers all that planning needs to know of a tensor. Views count as uses of their root: only
//! roots own memory.

use oxcart_tensor::TensorId;
use oxcart_tensor::graph::Flags;

use super::blocks::NONE;
use super::error::MemoryPlanError;
use super::timeline::{Action, Timeline};
use super::{Pool, Request};
use crate::program::{Leaf, Program, Read, Running, Unread};

/// A root that needs a place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newcomer {
    pub(super) id: TensorId,
    pub(super) pool: u16,
    /// The moment it comes to be.
    pub(super) birth: u32,
    /// Which of the nodes that run makes it; [`NONE`] for leaves.
    pub(super) maker: u32,
    /// Bytes it needs, padding included.
    pub(super) size: usize,
}

/// When a root is used last.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    last: u32,
    /// How often at that moment, its own making aside.
    times: u8,
    /// It must survive the run.
    kept: bool,
    /// A transfer writes it.
    filled: bool,
    /// A transfer reads it, root or not.
    sent: bool,
}

/// All uses of all memory.
#[derive(Debug, Default)]
pub(super) struct Uses {
    /// What needs a place, in order of birth.
    pub(super) newcomers: Vec<Newcomer>,
    /// Per tensor, its last use. Views have only what is about them alone.
    of: Vec<Use>,
    /// The moment after the run.
    pub(super) end: u32,
}

impl Uses {
    pub(super) fn find(
        &mut self,
        request: &Request<'_>,
        timeline: &Timeline<'_>,
        program: &Program,
    ) -> Result<(), MemoryPlanError> {
        self.newcomers.clear();
        self.newcomers.reserve(program.running().len());
        self.of.clear();
        self.of.resize(request.graph.len(), Use::default());
        for transfer in request.transfers {
            self.of[transfer.from.index()].sent = true;
            self.of[transfer.to.index()].filled = true;
        }
        self.find_kept(program);
        for &Leaf { id, flags, .. } in program.unplaced_leaves() {
            let is_kept_input = request.keep_inputs && flags.contains(Flags::INPUT);
            self.of[id.index()].kept |= is_kept_input || flags.contains(Flags::OUTPUT);
            if !self.of[id.index()].filled {
                self.add(request, id, 0, NONE)?;
            }
        }
        for parameter in &program.parameters {
            self.of[parameter.id.index()].kept = true;
            if parameter.buffer().is_none() {
                self.add(request, parameter.id, 0, NONE)?;
            }
        }
        let nodes = (0..)
            .zip(program.iter())
            .map(|(index, (node, reads))| (node.position as usize, (index, node, reads)));
        self.end = timeline.walk(nodes, |now, action| match action {
            Action::Run((index, node, reads)) => self.run(request, index, node, reads, now),
            Action::Fill { from, to } => {
                self.touch(from.root().id(), now);
                self.of[to.id().index()].last = now;
                if to.buffer().is_some() { Ok(()) } else { self.add(request, to.id(), now, NONE) }
            }
        })?;
        Ok(())
    }

    /// Outputs survive. What nothing reads is one, whether or not the caller said so.
    fn find_kept(&mut self, program: &Program) {
        for root in &program.outputs {
            self.of[root.index()].kept = true;
        }
        for &Unread { id, root } in &program.unread {
            if !self.of[id.index()].sent {
                self.of[root.index()].kept = true;
            }
        }
    }

    /// Called for every node, from one place.
    #[inline(always)]
    fn run(
        &mut self,
        request: &Request<'_>,
        index: u32,
        node: &Running,
        reads: &[Read],
        now: u32,
    ) -> Result<(), MemoryPlanError> {
        for read in reads {
            self.touch(read.root, now);
        }
        if node.is_view() {
            self.touch(node.root, now);
            return Ok(());
        }
        self.of[node.id.index()].last = now;
        if node.buffer().is_some() { Ok(()) } else { self.add(request, node.id, now, index) }
    }

    /// Adds a root without memory that comes to be at `now`.
    #[inline]
    fn add(
        &mut self,
        request: &Request<'_>,
        id: TensorId,
        now: u32,
        maker: u32,
    ) -> Result<(), MemoryPlanError> {
        let pool = request.pool_of[id.index()];
        let Some(size) = size(request, id, pool) else { return Err(refusal(request, id, pool)) };
        self.newcomers.push(Newcomer { id, pool, birth: now, maker, size });
        Ok(())
    }

    fn touch(&mut self, root: TensorId, now: u32) {
        let root = &mut self.of[root.index()];
        root.times = if root.last == now { root.times.saturating_add(1) } else { 1 };
        root.last = now;
    }

    /// Whether the node that reads this at `now` may write over it: it could, is the last to use what the source shows,
    /// and reads it exactly once.
    pub(super) fn may_replace(&self, read: &Read, now: u32) -> bool {
        if !read.is_replaceable {
            return false;
        }
        let Use { last, times, kept, .. } = self.of[read.root.index()];
        !kept && last == now && times == 1
    }

    /// The last moment at which the memory of a root is needed.
    pub(super) fn death(&self, root: TensorId) -> u32 {
        let Use { last, kept, .. } = self.of[root.index()];
        if kept { self.end } else { last }
    }
}

/// Bytes a tensor takes in a pool, padding included; `None` when it cannot lie there.
#[inline]
fn size(request: &Request<'_>, id: TensorId, pool: u16) -> Option<usize> {
    let facts = request.pools.get(usize::from(pool))?;
    let padded = facts.padded((request.size_of)(request.graph.tensor(id).ok()?, pool.into()))?;
    (padded <= facts.max_size).then_some(padded)
}

/// Why a tensor cannot lie in a pool.
#[cold]
fn refusal(request: &Request<'_>, id: TensorId, pool: u16) -> MemoryPlanError {
    let (tensor, pool) = (request.graph.label(id), usize::from(pool));
    let Some(&Pool { max_size, .. }) = request.pools.get(pool) else {
        return MemoryPlanError::NoSuchPool { tensor, pool, count: request.pools.len() };
    };
    let size = request.graph.tensor(id).map_or(0, |tensor| (request.size_of)(tensor, pool));
    MemoryPlanError::TooLarge { tensor, size, pool, max_size }
}
