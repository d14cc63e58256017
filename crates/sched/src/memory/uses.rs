//! Who uses which memory, and when last.
//!
//! Views count as uses of their root: only roots own memory.

use oxcart_tensor::TensorRef;
use oxcart_tensor::graph::Flags;

use super::Request;
use super::timeline::{Action, Timeline, in_order};

/// Whether running the graph does anything for this node.
fn computes(node: TensorRef<'_>) -> bool {
    node.op().info().computes && node.tensor().has(Flags::COMPUTE)
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
    /// A transfer reads it, root or not.
    leaves: bool,
}

/// Per tensor, its last use. For views only [`Use::runs`] and [`Use::leaves`] are filled in.
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
            self.of[transfer.from.index()].leaves = true;
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
                    (target.arrives, target.last) = (true, now);
                }
            }
        }
    }

    fn run(&mut self, request: &Request<'_>, node: TensorRef<'_>, now: u32) {
        let root = node.root().id();
        if self.must_survive(request, node) {
            self.of[root.index()].kept = true;
        }
        self.has_parameters |= node.tensor().is_leaf();
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

    fn must_survive(&self, request: &Request<'_>, tensor: TensorRef<'_>) -> bool {
        let flags = tensor.tensor().flags();
        // What nothing reads is a result, whether or not the caller said so.
        let is_read = request.graph.use_count(tensor.id()) > 0 || self.of(tensor).leaves;
        flags.contains(Flags::OUTPUT)
            || flags.contains(Flags::PARAM)
            || (request.keep_inputs && flags.contains(Flags::INPUT))
            || (flags.contains(Flags::COMPUTE) && !is_read)
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
        let parameters = in_order(graph, parameters).filter(|node| node.tensor().is_leaf());
        let leaves = in_order(graph, graph.leaves()).chain(parameters);
        let leaves = leaves.filter(|&leaf| !self.of(leaf).arrives).map(|leaf| (0, leaf));
        let later = timeline.actions().filter_map(|(now, action)| match action {
            Action::Run(node) => self.of(node).runs.then_some((now, node)),
            Action::Fill { to, .. } => Some((now, to)),
        });
        leaves
            .chain(later)
            .filter(|(_, tensor)| tensor.tensor().view().is_none() && tensor.storage().is_none())
    }

    /// Whether the node is the last to use what a source shows, reads it exactly once, and sees it from its first byte
    /// on with the layout of its own result.
    pub(super) fn ends_with(&self, node: TensorRef<'_>, source: TensorRef<'_>, now: u32) -> bool {
        let Use { last, times, kept, .. } = self.of(source.root());
        !kept
            && last == now
            && times == 1
            && source.tensor().view().is_none_or(|view| view.offset == 0)
            && source.layout() == node.layout()
    }

    /// The last moment at which the memory of a root is needed.
    pub(super) fn death(&self, root: TensorRef<'_>) -> u32 {
        let Use { last, kept, .. } = self.of(root);
        if kept { self.end } else { last }
    }
}
