//! The image values under each position of a kernel, as rows: IM2COL over lines and planes, IM2COL_3D.

use half::f16;
use oxcart_tensor::{DType, Op, TensorRef};

use super::window::Volume;
use super::{Weight, product};
use crate::job::{Fault, Job, Kernel, Run, as_floats};
use crate::simd::{Level, Simd, for_each_level};
use crate::view::{Number, RowAt, Src};

pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let (run, own): (Run, usize) = match (node.source(1)?.dtype(), node.dtype()) {
        (DType::F32, DType::F32) => (run::<f32>(level), 0),
        (DType::F16, DType::F16) => (run::<f16>(level), 0),
        (DType::F32, DType::F16) => {
            let run = for_each_level!(unfold_rounded: fn(job: Job<'_>) -> Result<(), Fault>).at(level);
            (run, product(&[node.ne()[0], size_of::<f32>()]))
        }
        _ => return None,
    };
    Some(Kernel::rows(run, node.layout(), node.layout().elements()).own(own))
}

fn run<A: Weight>(level: Level) -> Run {
    for_each_level!(unfold[A: Weight]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

fn volume(job: &Job<'_>) -> Volume {
    let (kernel, image, columns) = (job.src(0).ne(), job.src(1).ne(), job.dst.ne());
    match job.op {
        Op::Im2col(op) => Volume::unfolded(&op.window, kernel, image, columns),
        Op::Im2col3d(op) => {
            let batch = image[3] / op.channels;
            let depth = columns[3] / batch.max(1);
            Volume::new(&op.window, kernel, image, [columns[1], columns[2], depth], op.channels)
        }
        _ => unreachable!("the kernel of another op"),
    }
}

/// In the image's own type.
#[inline(always)]
fn unfold<S: Simd, A: Weight>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let (volume, image) = (volume(&job), job.src(1));
    for (at, mut row) in job.dst.rows::<A>(job.share) {
        gather(&volume, &image, at, row.slice());
    }
    Ok(())
}

/// From `f32` to `f16`.
#[inline(always)]
fn unfold_rounded<S: Simd>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let (volume, image) = (volume(&job), job.src(1));
    let exact = as_floats(job.own);
    for (at, mut row) in job.dst.rows::<f16>(job.share) {
        gather(&volume, &image, at, exact);
        f16::narrow(exact, row.slice());
    }
    Ok(())
}

/// All taps at the position that a row of the result belongs to.
#[inline(always)]
fn gather<A: Weight>(volume: &Volume, image: &Src<'_>, at: RowAt, to: &mut [A]) {
    let ([x, y, z], batch) = volume.position(at);
    let [width, height, depth] = &volume.axes;
    let (across, down, deep) = (width.taps(x), height.taps(y), depth.taps(z));
    if across.len() < width.kernel || down.len() < height.kernel || deep.len() < depth.kernel {
        to.fill(A::default());
    }
    let Some(first) = width.pixel(x, across.start) else { return };
    if to.is_empty() {
        return;
    }
    for channel in 0..volume.channels {
        for kz in deep.clone() {
            for ky in down.clone() {
                let (Some(z), Some(y)) = (depth.pixel(z, kz), height.pixel(y, ky)) else { continue };
                let pixels = &image.row::<A>(volume.row(channel, z, y, batch)).slice()[first..];
                let start = volume.tap_row(channel, kz, ky);
                let to = &mut to[start + across.start..start + across.end];
                // Most kernels are too short for a call that copies.
                if width.dilation == 1 && to.len() >= 16 {
                    to.copy_from_slice(&pixels[..to.len()]);
                } else {
                    for (i, to) in to.iter_mut().enumerate() {
                        *to = pixels[i * width.dilation];
                    }
                }
            }
        }
    }
}
