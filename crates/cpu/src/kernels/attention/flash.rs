//! FLASH_ATTN_EXT: softmax attention without ever holding all scores.
//!
//! Work is claimed piece by piece. Where there are few queries and many keys, a query's keys are several pieces: then each
//! leaves its maximum, sum and weighted values in shared memory, and a second phase merges them in the order of keys.

use half::f16;
use oxcart_tensor::TensorRef;
use oxcart_tensor::ops::FlashAttnExt;
use zerocopy::FromBytes;

use super::super::dot;
use super::super::soft_max::Slopes;
use super::cut::{Cut, Item, Query};
use super::soften::{Shaping, State};
use super::{few, many, multiply_adds, take};
use crate::job::{Fault, Job, Kernel, SharedScratch, as_floats};
use crate::simd::{Level, Simd, for_each_level};
use crate::view::{Dst, Src};

pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let [q, k, v] = [0, 1, 2].map(|slot| node.source(slot));
    let (q, k, v) = (q?, k?, v?);
    if k.dtype().is_quantized() {
        dot::dot(k.dtype(), level)?;
        dot::encode(k.dtype().dot_partner()?, level)?;
    }
    let cut = Cut::new(q.layout(), k.layout(), v.layout());
    let run = for_each_level!(flash: fn(job: Job<'_>) -> Result<(), Fault>).at(level);
    let kernel = Kernel::units(run, cut.items(), multiply_adds(cut.work()))
        .own(cut.areas().total() * size_of::<f32>());
    Some(match cut.pieces {
        1 => kernel,
        pieces => kernel.phases(2).shared(cut.queries() * pieces * cut.partial() * size_of::<f32>()),
    })
}

/// What all pieces of work look at.
pub(super) struct Attention<'t> {
    pub(super) cut: Cut,
    pub(super) q: Src<'t>,
    pub(super) k: Src<'t>,
    pub(super) v: Src<'t>,
    pub(super) mask: Option<Src<'t>>,
    sinks: Option<Src<'t>>,
    pub(super) slopes: Slopes,
    pub(super) shaping: Shaping,
}

impl<'t> Attention<'t> {
    fn new(job: &Job<'t>) -> Attention<'t> {
        let (op, [q, k, v]): (FlashAttnExt, _) = (job.op(), [0, 1, 2].map(|slot| job.src(slot)));
        let cut = Cut::new(q.layout(), k.layout(), v.layout());
        Attention {
            cut,
            q,
            k,
            v,
            mask: job.may(3),
            sinks: job.may(4),
            slopes: Slopes::new(op.max_bias, cut.heads),
            shaping: Shaping::new(op.scale, op.softcap),
        }
    }

    /// Head and batch of the keys, or of the values, of a piece of work.
    pub(super) fn plane(&self, of: &Src<'_>, item: &Item) -> [usize; 2] {
        let [.., heads, batch] = of.ne();
        [item.first_head / (self.cut.heads / heads), item.batch / (self.cut.batch / batch)]
    }

    /// A query's numbers.
    #[inline(always)]
    pub(super) fn query(&self, query: Query) -> &'t [f32] {
        self.q.row::<f32>([query.token, query.head, query.batch]).slice()
    }

    /// A query's mask over some keys.
    #[inline(always)]
    pub(super) fn mask(&self, query: Query, first: usize, count: usize) -> Option<&'t [f16]> {
        let mask = self.mask?;
        let [.., heads, batch] = mask.ne();
        let row = mask.row::<f16>([query.token, query.head % heads, query.batch % batch]).slice();
        Some(&row[first..][..count])
    }
}

/// A thread's own scratch memory, cut into areas.
pub(super) struct AttentionScratch<'a> {
    pub(super) queries: &'a mut [f32],
    pub(super) encoded: &'a mut [f32],
    pub(super) keys: &'a mut [f32],
    pub(super) values: &'a mut [f32],
    pub(super) scores: &'a mut [f32],
    pub(super) biases: &'a mut [f32],
    /// Weighted values, a row per query.
    pub(super) sums: &'a mut [f32],
    /// States of the softmax; see [`soften`](super::soften).
    pub(super) largest: &'a mut [f32],
    pub(super) weight_sums: &'a mut [f32],
    pub(super) factors: &'a mut [f32],
}

impl<'a> AttentionScratch<'a> {
    fn new(cut: &Cut, own: &'a mut [u8]) -> AttentionScratch<'a> {
        let (mut rest, areas) = (as_floats(own), cut.areas());
        AttentionScratch {
            queries: take(&mut rest, areas.queries),
            encoded: take(&mut rest, areas.encoded),
            keys: take(&mut rest, areas.keys),
            values: take(&mut rest, areas.values),
            scores: take(&mut rest, areas.scores),
            biases: take(&mut rest, areas.biases),
            sums: take(&mut rest, areas.sums),
            largest: take(&mut rest, areas.states),
            weight_sums: take(&mut rest, areas.states),
            factors: take(&mut rest, areas.states),
        }
    }

    /// Nothing seen yet.
    pub(super) fn clear(&mut self) {
        self.sums.fill(0.0);
        self.largest.fill(f32::NEG_INFINITY);
        self.weight_sums.fill(0.0);
    }
}

#[inline(always)]
fn flash<S: Simd>(s: S, job: Job<'_>) -> Result<(), Fault> {
    let attention = Attention::new(&job);
    let cut = attention.cut;
    if job.phase == 1 {
        merge(&attention, job);
        return Ok(());
    }
    let claims = job.claims(cut.items());
    let (dst, shared) = (job.dst, job.shared);
    let mut scratch = AttentionScratch::new(&cut, job.own);
    for index in claims {
        let item = cut.item(index);
        scratch.clear();
        match cut.few {
            true => few::attend(s, &attention, &item, &mut scratch),
            false => many::attend(s, &attention, &item, &mut scratch),
        }
        for (row, sums) in scratch.sums.chunks_exact_mut(cut.padded_dv()).take(item.rows).enumerate() {
            let state = State { largest: scratch.largest[row], sum: scratch.weight_sums[row] };
            let (query, sums) = (cut.query(&item, row), &mut sums[..cut.dv]);
            match cut.pieces {
                // SAFETY: each item is claimed by one thread, each query belongs to one item, and no other phase writes.
                1 => unsafe { finish(&attention, &dst, query, state, sums) },
                // SAFETY: as above, for each query and piece.
                _ => unsafe { leave(&cut, shared, query, item.piece, state, sums) },
            }
        }
    }
    Ok(())
}

/// Lets the sink take part, and writes a query's result.
///
/// # Safety
///
/// No other thread reads or writes the query's result in this phase, and this thread has no other handle of it.
#[inline(always)]
unsafe fn finish(attention: &Attention<'_>, dst: &Dst<'_>, query: Query, state: State, sums: &[f32]) {
    let State { largest, mut sum } = state;
    let mut factor = 1.0;
    if let Some(sinks) = attention.sinks {
        let sink = sinks.row::<f32>([0; 3]).get(query.head);
        if sink > largest {
            factor = (largest - sink).exp();
            sum = sum * factor + 1.0;
        } else {
            sum += (sink - largest).exp();
        }
    }
    // Without a single key the result is zero.
    let factor = if sum == 0.0 { 0.0 } else { factor / sum };
    // SAFETY: the row is this thread's, as the caller says.
    let mut row = unsafe { dst.row::<f32>([query.head, query.token, query.batch]) };
    for (to, sum) in row.slice().iter_mut().zip(sums) {
        *to = sum * factor;
    }
}

/// Leaves what a piece has found for the second phase.
///
/// # Safety
///
/// Only one thread does this for a query and a piece.
#[inline(always)]
unsafe fn leave(
    cut: &Cut,
    shared: SharedScratch<'_>,
    query: Query,
    piece: usize,
    state: State,
    sums: &[f32],
) {
    let bytes = cut.partial() * size_of::<f32>();
    let at = (cut.number(query) * cut.pieces + piece) * bytes;
    // SAFETY: areas of different queries and pieces do not meet, and this thread has no other handle of this one.
    let area = as_floats(unsafe { shared.bytes_mut(at, bytes) });
    area[0] = state.largest;
    area[1] = state.sum;
    area[2..].copy_from_slice(sums);
}

/// Puts the pieces of each query together, in the order of keys.
#[inline(always)]
fn merge(attention: &Attention<'_>, job: Job<'_>) {
    let cut = attention.cut;
    let area = cut.pieces * cut.partial() * size_of::<f32>();
    let sums = &mut as_floats(job.own)[..cut.dv];
    for number in job.share.of(cut.queries()) {
        // SAFETY: in this phase no thread writes to shared memory.
        let bytes = unsafe { job.shared.bytes(number * area, area) };
        let pieces = <[f32]>::ref_from_bytes(bytes)
            .unwrap_or_else(|_| unreachable!("scratch is aligned and sized in whole floats"));
        sums.fill(0.0);
        let mut state = State { largest: f32::NEG_INFINITY, sum: 0.0 };
        for piece in pieces.chunks_exact(cut.partial()) {
            let (found, values) = (State { largest: piece[0], sum: piece[1] }, &piece[2..]);
            if found.sum == 0.0 {
                continue;
            }
            let largest = if found.largest > state.largest { found.largest } else { state.largest };
            let base = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
            let (before, now) = ((state.largest - base).exp(), (found.largest - base).exp());
            // A piece that found nothing but NaN has no largest score; its sum says so.
            let now = if found.sum.is_nan() { f32::NAN } else { now };
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum = *sum * before + value * now;
            }
            state = State { largest, sum: state.sum * before + found.sum * now };
        }
        // SAFETY: shares do not meet, and each query of this one is visited once.
        unsafe { finish(attention, &job.dst, cut.numbered(number), state, sums) };
    }
}
