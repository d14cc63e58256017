//! Elements joined, tiled, shifted, padded or laid on a diagonal.

use super::{Args, Category, OpError, OpInfo, Operation, Outcome, Sizes, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};
use crate::limits::DIMS;
use crate::shape::Shape;

/// Two tensors joined along one dimension.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Concat {
    /// The dimension along which `b` follows `a`.
    pub dim: usize,
}

/// A tensor tiled to larger extents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Repeat {
    /// The extents of the result, whole multiples of the source's.
    pub ne: Shape,
}

/// All tiles of a tensor summed into one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RepeatBack {
    /// The extents of a tile.
    pub ne: Shape,
}

/// A vector as a diagonal matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Diag;

/// A cyclic shift: `y[i] = a[(i - shift) mod ne]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roll {
    /// The shift of each dimension, shorter than its extent.
    pub shift: [i32; DIMS],
}

/// Elements added around a tensor: zeros, or the tensor itself going round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pad {
    /// Elements before index 0 of each dimension.
    pub left: [usize; DIMS],
    /// Elements after the last index of each dimension.
    pub right: [usize; DIMS],
    /// Go round instead of padding with zeros.
    pub circular: bool,
}

/// Rows extended by their own mirror image, the edge not repeated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PadReflect1d {
    /// Elements before each row.
    pub left: usize,
    /// Elements after each row.
    pub right: usize,
}

impl Operation for Concat {
    const INFO: OpInfo = OpInfo::new("CONCAT", Category::Language, &[need("a"), need("b")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [a, b] = args.sources();
        args.param("dim", self.dim, self.dim < DIMS, "must be below 4")?;
        b.same_dtype(&a)?;
        for dim in (0..DIMS).filter(|&dim| dim != self.dim) {
            b.extent(dim, a.ne()[dim], "as in a")?;
        }
        // Small plain elements are copied one by one; wider ones and blocks row by row.
        if a.dtype().is_quantized() || a.dtype().block_bytes() > 4 {
            a.contiguous_rows()?;
            b.contiguous_rows()?;
        }
        let joined = a.ne()[self.dim].saturating_add(b.ne()[self.dim]);
        args.fresh(a.dtype(), a.ne().with(self.dim, joined))
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for Repeat {
    const INFO: OpInfo = OpInfo::new("REPEAT", Category::Language, &[need("a")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        a.one_of(&[DType::F32, DType::I32, DType::F16, DType::BF16, DType::I16])?;
        a.unit_stride()?;
        let rule = || format!("must be whole multiples of {}", a.ne());
        args.param("ne", self.ne, a.ne().repeats_into(self.ne), rule())?;
        args.fresh(a.dtype(), self.ne)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for RepeatBack {
    const INFO: OpInfo = OpInfo::new("REPEAT_BACK", Category::Training, &[need("a")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        a.f32()?;
        a.contiguous_rows()?;
        let rule = || format!("must divide {}", a.ne());
        args.param("ne", self.ne, self.ne.repeats_into(a.ne()), rule())?;
        args.fresh(DType::F32, self.ne)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.source(0)
    }
}

impl Operation for Diag {
    const INFO: OpInfo = OpInfo::new("DIAG", Category::Recurrent, &[need("a")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        a.f32()?;
        a.extent(1, 1, "one vector per matrix")?;
        a.contiguous_rows()?;
        args.fresh(DType::F32, a.ne().with(1, a.ne()[0]))
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for Roll {
    const INFO: OpInfo = OpInfo::new("ROLL", Category::Vision, &[need("a")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        a.f32()?;
        a.unit_stride()?;
        let shorter = (0..DIMS).all(|dim| (self.shift[dim].unsigned_abs() as usize) < a.ne()[dim]);
        args.param("shift", self.shift, shorter, "must be shorter than each extent")?;
        args.fresh(DType::F32, a.ne())
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for Pad {
    const INFO: OpInfo = OpInfo::new("PAD", Category::Vision, &[need("a")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        a.f32()?;
        let mut ne = a.extents();
        for (dim, extent) in ne.iter_mut().enumerate() {
            let (left, right) = (self.left[dim], self.right[dim]);
            args.word("padding", left)?;
            args.word("padding", right)?;
            if self.circular {
                let once = left <= *extent && right <= *extent;
                args.param("padding", (left, right), once, "must not go round more than once")?;
            }
            *extent = extent.saturating_add(left).saturating_add(right);
        }
        args.fresh(DType::F32, ne)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for PadReflect1d {
    const INFO: OpInfo = OpInfo::new("PAD_REFLECT_1D", Category::Vision, &[need("a")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        a.f32()?;
        a.contiguous()?;
        let row = a.ne()[0];
        args.word("left", self.left)?;
        args.word("right", self.right)?;
        args.param("left", self.left, self.left < row, "must be shorter than a row")?;
        args.param("right", self.right, self.right < row, "must be shorter than a row")?;
        args.fresh(DType::F32, a.ne().with(0, row.saturating_add(self.left).saturating_add(self.right)))
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Graph {
    /// `a` and `b` joined along `dim`.
    pub fn concat(&mut self, a: TensorId, b: TensorId, dim: usize) -> Result<TensorId, Error> {
        self.apply(Concat { dim }, &[Some(a), Some(b)])
    }

    /// `a` tiled to the extents `ne`.
    pub fn repeat(&mut self, a: TensorId, ne: impl Into<Shape>) -> Result<TensorId, Error> {
        self.apply(Repeat { ne: ne.into() }, &[Some(a)])
    }

    /// Gradient of [`repeat`](Graph::repeat): all tiles of extents `ne` in `a`, summed.
    pub fn repeat_back(&mut self, a: TensorId, ne: impl Into<Shape>) -> Result<TensorId, Error> {
        self.apply(RepeatBack { ne: ne.into() }, &[Some(a)])
    }

    /// The vectors of `a` as diagonal matrices.
    pub fn diag(&mut self, a: TensorId) -> Result<TensorId, Error> {
        self.apply(Diag, &[Some(a)])
    }

    /// `a` shifted cyclically.
    pub fn roll(&mut self, a: TensorId, shift: [i32; DIMS]) -> Result<TensorId, Error> {
        self.apply(Roll { shift }, &[Some(a)])
    }

    /// `a` with elements added around it.
    pub fn pad(&mut self, a: TensorId, pad: Pad) -> Result<TensorId, Error> {
        self.apply(pad, &[Some(a)])
    }

    /// Rows of `a` extended by their mirror image.
    pub fn pad_reflect_1d(&mut self, a: TensorId, left: usize, right: usize) -> Result<TensorId, Error> {
        self.apply(PadReflect1d { left, right }, &[Some(a)])
    }
}
