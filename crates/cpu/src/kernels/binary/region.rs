//! A tensor written or added into a strided window of another.
//!
//! Each thread makes a run of the result whole: it copies that part of the first source, then goes through the rows of
//! the window and does what falls into its run. So threads never meet, whatever the strides of the window.

use oxcart_tensor::ops::{Acc, Region, Set};
use oxcart_tensor::{DType, Op, TensorRef};

use super::super::chunk::{CHUNK, Chunk};
use super::super::elementwise::Lanes;
use super::{COMBINE, set_aside};
use crate::job::{Fault, Job, Kernel};
use crate::simd::{Level, Simd, for_each_level};
use crate::view::{In, Out, Plain, row_at};

/// The kernel that writes or adds into a window.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let run = match (node.op(), node.dtype()) {
        (Op::Acc(_), DType::F32) => for_each_level!(acc: fn(job: Job<'_>) -> Result<(), Fault>).at(level),
        (Op::Set(_), DType::F32 | DType::I32) => set,
        _ => return None,
    };
    // The window may put rows of the second source at other places than its own.
    set_aside::with_room(Kernel::elementwise(run, node.layout()).uncut(), node, 1)
}

fn set(job: Job<'_>) -> Result<(), Fault> {
    let Op::Set(Set(region)) = job.op else { unreachable!("the kernel of another op") };
    // Only moved, so any type of four bytes will do.
    walk::<u32>(job, region, |_, b, y, at| copy(b, y, at));
    Ok(())
}

#[inline(always)]
fn acc<S: Simd>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let Op::Acc(Acc(region)) = job.op else { unreachable!("the kernel of another op") };
    let (op, combine) = (job.op, COMBINE.at(S::LEVEL));
    let f = |a: &mut Chunk, b: &Chunk, len: usize| combine(&op, a, b, len);
    let mut lanes = Lanes::new();
    walk::<f32>(job, region, |a, b, y, at| lanes.zip(a, b, y, at, &f));
    Ok(())
}

/// Calls `f` with part of a row of the window: what the first source has there, what the second has, and the place in
/// the result.
#[inline(always)]
fn walk<T: Plain>(
    job: Job<'_>,
    region: Region,
    mut f: impl FnMut(In<'_, T>, In<'_, T>, &mut Out<'_, T>, usize),
) {
    let Some(b) = set_aside::source(&job, 1) else { return };
    let (a_is_result, a) = (job.src(0).is_aliased(), job.src(0).packed::<T>());
    let (stop, (first, mut y)) = (job.stop, job.dst.run::<T>(job.share, CHUNK));
    let end = first + y.len();
    if !a_is_result {
        for part in stop.stretches(y.len()) {
            copy(a.part(first + part.start..first + part.end), &mut y, part.start);
        }
    }
    let ne = b.ne();
    for row in 0..ne[1] * ne[2] * ne[3] {
        let at = row_at(row, ne);
        let bytes: usize = at.iter().zip(region.strides).map(|(i, stride)| i * stride).sum();
        let row = (region.offset + bytes) / size_of::<T>();
        let (from, to) = (row.max(first), (row + ne[0]).min(end));
        for part in stop.stretches(to.saturating_sub(from)) {
            let (from, to) = (from + part.start, from + part.end);
            f(a.part(from..to), b.row::<T>(at).part(from - row..to - row), &mut y, from - first);
        }
        if stop.after(1) {
            break;
        }
    }
}

/// `y[at..] = from`, whatever they alias.
#[inline(always)]
fn copy<T: Plain>(from: In<'_, T>, y: &mut Out<'_, T>, at: usize) {
    for start in (0..from.len()).step_by(CHUNK) {
        let mut raw = [from.get(start); CHUNK];
        let raw = &mut raw[..CHUNK.min(from.len() - start)];
        from.read(start, raw);
        y.write(at + start, raw);
    }
}
