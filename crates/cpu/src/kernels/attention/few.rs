//! One tile for few rows: keys and values are used as they lie in memory, which is what takes the time.

use half::{bf16, f16};
use oxcart_tensor::DType;
use zerocopy::{FromBytes, IntoBytes};

use super::codes::{self, CodedKeys, CodedQueries};
use super::expand::{self, Head, Lanes};
use super::lens::{Attention, Item, KEYS, KeyForm, MANY, Sight, Tile};
use super::product::{Weights, accumulate, accumulate_seen, finite};
use super::sixteen::{AT_ONCE, dots};
use super::soften::{self, State};
use super::walk::AttentionScratch;
use crate::simd::{MAX_LANES, Simd, for_each_level};
use crate::view::Strip;

/// Puts the queries of an item where [`step`] wants them.
#[inline(always)]
pub(super) fn prepare<S: Simd>(
    s: S,
    attention: &Attention<'_>,
    item: &Item,
    scratch: &mut AttentionScratch<'_>,
) {
    let sizes = &attention.sizes;
    for row in 0..item.rows {
        let query = attention.lens.query(item.query(sizes, row));
        match attention.form {
            KeyForm::Codes => scratch.coded_queries().set_row(s, row, query),
            KeyForm::Numbers | KeyForm::Expanded => {
                let to = &mut scratch.queries[row * sizes.padded_d()..][..sizes.padded_d()];
                to[..sizes.d].copy_from_slice(query);
                to[sizes.d..].fill(0.0);
            }
        }
    }
}

/// Lets an item's rows see a tile. `next` is the tile after it.
#[expect(clippy::needless_range_loop, reason = "a row is an index into several areas")]
#[inline(always)]
pub(super) fn step<S: Simd>(
    s: S,
    attention: &Attention<'_>,
    item: &Item,
    heads: &[Head<'_>; 2],
    (tile, next): (&Tile, Option<&Tile>),
    scratch: &mut AttentionScratch<'_>,
) {
    let (sizes, keys) = (&attention.sizes, tile.keys.clone());
    score(s, attention, item, heads, (tile, next), scratch);
    let (mut seen, mut all_seen) = ([u64::MAX; MANY], true);
    for row in 0..item.rows {
        let query = item.query(sizes, row);
        let mut biases = [0.0; KEYS];
        let slope = attention.slopes.of(query.head);
        let sight = attention.lens.sight(item, query, tile, slope, &mut biases);
        let state = State { largest: scratch.largest[row], sum: scratch.weight_sums[row] };
        let products = &mut scratch.scores.as_chunks_mut::<KEYS>().0[row];
        let (range, biases) = match &sight {
            Sight::All => (keys.clone(), None),
            Sight::Keys(range) => (range.clone(), None),
            Sight::Biased => (keys.clone(), Some(&biases)),
        };
        seen[row] = seen_keys(&sight, &range, biases);
        all_seen &= seen[row] >> keys.start & bits(keys.len()) == bits(keys.len());
        // What is outside of the row's own keys must be zero too.
        products[keys.start..range.start.max(keys.start)].fill(0.0);
        products[range.end.min(keys.end)..keys.end].fill(0.0);
        let (state, factor) = match range.is_empty() {
            true => (state, 1.0),
            false => soften::row(s, products, range, biases, attention.shaping, state),
        };
        (scratch.largest[row], scratch.weight_sums[row]) = (state.largest, state.sum);
        if factor != 1.0 {
            let sums = &mut scratch.sums[row * sizes.padded_dv()..][..sizes.padded_dv()];
            for sums in sums.chunks_exact_mut(S::LANES) {
                s.store(s.mul(s.load(sums), s.splat(factor)), sums);
            }
        }
    }
    seen.iter_mut().for_each(|seen| *seen >>= keys.start);
    let seen = (!all_seen).then_some(&seen[..item.rows]);
    add_values(s, attention, scratch, item.rows, &heads[1], tile, seen);
}

/// The lowest `count` bits.
pub(super) const fn bits(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// A bit for each key that a row sees.
#[inline(always)]
pub(super) fn seen_keys(sight: &Sight, range: &std::ops::Range<usize>, biases: Option<&[f32; KEYS]>) -> u64 {
    match (sight, biases) {
        (Sight::All, _) => u64::MAX,
        (Sight::Biased, Some(biases)) => {
            let mut seen = 0;
            for (key, bias) in biases.iter().enumerate() {
                seen |= u64::from(*bias != f32::NEG_INFINITY) << key;
            }
            seen
        }
        _ => bits(range.len()) << range.start.min(KEYS - 1),
    }
}

/// Asks memory for the values of a tile, and for the keys of the next one, while keys are multiplied. Tiles are too short for
/// a processor to see that keys and values are two long streams.
struct Ahead<'t> {
    values: Strip<'t, u8>,
    keys: Option<Strip<'t, u8>>,
}

impl Ahead<'_> {
    /// What belongs to the `i`th key of the tile.
    #[inline(always)]
    fn fetch(&self, i: usize) {
        self.values.prefetch(i);
        if let Some(keys) = &self.keys {
            keys.prefetch(i);
        }
    }
}

/// Products of all rows with a tile of keys: `scores[row][key]`.
#[inline(always)]
fn score<S: Simd>(
    s: S,
    attention: &Attention<'_>,
    item: &Item,
    heads: &[Head<'_>; 2],
    (tile, next): (&Tile, Option<&Tile>),
    scratch: &mut AttentionScratch<'_>,
) {
    let (sizes, keys, rows) = (&attention.sizes, &heads[0], item.rows);
    let next = next.map(|next| keys.strip(next.cells()));
    let ahead = &Ahead { values: heads[1].strip(tile.cells()), keys: next };
    if attention.form == KeyForm::Codes {
        return score_codes(s, attention, rows, keys, tile, ahead, scratch);
    }
    let stride = sizes.padded_d();
    // Where vectors are short, numbers are widened once for all rows.
    let widened = rows > 1 && S::LANES < MAX_LANES && keys.dtype != DType::F32;
    if attention.form == KeyForm::Expanded || widened {
        let count = tile.keys.len();
        expand::rows(s, keys, tile.cells(), scratch.keys, stride);
        let strip = Strip::of(&scratch.keys[..count * stride], stride, sizes.d);
        return scoring::<S, f32>()(
            strip,
            ahead,
            scratch.queries,
            stride,
            tile.keys.start,
            rows,
            scratch.scores,
        );
    }
    let (queries, scores, first) = (&*scratch.queries, &mut *scratch.scores, tile.keys.start);
    match keys.dtype {
        DType::F32 => {
            scoring::<S, f32>()(keys.strip(tile.cells()), ahead, queries, stride, first, rows, scores)
        }
        DType::F16 => {
            scoring::<S, f16>()(keys.strip(tile.cells()), ahead, queries, stride, first, rows, scores)
        }
        _ => scoring::<S, bf16>()(keys.strip(tile.cells()), ahead, queries, stride, first, rows, scores),
    }
}

#[inline(always)]
fn score_codes<S: Simd>(
    s: S,
    attention: &Attention<'_>,
    rows: usize,
    head: &Head<'_>,
    tile: &Tile,
    ahead: &Ahead<'_>,
    scratch: &mut AttentionScratch<'_>,
) {
    let sizes = &attention.sizes;
    for i in 0..tile.keys.len() {
        ahead.fetch(i);
    }
    // Keys are arranged in vectors of the longest kind; those in front of the first that is seen are there too.
    let first = tile.keys.start / MAX_LANES * MAX_LANES;
    let range = first..tile.keys.end;
    let AttentionScratch { queries, query_scales, corrections, keys, key_scales, key_halves, scores, .. } =
        scratch;
    let [area, _] = codes::key_areas(sizes.d);
    let (codes, arranged) = keys.split_at_mut(area);
    let codes = <[i8]>::mut_from_bytes(codes.as_mut_bytes()).unwrap_or_else(|_| unreachable!("bytes"));
    expand::codes(head, tile.cell + first..tile.cells().end, codes, key_halves, first);
    let queries = CodedQueries { codes: queries, scales: query_scales, corrections };
    let scores = &mut scores.as_chunks_mut::<KEYS>().0[..rows];
    let keys = CodedKeys { codes, halves: key_halves, scales: key_scales, arranged };
    codes::few(s, &queries, keys, sizes.d, range, scores);
}

/// [`score_numbers`], compiled once for each type and instruction set.
fn scoring<S: Simd, T: Lanes>() -> Score<T> {
    for_each_level!(
        score_numbers[T: Lanes]: fn(
            keys: Strip<'_, T>,
            ahead: &Ahead<'_>,
            queries: &[f32],
            stride: usize,
            first: usize,
            rows: usize,
            scores: &mut [f32],
        )
    )
    .at(S::LEVEL)
}

type Score<T> = fn(Strip<'_, T>, &Ahead<'_>, &[f32], usize, usize, usize, &mut [f32]);

/// Products of rows with keys, the first of which is `first` of its tile.
#[expect(
    clippy::too_many_arguments,
    reason = "an inner loop, apart only to be compiled for each instruction set"
)]
#[inline(always)]
fn score_numbers<S: Simd, T: Lanes>(
    s: S,
    keys: Strip<'_, T>,
    ahead: &Ahead<'_>,
    queries: &[f32],
    stride: usize,
    first: usize,
    rows: usize,
    scores: &mut [f32],
) {
    // As many rows at a time as there are registers for.
    let most = if S::IS_AVX512 { 4 } else { 1 };
    for row in (0..rows).step_by(most) {
        let (queries, scores) = (&queries[row * stride..], &mut scores[row * KEYS..]);
        let ahead = (row == 0).then_some(ahead);
        if !S::IS_AVX512 {
            score_rows::<S, T, 1>(s, keys, ahead, queries, stride, first, scores);
            continue;
        }
        match rows - row {
            1 => score_rows::<S, T, 1>(s, keys, ahead, queries, stride, first, scores),
            2 => score_rows::<S, T, 2>(s, keys, ahead, queries, stride, first, scores),
            3 => score_rows::<S, T, 3>(s, keys, ahead, queries, stride, first, scores),
            _ => score_rows::<S, T, 4>(s, keys, ahead, queries, stride, first, scores),
        }
    }
}

#[inline(always)]
fn score_rows<S: Simd, T: Lanes, const R: usize>(
    s: S,
    keys: Strip<'_, T>,
    ahead: Option<&Ahead<'_>>,
    queries: &[f32],
    stride: usize,
    first: usize,
    scores: &mut [f32],
) {
    let count = keys.count();
    let whole = count - count % AT_ONCE;
    for i in (0..count).step_by(AT_ONCE) {
        if let Some(ahead) = ahead {
            (i..i + AT_ONCE).for_each(|i| ahead.fetch(i));
        }
        let mut block = [keys.get(i); AT_ONCE];
        for (k, slot) in block.iter_mut().enumerate() {
            // The last key fills the last block.
            *slot = keys.get(if i < whole { i + k } else { (i + k).min(count - 1) });
        }
        let products = dots::<S, T, R>(s, queries, stride, block);
        for (r, products) in products.iter().enumerate() {
            let to = &mut scores[r * KEYS + first + i..r * KEYS + KEYS];
            match to.first_chunk_mut() {
                Some(to) if i < whole => *to = *products,
                _ => to.iter_mut().zip(products).take(count - i).for_each(|(to, product)| *to = *product),
            }
        }
    }
}

/// Adds weighted values to the rows' sums. `seen` says which keys each row sees, if that is not all.
#[inline(always)]
fn add_values<S: Simd>(
    s: S,
    attention: &Attention<'_>,
    scratch: &mut AttentionScratch<'_>,
    rows: usize,
    values: &Head<'_>,
    tile: &Tile,
    seen: Option<&[u64]>,
) {
    let sizes = &attention.sizes;
    let stride = sizes.padded_dv();
    let weights = Weights { values: &scratch.scores[tile.keys.start..], row_stride: KEYS, key_stride: 1 };
    let sums = &mut scratch.sums[..rows * stride];
    let whole = sizes.dv.is_multiple_of(MAX_LANES);
    match values.dtype {
        DType::F16 if whole => adding::<S, f16>()(weights, values.strip(tile.cells()), sums, stride, seen),
        DType::BF16 if whole => adding::<S, bf16>()(weights, values.strip(tile.cells()), sums, stride, seen),
        DType::F32 if whole => adding::<S, f32>()(weights, values.strip(tile.cells()), sums, stride, seen),
        _ => {
            let count = tile.keys.len();
            expand::rows(s, values, tile.cells(), scratch.values, stride);
            let strip = Strip::of(&scratch.values[..count * stride], stride, stride);
            adding::<S, f32>()(weights, strip, sums, stride, seen);
        }
    }
}

/// [`add_numbers`], compiled once for each type and instruction set.
pub(super) fn adding<S: Simd, T: Lanes>() -> Add<T> {
    for_each_level!(add_numbers[T: Lanes]: fn(weights: Weights<'_>, values: Strip<'_, T>, sums: &mut [f32], stride: usize, seen: Option<&[u64]>)).at(S::LEVEL)
}

type Add<T> = fn(Weights<'_>, Strip<'_, T>, &mut [f32], usize, Option<&[u64]>);

/// Adds weighted values. `seen` says which of them each row sees, if that is not all.
#[inline(always)]
fn add_numbers<S: Simd, T: Lanes>(
    s: S,
    weights: Weights<'_>,
    values: Strip<'_, T>,
    sums: &mut [f32],
    stride: usize,
    seen: Option<&[u64]>,
) {
    match seen {
        Some(seen) if !finite(s, values) => accumulate_seen(s, weights, values, sums, stride, seen),
        _ => accumulate(s, weights, values, sums, stride),
    }
}
