//! Blocks of every quantized weight type as what products need: signed bytes, and a scale per group of them.
//!
//! Invariant: `value = scale * code + min`, with the scale and the minimum of the code's group, is what
//! [`Block::decode`] gives, up to the rounding of `f32`. Codes are small integers, so dot products of them are exact.

mod iq;
mod k;
mod simple;

use oxcart_tensor::quant::Block;

/// The most elements of a block.
pub(super) const MAX_BLOCK: usize = 256;
/// The most groups of a block.
pub(super) const MAX_GROUPS: usize = 16;

/// A block that comes apart into codes, scales and minimums.
pub(super) trait Unpack: Block {
    /// Elements that share a scale: 16 or 32.
    const GROUP: usize;
    /// Whether groups have a minimum besides their scale.
    const MINS: bool = false;

    /// Writes one code per element, one scale per group, and one minimum per group if there are any.
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]);
}

/// Two codes per byte: byte `i` of each run of `STRIDE` bytes holds elements `i` (low) and `i + STRIDE` (high).
#[inline(always)]
fn nibbles<const STRIDE: usize>(bytes: &[u8], codes: &mut [i8], code: impl Fn(u8) -> i8) {
    for (bytes, codes) in bytes.chunks_exact(STRIDE).zip(codes.chunks_exact_mut(2 * STRIDE)) {
        let (low, high) = codes.split_at_mut(STRIDE);
        for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
            *low = code(byte & 15);
            *high = code(byte >> 4);
        }
    }
}

/// Four codes per byte: in each run of 128 elements, byte `i` holds elements `i`, `i + 32`, `i + 64`, `i + 96`.
#[inline(always)]
fn crumbs(bytes: &[u8; 64], codes: &mut [i8], minus: i8) {
    for (bytes, codes) in bytes.chunks_exact(32).zip(codes.chunks_exact_mut(128)) {
        for (lane, codes) in codes.chunks_exact_mut(32).enumerate() {
            for (byte, code) in bytes.iter().zip(codes) {
                *code = (byte >> (2 * lane) & 3) as i8 - minus;
            }
        }
    }
}

/// Adds bits above: bit `k` of byte `i` belongs to element `32 * k + i` and is worth `1 << shift`.
#[inline(always)]
fn add_bits(bytes: &[u8; 32], codes: &mut [i8], shift: u32) {
    for (plane, codes) in codes.chunks_exact_mut(32).enumerate() {
        for (byte, code) in bytes.iter().zip(codes) {
            *code += ((byte >> plane & 1) << shift) as i8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxcart_tensor::DType;
    use oxcart_tensor::quant::dequantize_row;

    use crate::kernels::matmul::types::{Visit, visit};

    struct Check;

    impl Visit for Check {
        type Answer = ();

        fn quantized<B: Unpack>(self) {
            let dtype = B::DTYPE;
            let (len, groups) = (dtype.block_len(), dtype.block_len() / B::GROUP);
            let mut state = 0x2545_F491_4F6C_DD1Du64;
            for _ in 0..200 {
                let mut bytes = vec![0u8; size_of::<B>()];
                bytes.iter_mut().for_each(|byte| {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    *byte = (state >> 56) as u8;
                });
                let mut exact = vec![0.0; len];
                dequantize_row(dtype, &bytes, &mut exact).unwrap();
                if exact.iter().any(|x| !x.is_finite()) {
                    continue;
                }
                let block = B::ref_from_bytes(&bytes).unwrap();
                let (mut codes, mut scales, mut mins) = (vec![0; len], vec![0.0; groups], vec![0.0; groups]);
                block.unpack(&mut codes, &mut scales, &mut mins);
                let largest = exact.iter().fold(0f32, |largest, x| largest.max(x.abs()));
                for (e, exact) in exact.iter().enumerate() {
                    let g = e / B::GROUP;
                    let found = scales[g] * f32::from(codes[e]) + mins[g];
                    assert!(
                        (found - exact).abs() <= 1e-5 * largest,
                        "{dtype} element {e}: {found}, not {exact}"
                    );
                }
            }
        }

        fn float(self, _: DType) {}
    }

    #[test]
    fn codes_and_scales_are_the_values() {
        for dtype in DType::all().filter(|dtype| dtype.dot_partner().is_some()) {
            visit(dtype, Check).unwrap();
        }
    }
}
