//! When things happen while a graph runs.
//!
//! Time is counted in moments. Moment 0 is before the run; then each step has a moment, and so have the transfers in
//! front of a step where there are any; [`Timeline::end`] is after the run. What happens at the same moment may happen
//! in any order, so memory that dies at a moment can be reused from the next one on.

use oxcart_tensor::{Graph, TensorId, TensorRef};

use super::Request;
use super::error::PlanError;

/// A copy that fills a leaf in the course of the run, just before a node: how a result of one device gets to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// What is read.
    pub from: TensorId,
    /// The leaf that is written; it needs no memory before.
    pub to: TensorId,
    /// Position of the node in front of whose step this happens.
    pub before: usize,
}

/// Groups of nodes, each group free to run at the same time.
///
/// Memory that dies in a group is not reused before the next one, except by the very node that reads it last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Positions of nodes, group after group.
    order: Vec<u32>,
    /// Per node, its group.
    step_of: Vec<u32>,
}

impl Steps {
    /// Groups given by positions in [`Graph::nodes`]. Every node stands in exactly one group, and not in an earlier
    /// one than the nodes it reads.
    pub fn new<G>(graph: &Graph, groups: impl IntoIterator<Item = G>) -> Result<Steps, PlanError>
    where
        G: IntoIterator<Item = usize>,
    {
        const UNSET: u32 = u32::MAX;
        let nodes = graph.nodes();
        let mut steps = Steps { order: Vec::with_capacity(nodes.len()), step_of: vec![UNSET; nodes.len()] };
        for (step, group) in groups.into_iter().enumerate() {
            for position in group {
                let refuse = |reason| PlanError::Step { step, position, reason };
                let place = steps.step_of.get_mut(position).ok_or(refuse("is past the last one"))?;
                if *place != UNSET {
                    return Err(refuse("is in a step already"));
                }
                *place = step as u32;
                steps.order.push(position as u32);
            }
        }
        steps.check_sources(graph)?;
        Ok(steps)
    }

    fn check_sources(&self, graph: &Graph) -> Result<(), PlanError> {
        // By tensor: the step after which it can be read.
        let mut ready = vec![0; graph.len()];
        for (&id, &step) in graph.nodes().iter().zip(&self.step_of) {
            ready[id.index()] = step;
        }
        for (position, node) in in_order(graph, graph.nodes()).enumerate() {
            let step = self.step_of[position];
            let refuse = |reason| PlanError::Step { step: step as usize, position, reason };
            if step == u32::MAX {
                return Err(PlanError::Timeline { reason: "a node is in no step" });
            }
            if node.sources().flatten().any(|source| ready[source.id().index()] > step) {
                return Err(refuse("reads the result of a later step"));
            }
        }
        Ok(())
    }
}

/// Something that reads or writes memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action<'g> {
    /// A node runs.
    Run(TensorRef<'g>),
    /// A leaf is filled.
    Fill { from: TensorRef<'g>, to: TensorRef<'g> },
}

/// Everything that happens, in order.
#[derive(Debug)]
pub(super) struct Timeline<'g> {
    graph: &'g Graph,
    actions: Actions<'g>,
    /// The moment after the run.
    pub(super) end: u32,
}

#[derive(Debug)]
enum Actions<'g> {
    /// One node after the other; leaves are filled in front of the nodes at the given positions, which ascend.
    InOrder(Vec<(usize, Action<'g>)>),
    /// With their moments.
    Listed(Vec<(u32, Action<'g>)>),
}

impl<'g> Timeline<'g> {
    pub(super) fn new(request: &Request<'g>) -> Result<Timeline<'g>, PlanError> {
        let graph = request.graph;
        let count = graph.nodes().len();
        // Twice, in case that every node has transfers in front of it.
        if count.saturating_add(request.transfers.len()) > u32::MAX as usize / 2 - 1 {
            return Err(PlanError::Timeline { reason: "there are more nodes than moments" });
        }
        let mut fills = Vec::with_capacity(request.transfers.len());
        for transfer in request.transfers {
            if transfer.before >= count {
                return Err(PlanError::Timeline {
                    reason: "a transfer is before a node that does not exist",
                });
            }
            fills.push((transfer.before, fill(graph, transfer)?));
        }
        if let Some(steps) = request.steps {
            return Timeline::with_steps(graph, steps, fills);
        }
        fills.sort_by_key(|&(before, _)| before);
        let filled_before = fills.chunk_by(|a, b| a.0 == b.0).count();
        let end = (count + filled_before) as u32 + 1;
        Ok(Timeline { graph, actions: Actions::InOrder(fills), end })
    }

    /// Calls `act` with all actions and their moments, which never decrease.
    pub(super) fn try_for_each<E>(
        &self,
        mut act: impl FnMut(u32, Action<'g>) -> Result<(), E>,
    ) -> Result<(), E> {
        let fills = match &self.actions {
            Actions::Listed(actions) => {
                return actions.iter().try_for_each(|&(now, action)| act(now, action));
            }
            Actions::InOrder(fills) => fills,
        };
        let (mut now, mut next_fill) = (0, 0);
        for (position, node) in in_order(self.graph, self.graph.nodes()).enumerate() {
            now += 1;
            let first = next_fill;
            while let Some(&(_, action)) = fills.get(next_fill).filter(|fill| fill.0 == position) {
                act(now, action)?;
                next_fill += 1;
            }
            now += u32::from(next_fill > first);
            act(now, Action::Run(node))?;
        }
        Ok(())
    }

    fn with_steps(
        graph: &'g Graph,
        steps: &Steps,
        fills: Vec<(usize, Action<'g>)>,
    ) -> Result<Timeline<'g>, PlanError> {
        let count = graph.nodes().len();
        if steps.order.len() != count {
            return Err(PlanError::Timeline { reason: "the steps were made for another graph" });
        }
        let mut actions = Vec::with_capacity(count + fills.len());
        let mut fills: Vec<_> =
            fills.into_iter().map(|(before, action)| (steps.step_of[before], action)).collect();
        fills.sort_by_key(|&(step, _)| step);
        let mut fills = fills.into_iter().peekable();
        let (mut now, mut current) = (0, None);
        for position in steps.order.iter().map(|&position| position as usize) {
            let step = steps.step_of[position];
            if current != Some(step) {
                current = Some(step);
                let before = actions.len();
                while let Some((_, action)) = fills.next_if(|&(at, _)| at == step) {
                    actions.push((now + 1, action));
                }
                now += if actions.len() > before { 2 } else { 1 };
            }
            actions.extend(graph.tensor(graph.nodes()[position]).ok().map(|node| (now, Action::Run(node))));
        }
        Ok(Timeline { graph, actions: Actions::Listed(actions), end: now + 1 })
    }
}

fn fill<'g>(graph: &'g Graph, transfer: &Transfer) -> Result<Action<'g>, PlanError> {
    let unknown = |_| PlanError::Timeline { reason: "a transfer names a tensor of another graph" };
    let from = graph.tensor(transfer.from).map_err(unknown)?;
    let to = graph.tensor(transfer.to).map_err(unknown)?;
    if !to.is_leaf() {
        return Err(PlanError::Timeline { reason: "a transfer writes a tensor that is not a leaf" });
    }
    Ok(Action::Fill { from, to })
}

/// The tensors with these ids, which are the graph's own.
pub(super) fn in_order<'g>(graph: &'g Graph, ids: &'g [TensorId]) -> impl Iterator<Item = TensorRef<'g>> {
    ids.iter().filter_map(|&id| graph.tensor(id).ok())
}
