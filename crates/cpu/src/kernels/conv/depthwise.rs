//! Depthwise convolutions: each channel has a kernel of its own. Images lie plane by plane or pixel by pixel; either
//! way the innermost loop runs over neighbours in memory.

use half::f16;
use oxcart_tensor::ops::Conv2dDw;
use oxcart_tensor::{DType, TensorRef};

use super::geometry::Volume;
use super::{Weight, multiply_adds, product};
use crate::job::{Fault, Job, Kernel, Run};
use crate::kernels::chunk::{CHUNK, Chunk};
use crate::simd::{Level, Simd, for_each_level};

pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let kernel = node.source(0)?;
    let by_plane = node.layout().is_contiguous() && node.source(1)?.layout().is_contiguous();
    let run = match (by_plane, kernel.dtype()) {
        (true, DType::F32) => planes::<f32>(level),
        (true, DType::F16) => planes::<f16>(level),
        (false, DType::F32) => pixels::<f32>(level),
        (false, DType::F16) => pixels::<f16>(level),
        _ => return None,
    };
    let work = product(&[node.layout().elements(), kernel.ne()[0], kernel.ne()[1]]);
    Some(Kernel::units(run, usize::MAX, multiply_adds(work)))
}

fn planes<A: Weight>(level: Level) -> Run {
    for_each_level!(by_plane[A: Weight]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

fn pixels<A: Weight>(level: Level) -> Run {
    for_each_level!(by_pixel[A: Weight]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

fn volume(job: &Job<'_>) -> Volume {
    let Conv2dDw { geometry } = job.op();
    let [width, height, ..] = job.dst.ne();
    Volume::plane(&geometry, job.src(0).ne(), job.src(1).ne(), [width, height])
}

#[inline(always)]
fn by_plane<S: Simd, A: Weight>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let (kernel, image, volume) = (job.src(0), job.src(1), volume(&job));
    let [width, height, _] = volume.axes;
    let taps = width.kernel * height.kernel;
    let kernel = kernel.packed::<A>().slice();
    let (mut weight, stop) = ([0.0], job.stop);
    for ([oy, channel, batch], mut row) in job.dst.rows::<f32>(job.share) {
        let row = row.slice();
        stop.stretches(row.len()).for_each(|part| row[part].fill(0.0));
        for ky in if taps == 0 { 0..0 } else { height.taps(oy) } {
            let Some(y) = height.pixel(oy, ky) else { continue };
            let pixels = image.row::<f32>([y, channel, batch]).slice();
            for kx in 0..width.kernel {
                if stop.after(1) {
                    return Ok(());
                }
                let inside = width.positions_inside(kx);
                let Some(first) = width.pixel(inside.start, kx) else { continue };
                let tap = channel * taps + ky * width.kernel + kx;
                A::widen(&kernel[tap..=tap], &mut weight);
                let row = &mut row[inside];
                for part in stop.stretches(row.len()) {
                    let pixels = &pixels[first + part.start * width.stride..];
                    let row = row[part].iter_mut();
                    if width.stride == 1 {
                        row.zip(pixels).for_each(|(sum, x)| *sum += x * weight[0]);
                    } else {
                        row.enumerate().for_each(|(i, sum)| *sum += pixels[i * width.stride] * weight[0]);
                    }
                }
            }
        }
        if stop.after(0) {
            break;
        }
    }
    Ok(())
}

/// Where width, height, channels and batch go when channels come first.
const IMAGE_AXES: [usize; 4] = [1, 2, 0, 3];

/// Where width, height, nothing and channels of a kernel go.
const KERNEL_AXES: [usize; 4] = [1, 2, 3, 0];

#[inline(always)]
fn by_pixel<S: Simd, A: Weight>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let (kernel, image, volume) = (job.src(0), job.src(1), volume(&job));
    let [width, height, _] = volume.axes;
    let reordered = |layout: &oxcart_tensor::Layout, axes| {
        layout.permuted(axes).unwrap_or_else(|_| unreachable!("the axes are a permutation"))
    };
    let kernel_layout = reordered(kernel.layout(), KERNEL_AXES);
    let image_layout = reordered(image.layout(), IMAGE_AXES);
    let result_layout = reordered(job.dst.layout(), IMAGE_AXES);
    let kernel = kernel.permuted(KERNEL_AXES, &kernel_layout);
    let image = image.permuted(IMAGE_AXES, &image_layout);
    let result = job.dst.permuted(IMAGE_AXES, &result_layout);
    let (mut pixel, mut weights, stop) = (Chunk::new(), Chunk::new(), job.stop);
    for ([ox, oy, batch], start, mut piece) in result.pieces::<f32>(job.share, CHUNK) {
        if stop.after(piece.len()) {
            break;
        }
        let mut sums = Chunk::new();
        for ky in height.taps(oy) {
            for kx in width.taps(ox) {
                let (Some(x), Some(y)) = (width.pixel(ox, kx), height.pixel(oy, ky)) else { continue };
                if stop.after(piece.len()) {
                    return Ok(());
                }
                pixel.load::<f32>(&image.row([x, y, batch]), start, piece.len());
                weights.load::<A>(&kernel.row([kx, ky, 0]), start, piece.len());
                for ((sum, x), weight) in sums.0.iter_mut().zip(&pixel.0).zip(&weights.0) {
                    *sum += x * weight;
                }
            }
        }
        sums.store(&mut piece);
    }
    Ok(())
}
