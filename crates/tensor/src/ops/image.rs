//! Images resampled, cut into windows, and given relative positions.

use super::work::times;
use super::{Args, Category, OpError, OpInfo, Operation, Outcome, Sizes, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};
use crate::shape::Shape;

/// How values between pixels are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleMode {
    /// The nearest pixel.
    Nearest,
    /// From the four pixels around.
    Bilinear,
    /// From the sixteen pixels around.
    Bicubic,
}

/// An image at other extents; dimensions 2 and 3 always take the nearest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Upscale {
    /// The new extents.
    pub ne: Shape,
    /// How values between pixels are made.
    pub mode: ScaleMode,
    /// Corners keep their values.
    pub align_corners: bool,
    /// Average over all pixels covered when shrinking; bilinear only.
    pub antialias: bool,
}

/// A `[c, w, h]` image cut into square windows, zero outside.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WinPart {
    /// Side of a window.
    pub window: usize,
}

/// The inverse of [`WinPart`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WinUnpart {
    /// Width of the image.
    pub width: usize,
    /// Height of the image.
    pub height: usize,
    /// Side of a window.
    pub window: usize,
}

/// Relative position embeddings: `y[:, i, j] = a[:, (size - 1 - i) + j]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GetRelPos {
    /// Positions along each axis.
    pub size: usize,
}

/// Scores plus relative positions: `y[h k + w, r] = a + ph[h, r] + pw[w, r]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AddRelPos;

impl Operation for Upscale {
    const INFO: OpInfo = OpInfo::new("UPSCALE", Category::Vision, &[need("a")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        a.f32()?;
        a.shape(!a.ne().is_empty() || self.ne.is_empty(), "no pixels can be made of none")?;
        let possible = !self.antialias || self.mode == ScaleMode::Bilinear;
        args.param("antialias", self.antialias, possible, "goes with bilinear only")?;
        args.fresh(DType::F32, self.ne)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        let reach = |dim: usize| {
            let (from, to) = (sizes.ne(0)[dim], sizes.result_ne()[dim].max(1));
            from.min((from.saturating_mul(2) / to).max(2))
        };
        let pixels = match (self.mode, self.antialias) {
            (_, true) => times([reach(0), reach(1)]),
            (ScaleMode::Nearest, _) => 1,
            (ScaleMode::Bilinear, _) => 4,
            (ScaleMode::Bicubic, _) => 16,
        };
        times([sizes.result(), pixels])
    }
}

impl Operation for WinPart {
    const INFO: OpInfo = OpInfo::new("WIN_PART", Category::Vision, &[need("a")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        a.f32()?;
        a.contiguous()?;
        a.flat_from(3)?;
        args.positive("window", self.window)?;
        let [channels, width, height, _] = a.extents();
        let count = width.div_ceil(self.window).saturating_mul(height.div_ceil(self.window));
        args.fresh(DType::F32, [channels, self.window, self.window, count])
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for WinUnpart {
    const INFO: OpInfo = OpInfo::new("WIN_UNPART", Category::Vision, &[need("a")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        let WinUnpart { width, height, window } = *self;
        a.f32()?;
        a.contiguous()?;
        args.positive("window", window)?;
        let count = width.div_ceil(window).saturating_mul(height.div_ceil(window));
        a.shape_is([a.ne()[0], window, window, count], "channels, window, window, windows of the image")?;
        args.fresh(DType::F32, [a.ne()[0], width, height])
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for GetRelPos {
    const INFO: OpInfo = OpInfo::new("GET_REL_POS", Category::Vision, &[need("a")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        a.one_of(&[DType::F16])?;
        a.contiguous()?;
        args.param("size", self.size, self.size > 0, "must be positive")?;
        let distances = self.size.saturating_mul(2).saturating_sub(1);
        a.shape_is([a.ne()[0], distances], "channels, distances of two positions")?;
        args.fresh(DType::F16, [a.ne()[0], self.size, self.size])
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for AddRelPos {
    const INFO: OpInfo =
        OpInfo::new("ADD_REL_POS", Category::Vision, &[need("a"), need("pw"), need("ph")]).in_place();

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [a, pw, ph] = args.sources();
        for operand in [&a, &pw, &ph] {
            operand.f32()?;
            operand.contiguous()?;
        }
        ph.same_shape(&pw)?;
        let [k, n1, n2, n3] = pw.extents();
        a.shape_is([k.saturating_mul(k), n1.saturating_mul(n2), n3], "positions squared, rows, batch of pw")?;
        args.fresh(DType::F32, a.ne())
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Graph {
    /// `a` resampled to other extents.
    pub fn upscale(&mut self, a: TensorId, op: Upscale) -> Result<TensorId, Error> {
        self.apply(op, &[Some(a)])
    }

    /// The image `a` cut into square windows.
    pub fn win_part(&mut self, a: TensorId, window: usize) -> Result<TensorId, Error> {
        self.apply(WinPart { window }, &[Some(a)])
    }

    /// Windows joined into an image.
    pub fn win_unpart(&mut self, a: TensorId, op: WinUnpart) -> Result<TensorId, Error> {
        self.apply(op, &[Some(a)])
    }

    /// Relative position embeddings of a square of `size` positions.
    pub fn get_rel_pos(&mut self, a: TensorId, size: usize) -> Result<TensorId, Error> {
        self.apply(GetRelPos { size }, &[Some(a)])
    }

    /// Scores `a` plus the relative positions along width and height.
    pub fn add_rel_pos(&mut self, a: TensorId, pw: TensorId, ph: TensorId) -> Result<TensorId, Error> {
        self.apply(AddRelPos, &[Some(a), Some(pw), Some(ph)])
    }
}
