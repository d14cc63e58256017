//! The short causal convolution in front of a scan: `y[c, t, q] = Σ_j a[t + j, c, q] * kernel[j, c]`.
//!
//! Sources run along time and the result along channels, so work is cut into tiles that are turned over on the stack.

use oxcart_tensor::TensorRef;

use crate::job::{Fault, Job, Kernel};
use crate::simd::{Level, Simd, for_each_level};

/// Side of a tile.
const TILE: usize = 32;

pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let run = for_each_level!(short_conv: fn(job: Job<'_>) -> Result<(), Fault>).at(level);
    let [channels, tokens, sequences, _] = node.ne().extents();
    let tiles = channels.div_ceil(TILE).saturating_mul(tokens.div_ceil(TILE)).saturating_mul(sequences);
    Some(Kernel::units(run, tiles, usize::try_from(node.work() / 4).unwrap_or(usize::MAX)))
}

#[inline(always)]
fn short_conv<S: Simd>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let (a, kernel) = (job.src(0), job.src(1));
    let [channels, tokens, sequences, _] = job.dst.ne();
    let (wide, long) = (channels.div_ceil(TILE), tokens.div_ceil(TILE));
    // Tiles of one stretch of tokens follow each other.
    let stop = job.stop;
    for tile in job.share.of(wide * long * sequences) {
        let (c0, t0, q) = (tile % wide * TILE, tile / wide % long * TILE, tile / (wide * long));
        let (width, length) = (TILE.min(channels - c0), TILE.min(tokens - t0));
        let mut values = [[0f32; TILE]; TILE];
        for c in 0..width {
            let row = a.row::<f32>([c0 + c, q, 0]).slice();
            let mut sums = [0f32; TILE];
            for (j, weight) in kernel.row::<f32>([c0 + c, 0, 0]).slice().iter().enumerate() {
                for (sum, x) in sums.iter_mut().zip(&row[t0 + j..t0 + j + length]) {
                    *sum += x * weight;
                }
                if stop.after(length) {
                    return Ok(());
                }
            }
            for (values, sum) in values.iter_mut().zip(&sums[..length]) {
                values[c] = *sum;
            }
        }
        for (t, values) in values[..length].iter().enumerate() {
            // SAFETY: only the channels of this tile are touched, which no other tile has at these tokens.
            let row = unsafe { job.dst.row::<f32>([t0 + t, q, 0]) };
            row.part(c0..c0 + width).write(0, &values[..width]);
        }
    }
    Ok(())
}
