//! Pooling over rows and planes, and its gradient.
//!
//! Windows are clipped to the source before anything is looped over, so their size costs nothing outside of it.

use half::f16;
use oxcart_tensor::ops::{Pool1d, Pool2d, Pool2dBack, PoolKind, PoolWindow};
use oxcart_tensor::{DType, Op, TensorRef};

use super::conv::window::Axis;
use crate::job::{Fault, Job, Kernel, Run, as_floats};
use crate::simd::{Level, Simd, for_each_level};
use crate::view::Number;

/// Windows up to this long are walked tap by tap over all positions at once, where these are neighbours.
const SHORT: usize = 32;

/// The kernel for an op of this family.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
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
    let work = source.layout().elements().max(node.layout().elements());
    let own = width.saturating_mul(if back { height } else { 1 }).saturating_mul(size_of::<f32>());
    let kernel = Kernel::rows(run, node.layout(), work).own(own);
    Some(if back {
        kernel.width(kernel.width.min(node.ne()[2].saturating_mul(node.ne()[3])))
    } else {
        kernel
    })
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

/// Adds a row of elements to the windows along it.
#[inline(always)]
fn add_row(axis: &Axis, kind: PoolKind, from: &[f32], to: &mut [f32]) {
    match kind {
        PoolKind::Max => fold(axis, from, to, |most, x| if x > most { x } else { most }),
        PoolKind::Avg => fold(axis, from, to, |sum, x| sum + x),
    }
}

#[inline(always)]
fn fold(axis: &Axis, from: &[f32], to: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    if axis.stride == 1 && axis.kernel <= SHORT {
        for tap in 0..axis.kernel {
            let inside = axis.positions_inside(tap);
            let Some(first) = axis.pixel(inside.start, tap) else { continue };
            for (to, &x) in to[inside].iter_mut().zip(&from[first..]) {
                *to = f(*to, x);
            }
        }
        return;
    }
    for (position, to) in to.iter_mut().enumerate() {
        let taps = axis.taps(position);
        let Some(first) = axis.pixel(position, taps.start) else { continue };
        *to = from[first..first + taps.len()].iter().fold(*to, |to, &x| f(to, x));
    }
}

/// Along rows; a mean counts what is inside the row.
#[inline(always)]
fn pool_rows<S: Simd, A: Number>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let Pool1d { kind, window } = job.op();
    let a = job.src(0);
    let axis = axis(&window, 0, a.ne()[0], job.dst.ne()[0]);
    let values = as_floats(job.own);
    for (at, mut row) in job.dst.rows::<f32>(job.share) {
        let row = row.slice();
        A::widen(a.row::<A>(at).slice(), values);
        row.fill(start_value(kind));
        add_row(&axis, kind, values, row);
        if kind == PoolKind::Avg {
            for (position, sum) in row.iter_mut().enumerate() {
                // Nothing inside stays zero.
                *sum /= axis.taps(position).len().max(1) as f32;
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
    let values = as_floats(job.own);
    for ([position, i2, i3], mut row) in job.dst.rows::<f32>(job.share) {
        let row = row.slice();
        row.fill(start_value(kind));
        for tap in down.taps(position) {
            let Some(y) = down.pixel(position, tap) else { continue };
            A::widen(a.row::<A>([y, i2, i3]).slice(), values);
            add_row(&across, kind, values, row);
        }
        if kind == PoolKind::Avg {
            row.iter_mut().for_each(|sum| *sum /= size);
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
    let values = as_floats(job.own);
    for plane in job.share.of(depth * batch) {
        let (i2, i3) = (plane % depth, plane / depth);
        if kind == PoolKind::Max {
            for y in 0..height {
                A::widen(a.row::<A>([y, i2, i3]).slice(), &mut values[y * width..(y + 1) * width]);
            }
        }
        // SAFETY: only this plane is touched, and it is this thread's alone.
        let mut result =
            unsafe { job.dst.packed::<f32>() }.part(plane * width * height..(plane + 1) * width * height);
        let result = result.slice();
        result.fill(0.0);
        for line in 0..lines {
            let row = gradient.row::<f32>([line, i2, i3]).slice();
            let rows = pixels(&down, line);
            for (position, &gradient) in row.iter().enumerate() {
                let columns = pixels(&across, position);
                let pixels = rows.clone().flat_map(|y| columns.clone().map(move |x| y * width + x));
                match kind {
                    PoolKind::Max => {
                        let mut most = (f32::MIN, None);
                        for pixel in pixels {
                            if values[pixel] > most.0 {
                                most = (values[pixel], Some(pixel));
                            }
                        }
                        if let (_, Some(pixel)) = most {
                            result[pixel] += gradient;
                        }
                    }
                    PoolKind::Avg => pixels.for_each(|pixel| result[pixel] += gradient / size),
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
