//! Computes a graph on a level with some threads, every tensor in memory of its own.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use oxcart_backend::{Buffer, Buffers, Error, Stream, StreamOptions, Work};
use oxcart_tensor::graph::Storage;
use oxcart_tensor::{Graph, TensorId};

use super::tensor::{Tensor, UNTOUCHED};
use super::{CpuDevice, Level};

/// What memory holds afterwards. A result in the memory of a source has all bytes of that source.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) results: Vec<Tensor>,
    pub(crate) sources: Vec<Tensor>,
}

impl Outcome {
    /// The only result.
    pub(crate) fn result(&self) -> &Tensor {
        assert_eq!(self.results.len(), 1);
        &self.results[0]
    }
}

/// Memory of a tensor.
struct Home {
    root: TensorId,
    buffer: Arc<dyn Buffer>,
    storage: Storage,
    len: usize,
}

impl Home {
    fn contents(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.buffer.read(0, &mut bytes).unwrap();
        bytes
    }
}

/// A stream per test and kind, because starting threads takes longer than most runs.
fn stream(level: Level, threads: usize) -> Rc<dyn Stream> {
    type Known = (Level, usize, Rc<dyn Stream>);
    thread_local!(static STREAMS: RefCell<Vec<Known>> = const { RefCell::new(Vec::new()) });
    STREAMS.with_borrow_mut(|known| {
        if let Some((.., stream)) = known.iter().find(|known| (known.0, known.1) == (level, threads)) {
            return Rc::clone(stream);
        }
        let device: Arc<dyn oxcart_backend::Device> = CpuDevice::that_cuts_finely(level);
        let stream: Rc<dyn Stream> = device.open(&StreamOptions::threads(threads)).unwrap().into();
        known.push((level, threads, Rc::clone(&stream)));
        stream
    })
}

/// Computes the nodes that `build` makes of leaves like `sources`, and those before them; the first of them in the
/// memory of source `over`, if there is one.
pub(crate) fn compute_graph(
    level: Level,
    threads: usize,
    sources: &[&Tensor],
    over: Option<usize>,
    build: &dyn Fn(&mut Graph, &[TensorId]) -> Vec<TensorId>,
) -> Result<Outcome, Error> {
    let stream = stream(level, threads);
    let (mut graph, mut buffers, mut homes) = (Graph::new(), Buffers::new(), Vec::<Home>::new());
    let mut settle = |graph: &mut Graph, root, contents: &[u8]| {
        // A buffer of nothing has no memory.
        let buffer = stream.allocate(contents.len().max(1)).unwrap();
        buffer.write(0, contents).unwrap();
        let storage = Storage { buffer: buffers.add(Arc::clone(&buffer)), offset: 0 };
        graph.bind(root, storage, buffer.len()).unwrap();
        Home { root, buffer, storage, len: contents.len() }
    };
    let mut leaves = Vec::new();
    for source in sources {
        let leaf = graph.leaf_with_layout(source.layout).unwrap();
        if source.is_param {
            graph.mark_param(leaf).unwrap();
        }
        homes.push(settle(&mut graph, leaf, &source.bytes));
        leaves.push(leaf);
    }
    let wanted = build(&mut graph, &leaves);
    wanted.iter().for_each(|&id| graph.expand(id).unwrap());
    for id in graph.nodes().to_vec() {
        let node = graph.tensor(id).unwrap();
        assert!(stream.device().supports_op(node), "{} is not supported", node.op().label());
        // Parameters are in the order of nodes, too.
        if node.is_leaf() || node.view().is_some() {
            continue;
        }
        let layout = *node.layout();
        match over.filter(|_| id == wanted[0]).map(|slot| (&homes[slot], &sources[slot].layout)) {
            Some((home, source)) => {
                assert_eq!(&layout, source, "only the same layout may be shared");
                graph.bind(id, home.storage, home.buffer.len()).unwrap();
                let home = Home { root: id, buffer: Arc::clone(&home.buffer), ..*home };
                homes.push(home);
            }
            None => homes.push(settle(&mut graph, id, &vec![UNTOUCHED; layout.byte_len()])),
        }
    }
    let nodes = graph.range(0..graph.nodes().len()).unwrap();
    stream.compute_and_wait(Work { nodes, buffers: &buffers })?;
    let results = wanted.iter().map(|&id| {
        let tensor = graph.tensor(id).unwrap();
        let home = homes.iter().find(|home| home.root == tensor.root().id()).unwrap();
        Tensor::new(*tensor.layout(), home.contents())
    });
    let results = results.collect();
    let after = |(source, home): (&&Tensor, &Home)| Tensor { bytes: home.contents(), ..(*source).clone() };
    Ok(Outcome { results, sources: sources.iter().zip(&homes).map(after).collect() })
}
