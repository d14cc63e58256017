//! Blocks of every quantized weight type as what products need: signed bytes, and a scale per group of them.
//!
//! Invariant: `value = scale * code + min`, with the scale and the minimum of the code's group, is what
//! [`Block::decode`] gives, up to the rounding of `f32`. Codes are small integers, so dot products of them are exact.

mod iq;
mod k;
mod simple;

use oxcart_tensor::quant::Block;
use zerocopy::IntoBytes;

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
    /// The least code.
    const LEAST: i8;
    /// The largest code.
    const MOST: i8;

    /// Writes one code per element, one scale per group, and one minimum per group if there are any.
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]);
}

/// The same byte eight times.
const fn splat(byte: u8) -> u64 {
    0x0101_0101_0101_0101 * byte as u64
}

/// Eight bytes as one number. Codes are unpacked eight at a time this way: compilers make worse code of single bytes.
#[inline(always)]
fn eight(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(eight)
}

/// Writes eight codes, each below 128, minus a number of at most 128.
#[inline(always)]
fn put(codes: &mut [i8], at: usize, eight: u64, minus: u8) {
    // With 128 added nothing is borrowed from the byte above; the sum's highest bit is then the wrong way round.
    let signed = (eight + splat(128 - minus)) ^ splat(128);
    codes[at..at + 8].as_mut_bytes().copy_from_slice(&signed.to_le_bytes());
}

/// Two codes per byte: byte `i` of each run of `STRIDE` bytes holds elements `i` (low) and `i + STRIDE` (high).
#[inline(always)]
fn nibbles<const STRIDE: usize>(bytes: &[u8], codes: &mut [i8], minus: u8) {
    for run in 0..bytes.len() / STRIDE {
        for i in 0..STRIDE / 8 {
            let both = eight(bytes, run * STRIDE + 8 * i);
            put(codes, 2 * run * STRIDE + 8 * i, both & splat(15), minus);
            put(codes, 2 * run * STRIDE + STRIDE + 8 * i, both >> 4 & splat(15), minus);
        }
    }
}

/// As [`nibbles`], with codes that are places in a table.
#[inline(always)]
fn looked_up<const STRIDE: usize>(bytes: &[u8], codes: &mut [i8], table: &[i8; 16]) {
    for (bytes, codes) in bytes.chunks_exact(STRIDE).zip(codes.chunks_exact_mut(2 * STRIDE)) {
        let (low, high) = codes.split_at_mut(STRIDE);
        for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
            *low = table[usize::from(byte & 15)];
            *high = table[usize::from(byte >> 4)];
        }
    }
}

/// Four codes per byte: in each run of 128 elements, byte `i` holds elements `i`, `i + 32`, `i + 64`, `i + 96`.
/// `above` are bits to put above the codes of the eight elements from `e` on.
#[inline(always)]
fn crumbs(bytes: &[u8; 64], codes: &mut [i8], minus: u8, above: impl Fn(usize) -> u64) {
    for run in 0..2 {
        for i in 0..4 {
            let four = eight(bytes, 32 * run + 8 * i);
            for lane in 0..4 {
                let e = 128 * run + 32 * lane + 8 * i;
                put(codes, e, four >> (2 * lane) & splat(3) | above(e), minus);
            }
        }
    }
}

/// One bit of each of eight elements from `e` on, where bit `k` of byte `i` belongs to element `32 * k + i`.
#[inline(always)]
fn plane_bits(bytes: &[u8; 32], e: usize) -> u64 {
    eight(bytes, e % 32) >> (e / 32) & splat(1)
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
                assert!(codes.iter().all(|code| (B::LEAST..=B::MOST).contains(code)), "{dtype}");
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
