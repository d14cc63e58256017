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
    let (a, ids, mut lanes, stop) = (job.src(0), job.src(2), Lanes::new(), job.stop);
    for (at, mut y) in job.dst.rows::<f32>(job.share) {
        let id = ids.get::<i32>([at[0], at[1], 0, 0]);
        let id = Fault::check("row id", i64::from(id), b.ne()[1])?;
        let (a, b) = (a.row::<f32>(at), b.row::<f32>([id, 0, 0]));
        for part in stop.stretches(y.len()) {
            lanes.zip(a.part(part.clone()), b.part(part.clone()), &mut y, part.start, &f);
        }
        if stop.after(0) {
            break;
        }
    }
    Ok(())
}
