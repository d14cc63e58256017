//! What needs memory, and who uses it last.
//!
//! One walk over the graph gathers all that planning needs to know of a tensor, so that the graph, which may be larger
//! than the caches, is read only once. Views count as uses of their root: only roots own memory.

use oxcart_tensor::graph::Flags;
use oxcart_tensor::{TensorId, TensorRef};

use super::Request;
use super::error::PlanError;
use super::timeline::{Action, Timeline, in_order};

/// A root that needs a place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newcomer {
    pub(super) id: TensorId,
    pub(super) pool: u16,
    /// Whether it is made by an op that may write over a source.
    pub(super) reuses_source: bool,
    /// The moment it comes to be.
    pub(super) birth: u32,
    /// Bytes it needs, padding included.
    pub(super) size: usize,
}

/// When a root is used last.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    last: u32,
    /// How often at that moment, its own making aside.
    times: u16,
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
    end: u32,
}

impl Uses {
    pub(super) fn find(&mut self, request: &Request<'_>, timeline: &Timeline<'_>) -> Result<(), PlanError> {
        let graph = request.graph;
        self.newcomers.clear();
        self.of.clear();
        self.of.resize(graph.len(), Use::default());
        self.end = timeline.end;
        for transfer in request.transfers {
            self.of[transfer.from.index()].sent = true;
            self.of[transfer.to.index()].filled = true;
        }
        for leaf in in_order(graph, graph.leaves()) {
            self.of[leaf.id().index()].kept = self.must_survive(request, leaf);
            if !self.of[leaf.id().index()].filled {
                self.add(request, leaf, 0)?;
            }
        }
        let mut has_parameters = false;
        timeline.try_for_each(|now, action| {
            match action {
                Action::Run(parameter) if parameter.is_leaf() => {
                    has_parameters = true;
                    self.of[parameter.id().index()].kept = true;
                    self.add(request, parameter, 0)?;
                }
                Action::Run(node) => self.run(request, node, now)?,
                Action::Fill { from, to } => {
                    self.touch(from, now);
                    self.of[to.id().index()].last = now;
                    self.add(request, to, now)?;
                }
            }
            Ok(())
        })?;
        if has_parameters {
            // They stand among the nodes, but are there from the start.
            self.newcomers.sort_by_key(|newcomer| newcomer.birth);
        }
        Ok(())
    }

    fn run(&mut self, request: &Request<'_>, node: TensorRef<'_>, now: u32) -> Result<(), PlanError> {
        let root = node.root().id();
        if self.must_survive(request, node) {
            self.of[root.index()].kept = true;
        }
        // Views only relabel memory, and nodes that nothing asked for are skipped.
        if !node.has(Flags::COMPUTE) || !node.computes() {
            return Ok(());
        }
        for source in node.sources().flatten() {
            self.touch(source, now);
        }
        if root != node.id() {
            self.touch(node, now);
            return Ok(());
        }
        self.of[root.index()].last = now;
        self.add(request, node, now)
    }

    /// Adds a root that comes to be at `now`, unless it has memory already.
    fn add(&mut self, request: &Request<'_>, root: TensorRef<'_>, now: u32) -> Result<(), PlanError> {
        if root.storage().is_some() {
            return Ok(());
        }
        let id = root.id();
        let pool = request.pool_of[id.index()];
        let size = size(request, root, pool.into())?;
        let reuses_source = root.reuses_source();
        self.newcomers.push(Newcomer { id, pool, reuses_source, birth: now, size });
        Ok(())
    }

    fn must_survive(&self, request: &Request<'_>, tensor: TensorRef<'_>) -> bool {
        let flags = tensor.flags();
        let is_read = || request.graph.use_count(tensor.id()) > 0 || self.of[tensor.id().index()].sent;
        flags.contains(Flags::OUTPUT)
            || (request.keep_inputs && flags.contains(Flags::INPUT))
            // What nothing reads is a result, whether or not the caller said so.
            || (flags.contains(Flags::COMPUTE) && !is_read())
    }

    fn touch(&mut self, tensor: TensorRef<'_>, now: u32) {
        let root = &mut self.of[tensor.root().id().index()];
        root.times = if root.last == now { root.times.saturating_add(1) } else { 1 };
        root.last = now;
    }

    /// Whether a node that reuses sources may write over this one: it is the last to use what the source shows, reads
    /// it exactly once, and sees it from its first byte on with the layout of its own result.
    pub(super) fn may_replace(&self, node: TensorRef<'_>, source: TensorRef<'_>, now: u32) -> bool {
        let Use { last, times, kept, .. } = self.of[source.root().id().index()];
        !kept
            && last == now
            && times == 1
            && source.view().is_none_or(|view| view.offset == 0)
            && source.layout() == node.layout()
    }

    /// The last moment at which the memory of a root is needed.
    pub(super) fn death(&self, root: TensorId) -> u32 {
        let Use { last, kept, .. } = self.of[root.index()];
        if kept { self.end } else { last }
    }
}

/// Bytes a tensor takes in a pool, padding included.
fn size(request: &Request<'_>, tensor: TensorRef<'_>, pool: usize) -> Result<usize, PlanError> {
    let Some(&facts) = request.pools.get(pool) else {
        let count = request.pools.len();
        return Err(PlanError::NoSuchPool { tensor: tensor.label(), pool, count });
    };
    let size = (request.size_of)(tensor, pool);
    let padded = facts.padded(size).filter(|&padded| padded <= facts.max_size);
    padded.ok_or_else(|| PlanError::TooLarge { tensor: tensor.label(), size, pool, max_size: facts.max_size })
}
