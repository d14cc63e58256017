//! Transposed convolutions: each pixel spreads over as many result elements as the kernel has taps.
//!
//! Seen from a result element, only every `stride`-th tap met a pixel. First all threads turn the image over, channels
//! first, into shared memory; then each result element sums dot products over channels, pixels ascending.

use half::f16;
use oxcart_tensor::{DType, Op, TensorRef};

use super::{Weight, multiply_adds, product};
use crate::job::{Fault, Job, Kernel, LONGEST_WHOLE, Run, as_floats};
use crate::kernels::chunk::{CHUNK, Chunk};
use crate::kernels::lanes;
use crate::simd::{Level, Simd, for_each_level};
use crate::view::{RowAt, Src};

pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let (kernel, image) = (node.source(0)?, node.source(1)?);
    let run = match kernel.dtype() {
        DType::F32 => run::<f32>(level),
        DType::F16 => run::<f16>(level),
        _ => return None,
    };
    let sizes = Sizes::new(node.op(), kernel.ne().extents(), image.ne().extents())?;
    let [width, height] = sizes.kernel;
    let own = product(&[width, height, sizes.channels, size_of::<f32>()]);
    let work = product(&[image.layout().elements(), width, height, sizes.filters]);
    let shared = product(&[image.layout().elements(), size_of::<f32>()]);
    let kernel = Kernel::units(run, usize::MAX, multiply_adds(work)).uncut();
    (sizes.channels <= LONGEST_WHOLE).then(|| kernel.phases(2).shared(shared).own(own))
}

fn run<A: Weight>(level: Level) -> Run {
    for_each_level!(spread[A: Weight]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

/// Lines are planes of one row.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    is_line: bool,
    /// Width and height.
    kernel: [usize; 2],
    /// Width and height.
    image: [usize; 2],
    filters: usize,
    channels: usize,
    batch: usize,
    stride: usize,
}

impl Sizes {
    fn new(op: &Op, kernel: [usize; 4], image: [usize; 4]) -> Option<Sizes> {
        Some(match *op {
            Op::ConvTranspose1d(op) => Sizes {
                is_line: true,
                kernel: [kernel[0], 1],
                image: [image[0], 1],
                filters: kernel[1],
                channels: kernel[2],
                batch: 1,
                stride: op.stride,
            },
            Op::ConvTranspose2d(op) => Sizes {
                is_line: false,
                kernel: [kernel[0], kernel[1]],
                image: [image[0], image[1]],
                filters: kernel[2],
                channels: kernel[3],
                batch: image[3],
                stride: op.stride,
            },
            _ => return None,
        })
    }

    const fn kernel_row(&self, y: usize, filter: usize, channel: usize) -> RowAt {
        if self.is_line { [filter, channel, 0] } else { [y, filter, channel] }
    }

    const fn image_row(&self, y: usize, channel: usize, batch: usize) -> RowAt {
        if self.is_line { [channel, 0, 0] } else { [y, channel, batch] }
    }

    /// Row, filter and batch of a row of the result.
    const fn result_row(&self, [i1, i2, i3]: RowAt) -> [usize; 3] {
        if self.is_line { [0, i1, 0] } else { [i1, i2, i3] }
    }

    /// Pixels along one axis that reach result element `at`.
    #[inline(always)]
    fn pixels(&self, axis: usize, at: usize) -> std::ops::Range<usize> {
        let first = (at + 1).saturating_sub(self.kernel[axis]).div_ceil(self.stride);
        first..(at / self.stride + 1).min(self.image[axis])
    }
}

#[inline(always)]
fn spread<S: Simd, A: Weight>(s: S, job: Job<'_>) -> Result<(), Fault> {
    let (kernel, image) = (job.src(0), job.src(1));
    let sizes = Sizes::new(&job.op, kernel.ne(), image.ne())
        .unwrap_or_else(|| unreachable!("the kernel of another op"));
    match job.phase {
        0 => turn_image::<A>(&sizes, &image, &job),
        _ => gather::<S, A>(s, &sizes, &kernel, job),
    }
    Ok(())
}

/// The image as `[channels, width, height, batch]`, in the kernel's precision.
#[inline(always)]
fn turn_image<A: Weight>(sizes: &Sizes, image: &Src<'_>, job: &Job<'_>) {
    let ([width, height], channels) = (sizes.image, sizes.channels);
    let bytes = width * channels * size_of::<f32>();
    for row in job.share.of(height * sizes.batch) {
        // SAFETY: each row of pixels is one thread's, and no thread reads in this phase.
        let turned = as_floats(unsafe { job.shared.bytes_mut(row * bytes, bytes) });
        for channel in 0..channels {
            let at = sizes.image_row(row % height, channel, row / height);
            let pixels = image.row::<f32>(at).slice();
            for x in job.stop.stretches(width).flatten() {
                turned[x * channels + channel] = pixels[x];
            }
            if job.stop.after(0) {
                return;
            }
        }
        job.stop.stretches(turned.len()).for_each(|part| A::round(&mut turned[part]));
    }
}

#[inline(always)]
fn gather<S: Simd, A: Weight>(s: S, sizes: &Sizes, kernel: &Src<'_>, job: Job<'_>) {
    let Sizes { stride, channels, .. } = *sizes;
    let ([width, _], [kernel_width, kernel_height]) = (sizes.image, sizes.kernel);
    // SAFETY: no thread writes to shared memory in this phase.
    let turned = unsafe { job.shared.bytes(0, job.shared.len()) };
    let turned = <[f32] as zerocopy::FromBytes>::ref_from_bytes(turned)
        .unwrap_or_else(|_| unreachable!("scratch is aligned and sized in whole floats"));
    let (weights, stop) = (as_floats(job.own), job.stop);
    let mut in_weights = None;
    for (at, start, mut piece) in job.dst.pieces::<f32>(job.share, CHUNK) {
        let [oy, filter, batch] = sizes.result_row(at);
        if in_weights != Some(filter) {
            // This filter as `[channels, width, height]`.
            for y in 0..kernel_height {
                for channel in 0..channels {
                    let row = kernel.row::<A>(sizes.kernel_row(y, filter, channel)).slice();
                    for x in stop.stretches(row.len()).flatten() {
                        let at = (y * kernel_width + x) * channels + channel;
                        A::widen(&row[x..=x], &mut weights[at..=at]);
                    }
                    if stop.after(0) {
                        return;
                    }
                }
            }
            in_weights = Some(filter);
        }
        if stop.after(piece.len()) {
            return;
        }
        let mut sums = Chunk::new();
        for y in sizes.pixels(1, oy) {
            let ky = oy - y * stride;
            for (i, sum) in sums.0[..piece.len()].iter_mut().enumerate() {
                let ox = start + i;
                for x in sizes.pixels(0, ox) {
                    let tap = (ky * kernel_width + (ox - x * stride)) * channels;
                    let pixel = ((batch * sizes.image[1] + y) * width + x) * channels;
                    *sum += lanes::dot(s, &weights[tap..tap + channels], &turned[pixel..pixel + channels]);
                    if stop.after(channels) {
                        return;
                    }
                }
            }
        }
        sums.store(&mut piece);
    }
}
