//! When things happen while a graph runs.
//!
//! Time is counted in moments. Moment 0 is before the run; then each step has a moment, and so have the transfers in
//! front of a step where there are any; the last moment is after the run. Steps in which nothing runs have none. What
//! happens at the same moment may happen in any order, so memory that dies at a moment can be reused from the next one
//! on.

use oxcart_tensor::{Graph, TensorId, TensorRef};

use super::Request;
use super::error::MemoryPlanError;

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
    pub fn new<G>(graph: &Graph, groups: impl IntoIterator<Item = G>) -> Result<Steps, MemoryPlanError>
    where
        G: IntoIterator<Item = usize>,
    {
        const UNSET: u32 = u32::MAX;
        let nodes = graph.nodes();
        let mut steps = Steps { order: Vec::with_capacity(nodes.len()), step_of: vec![UNSET; nodes.len()] };
        for (step, group) in groups.into_iter().enumerate() {
            for position in group {
                let refuse = |reason| MemoryPlanError::Step { step, position, reason };
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

    fn check_sources(&self, graph: &Graph) -> Result<(), MemoryPlanError> {
        // By tensor: the step after which it can be read.
        let mut ready = vec![0; graph.len()];
        for (&id, &step) in graph.nodes().iter().zip(&self.step_of) {
            ready[id.index()] = step;
        }
        for (position, node) in in_order(graph, graph.nodes()).enumerate() {
            let step = self.step_of[position];
            let refuse = |reason| MemoryPlanError::Step { step: step as usize, position, reason };
            if step == u32::MAX {
                return Err(MemoryPlanError::Timeline { reason: "a node is in no step" });
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
pub(super) enum Action<'g, N> {
    /// A node runs.
    Run(N),
    /// A leaf is filled.
    Fill { from: TensorRef<'g>, to: TensorRef<'g> },
}

/// A leaf that is filled in front of a step.
#[derive(Clone, Copy, Debug)]
struct Fill<'g> {
    step: u32,
    from: TensorRef<'g>,
    to: TensorRef<'g>,
}

/// What happens when.
#[derive(Debug)]
pub(super) struct Timeline<'g> {
    steps: Option<&'g Steps>,
    /// Number of nodes.
    count: usize,
    /// In order of steps.
    fills: Vec<Fill<'g>>,
}

impl<'g> Timeline<'g> {
    pub(super) fn new(request: &Request<'g>) -> Result<Timeline<'g>, MemoryPlanError> {
        let count = request.graph.nodes().len();
        // Twice, in case that every node has transfers in front of it.
        if count.saturating_add(request.transfers.len()) > u32::MAX as usize / 2 - 1 {
            return Err(MemoryPlanError::Timeline { reason: "there are more nodes than moments" });
        }
        if request.steps.is_some_and(|steps| steps.order.len() != count) {
            return Err(MemoryPlanError::Timeline { reason: "the steps were made for another graph" });
        }
        let mut timeline = Timeline { steps: request.steps, count, fills: Vec::new() };
        for transfer in request.transfers {
            let fill = timeline.fill(request.graph, transfer)?;
            timeline.fills.push(fill);
        }
        timeline.fills.sort_by_key(|fill| fill.step);
        Ok(timeline)
    }

    fn fill(&self, graph: &'g Graph, transfer: &Transfer) -> Result<Fill<'g>, MemoryPlanError> {
        if transfer.before >= self.count {
            return Err(MemoryPlanError::Timeline {
                reason: "a transfer is before a node that does not exist",
            });
        }
        let unknown = |_| MemoryPlanError::Timeline { reason: "a transfer names a tensor of another graph" };
        let from = graph.tensor(transfer.from).map_err(unknown)?;
        let to = graph.tensor(transfer.to).map_err(unknown)?;
        if !to.is_leaf() {
            return Err(MemoryPlanError::Timeline {
                reason: "a transfer writes a tensor that is not a leaf",
            });
        }
        Ok(Fill { step: self.step_of(transfer.before), from, to })
    }

    fn step_of(&self, position: usize) -> u32 {
        // The number of nodes was checked to fit.
        self.steps.map_or(position as u32, |steps| steps.step_of[position])
    }

    /// Positions of all nodes, in the order in which they run.
    pub(super) fn positions(&self) -> impl Iterator<Item = usize> + use<'g> {
        let steps = self.steps;
        (0..self.count).map(move |nth| steps.map_or(nth, |steps| steps.order[nth] as usize))
    }

    /// Walks all transfers and these nodes, which are at some of the [positions](Timeline::positions), calling `act`
    /// with their moments, which never decrease. Returns the moment after the run.
    pub(super) fn walk<N, E>(
        &self,
        nodes: impl Iterator<Item = (usize, N)>,
        mut act: impl FnMut(u32, Action<'g, N>) -> Result<(), E>,
    ) -> Result<u32, E> {
        let mut fills = self.fills.iter();
        let mut next_fill = fills.next();
        let (mut now, mut current) = (0, None);
        for (position, node) in nodes {
            let step = self.step_of(position);
            if current != Some(step) {
                current = Some(step);
                now += 1;
                now += u32::from(next_fill.is_some_and(|fill| fill.step <= step));
                while let Some(&Fill { from, to, .. }) = next_fill.filter(|fill| fill.step <= step) {
                    act(now - 1, Action::Fill { from, to })?;
                    next_fill = fills.next();
                }
            }
            act(now, Action::Run(node))?;
        }
        // What is left is in front of steps that were not walked.
        now += u32::from(next_fill.is_some());
        for &Fill { from, to, .. } in next_fill.into_iter().chain(fills) {
            act(now, Action::Fill { from, to })?;
        }
        Ok(now + 1)
    }
}

/// The tensors with these ids, which are the graph's own.
pub(super) fn in_order<'g>(graph: &'g Graph, ids: &'g [TensorId]) -> impl Iterator<Item = TensorRef<'g>> {
    ids.iter().filter_map(|&id| graph.tensor(id).ok())
}
