//! A tensor together with its graph: what devices and planners look at.

use super::{Graph, Storage, Tensor, TensorId};
use crate::error::Error;
use crate::layout::Layout;
use crate::ops::Op;

/// A tensor that is known to be in its graph, so that looking at it cannot fail.
#[derive(Clone, Copy, Debug)]
pub struct TensorRef<'g> {
    graph: &'g Graph,
    id: TensorId,
}

impl Graph {
    /// The tensor, with its graph at hand.
    pub fn get(&self, id: TensorId) -> Result<TensorRef<'_>, Error> {
        self.tensor(id).map(|_| TensorRef { graph: self, id })
    }
}

impl<'g> TensorRef<'g> {
    /// Its id.
    pub const fn id(self) -> TensorId {
        self.id
    }

    /// Its graph.
    pub const fn graph(self) -> &'g Graph {
        self.graph
    }

    /// What is known about it.
    pub fn tensor(self) -> &'g Tensor {
        &self.graph.tensors[self.id.index()]
    }

    /// What makes it.
    pub fn op(self) -> &'g Op {
        self.tensor().op()
    }

    /// Type, extents and strides.
    pub fn layout(self) -> &'g Layout {
        self.tensor().layout()
    }

    /// Its sources, in the order of its op.
    pub fn sources(self) -> impl ExactSizeIterator<Item = Option<TensorRef<'g>>> + Clone {
        let graph = self.graph;
        graph.sources_of(self.tensor()).iter().map(move |id| id.map(|id| TensorRef { graph, id }))
    }

    /// The source in `slot`, if there is one.
    pub fn source(self, slot: usize) -> Option<TensorRef<'g>> {
        let id = (*self.graph.sources_of(self.tensor()).get(slot)?)?;
        Some(TensorRef { graph: self.graph, id })
    }

    /// The tensor that owns its memory: itself, or what it is a view of.
    pub fn root(self) -> TensorRef<'g> {
        let id = self.tensor().view().map_or(self.id, |view| view.root);
        TensorRef { graph: self.graph, id }
    }

    /// Where its bytes are.
    pub fn storage(self) -> Option<Storage> {
        let offset = self.tensor().view().map_or(0, |view| view.offset);
        let root = self.root().tensor().storage?;
        Some(Storage { buffer: root.buffer, offset: root.offset + offset })
    }

    /// Its name, or what stands for it.
    pub fn label(self) -> String {
        self.graph.label(self.id)
    }
}
