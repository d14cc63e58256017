//! What goes with the codes of each quantized weight type: groups of elements, with a scale and perhaps a minimum each.
//!
//! Invariant: `value = scale * (code - middle) + min`, with the [codes](Codes) of the block and the scale and the minimum of the
//! code's group, is what [`Block::decode`] gives, up to the rounding of `f32`. A scale and a minimum are computed by the same
//! operations on every instruction set.

mod iq;
mod simple;
mod super_blocks;

use oxcart_tensor::quant::Block;

use crate::kernels::dot::Codes;
use crate::kernels::dot::lanes::Lanes;

/// The most elements of a block.
pub(super) const MAX_BLOCK: usize = 256;
/// The most groups among so many elements.
pub(super) const MAX_GROUPS: usize = 16;
/// The most words that scales of groups are stored in.
pub(super) const MAX_WORDS: usize = 8;

/// The bits of an `f16`.
pub(super) type Half = u16;

/// How a block stores its scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// One number for all groups, and one minimum if there are any: [`Scaled::halves`].
    Halves,
    /// The same, times a small integer per group: [`Scaled::words`], [`Scaled::scale_code`] and [`Scaled::min_code`].
    Codes,
    /// In some other way: [`Scaled::scales`].
    Otherwise,
}

/// A block of weights in groups.
pub(super) trait Scaled: Block + Codes {
    /// Elements that share a scale: 16 or 32.
    const GROUP: usize;
    /// Elements that share a scale of the activations.
    const RUN: usize = if Self::LEN == 256 { 256 } else { 32 };
    /// Whether groups have a minimum besides their scale.
    const MINS: bool = false;
    /// The least code, once the middle is taken off.
    const LEAST: i8;
    /// The largest code, once the middle is taken off.
    const MOST: i8;
    /// How scales are stored.
    const STORED: Stored;
    /// Whether that is [`Stored::Codes`].
    const BY_CODES: bool = matches!(Self::STORED, Stored::Codes);
    /// Whether that is [`Stored::Otherwise`].
    const OTHERWISE: bool = matches!(Self::STORED, Stored::Otherwise);
    /// Whether a row may end before 64 elements are full.
    const SHORT: bool = !Self::LEN.is_multiple_of(64);
    /// How many words the scales of groups are in: [`Scaled::words`].
    const WORDS: usize = 0;
    /// What the stored scale is multiplied with: a power of two.
    const FACTOR: f32 = 1.0;

    /// The scale of the block, and the minimum if there is one.
    fn halves(&self) -> [Half; 2];

    /// What the scales of groups are in.
    #[inline(always)]
    fn words(&self) -> [u32; MAX_WORDS] {
        [0; MAX_WORDS]
    }

    /// What the scale of a group is a multiple by, given [`Scaled::words`].
    #[inline(always)]
    fn scale_code(_words: &[u32; MAX_WORDS], _group: usize) -> i32 {
        1
    }

    /// What the minimum of a group is a multiple by, given [`Scaled::words`].
    #[inline(always)]
    fn min_code(_words: &[u32; MAX_WORDS], _group: usize) -> i32 {
        1
    }

    /// Writes one scale per group, and one minimum per group if there are any.
    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S, scales: &mut [f32], mins: &mut [f32]) {
        let ([scale, min], words) = (self.halves(), self.words());
        let (scale, min) = (s.half(scale), s.half(min));
        for (g, to) in scales.iter_mut().enumerate() {
            *to = Self::scale(scale, &words, g);
        }
        if Self::MINS {
            for (g, to) in mins.iter_mut().enumerate() {
                *to = Self::min(min, &words, g);
            }
        }
    }

    /// The scale of a group.
    #[inline(always)]
    fn scale(stored: f32, words: &[u32; MAX_WORDS], group: usize) -> f32 {
        match Self::STORED {
            Stored::Codes => stored * Self::FACTOR * Self::scale_code(words, group) as f32,
            _ => stored,
        }
    }

    /// The minimum of a group.
    #[inline(always)]
    fn min(stored: f32, words: &[u32; MAX_WORDS], group: usize) -> f32 {
        match Self::STORED {
            // These are taken off.
            Stored::Codes => -stored * Self::min_code(words, group) as f32,
            _ => stored,
        }
    }
}

/// [`Scaled`] for types that differ in little but the codes they have: what is a type's own stands behind it in braces.
macro_rules! scaled {
    ([$($type:ty: $least:literal..=$most:literal $({ $($own:tt)* })?),+ $(,)?] $alike:tt) => {
        $(scaled!(@ $type, $least, $most, { $($($own)*)? }, $alike);)+
    };
    (@ $type:ty, $least:literal, $most:literal, { $($own:tt)* }, { $($alike:tt)* }) => {
        impl Scaled for $type {
            const LEAST: i8 = $least;
            const MOST: i8 = $most;
            $($own)*
            $($alike)*
        }
    };
}
use scaled;

/// Bytes as words, and zeros behind them.
#[inline(always)]
fn words_of<const N: usize>(bytes: [u8; N]) -> [u32; MAX_WORDS] {
    let mut words = [0; MAX_WORDS];
    // No iterators: where they are not inlined, this takes longer than all products.
    for i in 0..N / 4 {
        words[i] = u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]);
    }
    words
}

/// A byte of some words.
#[inline(always)]
fn byte(words: &[u32; MAX_WORDS], at: usize) -> i32 {
    (words[at / 4] >> (8 * (at % 4)) & 0xFF) as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxcart_tensor::DType;
    use oxcart_tensor::quant::dequantize_row;
    use zerocopy::FromBytes;

    use crate::kernels::matmul::types::{Visit, visit};
    use crate::simd::{Level, for_each_level};

    /// Codes less their middle, scales and minimums of some blocks.
    #[inline(always)]
    fn come_apart<S: Lanes, B: Scaled>(
        s: S,
        bytes: &[u8],
        codes: &mut [i32],
        scales: &mut [f32],
        mins: &mut [f32],
    ) {
        let blocks = <[B]>::ref_from_bytes(bytes).unwrap();
        let groups = B::LEN / B::GROUP;
        for (part, codes) in codes.chunks_exact_mut(64).enumerate() {
            let mut bytes = [0; 64];
            // Four rows are the same; of each, sixteen elements are in a vector.
            for (vector, bytes) in
                B::quarters(s, [blocks; 4], part).into_iter().zip(bytes.as_chunks_mut::<16>().0)
            {
                let mut all = [0; 64];
                s.store_bytes(vector, &mut all);
                assert!(all.chunks_exact(16).all(|row| row == &all[..16]));
                bytes.copy_from_slice(&all[..16]);
            }
            for (code, byte) in codes.iter_mut().zip(bytes) {
                *code =
                    if B::SIGNED { i32::from(byte as i8) } else { i32::from(byte) - i32::from(B::MIDDLE) };
            }
        }
        for (b, block) in blocks.iter().enumerate() {
            let at = b * groups..(b + 1) * groups;
            block.scales(s, &mut scales[at.clone()], &mut mins[at]);
        }
    }

    struct Check;

    impl Visit for Check {
        type Answer = ();

        fn quantized<B: Scaled>(self) {
            let dtype = B::DTYPE;
            assert_eq!(B::LEN, dtype.block_len());
            let len = B::LEN.max(64);
            let mut state = 0x2545_F491_4F6C_DD1Du64;
            for _ in 0..200 {
                let mut bytes = vec![0u8; len / B::LEN * size_of::<B>()];
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
                let mut first = None;
                for level in Level::available() {
                    let (mut codes, groups) = (vec![0; len], len / B::GROUP);
                    let (mut scales, mut mins) = (vec![0.0; groups], vec![0.0; groups]);
                    for_each_level!(come_apart[B: Scaled]: fn(
                        bytes: &[u8],
                        codes: &mut [i32],
                        scales: &mut [f32],
                        mins: &mut [f32],
                    ))
                    .at(level)(&bytes, &mut codes, &mut scales, &mut mins);
                    let range = i32::from(B::LEAST)..=i32::from(B::MOST);
                    assert!(codes.iter().all(|code| range.contains(code)), "{dtype}");
                    assert!(B::SIGNED || B::LEAST as i32 == -i32::from(B::MIDDLE), "{dtype}");
                    let largest = exact.iter().fold(0f32, |largest, x| largest.max(x.abs()));
                    for (e, exact) in exact.iter().enumerate() {
                        let g = e / B::GROUP;
                        let found = scales[g] * codes[e] as f32 + mins[g];
                        assert!(
                            (found - exact).abs() <= 1e-5 * largest,
                            "{dtype} on {level}, element {e}: {found}, not {exact}"
                        );
                    }
                    let apart = (codes, scales, mins);
                    assert_eq!(*first.get_or_insert(apart.clone()), apart, "{dtype} on {level}");
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
