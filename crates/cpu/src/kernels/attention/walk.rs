//! An item's way over its keys: span by span, tile by tile.
//!
//! Invariant: each span starts from nothing, and spans are merged in ascending order, by the item itself or, where its spans
//! are several items, by a later phase. Spans of which a row sees nothing change nothing.

use half::f16;
use zerocopy::IntoBytes;

use super::codes::{self, CodedQueries};
use super::expand::{GROUP, Head};
use super::lens::{Attention, Item, KEYS, KeyForm, MANY, Query, SPAN_TILES, Sizes};
use super::slots::Slots;
use super::soften::State;
use super::{few, many, room, take};
use crate::job::{Fault, Stop, as_floats};
use crate::simd::{Level, Simd, for_each_level};
use crate::view::{Dst, elements_mut};

/// A thread's own memory.
pub(super) struct AttentionScratch<'a> {
    pub(super) queries: &'a mut [f32],
    pub(super) query_scales: &'a mut [f32],
    pub(super) corrections: &'a mut [f32],
    pub(super) keys: &'a mut [f32],
    pub(super) key_scales: &'a mut [f32],
    /// The same as they are in memory.
    pub(super) key_halves: &'a mut [[f16; KEYS]],
    pub(super) values: &'a mut [f32],
    /// Products, then weights: `[row][key]` for few rows, `[key][row]` for many.
    pub(super) scores: &'a mut [f32],
    pub(super) biases: &'a mut [f32],
    /// Weighted values of a span, a row per query, and states; see [`soften`](super::soften).
    pub(super) sums: &'a mut [f32],
    pub(super) largest: &'a mut [f32],
    pub(super) weight_sums: &'a mut [f32],
    pub(super) factors: &'a mut [f32],
    /// The same of all spans so far.
    totals: &'a mut [f32],
    total_largest: &'a mut [f32],
    total_sums: &'a mut [f32],
}

const AREAS: usize = 16;

/// Floats of a thread's own memory, in the order of [`AttentionScratch`], for items of at most `rows` rows.
fn areas(sizes: &Sizes, form: KeyForm, rows: usize) -> [usize; AREAS] {
    let Sizes { d, .. } = *sizes;
    let (is_many, is_coded) = (rows >= MANY, form == KeyForm::Codes);
    let lanes = if is_many { many::lanes(rows) } else { rows };
    let groups = if is_coded { d / GROUP } else { 0 };
    let key_codes: usize = codes::key_areas(d).iter().sum();
    let tile = if is_many { KEYS * lanes } else { 0 };
    [
        lanes * sizes.padded_d(),
        lanes * groups,
        lanes * groups,
        if is_coded { key_codes } else { KEYS * sizes.padded_d() },
        KEYS * groups,
        KEYS * groups / 2,
        KEYS * sizes.padded_dv(),
        KEYS * lanes,
        tile,
        rows * sizes.padded_dv(),
        lanes,
        lanes,
        lanes,
        rows * sizes.padded_dv(),
        lanes,
        lanes,
    ]
}

impl<'a> AttentionScratch<'a> {
    /// Bytes of a thread's own memory.
    pub(super) fn bytes(sizes: &Sizes, form: KeyForm, rows: usize) -> usize {
        areas(sizes, form, rows).map(room).iter().sum::<usize>() * size_of::<f32>()
    }

    pub(super) fn new(sizes: &Sizes, form: KeyForm, rows: usize, own: &'a mut [u8]) -> AttentionScratch<'a> {
        let mut rest = as_floats(own);
        let [
            queries,
            query_scales,
            corrections,
            keys,
            key_scales,
            key_halves,
            values,
            scores,
            biases,
            sums,
            largest,
            weight_sums,
            factors,
            totals,
            total_largest,
            total_sums,
        ] = areas(sizes, form, rows).map(|len| take(&mut rest, len));
        let key_halves = elements_mut::<f16>(key_halves.as_mut_bytes()).as_chunks_mut().0;
        AttentionScratch {
            queries,
            query_scales,
            corrections,
            keys,
            key_scales,
            key_halves,
            values,
            scores,
            biases,
            sums,
            largest,
            weight_sums,
            factors,
            totals,
            total_largest,
            total_sums,
        }
    }

    pub(super) fn coded_queries(&mut self) -> CodedQueries<'_> {
        CodedQueries { codes: self.queries, scales: self.query_scales, corrections: self.corrections }
    }

    /// Nothing seen of a span yet.
    fn clear(&mut self) {
        self.sums.fill(0.0);
        self.largest.fill(f32::NEG_INFINITY);
        self.weight_sums.fill(0.0);
    }

    /// What a span has found about a row.
    fn found(&self, sizes: &Sizes, row: usize) -> (State, &[f32]) {
        let state = State { largest: self.largest[row], sum: self.weight_sums[row] };
        (state, &self.sums[row * sizes.padded_dv()..][..sizes.padded_dv()])
    }
}

/// [`walk_by`], compiled once for each instruction set.
pub(super) fn walk(level: Level) -> Walk {
    for_each_level!(
        walk_by: fn(
            attention: &Attention<'_>,
            item: &Item,
            scratch: &mut AttentionScratch<'_>,
            stop: Stop<'_>,
            slots: Option<&Slots<'_>>,
        ) -> Result<bool, Fault>
    )
    .at(level)
}

type Walk =
    fn(&Attention<'_>, &Item, &mut AttentionScratch<'_>, Stop<'_>, Option<&Slots<'_>>) -> Result<bool, Fault>;

/// Walks over an item's keys. What its spans find is merged and left in `scratch`, for [`finish`], or in `slots`, span by
/// span. Gives whether it got to the end.
#[inline(always)]
fn walk_by<S: Simd>(
    s: S,
    attention: &Attention<'_>,
    item: &Item,
    scratch: &mut AttentionScratch<'_>,
    stop: Stop<'_>,
    slots: Option<&Slots<'_>>,
) -> Result<bool, Fault> {
    let (sizes, [keys, values]) = (&attention.sizes, attention.lens.heads(item));
    let heads = &[Head::new(&attention.keys, keys, sizes.d), Head::new(&attention.values, values, sizes.dv)];
    let is_many = item.rows >= MANY;
    match is_many {
        true => many::prepare(s, attention, item, scratch),
        false => few::prepare(s, attention, item, scratch),
    }
    scratch.totals.fill(0.0);
    scratch.total_largest.fill(f32::NEG_INFINITY);
    scratch.total_sums.fill(0.0);
    let end = item.spans.end * SPAN_TILES;
    for span in item.spans.clone() {
        if stop.after(0) {
            return Ok(false);
        }
        scratch.clear();
        let first = span * SPAN_TILES;
        let mut next = attention.lens.tile(item, first)?;
        for number in first..first + SPAN_TILES {
            let tile = next.take();
            next = if number + 1 < end { attention.lens.tile(item, number + 1)? } else { None };
            // What nothing sees was looked at for that.
            let units =
                tile.as_ref().map_or(item.rows, |tile| item.rows * tile.keys.len() * (sizes.d + sizes.dv));
            if stop.after(units) {
                return Ok(false);
            }
            let Some(tile) = tile else { continue };
            match is_many {
                true => many::step(s, attention, item, heads, (&tile, next.as_ref()), scratch),
                false => few::step(s, attention, item, heads, (&tile, next.as_ref()), scratch),
            }
        }
        for row in 0..item.rows {
            match slots {
                Some(slots) => {
                    let (state, values) = scratch.found(sizes, row);
                    slots.leave(sizes, item.rows, [span, row], state, values);
                }
                None => merge(s, sizes, scratch, row),
            }
        }
    }
    Ok(true)
}

/// Adds what a span has found about a row to what the spans before it did.
#[inline(always)]
fn merge<S: Simd>(s: S, sizes: &Sizes, scratch: &mut AttentionScratch<'_>, row: usize) {
    let stride = sizes.padded_dv();
    let found = State { largest: scratch.largest[row], sum: scratch.weight_sums[row] };
    let before = State { largest: scratch.total_largest[row], sum: scratch.total_sums[row] };
    let totals = &mut scratch.totals[row * stride..][..stride];
    let after = merge_into(s, before, totals, found, &scratch.sums[row * stride..][..stride]);
    (scratch.total_largest[row], scratch.total_sums[row]) = (after.largest, after.sum);
}

/// Adds the weighted values, whole vectors, and the state of a span to those of the spans before it.
#[inline(always)]
pub(super) fn merge_into<S: Simd>(
    s: S,
    before: State,
    totals: &mut [f32],
    found: State,
    values: &[f32],
) -> State {
    if found.sum == 0.0 {
        return before;
    }
    if before.sum == 0.0 {
        totals.copy_from_slice(values);
        return found;
    }
    let ([factor, now], after) = before.merge(s, found);
    for (total, value) in totals.chunks_exact_mut(S::LANES).zip(values.chunks_exact(S::LANES)) {
        let new = s.mul(s.load(value), s.splat(now));
        s.store(s.mul_add(s.load(total), s.splat(factor), new), total);
    }
    after
}

/// Writes the results of an item's rows.
///
/// # Safety
///
/// No other thread reads or writes the results of these rows in this phase, and this thread has no handle of them.
#[inline(always)]
pub(super) unsafe fn finish<S: Simd>(
    s: S,
    attention: &Attention<'_>,
    item: &Item,
    scratch: &AttentionScratch<'_>,
    dst: &Dst<'_>,
) {
    let stride = attention.sizes.padded_dv();
    for row in 0..item.rows {
        let state = State { largest: scratch.total_largest[row], sum: scratch.total_sums[row] };
        let query = item.query(&attention.sizes, row);
        // SAFETY: as the caller says.
        unsafe { write(s, attention, query, state, &scratch.totals[row * stride..], dst) };
    }
}

/// Lets the sink take part, and writes the result of a row.
///
/// # Safety
///
/// No other thread reads or writes the result of this row in this phase, and this thread has no handle of it.
#[inline(always)]
pub(super) unsafe fn write<S: Simd>(
    s: S,
    attention: &Attention<'_>,
    query: Query,
    state: State,
    totals: &[f32],
    dst: &Dst<'_>,
) {
    let sink = attention.sinks.map(|sinks| sinks.row::<f32>([0; 3]).get(query.head));
    let factor = state.finish(s, sink);
    // SAFETY: the row is this thread's, as the caller says.
    let mut row = unsafe { dst.row::<f32>([query.head, query.token, query.batch]) };
    for (to, total) in row.slice().iter_mut().zip(totals) {
        // Whether a zero has a sign would depend on keys that are not seen.
        *to = total * factor + 0.0;
    }
}
