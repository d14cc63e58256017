//! The graphs that a client may have computed again: the last one of each device, and those that it keeps in slots.
//!
//! Concurrency: the connection's thread stores and takes them, and has the one that runs; any thread may make those go that
//! wait for their next time, or their plans, when others need their memory. Invariant: a graph is gone once a buffer of it is.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::sliced_graph::SlicedGraph;
use crate::wire::Slot;

/// Where a graph is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shelf {
    /// As the last one of a device.
    LastOf(usize),
    /// Where the client wants it.
    Slot(Slot),
}

/// A graph, and the device that computes it.
#[derive(Debug)]
struct Stored {
    device: usize,
    graph: SlicedGraph,
    /// When it was put here.
    since: u64,
}

#[derive(Debug, Default)]
struct Graphs {
    stored: BTreeMap<Shelf, Stored>,
    /// How often one was put here.
    clock: u64,
}

/// A client's graphs.
#[derive(Debug, Default)]
pub(crate) struct StoredGraphs(Mutex<Graphs>);

impl StoredGraphs {
    fn graphs(&self) -> MutexGuard<'_, Graphs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a graph of a device, in the place of the one before.
    pub(crate) fn put(&self, shelf: Shelf, device: usize, graph: SlicedGraph) {
        let mut graphs = self.graphs();
        graphs.clock += 1;
        let since = graphs.clock;
        graphs.stored.insert(shelf, Stored { device, graph, since });
    }

    /// Takes a graph and the number of its device, to compute it or to forget it.
    pub(crate) fn take(&self, shelf: Shelf) -> Option<(usize, SlicedGraph)> {
        self.graphs().stored.remove(&shelf).map(|stored| (stored.device, stored.graph))
    }

    /// Forgets graphs that use a buffer.
    pub(crate) fn forget(&self, handle: u64) {
        self.graphs().stored.retain(|_, stored| !stored.graph.uses(handle));
    }

    /// Forgets all; says whether there were any.
    pub(crate) fn clear(&self) -> bool {
        !std::mem::take(&mut self.graphs().stored).is_empty()
    }

    /// Gives up the plans of the graph that was not computed for longest; says whether one had some.
    pub(crate) fn give_up_plans(&self) -> bool {
        let mut graphs = self.graphs();
        let planned = graphs.stored.values_mut().filter(|stored| stored.graph.plan_bytes() > 0);
        planned.min_by_key(|stored| stored.since).is_some_and(|stored| stored.graph.give_up_plans())
    }

    /// Gives up the plans of all; says whether there were any.
    pub(crate) fn give_up_all_plans(&self) -> bool {
        let had_some = |any, stored: &mut Stored| stored.graph.give_up_plans() || any;
        self.graphs().stored.values_mut().fold(false, had_some)
    }

    /// What their plans count.
    pub(crate) fn plan_bytes(&self) -> usize {
        self.graphs().stored.values().map(|stored| stored.graph.plan_bytes()).sum()
    }

    /// What they count, the one in one place aside.
    pub(crate) fn bytes(&self, without: Option<Shelf>) -> usize {
        let graphs = self.graphs();
        let counted = graphs.stored.iter().filter(|(shelf, _)| Some(**shelf) != without);
        counted.map(|(_, stored)| stored.graph.bytes() + stored.graph.plan_bytes()).sum()
    }
}
