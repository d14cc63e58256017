//! Rows summed back into the places they were unfolded from: IM2COL_BACK and COL2IM_1D.

use half::{bf16, f16};
use oxcart_tensor::ops::{Col2im1d, Im2colBack};
use oxcart_tensor::{DType, Op, TensorRef};

use super::geometry::Volume;
use super::multiply_adds;
use crate::job::{Fault, Job, Kernel, Run};
use crate::kernels::chunk::{CHUNK, Chunk};
use crate::simd::{Level, Simd, for_each_level};
use crate::view::Number;

pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let run = match (node.op(), node.dtype()) {
        (Op::Im2colBack(_), DType::F32) => {
            for_each_level!(fold_image: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
        }
        (Op::Col2im1d(_), DType::F32) => line::<f32>(level),
        (Op::Col2im1d(_), DType::F16) => line::<f16>(level),
        (Op::Col2im1d(_), DType::BF16) => line::<bf16>(level),
        _ => return None,
    };
    // Every element of the source is added once.
    Some(Kernel::units(run, usize::MAX, multiply_adds(node.source(0)?.layout().elements())))
}

fn line<A: Number>(level: Level) -> Run {
    for_each_level!(fold_line[A: Number]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

/// Each pixel is the sum over all taps, row by row, that met it somewhere.
#[inline(always)]
fn fold_image<S: Simd>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let Im2colBack { geometry, .. } = job.op();
    let columns = job.src(0);
    let volume = Volume::unfolded(&geometry, job.src(1).ne(), job.dst.ne(), columns.ne());
    let gradient = columns.packed::<f32>().slice();
    let [width, height, _] = volume.axes;
    let (taps, stop) = (volume.taps(), job.stop);
    for (at, mut row) in job.dst.rows::<f32>(job.share) {
        let [channel, _, y, batch] = volume.row_is(at);
        let row = row.slice();
        stop.stretches(row.len()).for_each(|part| row[part].fill(0.0));
        if taps == 0 {
            continue;
        }
        for ky in 0..height.kernel {
            if stop.after(1) {
                return Ok(());
            }
            let Some(oy) = height.position(y, ky) else { continue };
            for kx in 0..width.kernel {
                let tap = volume.tap_row(channel, 0, ky) + kx;
                let line = (batch * height.positions + oy) * width.positions;
                let inside = width.positions_inside(kx);
                for ox in stop.stretches(inside.len()).flatten().map(|i| inside.start + i) {
                    if let Some(x) = width.pixel(ox, kx) {
                        row[x] += gradient[(line + ox) * taps + tap];
                    }
                }
                if stop.after(1) {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// `y[t, o] = Σ a[o K + k, τ]` over all `τ stride + k = t + crop`, `τ` ascending.
#[inline(always)]
fn fold_line<S: Simd, A: Number>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let Col2im1d { stride, channels, crop } = job.op();
    let [row, positions, ..] = job.src(0).ne();
    let kernel = row / channels;
    let columns = job.src(0).packed::<A>().slice();
    let (mut one, stop) = ([0.0], job.stop);
    for ([channel, ..], start, mut piece) in job.dst.pieces::<A>(job.share, CHUNK) {
        let mut sums = Chunk::new();
        for (i, sum) in sums.0[..piece.len()].iter_mut().enumerate() {
            let t = start + i + crop;
            let first = (t + 1).saturating_sub(kernel).div_ceil(stride);
            if stop.after(1) {
                return Ok(());
            }
            let count = (t / stride + 1).min(positions).saturating_sub(first);
            for position in stop.stretches(count).flatten().map(|i| first + i) {
                let at = position * row + channel * kernel + (t - position * stride);
                A::widen(&columns[at..=at], &mut one);
                *sum += one[0];
            }
        }
        sums.store(&mut piece);
    }
    Ok(())
}
