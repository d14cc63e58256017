//! PAGED_ATTN: attention of tokens of many sequences over pages of keys and values.
//!
//! Invariant: the result of a token depends on its own query, its sequence's keys and values and its position, not on other
//! tokens, on which pages hold the sequence, or on threads. Keys are looked at in tiles, which are the pages; eight of them
//! are a span with its own maximum, sum and weighted values, and spans are merged in ascending order.

use oxcart_tensor::TensorRef;
use oxcart_tensor::ops::PagedAttn;

use super::super::soft_max::Slopes;
use super::cut::KEYS;
use super::product::{Weights, accumulate, dots};
use super::soften::{self, Shaping, State};
use super::{expand, multiply_adds, room, take};
use crate::job::{Fault, Job, Kernel, as_floats};
use crate::simd::{Level, MAX_LANES, Simd, for_each_level};

/// Keys that are looked at together: a page.
const PAGE: usize = PagedAttn::PAGE;
const _: () = assert!(PAGE == KEYS);

/// Keys with a maximum, a sum and weighted values of their own.
const SPAN: usize = 8 * PAGE;

/// Sizes that follow from the shapes.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    d: usize,
    dv: usize,
    /// Heads that share keys and values.
    group: usize,
    key_heads: usize,
    tokens: usize,
}

impl Sizes {
    fn new(op: &PagedAttn, q: [usize; 4], values: [usize; 4]) -> Sizes {
        let [d, heads, tokens, _] = q;
        let key_heads = op.key_heads;
        Sizes { d, dv: values[0] / key_heads, group: heads / key_heads, key_heads, tokens }
    }

    const fn padded_d(&self) -> usize {
        self.d.next_multiple_of(MAX_LANES)
    }

    const fn padded_dv(&self) -> usize {
        self.dv.next_multiple_of(MAX_LANES)
    }

    /// Floats of scratch: queries, keys, values, scores, weighted values of a span, and of all.
    const fn areas(&self) -> [usize; 6] {
        let rows = self.group;
        [
            rows * self.padded_d(),
            PAGE * self.padded_d(),
            PAGE * self.padded_dv(),
            rows * PAGE,
            rows * self.padded_dv(),
            rows * self.padded_dv(),
        ]
    }
}

pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let op = PagedAttn::try_from(*node.op()).ok()?;
    let (q, keys, values, table) = (node.source(0)?, node.source(1)?, node.source(2)?, node.source(3)?);
    let sizes = Sizes::new(&op, q.ne().extents(), values.ne().extents());
    let run = for_each_level!(paged: fn(job: Job<'_>) -> Result<(), Fault>).at(level);
    let floats: usize = sizes.areas().map(room).iter().sum();
    // How far back tokens look is known when they run; at most as far as the table goes.
    let most = table.ne()[0].saturating_mul(PAGE).min(keys.ne()[1]);
    let work = q.layout().elements().saturating_mul(most).saturating_mul(2);
    let items = sizes.tokens.saturating_mul(sizes.key_heads);
    Some(Kernel::units(run, items, multiply_adds(work)).own(floats * size_of::<f32>()))
}

#[inline(always)]
fn paged<S: Simd>(s: S, job: Job<'_>) -> Result<(), Fault> {
    let op: PagedAttn = job.op();
    let [q, keys, values, table, tokens] = [0, 1, 2, 3, 4].map(|slot| job.src(slot));
    let sinks = job.may(5);
    let sizes = Sizes::new(&op, q.ne(), values.ne());
    let Sizes { d, dv, group, .. } = sizes;
    let (padded_d, padded_dv) = (sizes.padded_d(), sizes.padded_dv());
    let slopes = Slopes::new(op.max_bias, group * sizes.key_heads);
    let shaping = Shaping::new(op.scale, op.softcap);
    let [pages, sequences, ..] = table.ne();
    let claims = job.claims(sizes.tokens * sizes.key_heads);
    let mut rest = as_floats(job.own);
    let [queries, key_rows, value_rows, scores, sums, totals] = sizes.areas().map(|len| take(&mut rest, len));
    for item in claims {
        let (token, key_head) = (item / sizes.key_heads, item % sizes.key_heads);
        let place = tokens.row::<i32>([token, 0, 0]);
        let (sequence, position) = (i64::from(place.get(0)), i64::from(place.get(1)));
        if sequence < 0 {
            for head in key_head * group..(key_head + 1) * group {
                // SAFETY: each item is claimed by one thread, and items have no head of a token in common.
                unsafe { job.dst.row::<f32>([head, token, 0]) }.slice().fill(0.0);
            }
            continue;
        }
        let sequence = Fault::check("sequence", sequence, sequences)?;
        let position = Fault::check("position", position, pages.saturating_mul(PAGE))?;
        let mut first = 0;
        if op.window > 0 {
            first = (position + 1).saturating_sub(op.window);
        }
        if op.chunk > 0 {
            first = first.max(position / op.chunk * op.chunk);
        }
        for (row, to) in queries.chunks_exact_mut(padded_d.max(1)).take(group).enumerate() {
            to[..d].copy_from_slice(q.row::<f32>([key_head * group + row, token, 0]).slice());
            to[d..].fill(0.0);
        }
        let empty = State { largest: f32::NEG_INFINITY, sum: 0.0 };
        totals.fill(0.0);
        let mut total_states = vec![empty; group];
        let page_row = table.row::<i32>([sequence, 0, 0]);
        for span in first / SPAN..position / SPAN + 1 {
            sums.fill(0.0);
            let mut states = vec![empty; group];
            for tile in
                (span * SPAN / PAGE..(span + 1) * SPAN / PAGE).take(position / PAGE + 1 - span * SPAN / PAGE)
            {
                let from = first.saturating_sub(tile * PAGE);
                let to = PAGE.min(position + 1 - tile * PAGE);
                if from >= PAGE {
                    continue;
                }
                let page = Fault::check("page", i64::from(page_row.get(tile)), keys.ne()[1] / PAGE)?;
                for key in from..to {
                    let cell = [page * PAGE + key, 0, 0];
                    let (row, rest) = key_rows[key * padded_d..][..padded_d].split_at_mut(d);
                    expand::part(s, &keys, cell, key_head * d, row);
                    rest.fill(0.0);
                    let (row, rest) = value_rows[key * padded_dv..][..padded_dv].split_at_mut(dv);
                    expand::part(s, &values, cell, key_head * dv, row);
                    rest.fill(0.0);
                }
                let mut biases = [f32::NEG_INFINITY; KEYS];
                for row in 0..group {
                    let slope = slopes.of(key_head * group + row);
                    for (key, bias) in biases.iter_mut().enumerate().take(to).skip(from) {
                        let distance = (position - tile * PAGE - key) as f32;
                        *bias = if op.max_bias > 0.0 { -slope * distance } else { 0.0 };
                    }
                    let products = &mut scores[row * PAGE..][..PAGE];
                    for key in from..to {
                        let key_row = &key_rows[key * padded_d..][..padded_d];
                        let [[product]] =
                            dots::<S, f32, 1, 1>(s, &queries[row * padded_d..], padded_d, [key_row]);
                        products[key] = product;
                    }
                    let (state, factor) = soften::row(s, products, PAGE, Some(&biases), shaping, states[row]);
                    states[row] = state;
                    let sums = &mut sums[row * padded_dv..][..padded_dv];
                    sums.iter_mut().for_each(|x| *x *= factor);
                    let weights = Weights { values: &products[from..], row_stride: 0, key_stride: 1 };
                    let mut list: [&[f32]; KEYS] = [&[]; KEYS];
                    for (value, row) in list.iter_mut().zip(value_rows.chunks_exact(padded_dv.max(1))) {
                        *value = row;
                    }
                    if padded_dv > 0 {
                        accumulate(s, weights, &list[from..to], sums, padded_dv);
                    }
                }
            }
            for row in 0..group {
                let values = &sums[row * padded_dv..][..padded_dv];
                let totals = &mut totals[row * padded_dv..][..padded_dv];
                merge(&mut total_states[row], totals, states[row], values);
            }
        }
        for (row, state) in total_states.iter().enumerate() {
            let head = key_head * group + row;
            let State { largest, mut sum } = *state;
            let mut factor = 1.0;
            if let Some(sinks) = sinks {
                let sink = sinks.row::<f32>([0; 3]).get(head);
                if sink > largest {
                    factor = (largest - sink).exp();
                    sum = sum * factor + 1.0;
                } else {
                    sum += (sink - largest).exp();
                }
            }
            let factor = if sum == 0.0 { 0.0 } else { factor / sum };
            // SAFETY: each item is claimed by one thread, and items have no head of a token in common.
            let mut out = unsafe { job.dst.row::<f32>([head, token, 0]) };
            for (to, sum) in out.slice().iter_mut().zip(&totals[row * padded_dv..]) {
                *to = sum * factor + 0.0;
            }
        }
    }
    Ok(())
}

/// Adds what a span found to what the spans before it did.
fn merge(state: &mut State, totals: &mut [f32], found: State, values: &[f32]) {
    if state.sum == 0.0 {
        *state = found;
        totals.copy_from_slice(values);
        return;
    }
    if found.sum == 0.0 {
        return;
    }
    let largest = if found.largest > state.largest { found.largest } else { state.largest };
    let base = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
    let (before, now) = ((state.largest - base).exp(), (found.largest - base).exp());
    let now = if found.sum.is_nan() { f32::NAN } else { now };
    for (total, value) in totals.iter_mut().zip(values) {
        *total = *total * before + value * now;
    }
    *state = State { largest, sum: state.sum * before + found.sum * now };
}

#[cfg(test)]
mod tests;
