//! A source that is read at other places than those that are written next, though it may be the memory of the result.
//!
//! Only a source with the result's own layout can be that. For such a node there is one phase more, in which threads
//! copy the source aside if it really is.

use oxcart_tensor::TensorRef;

use crate::job::{Job, Kernel};
use crate::view::Src;

/// The kernel, with room and a phase to set source `slot` aside where that may be needed.
pub(super) fn with_room(kernel: Kernel, node: TensorRef<'_>, slot: usize) -> Option<Kernel> {
    let layout = node.source(slot)?.layout();
    let may_alias = layout == node.layout();
    Some(if may_alias { kernel.phases(2).shared(layout.byte_len()) } else { kernel })
}

/// Source `slot` in memory that is not written; `None` while that is being made, when there is nothing else to do.
pub(super) fn source<'t>(job: &Job<'t>, slot: usize) -> Option<Src<'t>> {
    let source = job.src(slot);
    let (has_room, bytes) = (job.shared.len() > 0, source.layout().byte_len());
    let is_first = has_room && job.phase == 0;
    match (is_first, source.is_aliased()) {
        (true, false) => None,
        (true, true) => {
            let part = job.share.of(bytes);
            // SAFETY: shares do not meet, and no thread reads the copy in this phase.
            let copy = unsafe { job.shared.bytes_mut(part.start, part.len()) };
            let source = source.packed::<u8>();
            for some in job.stop.stretches(part.len()) {
                source.read(part.start + some.start, &mut copy[some]);
            }
            None
        }
        (false, false) => Some(source),
        (false, true) => {
            // SAFETY: no thread writes the copy in this phase.
            let copy = unsafe { job.shared.bytes(0, bytes) };
            // SAFETY: the copy has as many bytes as the layout says, is aligned for anything, and stays as it is.
            Some(unsafe { Src::new(copy.as_ptr(), source.layout(), false) })
        }
    }
}
