//! A sum, its RMS norm and, where it follows, the product with weights: how a layer of a transformer begins.
//!
//! The sum is needed later and written too. A row is summed into a thread's own memory and normalized from there, so
//! either result may be the memory of either summand.

use oxcart_tensor::ops::RmsNorm;
use oxcart_tensor::{DType, Op, TensorRef};

use super::{is_passing, weights_of};
use crate::job::{Fault, Job, Kernel, LONGEST_WHOLE, Run, as_floats};
use crate::kernels::chunk::{CHUNK, Chunk};
use crate::kernels::sum::Sum;
use crate::plan::Unit;
use crate::simd::{Level, Simd, for_each_level};

/// Slots of the unit's sources.
const WEIGHTS: usize = 2;
const SUM: usize = 3;

/// ADD, RMS_NORM and perhaps MUL as one unit.
pub(super) fn fuse<'g>(
    sum: TensorRef<'g>,
    norm: TensorRef<'g>,
    next: Option<TensorRef<'g>>,
    level: Level,
) -> Option<Unit<'g>> {
    let (a, b) = (sum.source(0)?, sum.source(1)?);
    let alike = |tensor: TensorRef<'_>| {
        tensor.dtype() == DType::F32 && tensor.ne() == sum.ne() && tensor.layout().has_contiguous_rows()
    };
    let is_long = sum.ne()[0] > LONGEST_WHOLE;
    if is_long || norm.source(0)?.id() != sum.id() || ![a, b, sum, norm].into_iter().all(alike) {
        return None;
    }
    let weights = next
        .filter(|next| matches!(next.op(), Op::Mul(_)) && is_passing(norm))
        .and_then(|product| Some((product, weights_of(product, norm)?)));
    let (result, nodes) = weights.map_or((norm, 2), |(product, _)| (product, 3));
    let run: Run = for_each_level!(add_rms_norm: fn(job: Job<'_>) -> Result<(), Fault>).at(level);
    let layout = result.layout();
    let kernel = Kernel::rows(run, layout, layout.elements()).own(layout.ne()[0] * size_of::<f32>());
    let unit = Unit::new(kernel, *norm.op(), nodes, result)
        .source(Some(a))
        .source(Some(b))
        .source(weights.map(|(_, weights)| weights))
        .also_writes(sum);
    Some(unit.row_local())
}

#[inline(always)]
fn add_rms_norm<S: Simd>(_simd: S, mut job: Job<'_>) -> Result<(), Fault> {
    let RmsNorm { eps } = job.op();
    let (a, b, weights) = (job.src(0), job.src(1), job.may(WEIGHTS));
    let sums = job.take_written(SUM);
    let row = as_floats(job.own);
    let (mut x, mut y) = (Chunk::new(), Chunk::new());
    let stop = job.stop;
    let sum_rows = sums.rows::<f32>(job.share);
    for ((at, mut out), (_, mut sum_out)) in job.dst.rows::<f32>(job.share).zip(sum_rows) {
        if stop.after(2 * out.len()) {
            break;
        }
        let (a, b) = (a.row::<f32>(at), b.row::<f32>(at));
        let mut squares = Sum::new();
        for (i, part) in row.chunks_mut(CHUNK).enumerate() {
            let len = part.len();
            x.load(&a, i * CHUNK, len);
            y.load(&b, i * CHUNK, len);
            x.0.iter_mut().zip(&y.0).for_each(|(x, y)| *x += y);
            squares.add(len, |i| x.0[i] * x.0[i]);
            part.copy_from_slice(&x.0[..len]);
        }
        let mean = (squares.total() / row.len() as f64) as f32;
        let scale = 1.0 / (mean + eps).sqrt();
        sum_out.write(0, row);
        let weights = weights.map(|weights| {
            let ne = weights.ne();
            weights.row::<f32>([at[0] % ne[1], at[1] % ne[2], at[2] % ne[3]])
        });
        for (i, part) in row.chunks_mut(CHUNK).enumerate() {
            part.iter_mut().for_each(|x| *x *= scale);
            if let Some(weights) = &weights {
                y.load(weights, i * CHUNK, part.len());
                part.iter_mut().zip(&y.0).for_each(|(x, w)| *x *= w);
            }
        }
        out.write(0, row);
    }
    Ok(())
}
