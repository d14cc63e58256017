//! Products of codes: keys of 8 bits or fewer times queries rounded to 8 bits.
//!
//! Invariant: a score is `Σ_g float(Σ_i key[i] * query[i]) * (key_scale[g] * query_scale[g])` over groups of 32 channels, in
//! ascending order, each term added in one step. The inner sums are integers below 2^24, exact in `f32` too, so instruction sets
//! may compute them as they like.

#[cfg(target_arch = "x86_64")]
mod avx512;

use half::f16;
use zerocopy::IntoBytes;

use super::expand::{GROUP, widen_scales};
use super::lens::KEYS;
use super::product::group_products;
use crate::simd::{MAX_LANES, Simd};

/// The largest code of a query.
const LARGEST: f32 = 127.0;

/// Rounds 32 numbers to codes and a scale. If one of them is not finite, neither is the scale, and all codes are zero.
#[inline(always)]
fn encode(values: &[f32; GROUP]) -> ([i8; GROUP], f32) {
    // Here neighbouring numbers are 1 apart, and the lowest bits of a number are the integer it is rounded to.
    const UNIT_STEP: f32 = 12_582_912.0;
    let magnitude = |value: f32| value.to_bits() & 0x7FFF_FFFF;
    // Magnitudes as bits are in the order of the magnitudes, with all NaN at the end.
    let largest = f32::from_bits(values.iter().fold(0, |largest, &value| largest.max(magnitude(value))));
    let factor = LARGEST / largest;
    let mut codes = [0; GROUP];
    if !largest.is_finite() {
        return (codes, f32::NAN);
    }
    if !factor.is_finite() {
        return (codes, 0.0);
    }
    for i in 0..GROUP {
        codes[i] = (values[i] * factor + UNIT_STEP).to_bits().wrapping_sub(UNIT_STEP.to_bits()) as i8;
    }
    (codes, largest / LARGEST)
}

/// Queries as codes.
pub(super) struct CodedQueries<'a> {
    /// Codes: floats, or bytes where the instruction set is AVX-512, which multiplies those. For few rows row by row; for many, channels (in
    /// fours, if they are bytes) of all rows beside each other.
    pub(super) codes: &'a mut [f32],
    /// A scale for each group: `[row][group]` for few rows, `[group][row]` for many.
    pub(super) scales: &'a mut [f32],
    /// -128 times the sum of a group's codes, likewise; integers.
    pub(super) corrections: &'a mut [f32],
}

impl CodedQueries<'_> {
    /// Writes one of a few rows.
    #[inline(always)]
    pub(super) fn set_row<S: Simd>(&mut self, _s: S, row: usize, query: &[f32]) {
        let groups = query.len() / GROUP;
        for (group, values) in query.as_chunks().0.iter().enumerate() {
            let (codes, scale) = encode(values);
            let at = row * groups + group;
            self.scales[at] = scale;
            self.corrections[at] = correction(&codes);
            if S::IS_AVX512 {
                self.codes.as_mut_bytes()[at * GROUP..][..GROUP].copy_from_slice(codes.as_bytes());
            } else {
                let to = &mut self.codes[at * GROUP..][..GROUP];
                to.iter_mut().zip(codes).for_each(|(to, code)| *to = f32::from(code));
            }
        }
    }

    /// Writes one of many rows, of which there are `rows`.
    #[inline(always)]
    pub(super) fn set_column<S: Simd>(&mut self, _s: S, row: usize, rows: usize, query: &[f32]) {
        for (group, values) in query.as_chunks().0.iter().enumerate() {
            let (codes, scale) = encode(values);
            self.scales[group * rows + row] = scale;
            self.corrections[group * rows + row] = correction(&codes);
            if S::IS_AVX512 {
                for (word, codes) in codes.as_bytes().as_chunks::<4>().0.iter().enumerate() {
                    let at = (group * GROUP / 4 + word) * rows + row;
                    self.codes.as_mut_bytes()[4 * at..][..4].copy_from_slice(codes);
                }
            } else {
                for (i, &code) in codes.iter().enumerate() {
                    self.codes[(group * GROUP + i) * rows + row] = f32::from(code);
                }
            }
        }
    }
}

/// What a sum of products with keys that have 128 added starts with, as the bits of an integer.
#[inline(always)]
fn correction(codes: &[i8; GROUP]) -> f32 {
    let sum: i32 = codes.iter().map(|&code| i32::from(code)).sum();
    f32::from_bits((-128 * sum).cast_unsigned())
}

/// Keys as codes, row by row, and room for another arrangement of them.
pub(super) struct CodedKeys<'a> {
    /// `[key][channel]`, the first key being that of the range.
    pub(super) codes: &'a mut [i8],
    /// `[group][key]`.
    pub(super) halves: &'a [[f16; KEYS]],
    /// Room for them as `f32`. They are widened some time after they were written, or the processor would have to wait for
    /// them: a vector cannot be read from stores that are still under way.
    pub(super) scales: &'a mut [f32],
    /// As many floats as codes, or for bytes as many words as a quarter of that.
    pub(super) arranged: &'a mut [f32],
}

/// Floats that hold the codes of a tile of keys, and those that hold them otherwise arranged. Behind codes there is room for
/// a vector more.
pub(super) const fn key_areas(d: usize) -> [usize; 2] {
    [KEYS * d / 4 + 16, KEYS * d]
}

/// Products of few rows with keys, `scores[row][key]`; those of keys outside of the range may be anything.
#[inline(always)]
pub(super) fn few<S: Simd>(
    s: S,
    queries: &CodedQueries<'_>,
    keys: CodedKeys<'_>,
    depth: usize,
    range: std::ops::Range<usize>,
    scores: &mut [[f32; KEYS]],
) {
    #[cfg(target_arch = "x86_64")]
    if S::IS_AVX512 {
        return avx512::few(s, queries, keys, depth, range, scores);
    }
    widen_scales(s, keys.halves, keys.scales);
    let (groups, count) = (depth / GROUP, range.len());
    to_floats(s, &keys.codes[..count * depth], keys.arranged);
    for (row, scores) in scores.iter_mut().enumerate() {
        scores.fill(0.0);
        for group in 0..groups {
            let at = row * groups + group;
            let query = &queries.codes[at * GROUP..][..GROUP];
            let mut sums = [0.0; KEYS];
            for key in (0..count).step_by(4) {
                let four = group_sums(s, query, keys.arranged, depth, group, key..count);
                sums[range.start + key..].iter_mut().zip(four).for_each(|(sum, found)| *sum = found);
            }
            let query_scale = s.splat(queries.scales[at]);
            let lanes = scores.chunks_exact_mut(S::LANES).zip(sums.chunks_exact(S::LANES));
            for ((scores, sums), scales) in lanes.zip(keys.scales[group * KEYS..].chunks_exact(S::LANES)) {
                let scale = s.mul(s.load(scales), query_scale);
                s.store(s.mul_add(s.load(sums), scale, s.load(scores)), scores);
            }
        }
    }
}

/// Sums of products of a query's group with that of four keys, or fewer at the end.
#[inline(always)]
fn group_sums<S: Simd>(
    s: S,
    query: &[f32],
    keys: &[f32],
    depth: usize,
    group: usize,
    range: std::ops::Range<usize>,
) -> [f32; 4] {
    let mut rows = [query; 4];
    for (k, row) in rows.iter_mut().enumerate() {
        let key = (range.start + k).min(range.end - 1);
        *row = &keys[key * depth + group * GROUP..][..GROUP];
    }
    let mut sums = [s.splat(0.0); 4];
    for i in (0..GROUP).step_by(S::LANES) {
        let left = s.load(&query[i..][..S::LANES]);
        for (sum, row) in sums.iter_mut().zip(rows) {
            *sum = s.mul_add(left, s.load(&row[i..][..S::LANES]), *sum);
        }
    }
    s.fold_four(sums)
}

/// Codes as numbers.
#[inline(always)]
fn to_floats<S: Simd>(s: S, codes: &[i8], to: &mut [f32]) {
    for (to, codes) in to.chunks_exact_mut(MAX_LANES).zip(codes.chunks_exact(MAX_LANES)) {
        for i in (0..MAX_LANES).step_by(S::LANES) {
            s.store(s.load_i8(&codes[i..][..S::LANES]), &mut to[i..][..S::LANES]);
        }
    }
}

/// Products of many rows with keys, `scores[key][row]`: as many keys as there are in `scores`, the first of which is `first`.
#[inline(always)]
pub(super) fn many<S: Simd>(
    s: S,
    queries: &CodedQueries<'_>,
    keys: CodedKeys<'_>,
    depth: usize,
    first: usize,
    rows: usize,
    scores: &mut [f32],
) {
    widen_scales(s, keys.halves, keys.scales);
    #[cfg(target_arch = "x86_64")]
    if S::IS_AVX512 {
        return avx512::many(s, queries, (keys.codes, &keys.scales[first..]), depth, rows, scores);
    }
    let count = scores.len() / rows;
    to_floats(s, &keys.codes[..count * depth], keys.arranged);
    let scales = &keys.scales[first..];
    group_products(s, (keys.arranged, scales, KEYS), depth, (queries.codes, queries.scales), rows, scores);
}
