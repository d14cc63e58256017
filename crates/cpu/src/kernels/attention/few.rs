//! Few rows: keys and values are used as they lie in memory, which is what takes the time.

use half::{bf16, f16};
use oxcart_tensor::DType;
use zerocopy::IntoBytes;

use super::super::dot::{self, Dot};
use super::cut::{Item, KEYS};
use super::expand::{self, Lanes};
use super::flash::{Attention, AttentionScratch};
use super::product::{Weights, accumulate, accumulate_guarded, dots, finite};
use super::soften::{self, State};
use crate::simd::{MAX_LANES, Simd};
use crate::view::Src;

/// Walks over an item's keys. Afterwards `scratch` holds its rows' weighted values and states.
#[inline(always)]
pub(super) fn attend<S: Simd>(
    s: S,
    attention: &Attention<'_>,
    item: &Item,
    scratch: &mut AttentionScratch<'_>,
) {
    let cut = &attention.cut;
    let dot = prepare::<S>(attention, item, scratch);
    let planes = [attention.plane(&attention.k, item), attention.plane(&attention.v, item)];
    for first in (item.keys.0..item.keys.1).step_by(KEYS) {
        let count = KEYS.min(item.keys.1 - first);
        let queries = || (0..item.rows).map(|row| cut.query(item, row));
        let masks = || queries().filter_map(|query| attention.mask(query, first, count));
        if attention.mask.is_some() && masks().all(|mask| mask.iter().all(|&x| x == f16::NEG_INFINITY)) {
            continue;
        }
        let ahead = Ahead { attention, planes, first, end: item.keys.1 };
        score(s, &ahead, item.rows, scratch, dot, count);
        let mut some_masked = false;
        for (row, query) in queries().enumerate() {
            let mut biases = [0.0; KEYS];
            let mask = attention.mask(query, first, count);
            if let Some(mask) = mask {
                f16_times(mask, attention.slopes.of(query.head), &mut biases);
                some_masked |= biases[..count].contains(&f32::NEG_INFINITY);
            }
            let state = State { largest: scratch.largest[row], sum: scratch.weight_sums[row] };
            let products = &mut scratch.scores[row * KEYS..][..KEYS];
            let (state, factor) =
                soften::row(s, products, count, mask.map(|_| &biases), attention.shaping, state);
            (scratch.largest[row], scratch.weight_sums[row]) = (state.largest, state.sum);
            if factor != 1.0 {
                let sums = &mut scratch.sums[row * cut.padded_dv()..][..cut.padded_dv()];
                sums.iter_mut().for_each(|x| *x *= factor);
            }
        }
        add_values(s, attention, scratch, item.rows, planes[1], first, count, some_masked);
    }
}

/// Puts the queries where [`score`] wants them; gives the dot product for keys that are not numbers.
#[inline(always)]
fn prepare<S: Simd>(
    attention: &Attention<'_>,
    item: &Item,
    scratch: &mut AttentionScratch<'_>,
) -> Option<Dot> {
    let (cut, dtype) = (&attention.cut, attention.k.dtype());
    let coder = (dtype.is_quantized() && !cut.expands_keys).then(|| {
        let partner = dtype.dot_partner();
        let coder = (dot::dot(dtype, S::LEVEL), partner.and_then(|partner| dot::encode(partner, S::LEVEL)));
        let (Some(dot), Some(encode)) = coder else { unreachable!("checked when the kernel was chosen") };
        let bytes = partner.and_then(|partner| partner.row_bytes(cut.d));
        (dot, encode, bytes.unwrap_or_else(|| unreachable!("keys are whole blocks")))
    });
    for row in 0..item.rows {
        let query = attention.query(cut.query(item, row));
        match coder {
            Some((_, encode, bytes)) => {
                let area = &mut scratch.encoded[row * cut.encoded..][..cut.encoded];
                encode(query, &mut area.as_mut_bytes()[..bytes]);
            }
            None => scratch.queries[row * cut.padded_d()..][..cut.d].copy_from_slice(query),
        }
    }
    coder.map(|(dot, ..)| dot)
}

/// A tile of keys, and what will be wanted soon.
struct Ahead<'a, 't> {
    attention: &'a Attention<'t>,
    /// Of keys and of values.
    planes: [[usize; 2]; 2],
    /// First key.
    first: usize,
    /// Where the keys of all tiles end.
    end: usize,
}

impl Ahead<'_, '_> {
    /// Asks memory for keys a little further on and for the values of `count` keys from `key` on. Tiles are too short for
    /// a processor to see that keys and values are two long streams. Only worth it for plain numbers: what must be
    /// decoded takes longer than its way from memory.
    #[inline(always)]
    fn fetch(&self, key: usize, count: usize) {
        const DISTANCE: usize = 8;
        let (k, v) = (&self.attention.k, &self.attention.v);
        for key in self.first + key..self.first + key + count {
            if key + DISTANCE < self.end {
                prefetch(k.row::<u8>([key + DISTANCE, self.planes[0][0], self.planes[0][1]]).slice());
            }
            if key < self.end {
                prefetch(v.row::<u8>([key, self.planes[1][0], self.planes[1][1]]).slice());
            }
        }
    }
}

/// Asks for bytes before they are needed.
#[inline(always)]
fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: part of what every x86-64 has; a hint, which reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    // There is no stable way to ask elsewhere.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// Products of all rows with a tile of keys: `scores[row][key]`.
#[inline(always)]
fn score<S: Simd>(
    s: S,
    ahead: &Ahead<'_, '_>,
    rows: usize,
    scratch: &mut AttentionScratch<'_>,
    dot: Option<Dot>,
    count: usize,
) {
    let (cut, k) = (&ahead.attention.cut, &ahead.attention.k);
    let (plane, first) = (ahead.planes[0], ahead.first);
    if let Some(dot) = dot {
        let bytes = k.dtype().dot_partner().and_then(|partner| partner.row_bytes(cut.d)).unwrap_or(0);
        for key in 0..count {
            let weights = k.row::<u8>([first + key, plane[0], plane[1]]).slice();
            for row in 0..rows {
                let query = &scratch.encoded[row * cut.encoded..][..cut.encoded];
                scratch.scores[row * KEYS + key] = dot(weights, &query.as_bytes()[..bytes]);
            }
        }
        return;
    }
    let (queries, scores) = (&*scratch.queries, &mut *scratch.scores);
    if cut.expands_keys {
        expand::rows(s, k, plane, first..first + count, scratch.keys, cut.d.max(1));
        let mut list: [&[f32]; KEYS] = [&[]; KEYS];
        for (row, keys) in list.iter_mut().zip(scratch.keys.chunks_exact(cut.d.max(1))) {
            *row = keys;
        }
        return score_numbers(s, None, queries, cut.padded_d(), &list[..count], scores);
    }
    match k.dtype() {
        DType::F32 => score_plane::<S, f32>(s, ahead, queries, count, scores),
        DType::F16 => score_plane::<S, f16>(s, ahead, queries, count, scores),
        _ => score_plane::<S, bf16>(s, ahead, queries, count, scores),
    }
}

/// As [`score`], for keys as they lie in memory.
#[inline(always)]
fn score_plane<S: Simd, T: Lanes>(
    s: S,
    ahead: &Ahead<'_, '_>,
    queries: &[f32],
    count: usize,
    scores: &mut [f32],
) {
    let keys = numbers::<T>(&ahead.attention.k, ahead.planes[0], ahead.first, count);
    score_numbers(s, Some(ahead), queries, ahead.attention.cut.padded_d(), &keys[..count], scores);
}

/// Rows of a plane as they lie in memory.
#[inline(always)]
fn numbers<'t, T: Lanes>(src: &Src<'t>, plane: [usize; 2], first: usize, count: usize) -> [&'t [T]; KEYS] {
    let mut rows: [&[T]; KEYS] = [&[]; KEYS];
    for (key, row) in rows[..count].iter_mut().enumerate() {
        *row = src.row::<T>([first + key, plane[0], plane[1]]).slice();
    }
    rows
}

#[inline(always)]
fn score_numbers<S: Simd, T: Lanes>(
    s: S,
    ahead: Option<&Ahead<'_, '_>>,
    queries: &[f32],
    stride: usize,
    keys: &[&[T]],
    scores: &mut [f32],
) {
    let rows = scores.len() / KEYS;
    let mut row = 0;
    while row + 4 <= rows {
        let (queries, scores) = (&queries[row * stride..], &mut scores[row * KEYS..]);
        score_rows::<S, T, 4, 2>(s, ahead.filter(|_| row == 0), queries, stride, keys, scores);
        row += 4;
    }
    while row + 2 <= rows {
        let (queries, scores) = (&queries[row * stride..], &mut scores[row * KEYS..]);
        score_rows::<S, T, 2, 4>(s, ahead.filter(|_| row == 0), queries, stride, keys, scores);
        row += 2;
    }
    if row < rows {
        let (queries, scores) = (&queries[row * stride..], &mut scores[row * KEYS..]);
        score_rows::<S, T, 1, 4>(s, ahead.filter(|_| row == 0), queries, stride, keys, scores);
    }
}

#[inline(always)]
fn score_rows<S: Simd, T: Lanes, const R: usize, const K: usize>(
    s: S,
    ahead: Option<&Ahead<'_, '_>>,
    queries: &[f32],
    stride: usize,
    keys: &[&[T]],
    scores: &mut [f32],
) {
    for first in (0..keys.len()).step_by(K) {
        if let Some(ahead) = ahead {
            ahead.fetch(first, K);
        }
        // At the end, the last key fills the block; its products land where they are not read.
        let mut block = [keys[first]; K];
        for (k, slot) in block.iter_mut().enumerate() {
            *slot = keys[(first + k).min(keys.len() - 1)];
        }
        let products = dots::<S, T, R, K>(s, queries, stride, block);
        for (r, products) in products.iter().enumerate() {
            scores[r * KEYS + first..][..K].copy_from_slice(products);
        }
    }
}

/// Adds weighted values to the rows' sums.
#[expect(clippy::too_many_arguments, reason = "one step of one loop, apart only to be readable")]
#[inline(always)]
fn add_values<S: Simd>(
    s: S,
    attention: &Attention<'_>,
    scratch: &mut AttentionScratch<'_>,
    rows: usize,
    plane: [usize; 2],
    first: usize,
    count: usize,
    some_masked: bool,
) {
    let (cut, v) = (&attention.cut, &attention.v);
    let stride = cut.padded_dv();
    let weights = Weights { values: scratch.scores, row_stride: KEYS, key_stride: 1 };
    let sums = &mut scratch.sums[..rows * stride];
    match v.dtype() {
        DType::F16 if cut.dv.is_multiple_of(MAX_LANES) => {
            add_numbers(
                s,
                weights,
                &numbers::<f16>(v, plane, first, count)[..count],
                sums,
                stride,
                some_masked,
            );
        }
        DType::BF16 if cut.dv.is_multiple_of(MAX_LANES) => {
            add_numbers(
                s,
                weights,
                &numbers::<bf16>(v, plane, first, count)[..count],
                sums,
                stride,
                some_masked,
            );
        }
        DType::F32 if cut.dv.is_multiple_of(MAX_LANES) => {
            add_numbers(
                s,
                weights,
                &numbers::<f32>(v, plane, first, count)[..count],
                sums,
                stride,
                some_masked,
            );
        }
        _ => {
            expand::rows(s, v, plane, first..first + count, scratch.values, stride);
            let mut list: [&[f32]; KEYS] = [&[]; KEYS];
            for (row, values) in list.iter_mut().zip(scratch.values.chunks_exact(stride)) {
                *row = values;
            }
            add_numbers(s, weights, &list[..count], sums, stride, some_masked);
        }
    }
}

#[inline(always)]
fn add_numbers<S: Simd, T: Lanes>(
    s: S,
    weights: Weights<'_>,
    values: &[&[T]],
    sums: &mut [f32],
    stride: usize,
    some_masked: bool,
) {
    if some_masked && !finite(s, values) {
        accumulate_guarded(s, weights, values, sums, stride);
    } else {
        accumulate(s, weights, values, sums, stride);
    }
}

/// A mask's row times a slope, as `f32`.
#[inline(always)]
fn f16_times(mask: &[f16], slope: f32, to: &mut [f32; KEYS]) {
    oxcart_tensor::quant::from_f16_slice(mask, &mut to[..mask.len()]);
    to.iter_mut().for_each(|x| *x *= slope);
}
