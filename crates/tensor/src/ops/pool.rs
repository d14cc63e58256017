//! Pooling over rows and planes.

use super::work::{LineGeometry, sum, times};
use super::{Args, Category, OpError, OpInfo, Operand, Operation, Outcome, Sizes, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};
use crate::shape::Shape;

/// What a window of values becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolKind {
    /// Its largest value.
    Max,
    /// Its mean.
    Avg,
}

/// Size and movement of a window, axis by axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolWindow<const N: usize> {
    /// Extents of the window.
    pub kernel: [u32; N],
    /// Distance of neighbouring positions.
    pub stride: [u32; N],
    /// Elements around the source that count as absent.
    pub pad: [u32; N],
}

impl<const N: usize> PoolWindow<N> {
    fn check(&self, args: &Args<'_>) -> Result<(), OpError> {
        self.kernel.iter().try_for_each(|&n| args.positive("kernel", n))?;
        self.stride.iter().try_for_each(|&n| args.positive("stride", n))?;
        self.pad.iter().try_for_each(|&n| args.word("pad", n))
    }

    /// Pairs of a window and an element inside of it, along one axis.
    fn windows(&self, axis: usize, len: u64, positions: u64) -> u64 {
        let (stride, pad) = (self.stride[axis], self.pad[axis]);
        LineGeometry { len, kernel: self.kernel[axis].into(), positions, stride, dilation: 1, pad }.pairs()
    }

    /// Positions along one axis. The quotient is rounded in `f32`, because that is what every peer does.
    fn positions(&self, args: &Args<'_>, axis: usize, len: usize) -> Result<usize, OpError> {
        let (kernel, stride, pad) =
            (self.kernel[axis] as f32, self.stride[axis] as f32, self.pad[axis] as f32);
        let count = (len as f32 + 2.0 * pad - kernel) / stride + 1.0;
        let rule = || format!("leaves no position in {len} elements along axis {axis}");
        args.param("window", self, count >= 1.0, rule())?;
        Ok(count as usize)
    }
}

/// Pooling along rows; a mean counts only elements inside the row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pool1d {
    /// Largest or mean.
    pub kind: PoolKind,
    /// Size and movement.
    pub window: PoolWindow<1>,
}

/// Pooling over planes; a mean always divides by the size of the window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pool2d {
    /// Largest or mean.
    pub kind: PoolKind,
    /// Size and movement.
    pub window: PoolWindow<2>,
}

/// Gradient of [`Pool2d`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pool2dBack {
    /// Largest or mean.
    pub kind: PoolKind,
    /// Size and movement.
    pub window: PoolWindow<2>,
}

impl Operation for Pool1d {
    const INFO: OpInfo = OpInfo::new("POOL_1D", Category::Vision, &[need("a")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        self.window.check(args)?;
        a.one_of(&[DType::F32, DType::F16])?;
        a.contiguous_apart_from_rows()?;
        args.fresh(DType::F32, a.ne().with(0, self.window.positions(args, 0, a.ne()[0])?))
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        let ([len, ..], [positions, ..]) = (sizes.ne(0), sizes.result_ne());
        let row = sum([len, times([2, positions]), self.window.windows(0, len, positions)]);
        times([sizes.rows(0), row])
    }
}

/// Planes of contiguous rows; within a plane, rows may lie at any distance.
fn check_planes(a: &Operand) -> Result<(), OpError> {
    a.one_of(&[DType::F32, DType::F16])?;
    a.contiguous_rows()?;
    a.stride_rule(a.layout().is_contiguous_above(2), "planes must lie at one common distance")
}

fn pooled(window: &PoolWindow<2>, args: &Args<'_>, ne: Shape) -> Result<Shape, OpError> {
    window.check(args)?;
    Ok(ne.with(0, window.positions(args, 0, ne[0])?).with(1, window.positions(args, 1, ne[1])?))
}

impl Operation for Pool2d {
    const INFO: OpInfo = OpInfo::new("POOL_2D", Category::Vision, &[need("a")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        check_planes(&a)?;
        args.fresh(DType::F32, pooled(&self.window, args, a.ne())?)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        let ([width, height, ..], [x, y, planes, volumes]) = (sizes.ne(0), sizes.result_ne());
        // Each row under a window is read for all windows beside each other.
        let row = sum([width, x, self.window.windows(0, width, x)]);
        let plane = sum([times([2, x, y]), times([self.window.windows(1, height, y), row])]);
        times([plane, planes, volumes])
    }
}

impl Operation for Pool2dBack {
    const INFO: OpInfo = OpInfo::new("POOL_2D_BACK", Category::Training, &[need("gradient"), need("a")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [gradient, a] = args.sources();
        gradient.f32()?;
        gradient.contiguous()?;
        check_planes(&a)?;
        gradient.shape_is(pooled(&self.window, args, a.ne())?, "the pooled shape of a")?;
        args.fresh(DType::F32, a.ne())
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        let ([x, y, ..], [width, height, planes, volumes]) = (sizes.ne(0), sizes.result_ne());
        let (across, down) = (self.window.windows(0, width, x), self.window.windows(1, height, y));
        let plane = sum([times([x, y]), times([down, sum([across, x])]), times([2, width, height])]);
        times([plane, planes, volumes])
    }
}

impl Graph {
    /// Pooling along the rows of `a`.
    pub fn pool_1d(&mut self, a: TensorId, kind: PoolKind, window: PoolWindow<1>) -> Result<TensorId, Error> {
        self.apply(Pool1d { kind, window }, &[Some(a)])
    }

    /// Pooling over the planes of `a`.
    pub fn pool_2d(&mut self, a: TensorId, kind: PoolKind, window: PoolWindow<2>) -> Result<TensorId, Error> {
        self.apply(Pool2d { kind, window }, &[Some(a)])
    }

    /// Gradient of [`pool_2d`](Graph::pool_2d) at `a`.
    pub fn pool_2d_back(
        &mut self,
        gradient: TensorId,
        a: TensorId,
        kind: PoolKind,
        window: PoolWindow<2>,
    ) -> Result<TensorId, Error> {
        self.apply(Pool2dBack { kind, window }, &[Some(gradient), Some(a)])
    }
}
