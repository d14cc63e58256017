//! The graphs that a client may have computed again: the last one of each device.
//!
//! Concurrency: the connection's thread stores and takes them, and has the one that runs; any thread may make those go that
//! wait for their next time, when others need their memory. Invariant: a graph is gone once a buffer of it is.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::sliced_graph::SlicedGraph;

/// A client's graphs, by device.
#[derive(Debug, Default)]
pub(crate) struct StoredGraphs(Mutex<Vec<Option<SlicedGraph>>>);

impl StoredGraphs {
    fn graphs(&self) -> MutexGuard<'_, Vec<Option<SlicedGraph>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the graph of a device, in the place of the one before.
    pub(crate) fn put(&self, device: usize, graph: SlicedGraph) {
        let mut graphs = self.graphs();
        if graphs.len() <= device {
            graphs.resize_with(device + 1, || None);
        }
        if let Some(stored) = graphs.get_mut(device) {
            *stored = Some(graph);
        }
    }

    /// Takes the graph of a device, to compute it or to forget it.
    pub(crate) fn take(&self, device: usize) -> Option<SlicedGraph> {
        self.graphs().get_mut(device).and_then(Option::take)
    }

    /// Forgets graphs that use a buffer.
    pub(crate) fn forget(&self, handle: u64) {
        for stored in self.graphs().iter_mut() {
            stored.take_if(|graph| graph.uses(handle));
        }
    }

    /// Forgets all; says whether there were any.
    pub(crate) fn clear(&self) -> bool {
        std::mem::take(&mut *self.graphs()).iter().any(Option::is_some)
    }

    /// Gives up the plans of one that has some; says whether there was one.
    pub(crate) fn give_up_plans(&self) -> bool {
        self.graphs().iter_mut().flatten().any(SlicedGraph::give_up_plans)
    }

    /// Gives up the plans of all; says whether there were any.
    pub(crate) fn give_up_all_plans(&self) -> bool {
        let had_some = |any, graph: &mut SlicedGraph| graph.give_up_plans() || any;
        self.graphs().iter_mut().flatten().fold(false, had_some)
    }

    /// What their plans count.
    pub(crate) fn plan_bytes(&self) -> usize {
        self.graphs().iter().flatten().map(SlicedGraph::plan_bytes).sum()
    }

    /// What they count, the one of a device aside.
    pub(crate) fn bytes(&self, without: Option<usize>) -> usize {
        let graphs = self.graphs();
        let counted = graphs.iter().enumerate().filter(|(device, _)| Some(*device) != without);
        let counted = counted.filter_map(|(_, stored)| stored.as_ref());
        counted.map(|graph| graph.bytes() + graph.plan_bytes()).sum()
    }
}
