//! One tile for many rows: keys and values are expanded once for all of them, and the rest is small matrix products.
//!
//! Queries lie transposed, a vector holding one channel of several rows, and so do products and weights: what softmax does
//! to a row it does to a lane, without looking across lanes.

use zerocopy::{FromBytes, IntoBytes};

use super::codes::{self, CodedKeys, CodedQueries};
use super::expand::{self, Head};
use super::few::{adding, bits, seen_keys};
use super::lens::{Attention, Item, KEYS, KeyForm, MOST_ROWS, Sight, Tile};
use super::product::{KEYS_AT_ONCE, Weights, products};
use super::soften::{self, States};
use super::walk::AttentionScratch;
use crate::simd::{MAX_LANES, Simd};
use crate::view::Strip;

/// Lanes that rows take: whole vectors of every instruction set.
pub(super) const fn lanes(rows: usize) -> usize {
    rows.next_multiple_of(MAX_LANES)
}

/// Puts the queries of an item where [`step`] wants them: `queries[channel][row]`, zeros where there is no row.
#[inline(always)]
pub(super) fn prepare<S: Simd>(
    s: S,
    attention: &Attention<'_>,
    item: &Item,
    scratch: &mut AttentionScratch<'_>,
) {
    let (sizes, lanes) = (&attention.sizes, lanes(item.rows));
    scratch.queries[..sizes.d * lanes].fill(0.0);
    if attention.form == KeyForm::Codes {
        scratch.query_scales.fill(0.0);
        scratch.corrections.fill(0.0);
    }
    for row in 0..item.rows {
        let query = attention.lens.query(item.query(sizes, row));
        match attention.form {
            KeyForm::Codes => scratch.coded_queries().set_column(s, row, lanes, query),
            KeyForm::Numbers | KeyForm::Expanded => {
                for (to, &x) in scratch.queries.chunks_exact_mut(lanes).zip(query) {
                    to[row] = x;
                }
            }
        }
    }
}

/// Lets an item's rows see a tile.
#[inline(always)]
pub(super) fn step<S: Simd>(
    s: S,
    attention: &Attention<'_>,
    item: &Item,
    heads: &[Head<'_>; 2],
    (tile, next): (&Tile, Option<&Tile>),
    scratch: &mut AttentionScratch<'_>,
) {
    if let Some(next) = next {
        let (keys, values) = (heads[0].strip::<u8>(next.cells()), heads[1].strip::<u8>(next.cells()));
        for key in 0..keys.count() {
            keys.prefetch(key);
            values.prefetch(key);
        }
    }
    let (sizes, lanes, keys) = (&attention.sizes, lanes(item.rows), tile.keys.clone());
    let stride = sizes.padded_dv();
    let mut seen = [u64::MAX; MOST_ROWS];
    let cover = cover(s, attention, item, tile, lanes, scratch.biases, &mut seen);
    score(s, attention, &heads[0], tile, lanes, scratch);
    let biases = (cover != Cover::Open).then_some(&*scratch.biases);
    let mut states = States {
        largest: &mut scratch.largest[..lanes],
        sums: &mut scratch.weight_sums[..lanes],
        factors: &mut scratch.factors[..lanes],
    };
    soften::columns(s, scratch.scores, keys.clone(), biases, attention.shaping, &mut states);
    for (sums, &factor) in scratch.sums.chunks_exact_mut(stride.max(1)).zip(&*scratch.factors).take(item.rows)
    {
        if factor != 1.0 {
            for sums in sums.chunks_exact_mut(S::LANES) {
                s.store(s.mul(s.load(sums), s.splat(factor)), sums);
            }
        }
    }
    expand::rows(s, &heads[1], tile.cells(), scratch.values, stride);
    let values = Strip::of(&scratch.values[..keys.len() * stride], stride, stride);
    let weights = Weights { values: &scratch.scores[keys.start * lanes..], row_stride: 1, key_stride: lanes };
    let sums = &mut scratch.sums[..item.rows * stride];
    seen.iter_mut().for_each(|seen| *seen >>= keys.start);
    let seen = (cover == Cover::Partial).then_some(&seen[..item.rows]);
    adding::<S, f32>()(weights, values, sums, stride, seen);
}

/// Products of all rows with a tile of keys: `scores[key][row]`.
#[inline(always)]
fn score<S: Simd>(
    s: S,
    attention: &Attention<'_>,
    head: &Head<'_>,
    tile: &Tile,
    lanes: usize,
    scratch: &mut AttentionScratch<'_>,
) {
    // Products are made of whole blocks of keys. Those before the first key and behind the last are of whatever lies there, and
    // not looked at.
    let first = tile.keys.start / KEYS_AT_ONCE * KEYS_AT_ONCE;
    let end = tile.keys.end.next_multiple_of(KEYS_AT_ONCE);
    let cells = tile.cell + first..tile.cells().end;
    let depth = attention.sizes.d;
    let AttentionScratch { queries, query_scales, corrections, keys, key_scales, key_halves, scores, .. } =
        scratch;
    let scores = &mut scores[first * lanes..end * lanes];
    match attention.form {
        KeyForm::Codes => {
            let [area, _] = codes::key_areas(depth);
            let (codes, arranged) = keys.split_at_mut(area);
            let codes =
                <[i8]>::mut_from_bytes(codes.as_mut_bytes()).unwrap_or_else(|_| unreachable!("bytes"));
            expand::codes(head, cells, codes, key_halves, first);
            let queries = CodedQueries { codes: queries, scales: query_scales, corrections };
            let keys = CodedKeys { codes, halves: key_halves, scales: key_scales, arranged };
            codes::many(s, &queries, keys, depth, first, lanes, scores);
        }
        KeyForm::Numbers | KeyForm::Expanded => {
            expand::rows(s, head, cells, keys, depth.max(1));
            products(s, keys, depth, queries, lanes, scores);
        }
    }
}

/// What all rows see of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cover {
    /// All of it, without biases.
    Open,
    /// All of it, with biases.
    Biased,
    /// Not all of it.
    Partial,
}

/// Asks what rows see and, if that is not simply everything, writes `biases[key][row]`.
#[inline(always)]
fn cover<S: Simd>(
    s: S,
    attention: &Attention<'_>,
    item: &Item,
    tile: &Tile,
    lanes: usize,
    biases: &mut [f32],
    seen: &mut [u64; MOST_ROWS],
) -> Cover {
    let (mut cover, keys) = (Cover::Open, tile.keys.clone());
    // The first key and the one after the last, as numbers that vectors can compare.
    let (mut starts, mut ends) = ([-1.0; MOST_ROWS], [KEYS as f32; MOST_ROWS]);
    let mut row_biases = [0.0; KEYS];
    let mut filled = false;
    for row in 0..item.rows {
        let query = item.query(&attention.sizes, row);
        let slope = attention.slopes.of(query.head);
        let sight = attention.lens.sight(item, query, tile, slope, &mut row_biases);
        match &sight {
            Sight::All => continue,
            Sight::Keys(range) => {
                (starts[row], ends[row]) = (range.start as f32 - 1.0, range.end as f32);
                seen[row] = seen_keys(&sight, range, None);
            }
            Sight::Biased => {
                if !filled {
                    biases[keys.start * lanes..keys.end * lanes].fill(0.0);
                    filled = true;
                }
                for (to, bias) in
                    biases[keys.start * lanes..].chunks_exact_mut(lanes).zip(&row_biases[keys.clone()])
                {
                    to[row] = *bias;
                }
                seen[row] = seen_keys(&sight, &keys, Some(&row_biases));
            }
        }
        let all = seen[row] >> keys.start & bits(keys.len()) == bits(keys.len());
        cover = match cover {
            Cover::Partial => Cover::Partial,
            _ if all => Cover::Biased,
            _ => Cover::Partial,
        };
    }
    if cover != Cover::Open && !filled {
        fill(s, biases, keys, lanes, &starts, &ends);
    }
    cover
}

/// Biases of rows that see ranges of keys: zero inside, minus infinity outside.
#[inline(always)]
fn fill<S: Simd>(
    s: S,
    biases: &mut [f32],
    keys: std::ops::Range<usize>,
    lanes: usize,
    starts: &[f32; MOST_ROWS],
    ends: &[f32; MOST_ROWS],
) {
    let (zero, hidden) = (s.splat(0.0), s.splat(f32::NEG_INFINITY));
    for key in keys {
        let at = s.splat(key as f32);
        for first in (0..lanes).step_by(S::LANES) {
            let seen = s.where_greater(at, s.load(&starts[first..]), zero, hidden);
            let seen = s.where_greater(s.load(&ends[first..]), at, seen, hidden);
            s.store(seen, &mut biases[key * lanes + first..][..S::LANES]);
        }
    }
}
