//! Who uses which memory, and when last.
//!
//! Views count as uses of their root: only roots own memory.

use oxcart_tensor::TensorRef;
use oxcart_tensor::graph::Flags;

use super::Request;
use super::timeline::{Action, Timeline, in_order};

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
    /// It is a node that computes something, root or not.
    runs: bool,
    /// It is a node whose op may write over a source.
    reuses_source: bool,
}

/// Per tensor, its last use. Views have only what is about them alone.
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
        for transfer in request.transfers {
            self.of[transfer.from.index()].sent = true;
        }
        for leaf in in_order(graph, graph.leaves()) {
            self.of[leaf.id().index()].kept = self.must_survive(request, leaf);
        }
        for (now, action) in timeline.actions() {
            match action {
                Action::Run(node) => self.run(request, node, now),
                Action::Fill { from, to } => {
                    self.touch(from, now);
                    let target = &mut self.of[to.id().index()];
                    (target.filled, target.last) = (true, now);
                }
            }
        }
    }

    fn run(&mut self, request: &Request<'_>, node: TensorRef<'_>, now: u32) {
        let root = node.root().id();
        if self.must_survive(request, node) {
            self.of[root.index()].kept = true;
        }
        self.has_parameters |= node.is_leaf();
        // Views only relabel memory, and nodes that nothing asked for are skipped.
        if !node.computes() || !node.has(Flags::COMPUTE) {
            return;
        }
        for source in node.sources().flatten() {
            self.touch(source, now);
        }
        let own = &mut self.of[node.id().index()];
        (own.runs, own.reuses_source) = (true, node.reuses_source());
        if root == node.id() {
            own.last = now;
        } else {
            self.touch(node, now);
        }
    }

    fn must_survive(&self, request: &Request<'_>, tensor: TensorRef<'_>) -> bool {
        let flags = tensor.flags();
        let is_read = || request.graph.use_count(tensor.id()) > 0 || self.of(tensor).sent;
        flags.contains(Flags::OUTPUT)
            || flags.contains(Flags::PARAM)
            || (request.keep_inputs && flags.contains(Flags::INPUT))
            // What nothing reads is a result, whether or not the caller said so.
            || (flags.contains(Flags::COMPUTE) && !is_read())
    }

    fn touch(&mut self, tensor: TensorRef<'_>, now: u32) {
        let root = &mut self.of[tensor.root().id().index()];
        root.times = if root.last == now { root.times.saturating_add(1) } else { 1 };
        root.last = now;
    }

    fn of(&self, tensor: TensorRef<'_>) -> Use {
        self.of[tensor.id().index()]
    }

    /// Everything that needs a place, with the moment it comes to be, in order of that.
    pub(super) fn newcomers<'g>(
        &self,
        request: &Request<'g>,
        timeline: &Timeline<'g>,
    ) -> impl Iterator<Item = (u32, TensorRef<'g>)> {
        let graph = request.graph;
        let parameters = if self.has_parameters { graph.nodes() } else { &[] };
        let parameters = in_order(graph, parameters).filter(|node| node.is_leaf());
        let leaves = in_order(graph, graph.leaves()).chain(parameters);
        let leaves = leaves.filter(|&leaf| !self.of(leaf).filled).map(|leaf| (0, leaf));
        let later = timeline.actions().filter_map(|(now, action)| match action {
            Action::Run(node) => self.of(node).runs.then_some((now, node)),
            Action::Fill { to, .. } => Some((now, to)),
        });
        leaves.chain(later).filter(|(_, tensor)| tensor.view().is_none() && tensor.storage().is_none())
    }

    /// Whether a node's op may write over a source.
    pub(super) fn reuses_source(&self, node: TensorRef<'_>) -> bool {
        self.of(node).reuses_source
    }

    /// Whether a node that reuses sources may write over this one: it is the last to use what the source shows, reads
    /// it exactly once, and sees it from its first byte on with the layout of its own result.
    pub(super) fn may_replace(&self, node: TensorRef<'_>, source: TensorRef<'_>, now: u32) -> bool {
        let Use { last, times, kept, .. } = self.of(source.root());
        !kept
            && last == now
            && times == 1
            && source.view().is_none_or(|view| view.offset == 0)
            && source.layout() == node.layout()
    }

    /// The last moment at which the memory of a root is needed.
    pub(super) fn death(&self, root: TensorRef<'_>) -> u32 {
        let Use { last, kept, .. } = self.of(root);
        if kept { self.end } else { last }
    }
}
