//! Elements joined, tiled, shifted and padded.
//!
//! Results are fresh and packed, so their rows are slices; sources may lie at any stride their op allows.

use oxcart_tensor::ops::{Concat, Pad, PadReflect1d, Roll};
use oxcart_tensor::{DType, Layout, Op, TensorRef};

use super::copy::move_units;
use crate::job::{self, Fault, Job, Kernel, Run, Stop};
use crate::simd::{Level, Simd, for_each_level};
use crate::view::{Plain, Src};

/// The kernel for an op of this family.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let layout = node.layout();
    let work = layout.elements();
    let kernel = match node.op() {
        Op::Repeat(_) => Kernel::elementwise(choose_repeat(node.dtype())?, layout),
        Op::RepeatBack(_) => {
            let run = for_each_level!(repeat_back: fn(job: Job<'_>) -> Result<(), Fault>).at(level);
            let work = node.source(0)?.layout().elements();
            Kernel::units(run, layout.elements().div_ceil(TILE), work)
        }
        Op::Concat(_) => {
            let bytes = work / node.dtype().block_len() * node.dtype().block_bytes();
            Kernel::units(concat, usize::MAX, job::bytes_moved(bytes))
        }
        Op::Pad(_) => Kernel::rows(pad, layout, work),
        Op::PadReflect1d(_) => Kernel::rows(pad_reflect, layout, work),
        Op::Roll(_) => Kernel::rows(roll, layout, work),
        _ => return None,
    };
    Some(kernel)
}

fn choose_repeat(dtype: DType) -> Option<Run> {
    match dtype.block_bytes() {
        2 => Some(repeat::<u16>),
        4 => Some(repeat::<u32>),
        _ => None,
    }
}

/// Elements of a result that a thread does at a time.
const TILE: usize = 8 * 1024;

fn repeat<T: Plain>(job: Job<'_>) -> Result<(), Fault> {
    let (a, stop) = (job.src(0), job.stop);
    let [period, ne1, ne2, ne3] = a.ne();
    for (at, start, mut piece) in job.dst.pieces::<T>(job.share, TILE) {
        if stop.after(piece.len()) {
            break;
        }
        let row = a.row::<T>([at[0] % ne1, at[1] % ne2, at[2] % ne3]).slice();
        fill_periodic(row, start % period, piece.slice());
    }
    Ok(())
}

/// Goes round and round `row`, from `start` on.
fn fill_periodic<T: Copy>(row: &[T], start: usize, to: &mut [T]) {
    let period = row.len();
    let once = to.len().min(period);
    let tail = once.min(period - start);
    to[..tail].copy_from_slice(&row[start..start + tail]);
    to[tail..once].copy_from_slice(&row[..once - tail]);
    // What is there is a whole number of periods, so it can follow itself, twice as long each time.
    let mut filled = once;
    while filled < to.len() {
        let more = filled.min(to.len() - filled);
        to.copy_within(..more, filled);
        filled += more;
    }
}

/// Each element adds its tiles in the order in which they lie in the source, dimension 0 fastest.
#[inline(always)]
fn repeat_back<S: Simd>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (a, stop) = (job.src(0), job.stop);
    let ne = job.dst.ne();
    let tiles: [usize; 4] = std::array::from_fn(|i| a.ne()[i] / ne[i]);
    for (at, start, mut piece) in job.dst.pieces::<f32>(job.share, TILE) {
        let sums = piece.slice();
        sums.fill(0.0);
        for k3 in 0..tiles[3] {
            for k2 in 0..tiles[2] {
                for k1 in 0..tiles[1] {
                    let row = a.row::<f32>([k1 * ne[1] + at[0], k2 * ne[2] + at[1], k3 * ne[3] + at[2]]);
                    let row = row.slice();
                    for k0 in 0..tiles[0] {
                        if stop.after(sums.len()) {
                            return Ok(());
                        }
                        let tile = &row[k0 * ne[0] + start..][..sums.len()];
                        sums.iter_mut().zip(tile).for_each(|(sum, x)| *sum += x);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Two copies into two windows of the result.
fn concat(job: Job<'_>) -> Result<(), Fault> {
    let Concat { dim } = job.op();
    let (a, b, stop) = (job.src(0), job.src(1), job.stop);
    let (dtype, nb) = (job.dst.dtype(), job.dst.nb());
    // SAFETY: the windows do not meet, and in each of them threads write units of their own share.
    let mut target = unsafe { job.dst.bytes() };
    let before = a.ne()[dim] / if dim == 0 { dtype.block_len() } else { 1 };
    for (source, start) in [(a, 0), (b, before * nb[dim])] {
        let window = Layout::strided(dtype, source.ne(), nb)
            .unwrap_or_else(|error| unreachable!("a window is smaller than its tensor: {error}"));
        move_units((source.layout(), source.bytes()), (&window, start, &mut target), job.share, stop);
    }
    Ok(())
}

/// Copies elements of a row of `f32` at any stride; says whether to give up.
#[inline(always)]
fn read_row(stop: Stop<'_>, a: &Src<'_>, at: [usize; 3], start: usize, to: &mut [f32]) -> bool {
    for part in stop.stretches(to.len()) {
        let (start, to) = (start + part.start, &mut to[part]);
        if a.layout().has_contiguous_rows() {
            a.row::<f32>(at).read(start, to);
        } else {
            a.line::<f32>(at).read(start, to);
        }
    }
    stop.after(0)
}

/// Fills a row; says whether to give up.
fn fill(stop: Stop<'_>, to: &mut [f32], value: f32) -> bool {
    stop.stretches(to.len()).for_each(|part| to[part].fill(value));
    stop.after(0)
}

fn pad(job: Job<'_>) -> Result<(), Fault> {
    let Pad { left, circular, .. } = job.op();
    let (a, stop) = (job.src(0), job.stop);
    let ne = a.ne();
    // The place in the source of a place in the result; `None` outside of it.
    let inside = |dim: usize, i: usize| match circular {
        true => Some((i + ne[dim] - left[dim]) % ne[dim]),
        false => i.checked_sub(left[dim]).filter(|&i| i < ne[dim]),
    };
    for (at, mut row) in job.dst.rows::<f32>(job.share) {
        let to = row.slice();
        let (Some(i1), Some(i2), Some(i3)) = (inside(1, at[0]), inside(2, at[1]), inside(3, at[2])) else {
            if fill(stop, to, 0.0) {
                break;
            }
            continue;
        };
        let (before, rest) = to.split_at_mut(left[0]);
        let (middle, after) = rest.split_at_mut(ne[0]);
        let at = [i1, i2, i3];
        let over = match circular {
            true => read_row(stop, &a, at, ne[0] - before.len(), before) || read_row(stop, &a, at, 0, after),
            false => fill(stop, before, 0.0) || fill(stop, after, 0.0),
        };
        if over || read_row(stop, &a, at, 0, middle) {
            break;
        }
    }
    Ok(())
}

fn pad_reflect(job: Job<'_>) -> Result<(), Fault> {
    let PadReflect1d { left, .. } = job.op();
    let (a, stop) = (job.src(0), job.stop);
    for (at, mut row) in job.dst.rows::<f32>(job.share) {
        let from = a.row::<f32>(at).slice();
        let (before, rest) = row.slice().split_at_mut(left);
        let (middle, after) = rest.split_at_mut(from.len());
        for part in stop.stretches(from.len()) {
            middle[part.clone()].copy_from_slice(&from[part]);
        }
        // The edge is not repeated on either side; each is shorter than the row.
        for part in stop.stretches(before.len()) {
            let to = before.len() - part.end..before.len() - part.start;
            before[to].iter_mut().rev().zip(&from[1 + part.start..]).for_each(|(to, x)| *to = *x);
        }
        for part in stop.stretches(after.len()) {
            let back = from[..from.len() - 1 - part.start].iter().rev();
            after[part].iter_mut().zip(back).for_each(|(to, x)| *to = *x);
        }
        if stop.after(0) {
            break;
        }
    }
    Ok(())
}

fn roll(job: Job<'_>) -> Result<(), Fault> {
    let Roll { shift } = job.op();
    let (a, stop) = (job.src(0), job.stop);
    let ne = a.ne();
    // Shifts are shorter than their extents, so one turn makes them positive.
    let shift: [usize; 4] = std::array::from_fn(|i| (shift[i] as isize).rem_euclid(ne[i] as isize) as usize);
    let back = |dim: usize, i: usize| (i + ne[dim] - shift[dim]) % ne[dim];
    for (at, mut row) in job.dst.rows::<f32>(job.share) {
        let from = a.row::<f32>([back(1, at[0]), back(2, at[1]), back(3, at[2])]).slice();
        let (to, start) = (row.slice(), back(0, 0));
        for part in stop.stretches(to.len()) {
            fill_periodic(from, (start + part.start) % ne[0], &mut to[part]);
        }
        if stop.after(0) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use oxcart_tensor::ops::{Repeat, RepeatBack};

    use super::*;
    use crate::kernels::testing::{Tensor, compute};

    /// All places of a shape, in logical order.
    fn places(ne: [usize; 4]) -> impl Iterator<Item = [usize; 4]> {
        let count = ne.iter().product();
        (0..count).map(move |n: usize| {
            [n % ne[0], n / ne[0] % ne[1], n / ne[0] / ne[1] % ne[2], n / ne[0] / ne[1] / ne[2]]
        })
    }

    /// A result against what each of its places should be; `None` stands for zeros.
    fn check<'t>(result: &Tensor, expected: impl Fn([usize; 4]) -> Option<&'t [u8]>) {
        for place in places(result.layout.ne().extents()) {
            let found = result.unit(place);
            match expected(place) {
                Some(bytes) => assert_eq!(found, bytes, "{place:?}"),
                None => assert!(found.iter().all(|byte| *byte == 0), "{place:?}"),
            }
        }
    }

    fn padded(dtype: DType, ne: [usize; 4]) -> Tensor {
        let unit = dtype.block_bytes();
        let row = unit * (ne[0] / dtype.block_len() + 1);
        let nb = [unit, row * ne[2], row, row * ne[1] * ne[2] + row];
        Tensor::pattern(Layout::strided(dtype, ne, nb).unwrap())
    }

    fn turned(dtype: DType, [ne0, ne1, ne2, ne3]: [usize; 4]) -> Tensor {
        let layout = Layout::packed(dtype, [ne2, ne0, ne1, ne3]).unwrap();
        Tensor::pattern(layout.permuted([2, 0, 1, 3]).unwrap())
    }

    #[test]
    fn tiles_repeat() {
        for dtype in [DType::F32, DType::I32, DType::F16, DType::BF16, DType::I16] {
            for (ne, to) in [
                ([3, 2, 5, 1], [9, 4, 5, 3]),
                ([1, 7, 1, 2], [20_000, 7, 1, 2]),
                ([7, 1, 1, 1], [21_007 / 7 * 7, 2, 1, 1]),
                ([5, 3, 1, 1], [5, 70_002, 1, 1]),
            ] {
                let a = padded(dtype, ne);
                let result = compute(Repeat { ne: to.into() }, &[&a]);
                check(&result, |place| Some(a.unit(std::array::from_fn(|i| place[i] % ne[i]))));
            }
        }
    }

    #[test]
    fn tiles_add_up_in_order() {
        for (ne, to) in
            [([9, 4, 5, 3], [3, 2, 5, 1]), ([40, 3, 1, 1], [1, 1, 1, 1]), ([9000, 6, 1, 1], [9000, 2, 1, 1])]
        {
            let a = padded(DType::F32, ne);
            let result = compute(RepeatBack { ne: to.into() }, &[&a]);
            let mut expected = vec![0f32; to.iter().product()];
            // Any order in which tiles come one after the other, dimension 0 fastest.
            for (place, x) in places(ne).zip(a.values()) {
                let [i0, i1, i2, i3]: [usize; 4] = std::array::from_fn(|i| place[i] % to[i]);
                expected[i0 + to[0] * (i1 + to[1] * (i2 + to[2] * i3))] += x;
            }
            // Terms are multiples of 1/16, so these sums are exact in any order.
            assert_eq!(result.values(), expected);
        }
        let nothing = Tensor::pattern(Layout::packed(DType::F32, [4, 0]).unwrap());
        let result = compute(RepeatBack { ne: [2, 3].into() }, &[&nothing]);
        assert_eq!(result.values(), [0.0; 6]);
    }

    #[test]
    fn tensors_of_every_layout_are_joined() {
        for dtype in [DType::I8, DType::F16, DType::F32, DType::I64, DType::F64] {
            for dim in 0..4 {
                let mut other = [5, 4, 3, 2];
                for extent in [0, 1, 37] {
                    other[dim] = extent;
                    let mut pairs = vec![(padded(dtype, [5, 4, 3, 2]), padded(dtype, other))];
                    if dtype.block_bytes() <= 4 {
                        pairs.push((turned(dtype, [5, 4, 3, 2]), turned(dtype, other)));
                        pairs.push((padded(dtype, [5, 4, 3, 2]), turned(dtype, other)));
                    }
                    for (a, b) in pairs {
                        for (a, b) in [(&a, &b), (&b, &a)] {
                            let result = compute(Concat { dim }, &[a, b]);
                            let first = a.layout.ne()[dim];
                            check(&result, |mut place| match place[dim].checked_sub(first) {
                                None => Some(a.unit(place)),
                                Some(rest) => {
                                    place[dim] = rest;
                                    Some(b.unit(place))
                                }
                            });
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_are_joined() {
        let (a, b) = (padded(DType::Q4_0, [96, 3, 2, 1]), padded(DType::Q4_0, [64, 3, 2, 1]));
        let result = compute(Concat { dim: 0 }, &[&a, &b]);
        let (a_units, b_units) = (a.units(), b.units());
        let rows = a_units.chunks(3).zip(b_units.chunks(2)).flat_map(|(a, b)| [a, b].concat());
        assert_eq!(result.units(), rows.collect::<Vec<_>>());
        let c = padded(DType::Q4_0, [96, 3, 5, 1]);
        let result = compute(Concat { dim: 2 }, &[&a, &c]);
        assert_eq!(result.units(), [a.units(), c.units()].concat());
    }

    #[test]
    fn padding_surrounds() {
        let ne = [5, 4, 3, 2];
        let pad = Pad { left: [2, 0, 3, 1], right: [1, 4, 0, 2], circular: false };
        for a in [padded(DType::F32, ne), turned(DType::F32, ne)] {
            let result = compute(pad, &[&a]);
            check(&result, |place| {
                let inside: Option<Vec<_>> =
                    (0..4).map(|i| place[i].checked_sub(pad.left[i]).filter(|&at| at < ne[i])).collect();
                inside.map(|place| a.unit(place.try_into().unwrap()))
            });
            let pad = Pad { circular: true, ..pad };
            let result = compute(pad, &[&a]);
            check(&result, |place| {
                Some(a.unit(std::array::from_fn(|i| (place[i] + ne[i] - pad.left[i]) % ne[i])))
            });
        }
        let nothing = Tensor::pattern(Layout::packed(DType::F32, [0, 2]).unwrap());
        let result = compute(Pad { left: [2, 0, 0, 0], right: [1, 1, 0, 0], circular: false }, &[&nothing]);
        assert_eq!(result.values(), [0.0; 9]);
    }

    #[test]
    fn mirrors_do_not_repeat_the_edge() {
        let a = Tensor::packed(DType::F32, [4, 2], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        let result = compute(PadReflect1d { left: 3, right: 2 }, &[&a]).values();
        assert_eq!(result[..9], [4.0, 3.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 2.0]);
        assert_eq!(result[9..], [8.0, 7.0, 6.0, 5.0, 6.0, 7.0, 8.0, 7.0, 6.0]);
        let one = Tensor::packed(DType::F32, 1, &[7f32]);
        assert_eq!(compute(PadReflect1d { left: 0, right: 0 }, &[&one]), one);
    }

    #[test]
    fn shifts_go_round() {
        let ne = [5, 4, 3, 2];
        let a = padded(DType::F32, ne);
        for shift in [[0, 0, 0, 0], [2, -1, 1, 1], [-4, 3, -2, -1]] {
            let result = compute(Roll { shift }, &[&a]);
            check(&result, |place| {
                let back = |i: usize| (place[i] as i32 - shift[i]).rem_euclid(ne[i] as i32) as usize;
                Some(a.unit(std::array::from_fn(back)))
            });
        }
    }
}
