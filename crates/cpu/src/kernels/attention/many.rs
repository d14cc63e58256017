//! Many rows: keys and values are expanded to `f32` once for all rows of a tile, and the rest is small matrix products.
//!
//! Queries lie transposed, a vector holding one channel of several rows, and so do products and weights: what softmax does
//! to a row it does to a lane, without looking across lanes.

use half::f16;

use super::cut::{Item, KEYS};
use super::expand;
use super::flash::{Attention, AttentionScratch};
use super::product::{Weights, accumulate, accumulate_guarded, finite, products};
use super::soften::{self, States};
use crate::simd::{MAX_LANES, Simd};

/// Walks over an item's keys. Afterwards `scratch` holds its rows' weighted values and states.
#[inline(always)]
pub(super) fn attend<S: Simd>(
    s: S,
    attention: &Attention<'_>,
    item: &Item,
    scratch: &mut AttentionScratch<'_>,
) {
    let cut = &attention.cut;
    // Only as many lanes as there are rows; the results of others would not be used.
    let lanes = item.rows.next_multiple_of(MAX_LANES);
    transpose_queries(attention, item, lanes, scratch.queries);
    let planes = [attention.plane(&attention.k, item), attention.plane(&attention.v, item)];
    let stride = cut.padded_dv();
    for first in (item.keys.0..item.keys.1).step_by(KEYS) {
        let count = KEYS.min(item.keys.1 - first);
        let cover = cover(attention, item, first, count, lanes, scratch.biases);
        if cover == Cover::Closed {
            continue;
        }
        expand::rows(s, &attention.k, planes[0], first..first + count, scratch.keys, cut.d.max(1));
        let scores = &mut scratch.scores[..count * lanes];
        products(s, scratch.keys, cut.d, scratch.queries, lanes, scores);
        let biases = (cover == Cover::Mixed).then_some(&scratch.biases[..count * lanes]);
        let mut states = States {
            largest: &mut scratch.largest[..lanes],
            sums: &mut scratch.weight_sums[..lanes],
            factors: &mut scratch.factors[..lanes],
        };
        soften::columns(s, scores, biases, attention.shaping, &mut states);
        for (sums, &factor) in scratch.sums.chunks_exact_mut(stride).zip(&*scratch.factors).take(item.rows) {
            if factor != 1.0 {
                sums.iter_mut().for_each(|x| *x *= factor);
            }
        }
        expand::rows(s, &attention.v, planes[1], first..first + count, scratch.values, stride);
        let mut values: [&[f32]; KEYS] = [&[]; KEYS];
        for (value, row) in values.iter_mut().zip(scratch.values.chunks_exact(stride)) {
            *value = row;
        }
        let values = &values[..count];
        let weights = Weights { values: scratch.scores, row_stride: 1, key_stride: lanes };
        let sums = &mut scratch.sums[..item.rows * stride];
        if cover == Cover::Mixed && !finite(s, values) {
            accumulate_guarded(s, weights, values, sums, stride);
        } else {
            accumulate(s, weights, values, sums, stride);
        }
    }
}

/// `queries[channel][row]`, zeros where there is no row.
fn transpose_queries(attention: &Attention<'_>, item: &Item, lanes: usize, to: &mut [f32]) {
    to.fill(0.0);
    for row in 0..item.rows {
        let query = attention.query(attention.cut.query(item, row));
        for (to, &x) in to.chunks_exact_mut(lanes).zip(query) {
            to[row] = x;
        }
    }
}

/// What the masks of all rows do to a tile of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cover {
    /// Nothing.
    Open,
    /// They hide every key from every row.
    Closed,
    /// Something else.
    Mixed,
}

/// Looks at the masks and, where they are mixed, writes `biases[key][row]`.
#[inline(always)]
fn cover(
    attention: &Attention<'_>,
    item: &Item,
    first: usize,
    count: usize,
    lanes: usize,
    biases: &mut [f32],
) -> Cover {
    let masks = || {
        (0..item.rows).filter_map(|row| {
            let query = attention.cut.query(item, row);
            Some((row, query, attention.mask(query, first, count)?))
        })
    };
    let (mut open, mut closed) = (true, attention.mask.is_some());
    let mut last: Option<&[f16]> = None;
    for (_, _, mask) in masks() {
        // Heads of a token mostly share their mask.
        if last.is_some_and(|last| std::ptr::eq(last, mask)) {
            continue;
        }
        last = Some(mask);
        let (mut set, mut seen) = (0, 0);
        for x in mask {
            set |= x.to_bits() << 1;
            seen |= x.to_bits() ^ f16::NEG_INFINITY.to_bits();
        }
        open &= set == 0;
        closed &= seen == 0;
        if !open && !closed {
            break;
        }
    }
    if open {
        return Cover::Open;
    }
    if closed {
        return Cover::Closed;
    }
    let mut wide = [0.0; KEYS];
    biases[..count * lanes].fill(0.0);
    for (row, query, mask) in masks() {
        oxcart_tensor::quant::from_f16_slice(mask, &mut wide[..count]);
        let slope = attention.slopes.of(query.head);
        for (biases, bias) in biases.chunks_exact_mut(lanes).zip(&wide[..count]) {
            biases[row] = slope * bias;
        }
    }
    Cover::Mixed
}
