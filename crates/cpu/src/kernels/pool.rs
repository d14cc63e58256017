//! Pooling over rows and planes, and its gradient.
//!
//! Windows are clipped to the source before anything is looped over, so their size costs nothing outside of it.

use half::f16;
use oxcart_tensor::ops::{Pool1d, Pool2d, Pool2dBack, PoolKind, PoolWindow};
use oxcart_tensor::{DType, Op, TensorRef};

use super::conv::geometry::Axis;
use crate::job::{Fault, Job, Kernel, Run, Stop, as_floats};
use crate::simd::{Level, Simd, for_each_level};
use crate::view::Number;

/// Windows up to this long are walked tap by tap over all positions at once, where these are neighbours.
const SHORT: usize = 32;

/// The kernel for an op of this family.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    if node.layout().is_empty() {
        return Some(Kernel::NOTHING);
    }
    let back = matches!(node.op(), Op::Pool2dBack(_));
    let source = node.source(usize::from(back))?;
    let run = match (node.op(), source.dtype()) {
        (Op::Pool1d(_), DType::F32) => rows::<f32>(level),
        (Op::Pool1d(_), DType::F16) => rows::<f16>(level),
        (Op::Pool2d(_), DType::F32) => planes::<f32>(level),
        (Op::Pool2d(_), DType::F16) => planes::<f16>(level),
        (Op::Pool2dBack(_), DType::F32) => planes_back::<f32>(level),
        (Op::Pool2dBack(_), DType::F16) => planes_back::<f16>(level),
        _ => return None,
    };
    let [width, height, ..] = source.ne().extents();
    let work = usize::try_from(node.work()).unwrap_or(usize::MAX);
    let own = width.saturating_mul(if back { height } else { 1 }).saturating_mul(size_of::<f32>());
    let kernel = if back {
        Kernel::units(run, node.ne()[2].saturating_mul(node.ne()[3]), work)
    } else {
        Kernel::rows(run, node.layout(), work)
    };
    Some(kernel.own(own))
}

fn rows<A: Number>(level: Level) -> Run {
    for_each_level!(pool_rows[A: Number]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

fn planes<A: Number>(level: Level) -> Run {
    for_each_level!(pool_planes[A: Number]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

fn planes_back<A: Number>(level: Level) -> Run {
    for_each_level!(spread_gradient[A: Number]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

fn axis<const N: usize>(window: &PoolWindow<N>, i: usize, len: usize, positions: usize) -> Axis {
    Axis::window(len, [window.kernel[i], window.stride[i], window.pad[i]], positions)
}

/// What a window has before its first element.
const fn start_value(kind: PoolKind) -> f32 {
    match kind {
        PoolKind::Max => f32::MIN,
        PoolKind::Avg => 0.0,
    }
}

/// Adds a row of elements to the windows along it; says whether to give up.
#[inline(always)]
fn add_row(stop: Stop<'_>, axis: &Axis, kind: PoolKind, from: &[f32], to: &mut [f32]) -> bool {
    match kind {
        PoolKind::Max => fold(stop, axis, from, to, |most, x| if x > most { x } else { most }),
        PoolKind::Avg => fold(stop, axis, from, to, |sum, x| sum + x),
    }
}

#[inline(always)]
fn fold(stop: Stop<'_>, axis: &Axis, from: &[f32], to: &mut [f32], f: impl Fn(f32, f32) -> f32) -> bool {
    if axis.stride == 1 && axis.kernel <= SHORT {
        // Positions outside are passed by, but counted as they are below.
        if stop.after(to.len()) {
            return true;
        }
        for tap in 0..axis.kernel {
            let inside = axis.positions_inside(tap);
            let Some(first) = axis.pixel(inside.start, tap) else { continue };
            let to = &mut to[inside];
            for part in stop.stretches(to.len()) {
                for (to, &x) in to[part.clone()].iter_mut().zip(&from[first + part.start..]) {
                    *to = f(*to, x);
                }
            }
        }
        return stop.after(0);
    }
    for (position, to) in to.iter_mut().enumerate() {
        if stop.after(1) {
            return true;
        }
        let taps = axis.taps(position);
        let Some(first) = axis.pixel(position, taps.start) else { continue };
        let from = &from[first..first + taps.len()];
        for part in stop.stretches(from.len()) {
            *to = from[part].iter().fold(*to, |to, &x| f(to, x));
        }
    }
    false
}

/// A row as numbers.
#[inline(always)]
fn widen<A: Number>(stop: Stop<'_>, from: &[A], to: &mut [f32]) {
    for part in stop.stretches(from.len()) {
        A::widen(&from[part.clone()], &mut to[part]);
    }
}

/// Along rows; a mean counts what is inside the row.
#[inline(always)]
fn pool_rows<S: Simd, A: Number>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let Pool1d { kind, window } = job.op();
    let a = job.src(0);
    let axis = axis(&window, 0, a.ne()[0], job.dst.ne()[0]);
    let (values, stop) = (as_floats(job.own), job.stop);
    for (at, mut row) in job.dst.rows::<f32>(job.share) {
        let row = row.slice();
        widen::<A>(stop, a.row::<A>(at).slice(), values);
        stop.stretches(row.len()).for_each(|part| row[part].fill(start_value(kind)));
        if add_row(stop, &axis, kind, values, row) {
            break;
        }
        if kind == PoolKind::Avg {
            for position in stop.stretches(row.len()).flatten() {
                // Nothing inside stays zero.
                row[position] /= axis.taps(position).len().max(1) as f32;
            }
        }
    }
    Ok(())
}

/// Over planes; a mean divides by the size of the window.
#[inline(always)]
fn pool_planes<S: Simd, A: Number>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let Pool2d { kind, window } = job.op();
    let (a, [width, height, ..]) = (job.src(0), job.dst.ne());
    let across = axis(&window, 0, a.ne()[0], width);
    let down = axis(&window, 1, a.ne()[1], height);
    let size = area(&window);
    let (values, stop) = (as_floats(job.own), job.stop);
    for ([position, i2, i3], mut row) in job.dst.rows::<f32>(job.share) {
        let row = row.slice();
        stop.stretches(row.len()).for_each(|part| row[part].fill(start_value(kind)));
        if stop.after(0) {
            break;
        }
        for tap in down.taps(position) {
            let Some(y) = down.pixel(position, tap) else { continue };
            widen::<A>(stop, a.row::<A>([y, i2, i3]).slice(), values);
            if add_row(stop, &across, kind, values, row) {
                return Ok(());
            }
        }
        if kind == PoolKind::Avg {
            for part in stop.stretches(row.len()) {
                row[part].iter_mut().for_each(|sum| *sum /= size);
            }
        }
    }
    Ok(())
}

fn area(window: &PoolWindow<2>) -> f32 {
    (u64::from(window.kernel[0]) * u64::from(window.kernel[1])) as f32
}

/// Gives each window's gradient to its first largest element, or to all its elements in equal parts. A plane is one
/// thread's, so windows are taken in order and may overlap.
#[inline(always)]
fn spread_gradient<S: Simd, A: Number>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let Pool2dBack { kind, window } = job.op();
    let (gradient, a) = (job.src(0), job.src(1));
    let ([positions, lines, ..], [width, height, depth, batch]) = (gradient.ne(), a.ne());
    let (across, down) = (axis(&window, 0, width, positions), axis(&window, 1, height, lines));
    let size = area(&window);
    let (values, stop) = (as_floats(job.own), job.stop);
    for plane in job.share.of(depth * batch) {
        let (i2, i3) = (plane % depth, plane / depth);
        if kind == PoolKind::Max {
            for y in 0..height {
                widen::<A>(stop, a.row::<A>([y, i2, i3]).slice(), &mut values[y * width..(y + 1) * width]);
                if stop.after(0) {
                    return Ok(());
                }
            }
        }
        // SAFETY: only this plane is touched, and it is this thread's alone.
        let mut result =
            unsafe { job.dst.packed::<f32>() }.part(plane * width * height..(plane + 1) * width * height);
        let result = result.slice();
        stop.stretches(result.len()).for_each(|part| result[part].fill(0.0));
        for line in 0..lines {
            let row = gradient.row::<f32>([line, i2, i3]).slice();
            let rows = pixels(&down, line);
            for (position, &gradient) in row.iter().enumerate() {
                let columns = pixels(&across, position);
                let mut most = (f32::MIN, None);
                if stop.after(1) {
                    return Ok(());
                }
                for y in rows.clone() {
                    let first = y * width + columns.start;
                    for part in stop.stretches(columns.len()) {
                        let pixels = first + part.start..first + part.end;
                        match kind {
                            PoolKind::Max => {
                                for pixel in pixels {
                                    if values[pixel] > most.0 {
                                        most = (values[pixel], Some(pixel));
                                    }
                                }
                            }
                            PoolKind::Avg => {
                                result[pixels].iter_mut().for_each(|sum| *sum += gradient / size);
                            }
                        }
                    }
                    if stop.after(1) {
                        return Ok(());
                    }
                }
                if let (_, Some(pixel)) = most {
                    result[pixel] += gradient;
                }
            }
        }
    }
    Ok(())
}

/// Elements under the window at a position.
#[inline(always)]
fn pixels(axis: &Axis, position: usize) -> std::ops::Range<usize> {
    let taps = axis.taps(position);
    let first = axis.pixel(position, taps.start).unwrap_or(0);
    first..first + taps.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{Tensor, noise, run};
    use oxcart_tensor::Layout;

    const KINDS: [PoolKind; 2] = [PoolKind::Max, PoolKind::Avg];

    /// Dense, short and long strides, padding larger than the window, and windows larger than the source.
    const WINDOWS: [PoolWindow<2>; 6] = [
        PoolWindow { kernel: [2, 3], stride: [2, 1], pad: [0, 0] },
        PoolWindow { kernel: [3, 3], stride: [1, 1], pad: [1, 1] },
        PoolWindow { kernel: [5, 2], stride: [1, 3], pad: [4, 3] },
        PoolWindow { kernel: [2, 2], stride: [5, 4], pad: [7, 5] },
        PoolWindow { kernel: [40, 35], stride: [3, 1], pad: [20, 11] },
        PoolWindow { kernel: [2_000_000_000, 7], stride: [1 << 30, 2], pad: [2_000_000_000, 3] },
    ];

    fn inside<const N: usize>(
        w: &PoolWindow<N>,
        axis: usize,
        o: usize,
        len: usize,
    ) -> std::ops::Range<usize> {
        let first = o as i64 * i64::from(w.stride[axis]) - i64::from(w.pad[axis]);
        let end = (first + i64::from(w.kernel[axis])).clamp(0, len as i64) as usize;
        (first.clamp(0, len as i64) as usize).min(end)..end
    }

    /// Planes of contiguous rows with gaps in between.
    fn planes(dtype: DType) -> Tensor {
        let size = dtype.block_bytes();
        let nb = [size, 27 * size, 27 * 21 * size, 27 * 21 * 3 * size];
        Tensor::with_layout(Layout::strided(dtype, [25, 21, 3, 2], nb).unwrap(), noise(1))
    }

    #[test]
    fn rows_are_pooled() {
        for kind in KINDS {
            for dtype in [DType::F32, DType::F16] {
                for w in WINDOWS {
                    let window = PoolWindow { kernel: [w.kernel[0]], stride: [w.stride[0]], pad: [w.pad[0]] };
                    let a = Tensor::noise(dtype, [57, 90, 3, 2], 1);
                    for y in run(Pool1d { kind, window }, &[&a]) {
                        y.assert_near(1e-6, |[o, i1, i2, i3]| {
                            let pixels = inside(&window, 0, o, 57);
                            let values = pixels.clone().map(|x| a.at([x, i1, i2, i3]));
                            match kind {
                                PoolKind::Max => values.fold(f64::from(f32::MIN), f64::max),
                                PoolKind::Avg => values.sum::<f64>() / pixels.len().max(1) as f64,
                            }
                        });
                    }
                }
            }
        }
    }

    #[test]
    fn planes_are_pooled() {
        for kind in KINDS {
            for dtype in [DType::F32, DType::F16] {
                for window in WINDOWS {
                    let a = planes(dtype);
                    for y in run(Pool2d { kind, window }, &[&a]) {
                        y.assert_near(1e-5, |[ox, oy, i2, i3]| {
                            let rows = inside(&window, 1, oy, 21);
                            let values = rows.flat_map(|y| {
                                let a = &a;
                                inside(&window, 0, ox, 25).map(move |x| a.at([x, y, i2, i3]))
                            });
                            match kind {
                                PoolKind::Max => values.fold(f64::from(f32::MIN), f64::max),
                                PoolKind::Avg => values.sum::<f64>() / f64::from(area(&window)),
                            }
                        });
                    }
                }
            }
        }
    }

    #[test]
    fn gradients_go_where_values_came_from() {
        for kind in KINDS {
            for dtype in [DType::F32, DType::F16] {
                for window in WINDOWS {
                    let a = planes(dtype);
                    let pooled = run(Pool2d { kind, window }, &[&a]).remove(0).ne();
                    let gradient = Tensor::noise(DType::F32, pooled, 2);
                    let mut exact = vec![0.0; 25 * 21 * 3 * 2];
                    for i in 0..pooled.iter().product() {
                        let (ox, oy, plane) =
                            (i % pooled[0], i / pooled[0] % pooled[1], i / (pooled[0] * pooled[1]));
                        let (i2, i3) = (plane % 3, plane / 3);
                        let rows = inside(&window, 1, oy, 21);
                        let pixels: Vec<_> = rows
                            .flat_map(|y| inside(&window, 0, ox, 25).map(move |x| (x, y)))
                            .map(|(x, y)| (a.get([x, y, i2, i3]), (plane * 21 + y) * 25 + x))
                            .collect();
                        let gradient = gradient.at([ox, oy, i2, i3]);
                        match kind {
                            PoolKind::Max => {
                                let most = pixels.iter().map(|&(value, _)| value).fold(f32::MIN, f32::max);
                                if let Some(&(_, at)) = pixels.iter().find(|&&(value, _)| value == most) {
                                    exact[at] += gradient;
                                }
                            }
                            PoolKind::Avg => {
                                pixels
                                    .iter()
                                    .for_each(|&(_, at)| exact[at] += gradient / f64::from(area(&window)));
                            }
                        }
                    }
                    for y in run(Pool2dBack { kind, window }, &[&gradient, &a]) {
                        y.assert_near(1e-4, |[x, y, i2, i3]| exact[((i3 * 3 + i2) * 21 + y) * 25 + x]);
                    }
                }
            }
        }
    }

    #[test]
    fn the_first_of_equal_values_gets_the_gradient() {
        let a = Tensor::f32([3, 2], [1.0; 6]);
        let gradient = Tensor::f32(1, [5.0]);
        let window = PoolWindow { kernel: [3, 2], stride: [1, 1], pad: [0, 0] };
        for y in run(Pool2dBack { kind: PoolKind::Max, window }, &[&gradient, &a]) {
            assert_eq!(y.values(), [5.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        }
    }
}
