//! OUT_PROD: outer products of rows, summed over `k` in ascending order.
//!
//! A unit is a piece of some rows of the result, which stays in the first caches while all rows of `a` pass by, expanded
//! to `f32` once for all of them.

use oxcart_tensor::quant::dequantize_row;
use oxcart_tensor::{DType, TensorRef};

use crate::job::{Fault, Job, Kernel, as_floats};
use crate::simd::{Level, Simd, for_each_level};

/// Elements of a row of the result in a unit; a multiple of every block length.
const PIECE: usize = 512;
/// Rows of the result in a unit.
const ROWS: usize = 16;
/// Multiply-adds that one thread should do at least.
const WORK_PER_THREAD: usize = 64 * 1024;

/// The kernel for a sum of outer products.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let a = node.source(0)?;
    if a.dtype() != DType::F32 && !a.dtype().decodes() {
        return None;
    }
    let work = node.layout().elements().saturating_mul(a.layout().ne()[1]);
    let run = for_each_level!(run: fn(job: Job<'_>) -> Result<(), Fault>).at(level);
    Some(Kernel::new(run).width(work / WORK_PER_THREAD).own((ROWS + 1) * PIECE * 4))
}

#[inline(always)]
fn run<S: Simd>(s: S, job: Job<'_>) -> Result<(), Fault> {
    let (a, b) = (job.src(0), job.src(1));
    let [m, n, planes2, planes3] = job.dst.ne();
    let (ne_a, k) = (a.ne(), a.ne()[1]);
    let repeats = [planes2 / ne_a[2].max(1), planes3 / ne_a[3].max(1)];
    let (pieces, blocks) = (m.div_ceil(PIECE), n.div_ceil(ROWS));
    let (units, stop) = (job.claims(pieces * blocks * planes2 * planes3), job.stop);
    let (row, sums) = as_floats(job.own).split_at_mut(PIECE);
    for unit in units {
        let (piece, block) = (unit % pieces, unit / pieces % blocks);
        let (p, q) = (unit / (pieces * blocks) % planes2, unit / (pieces * blocks * planes2));
        let part = piece * PIECE..((piece + 1) * PIECE).min(m);
        let rows = block * ROWS..((block + 1) * ROWS).min(n);
        let dtype = a.dtype();
        let bytes = part.start / dtype.block_len() * dtype.block_bytes()
            ..part.end / dtype.block_len() * dtype.block_bytes();
        // Whole pieces are computed, so that vectors need no special end; what lies past the row is not used.
        row.fill(0.0);
        sums.fill(0.0);
        for i in 0..k {
            if stop.after(part.len() * rows.len()) {
                return Ok(());
            }
            let from = &a.row::<u8>([i, p / repeats[0], q / repeats[1]]).slice()[bytes.clone()];
            if dequantize_row(dtype, from, &mut row[..part.len()]).is_err() {
                unreachable!("pieces are whole blocks of a type that expands");
            }
            for (j, sums) in rows.clone().zip(sums.chunks_exact_mut(PIECE)) {
                let factor = s.splat(b.get([j, i, p, q]));
                for (sum, x) in sums.chunks_exact_mut(S::LANES).zip(row.chunks_exact(S::LANES)) {
                    s.store(s.mul_add(s.load(x), factor, s.load(sum)), sum);
                }
            }
        }
        for (j, sums) in rows.clone().zip(sums.chunks_exact(PIECE)) {
            // SAFETY: units do not meet, each is claimed by one thread, and of the row only its part is used.
            let out = unsafe { job.dst.row::<f32>([j, p, q]) };
            out.part(part.clone()).write(0, &sums[..part.len()]);
        }
    }
    Ok(())
}
