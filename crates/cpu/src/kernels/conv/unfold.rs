//! The image values under each position of a kernel, as rows: IM2COL over lines and planes, IM2COL_3D.

use half::f16;
use oxcart_tensor::{DType, Op, TensorRef};

use super::geometry::{Axis, Volume};
use super::{Weight, product};
use crate::job::{Fault, Job, Kernel, Run, Stop, as_floats};
use crate::simd::{Level, Simd, for_each_level};
use crate::view::{Number, RowAt, Src};

/// Positions that are unfolded together.
const TOGETHER: usize = 16;

pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let image = node.source(1)?.dtype();
    let run = match (image, node.dtype()) {
        (DType::F32, DType::F32) => run::<f32>(level),
        (DType::F16, DType::F16) => run::<f16>(level),
        (DType::F32, DType::F16) => {
            for_each_level!(unfold_rounded: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
        }
        _ => return None,
    };
    let own = product(&[TOGETHER, node.ne()[0], image.block_bytes()]);
    Some(Kernel::rows(run, node.layout(), node.layout().elements()).own(own))
}

fn run<A: Weight>(level: Level) -> Run {
    for_each_level!(unfold[A: Weight]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

fn volume(job: &Job<'_>) -> Volume {
    let (kernel, image, columns) = (job.src(0).ne(), job.src(1).ne(), job.dst.ne());
    match job.op {
        Op::Im2col(op) => Volume::unfolded(&op.geometry, kernel, image, columns),
        Op::Im2col3d(op) => {
            let batch = image[3] / op.channels;
            let depth = columns[3] / batch.max(1);
            Volume::new(&op.geometry, kernel, image, [columns[1], columns[2], depth], op.channels)
        }
        _ => unreachable!("the kernel of another op"),
    }
}

/// In the image's own type.
#[inline(always)]
fn unfold<S: Simd, A: Weight>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let mut run = Stretch::new(&job);
    let taps = <[A] as zerocopy::FromBytes>::mut_from_bytes(job.own)
        .unwrap_or_else(|_| unreachable!("scratch is aligned and sized in whole numbers"));
    for (at, mut row) in job.dst.rows::<A>(job.share) {
        let from = run.at(at, taps);
        for part in job.stop.stretches(from.len()) {
            row.write(part.start, &from[part]);
        }
        if job.stop.after(0) {
            break;
        }
    }
    Ok(())
}

/// From `f32` to `f16`.
#[inline(always)]
fn unfold_rounded<S: Simd>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let mut run = Stretch::new(&job);
    let taps = as_floats(job.own);
    for (at, mut row) in job.dst.rows::<f16>(job.share) {
        let (from, row) = (run.at(at, taps), row.slice());
        for part in job.stop.stretches(from.len()) {
            f16::narrow(&from[part.clone()], &mut row[part]);
        }
        if job.stop.after(0) {
            break;
        }
    }
    Ok(())
}

/// Unfolds some neighbouring positions at a time, because finding a row of pixels takes longer than copying the few
/// that one position needs.
struct Stretch<'t> {
    volume: Volume,
    image: Src<'t>,
    /// Elements under the kernel.
    taps: usize,
    /// The row of the result that the first position in memory has.
    first: Option<RowAt>,
    stop: Stop<'t>,
}

impl<'t> Stretch<'t> {
    fn new(job: &Job<'t>) -> Stretch<'t> {
        let volume = volume(job);
        Stretch { volume, image: job.src(1), taps: volume.taps(), first: None, stop: job.stop }
    }

    /// All taps at the position that a row of the result belongs to.
    #[inline(always)]
    fn at<'o, A: Weight>(&mut self, at: RowAt, memory: &'o mut [A]) -> &'o [A] {
        let known = self
            .first
            .filter(|first| first[1..] == at[1..] && (first[0]..first[0] + TOGETHER).contains(&at[0]));
        if known.is_none() && self.taps > 0 {
            gather(self.stop, &self.volume, &self.image, at, memory);
            self.first = Some(at);
        }
        let i = at[0] - known.unwrap_or(at)[0];
        &memory[i * self.taps..(i + 1) * self.taps]
    }
}

/// All taps at [`TOGETHER`] positions, or as many as are left in the line.
#[inline(always)]
fn gather<A: Weight>(stop: Stop<'_>, volume: &Volume, image: &Src<'_>, at: RowAt, to: &mut [A]) {
    let ([x, y, z], batch) = volume.position(at);
    let [width, height, depth] = &volume.axes;
    let (down, deep) = (height.taps(y), depth.taps(z));
    let positions = x..(x + TOGETHER).min(width.positions);
    let taps = volume.taps();
    let to = &mut to[..positions.len() * taps];
    stop.stretches(to.len()).for_each(|part| to[part].fill(A::default()));
    for channel in 0..volume.channels {
        for kz in deep.clone() {
            for ky in down.clone() {
                let (Some(z), Some(y)) = (depth.pixel(z, kz), height.pixel(y, ky)) else { continue };
                let pixels = image.row::<A>(volume.row(channel, z, y, batch)).slice();
                let start = volume.tap_row(channel, kz, ky);
                for (to, x) in to.chunks_exact_mut(taps).zip(positions.clone()) {
                    copy_taps(stop, width, x, pixels, &mut to[start..start + width.kernel]);
                }
                if stop.after(0) {
                    return;
                }
            }
        }
    }
}

/// The taps of a row of the kernel at one position; taps outside of the image stay as they are.
#[inline(always)]
fn copy_taps<A: Weight>(stop: Stop<'_>, width: &Axis, position: usize, pixels: &[A], to: &mut [A]) {
    let across = width.taps(position);
    let Some(first) = width.pixel(position, across.start) else { return };
    let (from, to) = (&pixels[first..], &mut to[across]);
    // Most kernels are too short for a call that copies.
    for part in stop.stretches(to.len()) {
        let (from, to) = (&from[part.start * width.dilation..], &mut to[part]);
        if width.dilation == 1 && to.len() >= 16 {
            to.copy_from_slice(&from[..to.len()]);
        } else {
            for (i, to) in to.iter_mut().enumerate() {
                *to = from[i * width.dilation];
            }
        }
    }
}
