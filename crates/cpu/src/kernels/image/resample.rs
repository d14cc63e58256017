//! Images at other extents. Which pixels are taken is decided in `f32`, the way every peer does it.

use oxcart_tensor::TensorRef;
use oxcart_tensor::ops::{ScaleMode, Upscale};

use crate::job::{Fault, Job, Kernel, Stop, as_floats};
use crate::simd::{Level, Simd, for_each_level};
use crate::view::{Src, Strided};

pub(super) fn choose(node: TensorRef<'_>, op: Upscale, level: Level) -> Option<Kernel> {
    let run = match (op.mode, op.antialias) {
        (ScaleMode::Nearest, _) => for_each_level!(nearest: fn(job: Job<'_>) -> Result<(), Fault>).at(level),
        (ScaleMode::Bilinear, false) => {
            for_each_level!(bilinear: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
        }
        (ScaleMode::Bilinear, true) => {
            for_each_level!(antialiased: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
        }
        (ScaleMode::Bicubic, _) => for_each_level!(bicubic: fn(job: Job<'_>) -> Result<(), Fault>).at(level),
    };
    let work = usize::try_from(node.work()).unwrap_or(usize::MAX);
    // One number per column: where it comes from.
    let own = node.ne()[0].saturating_mul(size_of::<f32>());
    Some(Kernel::rows(run, node.layout(), work).own(own))
}

/// How coordinates of the result and of the source belong together.
#[derive(Clone, Copy, Debug)]
struct Scales {
    /// Result pixels per source pixel.
    factor: [f32; 4],
    /// Where in a pixel its value lies.
    offset: f32,
    source: [usize; 4],
}

impl Scales {
    fn new(op: Upscale, source: [usize; 4], result: [usize; 4]) -> Scales {
        let mut factor = std::array::from_fn(|dim| result[dim] as f32 / source[dim] as f32);
        if op.align_corners {
            for dim in 0..2 {
                if result[dim] > 1 && source[dim] > 1 {
                    factor[dim] = (result[dim] - 1) as f32 / (source[dim] - 1) as f32;
                }
            }
        }
        Scales { factor, offset: if op.align_corners { 0.0 } else { 0.5 }, source }
    }

    /// The source pixel that a pixel of the result starts in.
    #[inline(always)]
    fn nearest(&self, dim: usize, i: usize) -> usize {
        self.clamp(dim, (i as f32 / self.factor[dim]) as i64)
    }

    /// Where between source pixels a pixel of the result lies.
    #[inline(always)]
    fn between(&self, dim: usize, i: usize) -> f32 {
        (i as f32 + self.offset) / self.factor[dim] - self.offset
    }

    #[inline(always)]
    fn clamp(&self, dim: usize, i: i64) -> usize {
        i.clamp(0, self.source[dim] as i64 - 1) as usize
    }

    /// The two pixels around a place, and how near the second is.
    #[inline(always)]
    fn around(&self, dim: usize, place: f32) -> ([usize; 2], f32) {
        let low = place.floor() as i64;
        let [first, second] = [self.clamp(dim, low), self.clamp(dim, low + 1)];
        ([first, second], (place - first as f32).clamp(0.0, 1.0))
    }

    /// The four pixels around a place, and where it lies between the middle two.
    #[inline(always)]
    fn four_around(&self, dim: usize, place: f32) -> ([usize; 4], f32) {
        let low = place.floor();
        ([-1, 0, 1, 2].map(|step| self.clamp(dim, low as i64 + step)), place - low)
    }
}

/// The plane of the source that a plane of the result is made from.
struct Plane<'t> {
    a: Src<'t>,
    z: usize,
    n: usize,
}

impl<'t> Plane<'t> {
    #[inline(always)]
    fn new(a: Src<'t>, scales: &Scales, i2: usize, i3: usize) -> Plane<'t> {
        Plane { a, z: scales.nearest(2, i2), n: scales.nearest(3, i3) }
    }

    #[inline(always)]
    fn row(&self, y: usize) -> Strided<'t, f32> {
        self.a.line([y, self.z, self.n])
    }
}

#[inline(always)]
fn nearest<S: Simd>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let (a, scales) = (job.src(0), Scales::new(job.op(), job.src(0).ne(), job.dst.ne()));
    let columns = <[u32] as zerocopy::FromBytes>::mut_from_bytes(job.own)
        .unwrap_or_else(|_| unreachable!("scratch is aligned and sized in whole numbers"));
    for i in job.stop.stretches(columns.len()).flatten() {
        columns[i] = scales.nearest(0, i) as u32;
    }
    for ([i1, i2, i3], mut row) in job.dst.rows::<f32>(job.share) {
        let from = Plane::new(a, &scales, i2, i3).row(scales.nearest(1, i1));
        let row = row.slice();
        for part in job.stop.stretches(row.len()) {
            for (to, &column) in row[part.clone()].iter_mut().zip(&columns[part]) {
                *to = from.get(column as usize);
            }
        }
        if job.stop.after(0) {
            break;
        }
    }
    Ok(())
}

#[inline(always)]
fn bilinear<S: Simd>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let (a, scales) = (job.src(0), Scales::new(job.op(), job.src(0).ne(), job.dst.ne()));
    let (places, stop) = (as_floats(job.own), job.stop);
    fill_places(stop, &scales, places);
    for ([i1, i2, i3], mut row) in job.dst.rows::<f32>(job.share) {
        let plane = Plane::new(a, &scales, i2, i3);
        let (rows, dy) = scales.around(1, scales.between(1, i1));
        let [upper, lower] = rows.map(|y| plane.row(y));
        let row = row.slice();
        for i in stop.stretches_of(row.len(), 4).flatten() {
            let ([left, right], dx) = scales.around(0, places[i]);
            row[i] = upper.get(left) * (1.0 - dx) * (1.0 - dy)
                + upper.get(right) * dx * (1.0 - dy)
                + lower.get(left) * (1.0 - dx) * dy
                + lower.get(right) * dx * dy;
        }
        if stop.after(0) {
            break;
        }
    }
    Ok(())
}

#[inline(always)]
fn bicubic<S: Simd>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let (a, scales) = (job.src(0), Scales::new(job.op(), job.src(0).ne(), job.dst.ne()));
    let (places, stop) = (as_floats(job.own), job.stop);
    fill_places(stop, &scales, places);
    for ([i1, i2, i3], mut row) in job.dst.rows::<f32>(job.share) {
        let plane = Plane::new(a, &scales, i2, i3);
        let (rows, dy) = scales.four_around(1, scales.between(1, i1));
        let (rows, down) = (rows.map(|y| plane.row(y)), cubic(dy));
        let row = row.slice();
        for i in stop.stretches_of(row.len(), 16).flatten() {
            let (columns, dx) = scales.four_around(0, places[i]);
            let across = cubic(dx);
            let mixed = rows.map(|row| mix(columns.map(|x| row.get(x)), across));
            row[i] = mix(mixed, down);
        }
        if stop.after(0) {
            break;
        }
    }
    Ok(())
}

#[inline(always)]
fn fill_places(stop: Stop<'_>, scales: &Scales, places: &mut [f32]) {
    for i in stop.stretches(places.len()).flatten() {
        places[i] = scales.between(0, i);
    }
}

/// Weights of four neighbours for a place between the middle two.
#[inline(always)]
fn cubic(x: f32) -> [f32; 4] {
    const A: f32 = -0.75;
    let near = |x: f32| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f32| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    [far(x + 1.0), near(x), near(1.0 - x), far(2.0 - x)]
}

#[inline(always)]
fn mix(values: [f32; 4], weights: [f32; 4]) -> f32 {
    values[0] * weights[0] + values[1] * weights[1] + values[2] * weights[2] + values[3] * weights[3]
}

/// The mean of all pixels in reach, weighted by a triangle.
#[inline(always)]
fn antialiased<S: Simd>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let stop = job.stop;
    let (a, scales) = (job.src(0), Scales::new(job.op(), job.src(0).ne(), job.dst.ne()));
    for ([i1, i2, i3], mut row) in job.dst.rows::<f32>(job.share) {
        let plane = Plane::new(a, &scales, i2, i3);
        let down = Reach::new(&scales, 1, i1);
        for (i0, to) in row.slice().iter_mut().enumerate() {
            let across = Reach::new(&scales, 0, i0);
            let (mut sum, mut total) = (0f32, 0f32);
            for y in down.pixels.clone() {
                let (row, height) = (plane.row(y), down.weight(y));
                for part in stop.stretches(across.pixels.len()) {
                    for x in across.pixels.start + part.start..across.pixels.start + part.end {
                        let weight = across.weight(x) * height;
                        if weight > 0.0 {
                            sum += row.get(x) * weight;
                            total += weight;
                        }
                    }
                }
                if stop.after(0) {
                    return Ok(());
                }
            }
            *to = if total > 0.0 { sum / total } else { sum };
        }
    }
    Ok(())
}

/// Source pixels that a pixel of the result sees along one axis.
struct Reach {
    pixels: std::ops::Range<usize>,
    centre: f32,
    offset: f32,
    narrowness: f32,
}

impl Reach {
    #[inline(always)]
    fn new(scales: &Scales, dim: usize, i: usize) -> Reach {
        let offset = scales.offset;
        let centre = (i as f32 + offset) / scales.factor[dim];
        let support = (1.0 / scales.factor[dim]).max(1.0);
        let first = (centre - support + offset) as usize;
        let last = ((centre + support + offset) as usize).min(scales.source[dim]);
        Reach { pixels: first..last, centre, offset, narrowness: 1.0 / support }
    }

    #[inline(always)]
    fn weight(&self, pixel: usize) -> f32 {
        (1.0 - ((pixel as f32 - self.centre + self.offset) * self.narrowness).abs()).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{Tensor, run};
    use oxcart_tensor::{DType, Shape};

    const MODES: [(ScaleMode, bool); 4] = [
        (ScaleMode::Nearest, false),
        (ScaleMode::Bilinear, false),
        (ScaleMode::Bicubic, false),
        (ScaleMode::Bilinear, true),
    ];

    fn upscale(ne: [usize; 4], (mode, antialias): (ScaleMode, bool), align_corners: bool) -> Upscale {
        Upscale { ne: Shape::from(ne), mode, align_corners, antialias }
    }

    fn cases() -> impl Iterator<Item = ((ScaleMode, bool), bool)> {
        MODES.into_iter().flat_map(|mode| [false, true].map(|align| (mode, align)))
    }

    #[test]
    fn strides_do_not_matter() {
        for (mode, align) in cases() {
            for ne in [[31, 40, 6, 4], [5, 3, 1, 2], [1, 1, 1, 1], [7, 9, 3, 2]] {
                let packed = Tensor::noise(DType::F32, [7, 9, 3, 2], 1);
                let axes = [2, 1, 0, 3];
                // The same values, channels fastest.
                let layout = oxcart_tensor::Layout::packed(DType::F32, [3, 9, 7, 2]).unwrap();
                let turned = Tensor::with_layout(layout.permuted(axes).unwrap(), packed.values());
                let op = upscale(ne, mode, align);
                for (a, b) in run(op, &[&packed]).iter().zip(run(op, &[&turned])) {
                    assert_eq!(a.values(), b.values(), "{op:?}");
                }
            }
        }
    }

    #[test]
    fn a_flat_image_stays_flat() {
        for (mode, align) in cases() {
            let flat = Tensor::f32([13, 11, 2], [0.75; 13 * 11 * 2]);
            for ne in [[26, 33, 2, 1], [5, 4, 1, 1], [12, 12, 5, 2], [13, 11, 2, 1]] {
                for y in run(upscale(ne, mode, align), &[&flat]) {
                    y.assert_near(1e-6, |_| 0.75);
                }
            }
        }
    }

    #[test]
    fn the_same_extents_change_nothing() {
        for (mode, align) in cases() {
            let image = Tensor::noise(DType::F32, [9, 7, 3, 2], 1);
            for y in run(upscale([9, 7, 3, 2], mode, align), &[&image]) {
                y.assert_near(1e-6, |at| image.at(at));
            }
        }
    }

    #[test]
    fn aligned_corners_keep_their_values() {
        let image = Tensor::noise(DType::F32, [6, 5, 1, 1], 1);
        for mode in [ScaleMode::Bilinear, ScaleMode::Bicubic] {
            for y in run(upscale([21, 13, 1, 1], (mode, false), true), &[&image]) {
                for (corner, of) in
                    [([0, 0], [0, 0]), ([20, 0], [5, 0]), ([0, 12], [0, 4]), ([20, 12], [5, 4])]
                {
                    let (found, wanted) =
                        (y.at([corner[0], corner[1], 0, 0]), image.at([of[0], of[1], 0, 0]));
                    assert!((found - wanted).abs() < 1e-5, "{found} {wanted}");
                }
            }
        }
    }

    #[test]
    fn shrinking_with_antialias_sees_every_pixel() {
        // Halving an image of one bright pixel must not lose it, wherever it is.
        for bright in 0..8 {
            let image = Tensor::f32(8, (0..8).map(|i| if i == bright { 1.0 } else { 0.0 }));
            for y in run(upscale([4, 1, 1, 1], (ScaleMode::Bilinear, true), false), &[&image]) {
                let sum: f32 = y.values().iter().sum();
                assert!((0.3..0.7).contains(&sum), "{sum}");
            }
        }
    }

    #[test]
    fn no_pixels_make_none() {
        for mode in MODES {
            let none = Tensor::noise(DType::F32, [0, 3, 1, 1], 1);
            run(upscale([0, 6, 1, 1], mode, false), &[&none]);
            run(upscale([4, 0, 1, 1], mode, true), &[&Tensor::noise(DType::F32, [2, 2, 1, 1], 1)]);
        }
    }
}
