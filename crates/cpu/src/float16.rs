//! Slices of f16 to and from `f32`, number by number, which the compiler turns into vectors for every instruction set.

use half::f16;
use oxcart_tensor::quant::{from_f16, to_f16};

/// Widens exactly; slices of one length.
#[inline(always)]
pub(crate) fn widen_f16(from: &[f16], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from_f16(*from);
    }
}

/// Rounds to nearest, ties to even; slices of one length.
#[inline(always)]
pub(crate) fn narrow_f16(from: &[f32], to: &mut [f16]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = to_f16(*from);
    }
}
