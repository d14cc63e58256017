//! A tensor together with its graph: how all other code looks at tensors.

use super::tensor::{Details, Links};
use super::{BufferId, Flags, Graph, Storage, TensorId, ViewOf};
use crate::dtype::DType;
use crate::error::Error;
use crate::layout::Layout;
use crate::ops::{Op, Sizes};
use crate::shape::Shape;

/// A tensor that is known to be in its graph, so that looking at it cannot fail.
#[derive(Clone, Copy, Debug)]
pub struct TensorRef<'g> {
    graph: &'g Graph,
    id: TensorId,
}

impl Graph {
    /// A tensor.
    pub fn tensor(&self, id: TensorId) -> Result<TensorRef<'_>, Error> {
        if id.index() < self.len() {
            return Ok(TensorRef { graph: self, id });
        }
        Err(Error::NoSuchTensor { id, count: self.len() })
    }

    /// A tensor whose id was checked.
    pub(super) const fn at(&self, id: TensorId) -> TensorRef<'_> {
        TensorRef { graph: self, id }
    }
}

impl<'g> TensorRef<'g> {
    fn links(self) -> &'g Links {
        &self.graph.links[self.id.index()]
    }

    fn details(self) -> &'g Details {
        &self.graph.details[self.id.index()]
    }

    /// Its id.
    pub const fn id(self) -> TensorId {
        self.id
    }

    /// Its graph.
    pub const fn graph(self) -> &'g Graph {
        self.graph
    }

    /// Type, extents and strides.
    pub fn layout(self) -> &'g Layout {
        &self.graph.layouts[self.id.index()]
    }

    /// Element type.
    pub fn dtype(self) -> DType {
        self.layout().dtype()
    }

    /// Extents.
    pub fn ne(self) -> Shape {
        self.layout().ne()
    }

    /// What makes it; [`Op::None`] for a leaf.
    pub fn op(self) -> &'g Op {
        &self.details().op
    }

    /// Whether its contents come from outside the graph.
    pub fn is_leaf(self) -> bool {
        self.links().is_leaf
    }

    /// Whether running the graph does anything for it: it is neither a leaf nor just another view.
    pub fn computes(self) -> bool {
        self.links().computes
    }

    /// About how much work it is to compute, in multiplications or elements that are looked at; see
    /// [`Operation::work`](crate::ops::Operation::work).
    pub fn work(self) -> u64 {
        let sources = self.sources().map(|source| source.map(TensorRef::layout));
        self.op().work(&Sizes::new(self.layout(), sources))
    }

    /// Whether a planner may give it the memory of a dying source; see
    /// [`OpInfo::reuses`](field@crate::ops::OpInfo::reuses).
    pub fn reuses_source(self) -> bool {
        self.links().reuses_source
    }

    /// Whether it may take over the memory of a source, as far as the source in that slot is concerned: the op allows
    /// it, and both have the very same layout. What a planner must know besides is whether another node needs that memory.
    pub fn fits_over(self, slot: usize) -> bool {
        let links = self.links();
        links.reuses_source && links.alike.checked_shr(slot as u32).is_some_and(|bits| bits & 1 == 1)
    }

    /// Its roles.
    pub fn flags(self) -> Flags {
        self.links().flags
    }

    /// Whether it has a role.
    pub fn has(self, flag: Flags) -> bool {
        self.flags().contains(flag)
    }

    /// Its name, if it was given one.
    pub fn name(self) -> Option<&'g str> {
        self.details().name.as_deref()
    }

    /// Its name, or what stands for it.
    pub fn label(self) -> String {
        self.graph.label(self.id)
    }

    /// Its sources, in the order of its op; `None` where an optional one is absent.
    pub fn sources(self) -> impl ExactSizeIterator<Item = Option<TensorRef<'g>>> + Clone {
        let graph = self.graph;
        self.source_ids().iter().map(move |id| id.map(|id| TensorRef { graph, id }))
    }

    /// The ids of its sources, in the order of its op.
    pub fn source_ids(self) -> &'g [Option<TensorId>] {
        &self.graph.sources[self.links().sources()]
    }

    /// The source in `slot`, if there is one.
    pub fn source(self, slot: usize) -> Option<TensorRef<'g>> {
        let id = (*self.source_ids().get(slot)?)?;
        Some(TensorRef { graph: self.graph, id })
    }

    /// The memory it shows, when that is not its own.
    pub fn view(self) -> Option<ViewOf> {
        self.links().view()
    }

    /// The tensor that owns its memory: itself, or what it is a view of.
    pub fn root(self) -> TensorRef<'g> {
        TensorRef { graph: self.graph, id: self.links().root.unwrap_or(self.id) }
    }

    /// Where its bytes are; for a view, within the storage of its root.
    pub fn storage(self) -> Option<Storage> {
        let Some(view) = self.view() else { return self.links().storage() };
        let root = self.graph.links[view.root.index()].storage()?;
        Some(Storage { buffer: root.buffer, offset: root.offset + view.offset })
    }

    /// The buffer its bytes are in; for a view, that of its root.
    pub fn buffer(self) -> Option<BufferId> {
        self.graph.links[self.root().id.index()].buffer()
    }

    /// Bytes from its first to its last; see [`Layout::byte_len`].
    pub fn byte_len(self) -> usize {
        self.links().byte_len
    }

    /// What its first byte must be a multiple of. Blocks are made of bytes and need nothing.
    pub fn element_align(self) -> usize {
        self.links().align()
    }
}
