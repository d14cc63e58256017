//! Arithmetic on plain numbers, the second tensor repeated to the extents of the first.

use half::{bf16, f16};
use oxcart_tensor::{DType, TensorRef};

use super::super::chunk::{CHUNK, Chunk, chunks};
use super::super::elementwise::{Lanes, PIECE, is_flat, zip};
use super::COMBINE;
use crate::job::{Fault, Job, Kernel, Run};
use crate::simd::{Level, Simd, for_each_level};
use crate::view::{Number, RowAt, Src, Strided};

/// The kernel for the types of `a`, `b` and the result.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    use DType::{BF16, F16, F32};
    let run = match (node.source(0)?.dtype(), node.source(1)?.dtype(), node.dtype()) {
        (F32, F32, F32) => run::<f32, f32, f32>(level),
        (F16, F16, F16) => run::<f16, f16, f16>(level),
        (F16, F32, F16) => run::<f16, f32, f16>(level),
        (F16, F32, F32) => run::<f16, f32, f32>(level),
        (BF16, BF16, BF16) => run::<bf16, bf16, bf16>(level),
        (BF16, F32, BF16) => run::<bf16, f32, bf16>(level),
        (BF16, F32, F32) => run::<bf16, f32, f32>(level),
        _ => return None,
    };
    Some(Kernel::elementwise(run, node.layout()))
}

fn run<A: Number, B: Number, Y: Number>(level: Level) -> Run {
    for_each_level!(walk[A: Number, B: Number, Y: Number]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

#[inline(always)]
fn walk<S: Simd, A: Number, B: Number, Y: Number>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (op, combine) = (job.op, COMBINE.at(S::LEVEL));
    let f = |a: &mut Chunk, b: &Chunk, len: usize| combine(&op, a, b, len);
    let (a, b, mut lanes, stop) = (job.src(0), job.src(1), Lanes::new(), job.stop);
    if b.ne() == a.ne() && b.layout().has_contiguous_rows() {
        zip::<A, B, Y>(job, f);
        return Ok(());
    }
    if b.layout().elements() == 1 && is_flat(&job.dst, &[a]) {
        let b = splat::<B>(&b, [0; 3]);
        let (start, mut y) = job.dst.run::<Y>(job.share, CHUNK);
        let a = a.packed::<A>().part(start..start + y.len());
        for part in stop.stretches(y.len()) {
            lanes.map(a.part(part.clone()), &mut y, part.start, &|a: &mut Chunk, len| f(a, &b, len));
        }
        return Ok(());
    }
    let whole_rows = b.ne()[0] == a.ne()[0] && b.layout().has_contiguous_rows();
    for (at, start, mut y) in job.dst.pieces::<Y>(job.share, PIECE) {
        if stop.after(y.len()) {
            break;
        }
        let (part, b_at) = (start..start + y.len(), repeated(at, b.ne(), a.ne()));
        let a = a.row::<A>(at).part(part.clone());
        if whole_rows {
            lanes.zip(a, b.row::<B>(b_at).part(part), &mut y, 0, &f);
        } else if b.ne()[0] == 1 {
            let b = splat::<B>(&b, b_at);
            lanes.map(a, &mut y, 0, &|a: &mut Chunk, len| f(a, &b, len));
        } else {
            let b = b.line::<B>(b_at);
            for (first, len) in chunks(part.len()) {
                let b = tile(&b, start + first, len);
                let a = a.part(first..first + len);
                lanes.map(a, &mut y, first, &|a: &mut Chunk, len| f(a, &b, len));
            }
        }
    }
    Ok(())
}

/// The row of the repeated tensor that belongs to a row of the whole.
#[inline(always)]
fn repeated(at: RowAt, part: [usize; 4], whole: [usize; 4]) -> RowAt {
    // Most extents are equal or one, and a division costs more than asking.
    std::array::from_fn(|i| match part[i + 1] {
        1 => 0,
        extent if extent == whole[i + 1] => at[i],
        extent => at[i] % extent,
    })
}

/// The first number of a row, in every lane.
#[inline(always)]
fn splat<B: Number>(b: &Src<'_>, at: RowAt) -> Chunk {
    let mut one = [0.0];
    B::widen(&[b.line::<B>(at).get(0)], &mut one);
    Chunk([one[0]; CHUNK])
}

/// `len` numbers from `start` on of a row that repeats without end.
#[inline(always)]
fn tile<B: Number>(b: &Strided<'_, B>, start: usize, len: usize) -> Chunk {
    let mut chunk = Chunk::new();
    let mut raw = [b.get(0); CHUNK];
    let mut i = start % b.len();
    for raw in &mut raw[..len] {
        *raw = b.get(i);
        i = if i + 1 == b.len() { 0 } else { i + 1 };
    }
    B::widen(&raw[..len], &mut chunk.0[..len]);
    chunk
}
