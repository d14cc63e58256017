//! What becomes one step: a node, or neighbouring nodes that one kernel computes in one go.

use oxcart_tensor::{Op, TensorRef};

use crate::job::{Kernel, MAX_SOURCES};
use crate::kernels::choose;
use crate::simd::Level;

/// A kernel, its result and its sources.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unit<'g> {
    pub(crate) kernel: Kernel,
    /// The op whose parameters the kernel reads.
    pub(crate) op: Op,
    /// How many nodes it computes.
    pub(crate) nodes: usize,
    pub(crate) result: TensorRef<'g>,
    sources: [Option<TensorRef<'g>>; MAX_SOURCES],
    source_count: usize,
    /// One bit per source slot that is written.
    written: u16,
    /// Whether each thread reads, of tensors shaped like the result, only rows that it writes; then sources may be the
    /// memory of anything that is written.
    row_local: bool,
}

impl<'g> Unit<'g> {
    /// One node; `None` if there is no kernel for it.
    pub(super) fn single(node: TensorRef<'g>, level: Level) -> Option<Unit<'g>> {
        let mut unit = Unit::new(choose(node, level)?, *node.op(), 1, node);
        node.sources().for_each(|source| unit = unit.source(source));
        for &slot in node.op().info().also_writes {
            unit.written |= 1 << slot;
        }
        Some(unit)
    }

    /// A unit without sources so far.
    pub(crate) const fn new(kernel: Kernel, op: Op, nodes: usize, result: TensorRef<'g>) -> Unit<'g> {
        Unit {
            kernel,
            op,
            nodes,
            result,
            sources: [None; MAX_SOURCES],
            source_count: 0,
            written: 0,
            row_local: false,
        }
    }

    /// One more source, in the next slot.
    pub(crate) fn source(mut self, source: Option<TensorRef<'g>>) -> Unit<'g> {
        self.sources[self.source_count] = source;
        self.source_count += 1;
        self
    }

    /// One more result, in the next slot.
    pub(crate) fn also_writes(mut self, result: TensorRef<'g>) -> Unit<'g> {
        self.written |= 1 << self.source_count;
        self.source(Some(result))
    }

    /// Says that threads read only rows that they write.
    pub(crate) const fn row_local(self) -> Unit<'g> {
        Unit { row_local: true, ..self }
    }

    pub(super) fn sources(&self) -> &[Option<TensorRef<'g>>] {
        &self.sources[..self.source_count]
    }

    pub(super) const fn writes_to(&self, slot: usize) -> bool {
        self.written & 1 << slot != 0
    }

    pub(super) const fn is_row_local(&self) -> bool {
        self.row_local
    }

    /// Whether the result may be the memory of the source in a slot, element for element.
    pub(super) fn may_share(&self, slot: usize) -> bool {
        let info = self.result.op().info();
        // What is true of an op is not true of a kernel that does more than it.
        self.row_local || self.nodes == 1 && (info.reuses.contains(&slot) || self.is_changed(slot))
    }

    /// Whether the result is the source in a slot after the op has changed it.
    fn is_changed(&self, slot: usize) -> bool {
        let shares = |source: TensorRef<'g>| self.result.root().id() == source.root().id();
        slot == self.result.op().info().result_in && self.sources[slot].is_some_and(shares)
    }
}
