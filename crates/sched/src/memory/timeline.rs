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
    /// Nodes that run one after the other from moment 1 on: all of them, or none.
    plain: &'g [TensorId],
    /// Everything else, with its moment.
    events: Vec<(u32, Action<'g>)>,
    graph: &'g Graph,
    /// The moment after the run.
    pub(super) end: u32,
}

impl<'g> Timeline<'g> {
    pub(super) fn new(request: &Request<'g>) -> Result<Timeline<'g>, PlanError> {
        let graph = request.graph;
        let count = graph.nodes().len();
        // Twice, in case that every node has transfers in front of it.
        if count.saturating_add(request.transfers.len()) > u32::MAX as usize / 2 - 1 {
            return Err(PlanError::Timeline { reason: "there are more nodes than moments" });
        }
        if request.steps.is_none() && request.transfers.is_empty() {
            let end = count as u32 + 1;
            return Ok(Timeline { plain: graph.nodes(), events: Vec::new(), graph, end });
        }
        Timeline::with_steps(request)
    }

    /// Actions with their moments, which never decrease.
    pub(super) fn actions(&self) -> impl Iterator<Item = (u32, Action<'g>)> + '_ {
        let plain = in_order(self.graph, self.plain).map(Action::Run);
        (1..).zip(plain).chain(self.events.iter().copied())
    }

    fn with_steps(request: &Request<'g>) -> Result<Timeline<'g>, PlanError> {
        let graph = request.graph;
        let count = graph.nodes().len();
        if request.steps.is_some_and(|steps| steps.order.len() != count) {
            return Err(PlanError::Timeline { reason: "the steps were made for another graph" });
        }
        let step_of =
            |position: usize| request.steps.map_or(position as u32, |steps| steps.step_of[position]);
        let mut transfers = Vec::with_capacity(request.transfers.len());
        for transfer in request.transfers {
            if transfer.before >= count {
                return Err(PlanError::Timeline {
                    reason: "a transfer is before a node that does not exist",
                });
            }
            transfers.push((step_of(transfer.before), fill(graph, transfer)?));
        }
        transfers.sort_by_key(|&(step, _)| step);
        let mut transfers = transfers.into_iter().peekable();

        let mut events = Vec::with_capacity(count + request.transfers.len());
        let (mut now, mut current) = (0, None);
        let in_steps = |place: usize| request.steps.map_or(place, |steps| steps.order[place] as usize);
        for position in (0..count).map(in_steps) {
            let step = step_of(position);
            if current != Some(step) {
                current = Some(step);
                let before = events.len();
                while let Some((_, action)) = transfers.next_if(|&(at, _)| at == step) {
                    events.push((now + 1, action));
                }
                now += if events.len() > before { 2 } else { 1 };
            }
            events.extend(graph.tensor(graph.nodes()[position]).ok().map(|node| (now, Action::Run(node))));
        }
        Ok(Timeline { plain: &[], events, graph, end: now + 1 })
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
