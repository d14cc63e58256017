//! Products of codes with `vpdpbusd`: four products of an unsigned and a signed byte are added to each lane of 32 bits.
//!
//! Keys are the unsigned side, so they have 128 added; sums start at -128 times the sum of the query's codes.
#![allow(clippy::needless_range_loop, reason = "rows and keys are what the reader follows")]

use std::arch::x86_64::*;
use std::ops::Range;

use zerocopy::{FromBytes, IntoBytes};

use super::super::expand::{GROUP, widen_scales};
use super::super::lens::KEYS;
use super::{CodedKeys, CodedQueries};
use crate::kernels::dot::{swap_quarters, swap_words};
use crate::simd::Simd;

const LANES: usize = 16;
/// Words of four codes in a group.
const WORDS: usize = GROUP / 4;

/// See [`few`](super::few): keys are arranged so that a vector holds four channels of sixteen keys. The range begins at a
/// multiple of sixteen.
#[inline(always)]
pub(super) fn few<S: Simd>(
    s: S,
    queries: &CodedQueries<'_>,
    keys: CodedKeys<'_>,
    depth: usize,
    range: Range<usize>,
    scores: &mut [[f32; KEYS]],
) {
    assert!(S::IS_AVX512 && range.start.is_multiple_of(LANES));
    let CodedKeys { codes, halves, scales, arranged } = keys;
    let codes = <[u32]>::ref_from_bytes(codes.as_bytes()).unwrap_or_else(|_| unreachable!("whole floats"));
    let words = <[u32]>::mut_from_bytes(arranged.as_mut_bytes()).unwrap_or_else(|_| unreachable!("floats"));
    let (row_words, groups, rows) = (depth / 4, depth / GROUP, scores.len());
    // Keys behind the range are whatever lies there.
    let (first, end) = (range.start, range.end.next_multiple_of(LANES));
    assert!(words.len() >= row_words * KEYS && scales.len() >= groups * KEYS && end <= KEYS);
    // Of the last key a whole vector is read, wherever its codes end.
    assert!(codes.len() >= (end - first) * row_words + LANES);
    for block in (first..end).step_by(LANES) {
        for word in (0..row_words).step_by(LANES) {
            let (from, to) = ((block - first) * row_words + word, word * KEYS + block);
            let count = LANES.min(row_words - word);
            // SAFETY: the token says that the processor has the instructions; lengths were checked above, and keys from
            // `block` on and words from `word` on are inside of them.
            unsafe { arrange(codes.as_ptr().add(from), row_words, count, words.as_mut_ptr().add(to)) };
        }
    }
    widen_scales(s, halves, scales);
    assert!(size_of_val(queries.codes) >= rows * depth && queries.scales.len() >= rows * groups);
    assert!(queries.corrections.len() >= rows * groups);
    for row in (0..rows).step_by(4) {
        let mut block = first;
        while block < end {
            let two = end - block >= 2 * LANES;
            // SAFETY: the token says that the processor has the instructions; lengths were checked above, and rows and keys
            // are inside of them.
            unsafe {
                match (rows - row, two) {
                    (1, true) => rows_by_keys::<1, 2>(queries, words, scales, groups, [row, block], scores),
                    (1, false) => rows_by_keys::<1, 1>(queries, words, scales, groups, [row, block], scores),
                    (2, true) => rows_by_keys::<2, 2>(queries, words, scales, groups, [row, block], scores),
                    (2, false) => rows_by_keys::<2, 1>(queries, words, scales, groups, [row, block], scores),
                    (3, true) => rows_by_keys::<3, 2>(queries, words, scales, groups, [row, block], scores),
                    (3, false) => rows_by_keys::<3, 1>(queries, words, scales, groups, [row, block], scores),
                    (_, true) => rows_by_keys::<4, 2>(queries, words, scales, groups, [row, block], scores),
                    (_, false) => rows_by_keys::<4, 1>(queries, words, scales, groups, [row, block], scores),
                }
            }
            block += if two { 2 * LANES } else { LANES };
        }
    }
}

/// Writes `count` words of sixteen keys side by side, lines [`KEYS`] words apart, 128 added to each byte.
///
/// # Safety
///
/// `from` has sixteen words at each of sixteen multiples of `stride`, `to` has room for sixteen words at each of `count`
/// multiples of [`KEYS`], and `count` is at most sixteen.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn arrange(from: *const u32, stride: usize, count: usize, to: *mut u32) {
    let plus = _mm512_set1_epi8(-128);
    let mut v = [_mm512_setzero_si512(); LANES];
    for r in 0..LANES {
        // SAFETY: as the caller says.
        v[r] = _mm512_xor_si512(unsafe { _mm512_loadu_si512(from.add(r * stride).cast()) }, plus);
    }
    for f in 0..4 {
        let four = swap_words([v[4 * f], v[4 * f + 1], v[4 * f + 2], v[4 * f + 3]]);
        v[4 * f..][..4].copy_from_slice(&four);
    }
    // Now quarter q of v[4 * f + i] is word 4 * q + i of keys 4 * f to 4 * f + 3.
    let mut w = v;
    for i in 0..4 {
        let four = swap_quarters([v[i], v[4 + i], v[8 + i], v[12 + i]]);
        for q in 0..4 {
            w[4 * q + i] = four[q];
        }
    }
    for i in 0..count.min(LANES) {
        // SAFETY: as the caller says.
        unsafe { _mm512_storeu_si512(to.add(i * KEYS).cast(), w[i]) };
    }
}

/// Scores of `R` rows with `C` vectors of keys.
///
/// # Safety
///
/// Rows from `row` on and keys from `block` on are inside of all slices.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
unsafe fn rows_by_keys<const R: usize, const C: usize>(
    queries: &CodedQueries<'_>,
    words: &[u32],
    scales: &[f32],
    groups: usize,
    [row, block]: [usize; 2],
    scores: &mut [[f32; KEYS]],
) {
    let mut totals = [[_mm512_setzero_ps(); C]; R];
    for group in 0..groups {
        // SAFETY: as the caller says.
        unsafe {
            let mut sums = [[_mm512_setzero_si512(); C]; R];
            let mut codes = [std::ptr::null::<i32>(); R];
            for r in 0..R {
                let at = (row + r) * groups + group;
                sums[r] = [_mm512_set1_epi32(*queries.corrections.as_ptr().cast::<i32>().add(at)); C];
                codes[r] = queries.codes.as_ptr().cast::<i32>().add(at * WORDS);
            }
            for word in 0..WORDS {
                let from = words.as_ptr().add((group * WORDS + word) * KEYS + block);
                let mut keys = [_mm512_setzero_si512(); C];
                for c in 0..C {
                    keys[c] = _mm512_loadu_si512(from.add(c * LANES).cast());
                }
                for r in 0..R {
                    let query = _mm512_set1_epi32(*codes[r].add(word));
                    for c in 0..C {
                        sums[r][c] = _mm512_dpbusd_epi32(sums[r][c], keys[c], query);
                    }
                }
            }
            for c in 0..C {
                let key_scales = _mm512_loadu_ps(scales.as_ptr().add(group * KEYS + block + c * LANES));
                for r in 0..R {
                    let query_scale =
                        _mm512_set1_ps(*queries.scales.as_ptr().add((row + r) * groups + group));
                    let scale = _mm512_mul_ps(key_scales, query_scale);
                    totals[r][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r][c]), scale, totals[r][c]);
                }
            }
        }
    }
    for r in 0..R {
        for c in 0..C {
            // SAFETY: as the caller says.
            unsafe { _mm512_storeu_ps(scores[row + r].as_mut_ptr().add(block + c * LANES), totals[r][c]) };
        }
    }
}

/// See [`many`](super::many): a vector holds four channels of sixteen rows. Keys get 128 added in place.
#[inline(always)]
pub(super) fn many<S: Simd>(
    _s: S,
    queries: &CodedQueries<'_>,
    (codes, scales): (&mut [i8], &[f32]),
    depth: usize,
    rows: usize,
    scores: &mut [f32],
) {
    assert!(S::IS_AVX512);
    let (groups, count) = (depth / GROUP, scores.len() / rows);
    if groups == 0 {
        return scores.fill(0.0);
    }
    let codes = &mut codes[..count * depth];
    for code in &mut *codes {
        *code ^= -128;
    }
    assert!(rows.is_multiple_of(LANES) && count.is_multiple_of(4) && scores.len() == count * rows);
    assert!(queries.codes.len() >= depth / 4 * rows && queries.scales.len() >= groups * rows);
    assert!(queries.corrections.len() >= groups * rows && scales.len() >= (groups - 1) * KEYS + count);
    for key in (0..count).step_by(4) {
        let mut row = 0;
        while row < rows {
            // SAFETY: the token says that the processor has the instructions; lengths were checked above, and rows and keys
            // are inside of them.
            unsafe {
                match (rows - row) / LANES {
                    1 => keys_by_rows::<1>(queries, codes, scales, groups, rows, [key, row], scores),
                    2 => keys_by_rows::<2>(queries, codes, scales, groups, rows, [key, row], scores),
                    3 => keys_by_rows::<3>(queries, codes, scales, groups, rows, [key, row], scores),
                    _ => keys_by_rows::<4>(queries, codes, scales, groups, rows, [key, row], scores),
                }
            }
            row += 4 * LANES;
        }
    }
}

/// Scores of four keys with `C` vectors of rows.
///
/// # Safety
///
/// Rows from `row` on and keys from `key` on are inside of all slices.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
unsafe fn keys_by_rows<const C: usize>(
    queries: &CodedQueries<'_>,
    codes: &[i8],
    scales: &[f32],
    groups: usize,
    rows: usize,
    [key, row]: [usize; 2],
    scores: &mut [f32],
) {
    const R: usize = 4;
    let mut totals = [[_mm512_setzero_ps(); C]; R];
    for group in 0..groups {
        // SAFETY: as the caller says.
        unsafe {
            let mut sums = [[_mm512_setzero_si512(); C]; R];
            for c in 0..C {
                let correction = queries.corrections.as_ptr().add(group * rows + row + c * LANES);
                let correction = _mm512_loadu_si512(correction.cast());
                for r in 0..R {
                    sums[r][c] = correction;
                }
            }
            let keys = codes.as_ptr().add(key * groups * GROUP + group * GROUP).cast::<i32>();
            for word in 0..WORDS {
                let from = queries.codes.as_ptr().add((group * WORDS + word) * rows + row);
                let mut right = [_mm512_setzero_si512(); C];
                for c in 0..C {
                    right[c] = _mm512_loadu_si512(from.add(c * LANES).cast());
                }
                for r in 0..R {
                    let key = _mm512_set1_epi32(keys.add(r * groups * WORDS + word).read_unaligned());
                    for c in 0..C {
                        sums[r][c] = _mm512_dpbusd_epi32(sums[r][c], key, right[c]);
                    }
                }
            }
            for c in 0..C {
                let query_scales =
                    _mm512_loadu_ps(queries.scales.as_ptr().add(group * rows + row + c * LANES));
                for r in 0..R {
                    let key_scale = _mm512_set1_ps(*scales.as_ptr().add(group * KEYS + key + r));
                    let scale = _mm512_mul_ps(key_scale, query_scales);
                    totals[r][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r][c]), scale, totals[r][c]);
                }
            }
        }
    }
    for r in 0..R {
        for c in 0..C {
            let at = (key + r) * rows + row + c * LANES;
            // SAFETY: as the caller says.
            unsafe { _mm512_storeu_ps(scores.as_mut_ptr().add(at), totals[r][c]) };
        }
    }
}
