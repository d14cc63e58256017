//! Rows added that another tensor chooses.

use oxcart_tensor::TensorRef;

use super::super::chunk::Chunk;
use super::super::elementwise::Lanes;
use super::{COMBINE, set_aside};
use crate::job::{Fault, Job, Kernel};
use crate::simd::{Level, Simd, for_each_level};

/// The kernel that adds chosen rows.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let run = for_each_level!(add: fn(job: Job<'_>) -> Result<(), Fault>).at(level);
    let kernel = Kernel::rows(run, node.layout(), node.layout().elements());
    // Rows of the second source are read in any order.
    set_aside::with_room(kernel, node, 1)
}

#[inline(always)]
fn add<S: Simd>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let Some(b) = set_aside::source(&job, 1) else { return Ok(()) };
    let (op, combine) = (job.op, COMBINE.at(S::LEVEL));
    let f = |a: &mut Chunk, b: &Chunk, len: usize| combine(&op, a, b, len);
    let (a, ids, mut lanes) = (job.src(0), job.src(2), Lanes::new());
    for (at, mut y) in job.dst.rows::<f32>(job.share) {
        let id = ids.get::<i32>([at[0], at[1], 0, 0]);
        let id = Fault::check("row id", i64::from(id), b.ne()[1])?;
        lanes.zip(a.row::<f32>(at), b.row::<f32>([id, 0, 0]), &mut y, 0, &f);
    }
    Ok(())
}
