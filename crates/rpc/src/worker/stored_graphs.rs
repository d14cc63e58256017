//! The graphs that a client may have computed again: the last one of each device, and those that it keeps in slots.
//!
//! Concurrency: the connection's thread stores and takes them, and has the one that runs; any thread may make those go that
//! wait for their next time, or their plans, when others need their memory. Invariants: a graph is gone once a buffer of it is. Of a slot that
//! has lost its graph to others it is known, until the client puts another there or drops it.

use std::collections::{BTreeMap, BTreeSet};
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
    /// Slots without the graph that the client takes to be there, for want of room.
    lost: BTreeSet<Slot>,
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
        if let Shelf::Slot(slot) = shelf {
            graphs.lost.remove(&slot);
        }
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

    /// Forgets all, as the client knows.
    pub(crate) fn clear(&self) {
        let mut graphs = self.graphs();
        graphs.stored.clear();
        graphs.lost.clear();
    }

    /// Forgets what a slot has or has lost, as the client wants; says whether there was anything.
    pub(crate) fn empty(&self, slot: Slot) -> bool {
        let mut graphs = self.graphs();
        graphs.stored.remove(&Shelf::Slot(slot)).is_some() | graphs.lost.remove(&slot)
    }

    /// There is no room for a graph: what was in its place is of no use, and the client does not know.
    pub(crate) fn lose(&self, shelf: Shelf) {
        let mut graphs = self.graphs();
        graphs.stored.remove(&shelf);
        if let Shelf::Slot(slot) = shelf {
            graphs.lost.insert(slot);
        }
    }

    /// Loses all; says whether there were any.
    pub(crate) fn lose_all(&self) -> bool {
        let graphs = &mut *self.graphs();
        let stored = std::mem::take(&mut graphs.stored);
        graphs.lost.extend(stored.keys().filter_map(|shelf| match shelf {
            Shelf::Slot(slot) => Some(*slot),
            Shelf::LastOf(_) => None,
        }));
        !stored.is_empty()
    }

    /// Whether a slot has lost what the client takes to be there.
    pub(crate) fn has_lost(&self, shelf: Shelf) -> bool {
        matches!(shelf, Shelf::Slot(slot) if self.graphs().lost.contains(&slot))
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
