//! Any bytes as a node: drawn as they say, through the door, described by our client, and rebuilt by our worker.
//!
//! The first bytes choose the op, the dialect, how wild the numbers are, whether the result takes its source's place and how far apart
//! tensors lie, which may be in the same place; the rest is what [`draw`] draws. Nodes are not computed here: `crates/cpu/tests/work.rs`
//! does that with the same generator.

use std::sync::{Arc, OnceLock};

use oxcart_backend::{Buffer, Buffers, Device, Error, allocate};
use oxcart_cases::{Draws, MOST_BYTES, Manner, draw};
use oxcart_rpc::client::encode_nodes;
use oxcart_rpc::wire::{Dialect, GraphBody};
use oxcart_rpc::worker::{Rebuilt, Space, rebuild};
use oxcart_tensor::graph::{Node, Storage};
use oxcart_tensor::ops::{Grouping, SsmScan};
use oxcart_tensor::{Graph, Layout, Op, TensorId, TensorRef};
use oxcart_testdev::{Config, TestDevice};

use super::Choices;

/// What became of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The generator made none of the bytes.
    NotDrawn,
    /// There is nothing to compute.
    Idle,
    /// The dialect has no way to say it.
    Unsaid,
    /// The worker has the very same node.
    Rebuilt,
}

/// Characters that a tensor takes at most in a graph's text and in its picture.
const MOST_TEXT: usize = 1024;

/// Memory of a worker, which no one ever touches: a null device computes nothing.
struct Memory {
    device: Arc<dyn Device>,
    buffer: Arc<dyn Buffer>,
    space: Space,
    handle: u64,
    base: u64,
}

impl Memory {
    const BYTES: usize = 2 * MOST_BYTES;

    fn get() -> &'static Memory {
        static MEMORY: OnceLock<Memory> = OnceLock::new();
        MEMORY.get_or_init(|| {
            let device = TestDevice::new(Config { null: true, ..Config::default() });
            let buffer = allocate(&device.buffer_type(), Memory::BYTES).unwrap();
            let mut space = Space::default();
            let handle = space.add(Arc::clone(&buffer), 0);
            let base = space.base(handle).unwrap();
            Memory { device, buffer, space, handle, base }
        })
    }
}

/// No tensor is larger than the generator promises; work is never less than half of the elements that are written
/// (sums of nothing and old states aside), and text is short. What the
/// door has let in, our client describes or calls unsupported; what it describes, our worker rebuilds, and it is the same node: op, types,
/// extents, places and work.
pub fn check(bytes: &[u8]) {
    fate(bytes);
}

/// The same; says how far the node came.
pub fn fate(bytes: &[u8]) -> Fate {
    let mut choices = Choices(bytes);
    let op = Op::ALL[choices.below(Op::ALL.len())];
    let dialect = Dialect::all()[choices.below(Dialect::all().len())];
    let (manner, in_place) = match choices.byte() {
        choice @ 0..64 => (Manner::Ordinary, choice % 2 == 1),
        choice => (Manner::Nasty, choice % 2 == 1),
    };
    let apart = 64 * usize::from(choices.short());
    let Some(drawn) = draw(op.name, &mut Draws::chosen(choices.0, manner)) else { return Fate::NotDrawn };
    let (mut graph, mut node) = (drawn.graph, drawn.node);
    if in_place && let Some((other, id)) = over_its_source(&graph, node) {
        (graph, node) = (other, id);
    }
    check_tensors(&graph, node);
    place(&mut graph, apart);
    travel(&graph, node, dialect)
}

/// The same node in the memory of its first source, if that may be.
fn over_its_source(graph: &Graph, node: TensorId) -> Option<(Graph, TensorId)> {
    let mut graph = graph.clone();
    let drawn = graph.tensor(node).unwrap();
    let (op, sources, dtype) = (*drawn.op(), drawn.source_ids().to_vec(), Some(drawn.dtype()));
    let id = graph.insert(Node { op, sources: &sources, in_place: true, dtype }).ok()?;
    graph.expand(id).unwrap();
    Some((graph, id))
}

fn check_tensors(graph: &Graph, node: TensorId) {
    let tensor = graph.tensor(node).unwrap();
    for tensor in tensor.sources().flatten().chain([tensor]) {
        let layout = tensor.layout();
        assert!(layout.byte_len() <= MOST_BYTES, "{layout} takes {} bytes", layout.byte_len());
        assert_eq!(tensor.byte_len(), layout.byte_len());
        assert_eq!(layout.elements() == 0, layout.is_empty());
    }
    // A result in memory of its own is written whole. Sums of nothing are, too, but count as no work; and of recurrences only as many
    // states as there are tokens.
    let of_nothing = tensor.sources().flatten().any(|source| source.layout().is_empty());
    let keeps_states = matches!(tensor.op(), Op::SsmScan(_) | Op::GatedDeltaNet(_));
    if tensor.computes() && tensor.view().is_none() && !of_nothing && !keeps_states {
        let (work, elements) = (tensor.work(), tensor.layout().elements() as u64);
        assert!(
            work.saturating_mul(2) >= elements,
            "{:?}: {work} units for {}",
            tensor.op(),
            tensor.layout()
        );
    }
    for text in [graph.dump().to_string(), graph.dot(|_| None).to_string()] {
        assert!(text.len() <= MOST_TEXT * (graph.len() + 1), "{text}");
    }
}

/// Puts tensors into the worker's memory, so many bytes apart as far as there is room.
fn place(graph: &mut Graph, apart: usize) {
    let buffer = Buffers::new().add(Arc::clone(&Memory::get().buffer));
    let ids: Vec<_> = graph.leaves().iter().chain(graph.nodes()).copied().collect();
    for (number, id) in ids.into_iter().enumerate() {
        let tensor = graph.tensor(id).unwrap();
        if tensor.view().is_none() {
            let room = (Memory::BYTES - tensor.byte_len()) / 64 * 64;
            let storage = Storage { buffer, offset: (number * apart).min(room) };
            graph.bind(id, storage, Memory::BYTES).unwrap();
        }
    }
}

/// Has a node described and rebuilt.
fn travel(graph: &Graph, node: TensorId, dialect: &'static Dialect) -> Fate {
    let Memory { device, space, handle, base, .. } = Memory::get();
    let tensor = graph.tensor(node).unwrap();
    let address =
        |tensor: TensorRef<'_>| Ok(tensor.storage().map(|storage| (*handle, *base + storage.offset as u64)));
    let nodes = graph.range(0..graph.nodes().len()).unwrap();
    let encoded = match encode_nodes(nodes, dialect, (0, "null"), &address) {
        Ok(encoded) => encoded,
        Err(Error::Unsupported { .. }) => return Fate::Unsaid,
        Err(error) => panic!("{}: {error}", graph.dump()),
    };
    let body = GraphBody::decode(&encoded.body, dialect).unwrap();
    assert_eq!(body.nodes.len(), encoded.nodes);
    let rebuilt = rebuild(&body, dialect, space, device)
        .unwrap_or_else(|refusal| panic!("{dialect}: {:?}: {refusal}\n{}", tensor.op(), graph.dump()));
    if !tensor.computes() || tensor.layout().is_empty() {
        assert!(tensor.computes() || rebuilt.graph.nodes().is_empty(), "{}", graph.dump());
        return Fate::Idle;
    }
    same_node(tensor, &rebuilt);
    Fate::Rebuilt
}

/// The last node of a graph that was rebuilt is the one that was described.
fn same_node(tensor: TensorRef<'_>, rebuilt: &Rebuilt) {
    let &last = rebuilt.graph.nodes().last().unwrap_or_else(|| panic!("{:?} is lost", tensor.op()));
    let again = rebuilt.graph.tensor(last).unwrap();
    assert_eq!(meaning(tensor), meaning(again));
    assert_eq!(tensor.work(), again.work(), "{:?}", tensor.op());
    assert_eq!(tensor.view().is_some(), again.view().is_some(), "{:?}", tensor.op());
    let slots = tensor.sources().len().max(again.sources().len());
    let pairs = (0..slots).map(|slot| (tensor.source(slot), again.source(slot)));
    for (one, other) in pairs.chain([(Some(tensor), Some(again))]) {
        assert_eq!(one.is_some(), other.is_some(), "{:?}", tensor.op());
        let (Some(one), Some(other)) = (one, other) else { continue };
        assert_eq!(shape(one.layout()), shape(other.layout()), "{:?}", tensor.op());
        if !one.layout().is_empty() {
            let place = rebuilt.buffers.place_of(other).unwrap();
            assert_eq!((place.offset, place.len), (one.storage().unwrap().offset, one.byte_len()));
        }
    }
}

/// The op; where there is one group, it does not matter which heads are in it.
fn meaning(tensor: TensorRef<'_>) -> Op {
    match *tensor.op() {
        Op::SsmScan(op) if tensor.source(4).is_some_and(|b| b.ne()[1] <= 1) => {
            SsmScan { grouping: Grouping::Neighbours, ..op }.into()
        }
        op => op,
    }
}

/// What of a layout means something: strides over one element do not.
fn shape(layout: &Layout) -> (String, [usize; 4], [usize; 4]) {
    let (ne, mut nb) = (layout.ne().extents(), layout.nb());
    (0..4).filter(|&dim| ne[dim] <= 1 || layout.is_empty()).for_each(|dim| nb[dim] = 0);
    (layout.dtype().to_string(), ne, nb)
}
