//! A computation as an arena of tensors.
//!
//! Invariants:
//! - a tensor is either a leaf or was made by [`Graph::insert`], the one door, which checked its op, its sources and
//!   the bounds of its view; nothing can change those afterwards;
//! - sources and view roots have smaller ids than their users, apart from leaves that were put in later by
//!   [`Graph::replace_source`]; leaves have no sources, so there are no cycles;
//! - a view's root is never a view itself, and the view lies within the root's bytes;
//! - a tensor bound to storage lies within its buffer.

mod door;
mod dot;
mod dump;
mod order;
mod reference;
mod tensor;

pub use door::Node;
pub use dot::Dot;
pub use dump::Dump;
pub use order::{NodeRange, Slot};
pub use reference::TensorRef;
pub use tensor::{BufferId, Flags, Storage, TensorId, ViewOf};

use tensor::{Details, Links};

use crate::dtype::DType;
use crate::error::Error;
use crate::layout::Layout;
use crate::limits::{MAX_NAME_BYTES, MAX_TENSORS};
use crate::ops::Op;
use crate::shape::Shape;

/// Tensors, how they are computed from each other, and in which order.
///
/// ```
/// use oxcart_tensor::{DType, Graph};
///
/// let mut graph = Graph::new();
/// let weights = graph.leaf(DType::Q4_K, [256, 32])?;
/// let input = graph.leaf(DType::F32, [256, 3])?;
/// let hidden = graph.mul_mat(weights, input)?;
/// let output = graph.rms_norm(hidden, 1e-5)?;
/// graph.expand(output)?;
///
/// assert_eq!(graph.tensor(output)?.layout().to_string(), "f32[32, 3]");
/// assert_eq!(graph.nodes(), [hidden, output]);
///
/// let refused = graph.mul_mat(weights, hidden).unwrap_err();
/// assert_eq!(refused.to_string(), "MUL_MAT: b: shape is [32, 3], dimension 0 must be 256 (the row length of a)");
/// # Ok::<(), oxcart_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Per tensor, how it hangs together with others.
    links: Vec<Links>,
    /// Per tensor, type, extents and strides.
    layouts: Vec<Layout>,
    /// Per tensor, the rest.
    details: Vec<Details>,
    /// Sources of all tensors; each tensor's links hold its range.
    sources: Vec<Option<TensorId>>,
    order: order::Order,
}

impl Graph {
    /// A graph without tensors.
    pub fn new() -> Graph {
        Graph::default()
    }

    /// Number of tensors, whether in order or not.
    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// Whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Bytes of memory that it holds, room for more tensors included.
    pub fn held_bytes(&self) -> usize {
        fn of<T>(list: &Vec<T>) -> usize {
            list.capacity() * size_of::<T>()
        }
        let names = self.details.iter().filter_map(|details| details.name.as_ref());
        // The allocator adds something to each name.
        let names: usize = names.map(|name| name.len().next_multiple_of(16) + 16).sum();
        let tensors = of(&self.links) + of(&self.layouts) + of(&self.details) + of(&self.sources);
        tensors + names + self.order.held_bytes()
    }

    /// Gives back the room for more tensors.
    pub fn shrink_to_fit(&mut self) {
        self.links.shrink_to_fit();
        self.layouts.shrink_to_fit();
        self.details.shrink_to_fit();
        self.sources.shrink_to_fit();
        self.order.shrink_to_fit();
    }

    /// All ids, sources before their users.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = TensorId> + ExactSizeIterator + use<> {
        (0..self.links.len()).map(TensorId::from_index)
    }

    fn links_mut(&mut self, id: TensorId) -> Result<&mut Links, Error> {
        let count = self.len();
        self.links.get_mut(id.index()).ok_or(Error::NoSuchTensor { id, count })
    }

    /// The sources of a tensor, in the order of its op; `None` where an optional one is absent.
    pub fn sources(&self, id: TensorId) -> Result<&[Option<TensorId>], Error> {
        Ok(self.tensor(id)?.source_ids())
    }

    /// A leaf with packed elements, whose contents come from outside.
    pub fn leaf(&mut self, dtype: DType, ne: impl Into<Shape>) -> Result<TensorId, Error> {
        self.leaf_with_layout(Layout::packed(dtype, ne)?)
    }

    /// A leaf with any layout.
    pub fn leaf_with_layout(&mut self, layout: Layout) -> Result<TensorId, Error> {
        self.push(layout, Op::None, None, &[])
    }

    /// Adds a tensor that has been checked.
    fn push(
        &mut self,
        layout: Layout,
        op: Op,
        view: Option<ViewOf>,
        sources: &[Option<TensorId>],
    ) -> Result<TensorId, Error> {
        if self.len() >= MAX_TENSORS {
            return Err(Error::TooManyTensors);
        }
        let first = u32::try_from(self.sources.len()).map_err(|_| Error::TooManyTensors)?;
        // No op has more than MAX_SOURCES.
        let count = u8::try_from(sources.len()).map_err(|_| Error::TooManyTensors)?;
        let mut links = Links::new(&layout, &op, view, (first, count));
        if links.reuses_source {
            links.alike = self.alike_sources(&layout, op.info().reuses, sources);
        }
        self.links.push(links);
        self.layouts.push(layout);
        self.details.push(Details { op, name: None });
        self.sources.extend_from_slice(sources);
        Ok(TensorId::from_index(self.len() - 1))
    }

    /// A bit for each of some sources that has this layout. Layouts are large and planners compare them again and again; here
    /// they are at hand.
    fn alike_sources(&self, layout: &Layout, slots: &[usize], sources: &[Option<TensorId>]) -> u16 {
        let source = |slot: usize| sources.get(slot).copied().flatten();
        let is_alike = |slot: usize| source(slot).is_some_and(|id| self.layouts[id.index()] == *layout);
        slots.iter().fold(0, |bits, &slot| bits | u16::from(is_alike(slot)) << slot)
    }

    /// Names a tensor; an empty name takes the name away.
    pub fn set_name(&mut self, id: TensorId, name: &str) -> Result<(), Error> {
        if name.len() > MAX_NAME_BYTES {
            return Err(Error::NameTooLong { len: name.len() });
        }
        self.tensor(id)?;
        self.details[id.index()].name = (!name.is_empty()).then(|| name.into());
        Ok(())
    }

    /// Its name, or what ggml would call it: `leaf_3` or `node_7` by its place in order, `tensor_9` before it has
    /// one.
    pub fn label(&self, id: TensorId) -> String {
        if let Ok(Some(name)) = self.tensor(id).map(TensorRef::name) {
            return name.to_owned();
        }
        match self.order.slot(id) {
            Some(Slot::Leaf(place)) => format!("leaf_{place}"),
            Some(Slot::Node(place)) => format!("node_{place}"),
            None => format!("tensor_{}", id.index()),
        }
    }

    /// Marks a leaf that is given before each run. Planners never reuse its memory.
    pub fn mark_input(&mut self, id: TensorId) -> Result<(), Error> {
        self.mark_leaf(id, Flags::INPUT, "an input")
    }

    /// Marks a leaf as a trainable parameter. Call it before the leaf is put in order: parameters are nodes.
    pub fn mark_param(&mut self, id: TensorId) -> Result<(), Error> {
        if self.order.slot(id).is_some() {
            return Err(Error::Role { id, role: "a parameter", reason: "it is in order already" });
        }
        self.mark_leaf(id, Flags::PARAM, "a parameter")
    }

    fn mark_leaf(&mut self, id: TensorId, flag: Flags, role: &'static str) -> Result<(), Error> {
        if !self.tensor(id)?.is_leaf() {
            return Err(Error::Role { id, role, reason: "it is computed" });
        }
        self.links_mut(id)?.flags |= flag;
        Ok(())
    }

    /// Marks a result that is read after the run. Planners never free or overwrite it, nor what it is a view of.
    pub fn mark_output(&mut self, id: TensorId) -> Result<(), Error> {
        let root = self.tensor(id)?.root().id();
        self.links_mut(id)?.flags |= Flags::OUTPUT;
        self.links_mut(root)?.flags |= Flags::OUTPUT;
        Ok(())
    }

    /// Marks the number that training makes small.
    pub fn mark_loss(&mut self, id: TensorId) -> Result<(), Error> {
        let tensor = self.tensor(id)?;
        if tensor.dtype() != DType::F32 || !tensor.ne().is_scalar() {
            return Err(Error::Role { id, role: "a loss", reason: "it is not a single f32" });
        }
        self.links_mut(id)?.flags |= Flags::LOSS;
        Ok(())
    }

    /// Puts a tensor that is not a view at a place in a buffer of `capacity` bytes. Its views follow.
    pub fn bind(&mut self, id: TensorId, storage: Storage, capacity: usize) -> Result<(), Error> {
        let links = self.links_mut(id)?;
        if let Some(root) = links.root {
            return Err(Error::BindView { id, root });
        }
        let (Storage { buffer, offset }, align, len) = (storage, links.align(), links.byte_len);
        // A power of two, which the compiler does not know.
        if offset & (align - 1) != 0 {
            return Err(Error::Misaligned { id, offset, align });
        }
        if offset.checked_add(len).is_none_or(|end| end > capacity) {
            return Err(Error::OutsideBuffer { id, len, buffer, offset, capacity });
        }
        links.set_storage(Some(storage));
        Ok(())
    }

    /// Where a tensor's bytes are; for a view, within the storage of its root.
    pub fn storage(&self, id: TensorId) -> Result<Option<Storage>, Error> {
        self.tensor(id).map(TensorRef::storage)
    }

    /// Lets a node read another leaf of the same layout instead of one of its sources. The node keeps its meaning:
    /// its op only ever saw the layout. What a view looks into cannot be exchanged.
    pub fn replace_source(&mut self, id: TensorId, slot: usize, leaf: TensorId) -> Result<(), Error> {
        let node = self.tensor(id)?;
        let refused = |reason| Error::Role { id: leaf, role: "a stand-in", reason };
        let source = node.source(slot).ok_or_else(|| refused("there is no such source"))?;
        let stand_in = self.tensor(leaf)?;
        if !stand_in.is_leaf() || stand_in.layout() != source.layout() {
            return Err(refused("it is not a leaf of the same layout"));
        }
        if node.view().is_some_and(|view| view.root == source.root().id()) {
            return Err(refused("the node is a view of that source"));
        }
        let (place, old) = (self.links[id.index()].sources().start + slot, source.id());
        self.sources[place] = Some(leaf);
        self.order.exchange(id, old, leaf, self.links.len());
        Ok(())
    }

    /// Forgets where a tensor's bytes are.
    pub fn unbind(&mut self, id: TensorId) -> Result<(), Error> {
        self.links_mut(id)?.set_storage(None);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
