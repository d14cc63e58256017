//! Eight rows of Q8_0 at a time, for AVX2.
//!
//! A block is one register of codes there. Its products with a column are added up to eight sums; sums of eight rows are put side
//! by side as they are added up further, and everything after that is done for eight rows at once. Nothing is written to memory
//! but results.
//!
//! Invariant: results are the same operations in the same order as those of [`micro`](crate::kernels::matmul::micro).

use std::arch::x86_64::*;

use oxcart_tensor::DType;
use oxcart_tensor::quant::BlockQ8_0;

use super::{FewScratch, MultiplyFew};
use crate::kernels::dot::ROWS;
use crate::kernels::matmul::format::Columns;
use crate::kernels::matmul::pack::{Ahead, Sources};
use crate::simd::Level;

/// Rows that are multiplied together: one in each lane.
const EIGHT: usize = 8;
/// Elements of a block.
const LEN: usize = 32;
/// Blocks of each row that are multiplied with all columns before those behind them: they stay in the first cache.
const PIECE: usize = 32;

/// How rows of a type are multiplied, if they are multiplied this way.
pub(super) fn multiply(dtype: DType, level: Level) -> Option<MultiplyFew> {
    is_for(dtype, level).then_some(multiply_rows)
}

/// Whether rows of a type are multiplied this way.
pub(super) const fn is_for(dtype: DType, level: Level) -> bool {
    matches!(level, Level::Avx2(_)) && matches!(dtype, DType::Q8_0)
}

fn multiply_rows(
    from: &Sources<'_>,
    _: &mut FewScratch,
    columns: &[Columns<'_>],
    results: &mut [[f32; ROWS]],
) {
    // SAFETY: this function is given out for a level that says that the processor has the instructions.
    unsafe { rows(from, columns, results) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn rows(from: &Sources<'_>, columns: &[Columns<'_>], results: &mut [[f32; ROWS]]) {
    let blocks = from.bytes.len() / size_of::<BlockQ8_0>();
    let rows = from.blocks::<BlockQ8_0>(0);
    assert!(columns.len() == results.len());
    for half in 0..ROWS / EIGHT {
        for first in (0..blocks).step_by(PIECE) {
            let count = PIECE.min(blocks - first);
            let mut piece: [&[BlockQ8_0]; EIGHT] = [&[]; EIGHT];
            for r in 0..EIGHT {
                piece[r] = &rows[half * EIGHT + r][first..first + count];
            }
            // Memory is asked with the first columns.
            let mut ahead =
                Some(from.ahead_in_order::<BlockQ8_0>(half * EIGHT..(half + 1) * EIGHT, first, count));
            let (pairs, last) = columns.as_chunks::<2>();
            let (pairs_to, last_to) = results.as_chunks_mut::<2>();
            for (pair, to) in pairs.iter().zip(pairs_to) {
                add_piece(ahead.take(), piece, first, pair, half, to);
            }
            if let ([last], [to]) = (last, last_to) {
                add_piece(ahead.take(), piece, first, &[*last], half, std::array::from_mut(to));
            }
        }
    }
}

/// Adds some blocks of eight rows, which are those from block `first` on, to half of the results of some columns.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add_piece<const N: usize>(
    ahead: Option<Ahead>,
    piece: [&[BlockQ8_0]; EIGHT],
    first: usize,
    columns: &[Columns<'_>; N],
    half: usize,
    results: &mut [[f32; ROWS]; N],
) {
    let count = piece[0].len();
    let end = first + count;
    for r in 0..EIGHT {
        assert!(piece[r].len() == count);
    }
    for n in 0..N {
        assert!(columns[n].codes.len() >= end * LEN && columns[n].scales.len() >= end);
    }
    let [r0, r1, r2, r3, r4, r5, r6, r7] = piece;
    let mut total = [_mm256_setzero_ps(); N];
    for n in 0..N {
        let eight: &[f32] = &results[n][half * EIGHT..(half + 1) * EIGHT];
        // SAFETY: these are eight numbers.
        total[n] = unsafe { _mm256_loadu_ps(eight.as_ptr()) };
    }
    for b in 0..count {
        // SAFETY: there are so many blocks in all rows.
        let blocks: [&BlockQ8_0; EIGHT] = unsafe {
            [
                r0.get_unchecked(b),
                r1.get_unchecked(b),
                r2.get_unchecked(b),
                r3.get_unchecked(b),
                r4.get_unchecked(b),
                r5.get_unchecked(b),
                r6.get_unchecked(b),
                r7.get_unchecked(b),
            ]
        };
        if let Some(ahead) = ahead {
            ahead.ask_for_block::<BlockQ8_0>(EIGHT, b);
        }
        let at = first + b;
        let mut acts = [_mm256_setzero_si256(); N];
        for n in 0..N {
            // SAFETY: the length was checked above.
            acts[n] = unsafe { _mm256_loadu_si256(columns[n].codes.as_ptr().add(at * LEN).cast()) };
        }
        let dots = dots_of_eight(blocks, acts);
        let scales = scales_of_eight(blocks);
        for n in 0..N {
            let part = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[n]), scales, _mm256_setzero_ps());
            // SAFETY: the length was checked above.
            let scale = unsafe { *columns[n].scales.get_unchecked(at) };
            total[n] = _mm256_fmadd_ps(part, _mm256_set1_ps(scale), total[n]);
        }
    }
    for n in 0..N {
        let eight: &mut [f32] = &mut results[n][half * EIGHT..(half + 1) * EIGHT];
        // SAFETY: these are eight numbers.
        unsafe { _mm256_storeu_ps(eight.as_mut_ptr(), total[n]) };
    }
}

/// The scales of eight blocks.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn scales_of_eight(blocks: [&BlockQ8_0; EIGHT]) -> __m256 {
    let mut halves = [0; EIGHT];
    // No closures: what takes them would not be compiled for the instruction set.
    for r in 0..EIGHT {
        halves[r] = blocks[r].scale.bits().cast_signed();
    }
    let [a, b, c, d, e, f, g, h] = halves;
    _mm256_cvtph_ps(_mm_setr_epi16(a, b, c, d, e, f, g, h))
}

/// The dot products of eight blocks with some columns, side by side.
#[target_feature(enable = "avx2")]
#[inline]
fn dots_of_eight<const N: usize>(
    [a, b, c, d, e, f, g, h]: [&BlockQ8_0; EIGHT],
    acts: [__m256i; N],
) -> [__m256i; N] {
    let ab = fold_halves(eight_sums(a, acts), eight_sums(b, acts));
    let cd = fold_halves(eight_sums(c, acts), eight_sums(d, acts));
    let abcd = fold_pairs(ab, cd);
    let ef = fold_halves(eight_sums(e, acts), eight_sums(f, acts));
    let gh = fold_halves(eight_sums(g, acts), eight_sums(h, acts));
    let efgh = fold_pairs(ef, gh);
    let mut dots = abcd;
    for n in 0..N {
        let crossed = _mm256_permute2x128_si256::<0x21>(abcd[n], efgh[n]);
        dots[n] = _mm256_add_epi32(crossed, _mm256_blend_epi32::<0b1111_0000>(abcd[n], efgh[n]));
    }
    dots
}

/// The products of a block with some columns, added up to eight sums.
#[target_feature(enable = "avx2")]
#[inline]
fn eight_sums<const N: usize>(block: &BlockQ8_0, acts: [__m256i; N]) -> [__m256i; N] {
    let codes: &[i8; LEN] = &block.codes;
    // SAFETY: there are 32 bytes.
    let codes = unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) };
    let mut sums = acts;
    for n in 0..N {
        // The instruction wants one side unsigned, where 128 is still a number: codes give their signs to activations, none of
        // which is -128. Two products of 128 and 127 fit 16 bits.
        let products = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(acts[n], codes));
        sums[n] = _mm256_madd_epi16(products, _mm256_set1_epi16(1));
    }
    sums
}

/// In each half, the first two words with the other two, of `a` and then of `b`.
#[target_feature(enable = "avx2")]
#[inline]
fn fold_halves<const N: usize>(a: [__m256i; N], b: [__m256i; N]) -> [__m256i; N] {
    let mut sums = a;
    for n in 0..N {
        let (x, y) = (_mm256_castsi256_pd(a[n]), _mm256_castsi256_pd(b[n]));
        let crossed = _mm256_castpd_si256(_mm256_shuffle_pd::<0b0101>(x, y));
        sums[n] = _mm256_add_epi32(_mm256_blend_epi32::<0b1100_1100>(a[n], b[n]), crossed);
    }
    sums
}

/// In each half, each even word with the odd one behind it, of `a` and then of `b`.
#[target_feature(enable = "avx2")]
#[inline]
fn fold_pairs<const N: usize>(a: [__m256i; N], b: [__m256i; N]) -> [__m256i; N] {
    let mut sums = a;
    for n in 0..N {
        let (x, y) = (_mm256_castsi256_ps(a[n]), _mm256_castsi256_ps(b[n]));
        let even = _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(x, y));
        let odd = _mm256_castps_si256(_mm256_shuffle_ps::<0b11_01_11_01>(x, y));
        sums[n] = _mm256_add_epi32(even, odd);
    }
    sums
}
