//! Convolutions, unfolded and direct.
//!
//! Every result element is gathered by one thread from all that it is made of, in a fixed order; nothing is scattered.

mod depthwise;
mod direct;
mod fold;
pub(super) mod geometry;
mod transpose;
mod unfold;

use half::f16;
use oxcart_tensor::{Op, TensorRef};

use crate::job::Kernel;
use crate::simd::{Level, Simd};
use crate::view::Number;

/// The kernel for an op of this family.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    if node.layout().is_empty() {
        return Some(Kernel::NOTHING);
    }
    match node.op() {
        Op::Im2col(_) | Op::Im2col3d(_) => unfold::choose(node, level),
        Op::Im2colBack(_) | Op::Col2im1d(_) => fold::choose(node, level),
        Op::Conv2d(_) | Op::Conv3d(_) => direct::choose(node, level),
        Op::Conv2dDw(_) => depthwise::choose(node, level),
        Op::ConvTranspose1d(_) | Op::ConvTranspose2d(_) => transpose::choose(node, level),
        _ => None,
    }
}

/// What kernels are made of, and the images they meet: a convolution computes in `f32`, but with values of the
/// kernel's type.
trait Weight: Number + Default + zerocopy::FromBytes + zerocopy::IntoBytes {
    /// Weights as `f32`, expanded into `room` if they have to be.
    fn expand<'w, S: Simd>(s: S, weights: &'w [Self], room: &'w mut [f32]) -> &'w [f32];
    /// Rounds values to this type.
    fn round(values: &mut [f32]);
}

impl Weight for f32 {
    #[inline(always)]
    fn expand<'w, S: Simd>(_s: S, weights: &'w [f32], _room: &'w mut [f32]) -> &'w [f32] {
        weights
    }
    #[inline(always)]
    fn round(_values: &mut [f32]) {}
}

impl Weight for f16 {
    #[inline(always)]
    fn expand<'w, S: Simd>(s: S, weights: &'w [f16], room: &'w mut [f32]) -> &'w [f32] {
        let room = &mut room[..weights.len()];
        let whole = weights.len() / S::LANES * S::LANES;
        for (from, to) in weights.chunks_exact(S::LANES).zip(room.chunks_exact_mut(S::LANES)) {
            s.store(s.load_f16(from), to);
        }
        f16::widen(&weights[whole..], &mut room[whole..]);
        room
    }
    #[inline(always)]
    fn round(values: &mut [f32]) {
        let mut rounded = [f16::ZERO; 128];
        for values in values.chunks_mut(rounded.len()) {
            let rounded = &mut rounded[..values.len()];
            f16::narrow(values, rounded);
            f16::widen(rounded, values);
        }
    }
}

/// The product of sizes; one too large to count is as good as any other such.
fn product(factors: &[usize]) -> usize {
    factors.iter().fold(1, |product: usize, &n| product.saturating_mul(n))
}

/// What multiply-adds of vectors count as work; see [`Kernel::units`].
const fn multiply_adds(count: usize) -> usize {
    count / 4
}

#[cfg(test)]
mod tests;
