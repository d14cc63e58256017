//! Which graphs a worker has stored: what this client has told it to store, and has not replaced, dropped or invalidated since.
//!
//! Where the worker keeps graphs in slots, this decides what is in them. The graph that was not used for longest makes way, for what
//! all count must fit what the worker offers; one that is larger is kept alone. Other workers keep the last graph of each device, or none.
//!
//! Invariant: it is told of every command in the order in which the worker gets them, so both agree at every moment, but for what a worker
//! cannot keep because of other clients. Once that is known, graphs are sent whole for a while, and each time for longer.

use std::sync::Arc;

use super::graph::EncodedGraph;
use crate::wire::{Dialect, MAX_KEPT_GRAPHS, Slot, kept_graph_bytes};

/// How a graph is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Whole, by GRAPH_COMPUTE.
    Whole,
    /// As the last one of its device.
    Again,
    /// Whole, to be kept in a slot.
    Keep(Slot),
    /// As the one in a slot.
    Run(Slot),
}

/// The graphs that a worker has.
#[derive(Debug)]
pub(super) enum KnownGraphs {
    /// The worker stores none.
    None,
    /// The last one of each device.
    Last(Vec<Option<Arc<Vec<u8>>>>),
    /// Those in slots.
    Kept(KeptGraphs),
}

impl KnownGraphs {
    /// None yet, of a worker that keeps graphs of so many bytes in slots, if it does.
    pub(super) fn new(dialect: &Dialect, kept_bytes: Option<usize>) -> KnownGraphs {
        match kept_bytes {
            Some(most) => KnownGraphs::Kept(KeptGraphs { most, ..KeptGraphs::default() }),
            None if dialect.has_recompute => KnownGraphs::Last(Vec::new()),
            None => KnownGraphs::None,
        }
    }

    /// How to ask for a graph of a device, and which slots the worker is to empty before.
    pub(super) fn ask(&mut self, device: usize, graph: &EncodedGraph) -> (Asked, Vec<Slot>) {
        match self {
            KnownGraphs::None => (Asked::Whole, Vec::new()),
            KnownGraphs::Last(graphs) => {
                if graphs.len() <= device {
                    graphs.resize(device + 1, None);
                }
                let last = graphs.get_mut(device).map(|last| last.replace(Arc::clone(&graph.body)));
                let is_same = last.flatten().is_some_and(|body| is_same(&body, &graph.body));
                (if is_same { Asked::Again } else { Asked::Whole }, Vec::new())
            }
            KnownGraphs::Kept(graphs) => graphs.ask(graph),
        }
    }

    /// A buffer is about to be freed; says which slots the worker is to empty before.
    pub(super) fn forget_buffer(&mut self, handle: u64) -> Vec<Slot> {
        match self {
            KnownGraphs::None => Vec::new(),
            KnownGraphs::Last(graphs) => {
                // Workers forget stored graphs when a buffer is freed, or keep them with a hole.
                graphs.clear();
                Vec::new()
            }
            KnownGraphs::Kept(graphs) => graphs.drop_those(|graph| graph.buffers.contains(&handle)),
        }
    }

    /// The worker has no room for what it should keep: nothing is kept for a while.
    pub(super) fn pause(&mut self) {
        if let KnownGraphs::Kept(graphs) = self {
            graphs.pause = (2 * graphs.pause).clamp(FIRST_PAUSE, LONGEST_PAUSE);
            graphs.goes_on = graphs.clock + graphs.pause;
        }
    }

    /// The worker has forgotten all.
    pub(super) fn clear(&mut self) {
        match self {
            KnownGraphs::None => {}
            KnownGraphs::Last(graphs) => graphs.clear(),
            KnownGraphs::Kept(graphs) => graphs.graphs.clear(),
        }
    }
}

/// Graphs that are sent whole when a worker had no room, at first and at most.
const FIRST_PAUSE: u64 = 64;
const LONGEST_PAUSE: u64 = 1 << 16;

fn is_same(one: &Arc<Vec<u8>>, other: &Arc<Vec<u8>>) -> bool {
    Arc::ptr_eq(one, other) || one == other
}

/// Graphs in slots.
#[derive(Debug, Default)]
pub(super) struct KeptGraphs {
    graphs: Vec<KeptGraph>,
    /// What they may count.
    most: usize,
    /// How often one was asked for.
    clock: u64,
    /// When graphs are kept again, and for how long they were not the last time.
    goes_on: u64,
    pause: u64,
}

#[derive(Debug)]
struct KeptGraph {
    slot: Slot,
    body: Arc<Vec<u8>>,
    /// Handles of the buffers that it names.
    buffers: Arc<[u64]>,
    /// When it was asked for the last time.
    used: u64,
}

impl KeptGraphs {
    fn ask(&mut self, graph: &EncodedGraph) -> (Asked, Vec<Slot>) {
        self.clock += 1;
        // Nearly always it is the very same one, which takes no look at its bytes.
        let by_place = |kept: &KeptGraph| Arc::ptr_eq(&kept.body, &graph.body);
        let found = self.graphs.iter().position(by_place);
        let found = found.or_else(|| self.graphs.iter().position(|kept| kept.body == graph.body));
        if let Some(kept) = found.and_then(|index| self.graphs.get_mut(index)) {
            kept.used = self.clock;
            return (Asked::Run(kept.slot), Vec::new());
        }
        if self.clock <= self.goes_on {
            return (Asked::Whole, Vec::new());
        }
        let mut emptied = self.make_room(kept_graph_bytes(graph.body.len()));
        // What is replaced need not be dropped.
        let slot = emptied.pop().or_else(|| self.free_slot());
        let Some(slot) = slot else { return (Asked::Whole, emptied) };
        let (body, buffers) = (Arc::clone(&graph.body), Arc::clone(&graph.buffers));
        self.graphs.push(KeptGraph { slot, body, buffers, used: self.clock });
        (Asked::Keep(slot), emptied)
    }

    /// Makes room for a graph that counts so much; says which slots are free now that were not.
    fn make_room(&mut self, bytes: usize) -> Vec<Slot> {
        let counted = |graphs: &[KeptGraph]| -> usize {
            graphs.iter().map(|kept| kept_graph_bytes(kept.body.len())).sum()
        };
        let mut sum = counted(&self.graphs);
        let mut emptied = Vec::new();
        while sum.saturating_add(bytes) > self.most || self.graphs.len() >= MAX_KEPT_GRAPHS {
            let oldest = self.graphs.iter().enumerate().min_by_key(|(_, kept)| kept.used);
            let Some((index, _)) = oldest else { break };
            let kept = self.graphs.swap_remove(index);
            sum -= kept_graph_bytes(kept.body.len());
            emptied.push(kept.slot);
        }
        emptied
    }

    /// The first slot with nothing in it.
    fn free_slot(&self) -> Option<Slot> {
        let mut taken = [false; MAX_KEPT_GRAPHS];
        for kept in &self.graphs {
            if let Some(taken) = taken.get_mut(kept.slot.number()) {
                *taken = true;
            }
        }
        taken.iter().position(|taken| !taken).and_then(Slot::new)
    }

    fn drop_those(&mut self, mut is_one: impl FnMut(&KeptGraph) -> bool) -> Vec<Slot> {
        self.graphs.extract_if(.., |kept| is_one(kept)).map(|kept| kept.slot).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(number: u8, len: usize, buffers: &[u64]) -> EncodedGraph {
        EncodedGraph { body: Arc::new(vec![number; len]), buffers: buffers.into(), nodes: 1 }
    }

    fn slot(number: usize) -> Slot {
        Slot::new(number).unwrap()
    }

    fn kept(most: usize) -> KnownGraphs {
        KnownGraphs::new(Dialect::own(), Some(most))
    }

    #[test]
    fn graphs_are_kept_by_content_until_a_buffer_of_theirs_goes() {
        let mut known = kept(1 << 20);
        let (a, b) = (graph(1, 100, &[7, 8]), graph(2, 100, &[8]));
        assert_eq!(known.ask(0, &a), (Asked::Keep(slot(0)), vec![]));
        assert_eq!(known.ask(0, &b), (Asked::Keep(slot(1)), vec![]));
        for _ in 0..2 {
            assert_eq!(known.ask(0, &a), (Asked::Run(slot(0)), vec![]));
            assert_eq!(known.ask(0, &graph(2, 100, &[8])), (Asked::Run(slot(1)), vec![]));
        }
        assert_eq!(known.forget_buffer(9), vec![]);
        assert_eq!(known.forget_buffer(7), vec![slot(0)]);
        assert_eq!(known.ask(0, &b), (Asked::Run(slot(1)), vec![]));
        assert_eq!(known.ask(0, &a), (Asked::Keep(slot(0)), vec![]));
        known.clear();
        assert_eq!(known.ask(0, &b), (Asked::Keep(slot(0)), vec![]));
    }

    #[test]
    fn the_longest_unused_make_way() {
        let one = kept_graph_bytes(100);
        let mut known = kept(3 * one);
        for number in 0..3 {
            assert_eq!(known.ask(0, &graph(number, 100, &[])).0, Asked::Keep(slot(number.into())));
        }
        known.ask(0, &graph(0, 100, &[]));
        // In the place of another, which needs no word.
        assert_eq!(known.ask(0, &graph(3, 100, &[])), (Asked::Keep(slot(1)), vec![]));
        // One as large as two: the one that was dropped first is dropped by name.
        let two = (2 * one - kept_graph_bytes(0)) / (kept_graph_bytes(1) - kept_graph_bytes(0));
        assert_eq!(known.ask(0, &graph(4, two, &[])), (Asked::Keep(slot(0)), vec![slot(2)]));
        assert_eq!(known.ask(0, &graph(3, 100, &[])), (Asked::Run(slot(1)), vec![]));
        // One that is too large is alone.
        assert_eq!(known.ask(0, &graph(5, 4 * one, &[])).1.len(), 1);
        assert_eq!(known.ask(0, &graph(3, 100, &[])).1, vec![]);
        assert!(matches!(known.ask(0, &graph(5, 4 * one, &[])).0, Asked::Keep(_)));
    }

    #[test]
    fn a_worker_without_room_keeps_nothing_for_a_while() {
        let mut known = kept(1 << 20);
        let one = graph(1, 100, &[]);
        for pause in [FIRST_PAUSE, 2 * FIRST_PAUSE] {
            assert_eq!(known.ask(0, &one).0, Asked::Keep(slot(0)));
            known.clear();
            known.pause();
            for _ in 0..pause {
                assert_eq!(known.ask(0, &one), (Asked::Whole, vec![]));
            }
        }
        assert_eq!(known.ask(0, &one).0, Asked::Keep(slot(0)));
    }

    #[test]
    fn there_are_no_more_than_slots() {
        let mut known = kept(usize::MAX);
        let numbered = |number: usize| graph((number % 251) as u8, 1 + number, &[]);
        for number in 0..MAX_KEPT_GRAPHS {
            assert_eq!(known.ask(0, &numbered(number)), (Asked::Keep(slot(number)), vec![]));
        }
        for number in 0..3 {
            let more = numbered(MAX_KEPT_GRAPHS + number);
            assert_eq!(known.ask(0, &more), (Asked::Keep(slot(number)), vec![]));
        }
        assert_eq!(known.ask(0, &numbered(3)), (Asked::Run(slot(3)), vec![]));
        assert!(matches!(known.ask(0, &numbered(0)).0, Asked::Keep(_)));
    }

    #[test]
    fn other_workers_have_the_last_one_or_none() {
        let (a, b) = (graph(1, 100, &[7]), graph(2, 100, &[8]));
        let mut last = KnownGraphs::new(Dialect::newest(), None);
        let mut none = KnownGraphs::new(Dialect::classic(), None);
        for (device, graph, asked) in [
            (0, &a, Asked::Whole),
            (0, &a, Asked::Again),
            (1, &b, Asked::Whole),
            (0, &a, Asked::Again),
            (0, &b, Asked::Whole),
            (0, &a, Asked::Whole),
        ] {
            assert_eq!(last.ask(device, graph), (asked, vec![]));
            assert_eq!(none.ask(device, graph), (Asked::Whole, vec![]));
        }
        assert_eq!(last.forget_buffer(9), vec![]);
        assert_eq!(last.ask(0, &a), (Asked::Whole, vec![]));
    }
}
