//! A case as a graph, and what a device makes of it.

use std::sync::Arc;

use oxcart_backend::{Buffer, Buffers, Stream, Work, allocate};
use oxcart_tensor::graph::{BufferId, Node, Storage};
use oxcart_tensor::{Graph, Op, TensorId};

use crate::{Case, Recorded};

/// A case as a graph of one node.
#[derive(Debug)]
pub struct Built {
    /// Leaves and the node.
    pub graph: Graph,
    /// Leaves by source slot.
    pub sources: Vec<Option<TensorId>>,
    /// The node.
    pub node: TensorId,
}

/// Why a case did not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The door refused it.
    #[error("refused: {0}")]
    Refused(#[from] oxcart_tensor::Error),
    /// The device does not know the op.
    #[error("the device does not support it")]
    Unsupported,
    /// The device failed.
    #[error("failed: {0}")]
    Failed(#[from] oxcart_backend::Error),
}

impl Case {
    /// The node of the case, made through the door from leaves like its sources.
    pub fn build(&self) -> Result<Built, oxcart_tensor::Error> {
        let want = self.result.layout;
        let op = self.op();
        let mut graph = Graph::new();
        let mut sources = Vec::new();
        for source in &self.sources {
            sources.push(match source {
                Some(source) => Some(graph.leaf_with_layout(source.layout)?),
                None => None,
            });
        }
        if let (Op::OptStepAdamw(_) | Op::OptStepSgd(_), Some(&Some(parameter))) = (op, sources.first()) {
            graph.mark_param(parameter)?;
        }
        let in_place = op.info().in_place && self.aliased == Some(0);
        let node = graph.insert(Node { op, sources: &sources, in_place, dtype: Some(want.dtype()) })?;
        graph.expand(node)?;
        Ok(Built { graph, sources, node })
    }

    /// Runs the case and gives the bytes the result lies in, as large as what was recorded, and after them the bytes of
    /// the sources that the op also writes to.
    pub fn run(&self, stream: &dyn Stream) -> Result<Vec<u8>, RunError> {
        let Built { mut graph, sources, node } = self.build()?;
        if !stream.device().supports_op(graph.tensor(node)?) {
            return Err(RunError::Unsupported);
        }
        let buffer_type = stream.device().buffer_type();
        let mut buffers = Buffers::new();
        let mut fill = |contents: &[u8]| {
            let buffer = allocate(&buffer_type, contents.len())?;
            buffer.write(0, contents)?;
            Ok::<_, RunError>(BoundBuffer { id: buffers.add(Arc::clone(&buffer)), buffer })
        };
        let mut bound: Vec<Option<BoundBuffer>> = Vec::new();
        for (id, source) in sources.iter().zip(&self.sources) {
            let (Some(id), Some(source)) = (id, source) else {
                bound.push(None);
                continue;
            };
            let own = match source.shares.and_then(|slot| bound[slot].clone()) {
                Some(shared) => shared,
                None => fill(self.storage(source))?,
            };
            own.bind(&mut graph, *id, source)?;
            bound.push(Some(own));
        }
        let result = match self.aliased.or(self.reused).and_then(|slot| bound[slot].clone()) {
            Some(source) => source,
            // Nothing may be left as it was, so start from a pattern that nothing computes.
            None => fill(&vec![0xA5; self.storage(&self.result).len()])?,
        };
        if self.aliased.is_none() {
            result.bind(&mut graph, node, &self.result)?;
        }
        let positions = 0..graph.nodes().len();
        let nodes = graph.range(positions).unwrap_or_else(|| unreachable!("all nodes are a range"));
        stream.compute_and_wait(Work { nodes, buffers: &buffers })?;
        let mut found = result.read()?;
        for (source, own) in self.sources.iter().zip(&bound) {
            if let (Some(Recorded { after: Some(_), .. }), Some(own)) = (source, own) {
                found.extend(own.read()?);
            }
        }
        Ok(found)
    }
}

/// A buffer and what the graph calls it.
#[derive(Clone)]
struct BoundBuffer {
    id: BufferId,
    buffer: Arc<dyn Buffer>,
}

impl BoundBuffer {
    fn bind(&self, graph: &mut Graph, id: TensorId, tensor: &Recorded) -> Result<(), RunError> {
        let storage = Storage { buffer: self.id, offset: tensor.view_offset };
        Ok(graph.bind(id, storage, self.buffer.len())?)
    }

    fn read(&self) -> Result<Vec<u8>, RunError> {
        let mut bytes = vec![0; self.buffer.len()];
        self.buffer.read(0, &mut bytes)?;
        Ok(bytes)
    }
}
