//! MUL_MAT with weights that are known to be a Hadamard matrix: the fast transform of each row instead.
//!
//! Natural order; rows are scaled by `1 / sqrt(k)` before, so that lengths are kept.

use half::f16;
use oxcart_tensor::{DType, TensorRef};

use crate::job::{Fault, Job, Kernel, LONGEST_WHOLE, Run, Stop};
use crate::simd::{Level, Simd, for_each_level};
use crate::view::Number;

/// The kernel for a product with a Hadamard matrix.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let run = match node.source(1)?.dtype() {
        DType::F32 => run_at::<f32>(level),
        DType::F16 => run_at::<f16>(level),
        _ => return None,
    };
    let elements = node.layout().elements();
    let row = node.layout().ne()[0];
    let kernel = Kernel::rows(run, node.layout(), elements.saturating_mul(row.max(2).ilog2() as usize));
    (row <= LONGEST_WHOLE).then_some(kernel)
}

fn run_at<A: Number>(level: Level) -> Run {
    for_each_level!(run[A: Number]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

#[inline(always)]
fn run<S: Simd, A: Number>(s: S, job: Job<'_>) -> Result<(), Fault> {
    let b = job.src(1);
    for (at, mut row) in job.dst.rows::<f32>(job.share) {
        let row = row.slice();
        if job.stop.after(row.len()) {
            break;
        }
        A::widen(b.row(at).slice(), row);
        let scale = 1.0 / (row.len() as f32).sqrt();
        row.iter_mut().for_each(|x| *x *= scale);
        transform(s, job.stop, row);
    }
    Ok(())
}

/// Sums and differences at distances 1, 2, 4, ...
#[inline(always)]
fn transform<S: Simd>(s: S, stop: Stop<'_>, row: &mut [f32]) {
    let mut distance = 1;
    while distance < row.len() && !stop.after(row.len()) {
        for pair in row.chunks_exact_mut(2 * distance) {
            let (low, high) = pair.split_at_mut(distance);
            if distance >= S::LANES {
                for (low, high) in low.chunks_exact_mut(S::LANES).zip(high.chunks_exact_mut(S::LANES)) {
                    let (x, y) = (s.load(low), s.load(high));
                    s.store(s.add(x, y), low);
                    s.store(s.sub(x, y), high);
                }
            } else {
                for (low, high) in low.iter_mut().zip(high) {
                    (*low, *high) = (*low + *high, *low - *high);
                }
            }
        }
        distance *= 2;
    }
}
