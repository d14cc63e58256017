//! Elements joined, tiled, shifted and padded.
//!
//! Results are fresh and packed, so their rows are slices; sources may lie at any stride their op allows.

use oxcart_tensor::ops::{Concat, Pad, PadReflect1d, Roll};
use oxcart_tensor::{DType, Layout, Op, TensorRef};

use super::copy::{BYTES_PER_THREAD, move_units};
use crate::job::{Fault, Job, Kernel, Run};
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
            Kernel::elementwise(run, layout).width((work / TILE).min(layout.elements().div_ceil(TILE)))
        }
        Op::Concat(_) => {
            let bytes = work / node.dtype().block_len() * node.dtype().block_bytes();
            Kernel::new(concat).width(bytes / BYTES_PER_THREAD)
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
    let a = job.src(0);
    let [period, ne1, ne2, ne3] = a.ne();
    for (at, start, mut piece) in job.dst.pieces::<T>(job.share, TILE) {
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
    let a = job.src(0);
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
    let (a, b) = (job.src(0), job.src(1));
    let (dtype, nb) = (job.dst.dtype(), job.dst.nb());
    // SAFETY: the windows do not meet, and in each of them threads write units of their own share.
    let mut target = unsafe { job.dst.bytes() };
    let before = a.ne()[dim] / if dim == 0 { dtype.block_len() } else { 1 };
    for (source, start) in [(a, 0), (b, before * nb[dim])] {
        let window = Layout::strided(dtype, source.ne(), nb)
            .unwrap_or_else(|error| unreachable!("a window is smaller than its tensor: {error}"));
        move_units((source.layout(), source.bytes()), (&window, start, &mut target), job.share);
    }
    Ok(())
}

/// Copies elements of a row of `f32` at any stride.
#[inline(always)]
fn read_row(a: &Src<'_>, at: [usize; 3], start: usize, to: &mut [f32]) {
    if a.layout().has_contiguous_rows() {
        a.row::<f32>(at).read(start, to);
    } else {
        a.line::<f32>(at).read(start, to);
    }
}

fn pad(job: Job<'_>) -> Result<(), Fault> {
    let Pad { left, circular, .. } = job.op();
    let a = job.src(0);
    let ne = a.ne();
    // The place in the source of a place in the result; `None` outside of it.
    let inside = |dim: usize, i: usize| match circular {
        true => Some((i + ne[dim] - left[dim]) % ne[dim]),
        false => i.checked_sub(left[dim]).filter(|&i| i < ne[dim]),
    };
    for (at, mut row) in job.dst.rows::<f32>(job.share) {
        let to = row.slice();
        let (Some(i1), Some(i2), Some(i3)) = (inside(1, at[0]), inside(2, at[1]), inside(3, at[2])) else {
            to.fill(0.0);
            continue;
        };
        let (before, rest) = to.split_at_mut(left[0]);
        let (middle, after) = rest.split_at_mut(ne[0]);
        match circular {
            true => {
                read_row(&a, [i1, i2, i3], ne[0] - before.len(), before);
                read_row(&a, [i1, i2, i3], 0, after);
            }
            false => {
                before.fill(0.0);
                after.fill(0.0);
            }
        }
        read_row(&a, [i1, i2, i3], 0, middle);
    }
    Ok(())
}

fn pad_reflect(job: Job<'_>) -> Result<(), Fault> {
    let PadReflect1d { left, .. } = job.op();
    let a = job.src(0);
    for (at, mut row) in job.dst.rows::<f32>(job.share) {
        let from = a.row::<f32>(at).slice();
        let (before, rest) = row.slice().split_at_mut(left);
        let (middle, after) = rest.split_at_mut(from.len());
        middle.copy_from_slice(from);
        // The edge is not repeated on either side.
        before.iter_mut().rev().zip(&from[1..]).for_each(|(to, x)| *to = *x);
        after.iter_mut().zip(from[..from.len() - 1].iter().rev()).for_each(|(to, x)| *to = *x);
    }
    Ok(())
}

fn roll(job: Job<'_>) -> Result<(), Fault> {
    let Roll { shift } = job.op();
    let a = job.src(0);
    let ne = a.ne();
    // Shifts are shorter than their extents, so one turn makes them positive.
    let shift: [usize; 4] = std::array::from_fn(|i| (shift[i] as isize).rem_euclid(ne[i] as isize) as usize);
    let back = |dim: usize, i: usize| (i + ne[dim] - shift[dim]) % ne[dim];
    for (at, mut row) in job.dst.rows::<f32>(job.share) {
        let from = a.row::<f32>([back(1, at[0]), back(2, at[1]), back(3, at[2])]).slice();
        fill_periodic(from, back(0, 0), row.slice());
    }
    Ok(())
}
