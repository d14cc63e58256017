//! Orders of rows.
//!
//! A value and its index become one integer whose order is that of the values, then of the indices. So sorting is stable
//! and total: NaN has a place (beyond infinity, on the side of its sign), and zeros of different sign are not equal.

use oxcart_tensor::ops::{Argsort, SortOrder};
use oxcart_tensor::{Op, TensorRef};

use crate::job::{Fault, Job, Kernel};
use crate::simd::Level;

/// The kernel for an op of this family.
pub(super) fn choose(node: TensorRef<'_>, _level: Level) -> Option<Kernel> {
    let source = node.source(0)?.layout();
    let row = source.ne()[0];
    let run = match node.op() {
        Op::Argsort(_) => argsort,
        Op::TopK(_) => top_k,
        _ => return None,
    };
    // Sorting compares each value about as often as the row length has bits.
    let work = source.elements().saturating_mul(row.max(2).ilog2() as usize);
    Some(Kernel::rows(run, node.layout(), work).own(size_of::<u64>() * row))
}

/// An integer with the order of `value`, then of `index`.
#[inline(always)]
fn key(value: f32, index: usize, order: SortOrder) -> u64 {
    let bits = value.to_bits();
    // Negative numbers grow downwards.
    let ascending = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    let place = match order {
        SortOrder::Ascending => ascending,
        SortOrder::Descending => !ascending,
    };
    u64::from(place) << 32 | index as u64
}

/// Keys of a row in scratch memory.
fn keys<'k>(own: &'k mut [u8], row: &[f32], order: SortOrder) -> &'k mut [u64] {
    let keys = <[u64] as zerocopy::FromBytes>::mut_from_bytes(own)
        .unwrap_or_else(|_| unreachable!("scratch is aligned and sized in whole keys"));
    for (i, (to, value)) in keys.iter_mut().zip(row).enumerate() {
        *to = key(*value, i, order);
    }
    keys
}

fn store_indices(keys: &[u64], to: &mut [i32]) {
    for (to, key) in to.iter_mut().zip(keys) {
        *to = *key as u32 as i32;
    }
}

fn argsort(job: Job<'_>) -> Result<(), Fault> {
    let Argsort { order } = job.op();
    let a = job.src(0);
    for (at, mut row) in job.dst.rows::<i32>(job.share) {
        let keys = keys(job.own, a.row(at).slice(), order);
        keys.sort_unstable();
        store_indices(keys, row.slice());
    }
    Ok(())
}

/// The indices come out from the largest value down, though nobody may rely on it.
fn top_k(job: Job<'_>) -> Result<(), Fault> {
    let a = job.src(0);
    for (at, mut row) in job.dst.rows::<i32>(job.share) {
        let keys = keys(job.own, a.row(at).slice(), SortOrder::Descending);
        let k = row.len();
        if k < keys.len() {
            keys.select_nth_unstable(k);
        }
        let keys = &mut keys[..k];
        keys.sort_unstable();
        store_indices(keys, row.slice());
    }
    Ok(())
}
