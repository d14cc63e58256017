//! Orders of rows.
//!
//! A value and its index become one integer whose order is that of the values, then of the indices. So sorting is stable
//! and total: NaN has a place (beyond infinity, on the side of its sign), and zeros of different sign are not equal.

use oxcart_tensor::ops::{Argsort, SortOrder};
use oxcart_tensor::{Op, TensorRef};

use crate::job::{Fault, Job, Kernel, Stop};
use crate::simd::Level;
use crate::view::elements_mut;

/// The kernel for an op of this family.
pub(super) fn choose(node: TensorRef<'_>, _level: Level) -> Option<Kernel> {
    let source = node.source(0)?.layout();
    let row = source.ne()[0];
    let run = match node.op() {
        Op::TopK(top) if (1..=row / FEW).contains(&top.k) && row < VERY_LONG => {
            // Nearly all values are only compared, several at a time.
            let work = source.elements();
            return Some(Kernel::rows(top_few, node.layout(), work).own(size_of::<u64>() * room_for(top.k)));
        }
        Op::Argsort(_) => argsort,
        Op::TopK(_) => top_k,
        _ => return None,
    };
    // Sorting compares each value about as often as the row length has bits.
    let work = source.elements().saturating_mul(row.max(2).ilog2() as usize);
    // Keys, and room to move them to.
    Some(Kernel::rows(run, node.layout(), work).own(2 * size_of::<u64>() * row))
}

/// An integer with the order of `value`.
#[inline(always)]
fn place(value: f32, order: SortOrder) -> u32 {
    let bits = value.to_bits();
    // Negative numbers grow downwards.
    let ascending = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    match order {
        SortOrder::Ascending => ascending,
        SortOrder::Descending => !ascending,
    }
}

/// An integer with the order of places, then of indices.
#[inline(always)]
fn key_at(place: u32, index: usize) -> u64 {
    u64::from(place) << 32 | index as u64
}

/// An integer with the order of `value`, then of `index`.
#[inline(always)]
fn key(value: f32, index: usize, order: SortOrder) -> u64 {
    key_at(place(value, order), index)
}

/// Keys of a row in scratch memory, and as much room again.
fn keys<'k>(
    stop: Stop<'_>,
    own: &'k mut [u8],
    row: &[f32],
    order: SortOrder,
) -> (&'k mut [u64], &'k mut [u64]) {
    let (keys, room) = elements_mut(own).split_at_mut(row.len());
    for i in stop.stretches(row.len()).flatten() {
        keys[i] = key(row[i], i, order);
    }
    (keys, room)
}

/// Rows from this length on are sorted by digits.
const LONG: usize = 4096;

/// Rows from this length on are never left to a function that cannot be stopped.
const VERY_LONG: usize = 1 << 20;

/// About how often sorting so many keys looks at each.
fn rounds(len: usize) -> usize {
    len.max(2).ilog2() as usize
}

/// Sorts keys of distinct indices that are in order of their indices.
fn sort(stop: Stop<'_>, keys: &mut [u64], room: &mut [u64]) {
    if keys.len() < LONG {
        if !stop.after(keys.len() * rounds(keys.len())) {
            keys.sort_unstable();
        }
    } else {
        sort_digits(stop, keys, room);
    }
}

/// By the bytes of the values, the lowest first; each pass keeps the order of equal bytes.
fn sort_digits(stop: Stop<'_>, keys: &mut [u64], room: &mut [u64]) {
    const PASSES: usize = 4;
    let digit = |key: u64, pass: usize| (key >> (32 + 8 * pass)) as usize & 0xFF;
    let mut counts = [[0usize; 256]; PASSES];
    for part in stop.stretches_of(keys.len(), PASSES) {
        for &key in &keys[part] {
            (0..PASSES).for_each(|pass| counts[pass][digit(key, pass)] += 1);
        }
    }
    if stop.after(0) {
        return;
    }
    let (mut from, mut to) = (keys, room);
    for (pass, counts) in counts.iter_mut().enumerate() {
        let mut start = 0;
        for count in counts.iter_mut() {
            (*count, start) = (start, start + *count);
        }
        for part in stop.stretches(from.len()) {
            for &key in &from[part] {
                let place = &mut counts[digit(key, pass)];
                to[*place] = key;
                *place += 1;
            }
        }
        if stop.after(0) {
            return;
        }
        // After an even number of passes the keys are where they were.
        (from, to) = (to, from);
    }
}

/// Writes indices in the order of their keys; says whether to give up.
fn store_indices(stop: Stop<'_>, keys: &[u64], to: &mut [i32]) -> bool {
    for part in stop.stretches(to.len()) {
        for (to, key) in to[part.clone()].iter_mut().zip(&keys[part]) {
            *to = *key as u32 as i32;
        }
    }
    stop.after(0)
}

fn argsort(job: Job<'_>) -> Result<(), Fault> {
    let Argsort { order } = job.op();
    let (a, stop) = (job.src(0), job.stop);
    for (at, mut row) in job.dst.rows::<i32>(job.share) {
        let (keys, room) = keys(stop, job.own, a.row(at).slice(), order);
        sort(stop, keys, room);
        if store_indices(stop, keys, row.slice()) {
            break;
        }
    }
    Ok(())
}

/// The indices come out from the largest value down, though that is not promised.
fn top_k(job: Job<'_>) -> Result<(), Fault> {
    let (a, stop) = (job.src(0), job.stop);
    for (at, mut row) in job.dst.rows::<i32>(job.share) {
        let (keys, room) = keys(stop, job.own, a.row(at).slice(), SortOrder::Descending);
        let k = row.len();
        // Picking the largest pays only where most of the rest need not be sorted.
        if k < keys.len() / 2 && keys.len() < VERY_LONG {
            if !stop.after(2 * keys.len() + k * rounds(k)) {
                keys.select_nth_unstable(k);
                keys[..k].sort_unstable();
            }
        } else {
            sort(stop, keys, room);
        }
        if store_indices(stop, keys, row.slice()) {
            break;
        }
    }
    Ok(())
}

/// Rows are looked through for the largest, and not sorted, if they are at least so many times as long.
const FEW: usize = 8;

/// How many keys are collected before all but the `k` best are let go.
fn room_for(k: usize) -> usize {
    (4 * k).max(64)
}

/// As [`top_k`], where nearly all values are passed over: a block of them at a time, as soon as none is better than the best so far.
fn top_few(job: Job<'_>) -> Result<(), Fault> {
    const BLOCK: usize = 64;
    let (a, stop) = (job.src(0), job.stop);
    let room = elements_mut::<u64>(job.own);
    for (at, mut row) in job.dst.rows::<i32>(job.share) {
        let (values, k) = (a.row(at).slice(), row.len());
        let (mut count, mut worst) = (0, None);
        // Each value may be looked at to skip it, to collect it, and to let it go.
        for part in stop.stretches_of(values.len(), 3) {
            let starts = part.clone().step_by(BLOCK);
            for (start, block) in starts.zip(values[part].chunks(BLOCK)) {
                let places = || block.iter().map(|&value| place(value, SortOrder::Descending));
                // Later ones that are equal to the worst do not get in.
                let gets_in = |place: u32, worst: Option<u32>| worst.is_none_or(|worst| place < worst);
                if !gets_in(places().fold(u32::MAX, u32::min), worst) {
                    continue;
                }
                for (index, place) in (start..).zip(places()) {
                    if !gets_in(place, worst) {
                        continue;
                    }
                    room[count] = key_at(place, index);
                    count += 1;
                    if count == room.len() {
                        let (_, last, _) = room.select_nth_unstable(k - 1);
                        worst = Some((*last >> 32) as u32);
                        count = k;
                    }
                }
            }
        }
        room[..count].sort_unstable();
        if store_indices(stop, room, row.slice()) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use oxcart_tensor::ops::TopK;
    use oxcart_tensor::{DType, Layout};

    use super::*;
    use crate::kernels::testing::{Tensor, compute};

    fn sorted(a: &Tensor, order: SortOrder) -> Vec<i32> {
        compute(Argsort { order }, &[a]).i32s()
    }

    #[test]
    fn rows_are_sorted_both_ways() {
        let layout = Layout::strided(DType::F32, [33, 5, 3, 2], [4, 140, 700, 2100]).unwrap();
        let a = Tensor::pattern(layout);
        let values = a.values();
        for order in [SortOrder::Ascending, SortOrder::Descending] {
            for (row, indices) in values.chunks(33).zip(sorted(&a, order).chunks(33)) {
                let mut expected: Vec<i32> = (0..33).collect();
                let value = |i: &i32| row[*i as usize];
                match order {
                    SortOrder::Ascending => expected.sort_by(|i, j| value(i).total_cmp(&value(j))),
                    SortOrder::Descending => expected.sort_by(|i, j| value(j).total_cmp(&value(i))),
                }
                assert_eq!(indices, expected);
            }
        }
    }

    #[test]
    fn every_number_has_its_place() {
        let values = [0.0, f32::NAN, -1.0, f32::INFINITY, -f32::NAN, f32::NEG_INFINITY, 1e-40, -1e-40, 2.0];
        let a = Tensor::packed(DType::F32, values.len(), &values);
        assert_eq!(sorted(&a, SortOrder::Ascending), [4, 5, 2, 7, 0, 6, 8, 3, 1]);
        assert_eq!(sorted(&a, SortOrder::Descending), [1, 3, 8, 6, 0, 7, 2, 5, 4]);
        let nan = Tensor::packed(DType::F32, 300, &[f32::NAN; 300]);
        assert_eq!(sorted(&nan, SortOrder::Ascending), (0..300).collect::<Vec<_>>());
    }

    #[test]
    fn the_largest_are_picked() {
        let a = Tensor::pattern(Layout::packed(DType::F32, [100, 4]).unwrap());
        let values = a.values();
        for k in [1, 2, 63, 99, 100] {
            let result = compute(TopK { k }, &[&a]).i32s();
            for (row, indices) in values.chunks(100).zip(result.chunks(k)) {
                let mut picked: Vec<_> = indices.iter().map(|&i| row[i as usize]).collect();
                let mut all = row.to_vec();
                all.sort_by(|a, b| b.total_cmp(a));
                picked.sort_by(|a, b| b.total_cmp(a));
                assert_eq!(picked, all[..k]);
                let mut distinct = indices.to_vec();
                distinct.sort_unstable();
                distinct.dedup();
                assert_eq!(distinct.len(), k);
            }
        }
    }

    #[test]
    fn long_rows_are_sorted() {
        let values: Vec<f32> = (0..200_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32).collect();
        let a = Tensor::packed(DType::F32, 200_000, &values);
        let indices = sorted(&a, SortOrder::Descending);
        assert!(indices.is_sorted_by(|i, j| values[*i as usize] >= values[*j as usize]));
        assert_eq!(compute(TopK { k: 40 }, &[&a]).i32s(), indices[..40]);
    }

    /// However many keys are let go on the way, and of whatever is no number: the first of the sorted ones, equal ones in order.
    #[test]
    fn few_of_many_are_the_first_of_the_sorted() {
        let odd = [f32::NAN, f32::from_bits(u32::MAX), f32::INFINITY, f32::NEG_INFINITY, -0.0, 0.0];
        let rows: [&dyn Fn(usize) -> f32; 5] =
            [&|i| (i * 37 % 1009) as f32, &|i| i as f32, &|i| -(i as f32), &|i| (i % 3) as f32, &|i| {
                odd[i * 7 % 11 % odd.len()]
            }];
        for length in [64, 1000, 5000] {
            let values: Vec<f32> = rows.iter().flat_map(|value| (0..length).map(value)).collect();
            let a = Tensor::f32([length, rows.len()], &values);
            let all = sorted(&a, SortOrder::Descending);
            for k in [1, 7, 8, length / 8] {
                let expected = all.chunks(length).flat_map(|row| &row[..k]).copied().collect::<Vec<_>>();
                assert_eq!(compute(TopK { k }, &[&a]).i32s(), expected, "{k} of {length}");
            }
        }
    }
}
