//! A case as a graph, and what a device makes of it.

use std::sync::Arc;

use oxcart_backend::{Backend, Buffers, Work, allocate};
use oxcart_tensor::graph::{Node, Storage};
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

    /// Runs the case and gives the bytes the result lies in, as large as what was recorded.
    pub fn run(&self, backend: &dyn Backend) -> Result<Vec<u8>, RunError> {
        let Built { mut graph, sources, node } = self.build()?;
        if !backend.device().supports_op(graph.tensor(node)?) {
            return Err(RunError::Unsupported);
        }
        let buffer_type = backend.device().buffer_type();
        let mut buffers = Buffers::new();
        let mut place = |graph: &mut Graph, id, tensor: &Recorded, contents: &[u8]| {
            let buffer = allocate(&buffer_type, contents.len())?;
            buffer.write(0, contents)?;
            let storage = Storage { buffer: buffers.add(Arc::clone(&buffer)), offset: tensor.view_offset };
            graph.bind(id, storage, contents.len())?;
            Ok::<_, RunError>(buffer)
        };
        let mut memory = Vec::new();
        for (id, source) in sources.iter().zip(&self.sources) {
            memory.push(match (id, source) {
                (Some(id), Some(source)) => Some(place(&mut graph, *id, source, self.storage(source))?),
                _ => None,
            });
        }
        let result = match self.aliased.and_then(|slot| memory[slot].clone()) {
            Some(buffer) => buffer,
            // Nothing may be left as it was, so start from a pattern that nothing computes.
            None => place(&mut graph, node, &self.result, &vec![0xA5; self.storage(&self.result).len()])?,
        };
        let positions = 0..graph.nodes().len();
        let nodes = graph.range(positions).unwrap_or_else(|| unreachable!("all nodes are a range"));
        backend.compute_and_wait(Work { nodes, buffers: &buffers })?;
        let mut bytes = vec![0; result.len()];
        result.read(0, &mut bytes)?;
        Ok(bytes)
    }
}
