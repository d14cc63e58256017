//! Neighbouring nodes that one kernel computes in one go, with the same result to the last bit.
//!
//! Two nodes are fused only where nobody can tell: the first one's result has one reader, is not an output and not a
//! view, and no other node that computes lies between them.

use oxcart_tensor::TensorRef;

use crate::plan::Unit;
use crate::simd::Level;

/// The first of these nodes together with those that follow; `None` where they are better computed one by one.
pub(crate) fn fuse<'g>(_nodes: &[TensorRef<'g>], _level: Level) -> Option<Unit<'g>> {
    None
}
