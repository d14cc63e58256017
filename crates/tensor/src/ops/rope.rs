//! Rotary positions.

use super::{Args, Category, OpError, OpInfo, Operation, Outcome, Sizes, may, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};

/// Which channels rotate together, and by which of a token's positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeMode {
    /// Neighbouring channels.
    Normal,
    /// Channels half of `n_dims` apart.
    Neox,
    /// As `Neox`, four positions per token, each steering a section of channels.
    Mrope,
    /// As `Mrope` over all channels, frequencies starting anew in each section.
    Vision,
    /// As `Mrope`, the sections interleaved.
    Imrope,
}

impl RopeMode {
    /// Whether a token has four positions.
    pub const fn has_sections(self) -> bool {
        matches!(self, RopeMode::Mrope | RopeMode::Vision | RopeMode::Imrope)
    }
}

/// Channels rotated by an angle that grows with the token's position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Number of rotated channels.
    pub n_dims: usize,
    /// Which channels rotate together.
    pub mode: RopeMode,
    /// Context length of the training, for YaRN.
    pub n_ctx_orig: usize,
    /// Base of the frequencies.
    pub freq_base: f32,
    /// Factor of the angles.
    pub freq_scale: f32,
    /// YaRN: how much to extrapolate.
    pub ext_factor: f32,
    /// Factor of the result.
    pub attn_factor: f32,
    /// YaRN: rotations above which nothing is interpolated.
    pub beta_fast: f32,
    /// YaRN: rotations below which all is interpolated.
    pub beta_slow: f32,
    /// Channel pairs steered by each of the four positions.
    pub sections: [u32; 4],
    /// First rotated channel.
    pub first_channel: usize,
}

impl Rope {
    /// Plain rotation of `n_dims` channels without scaling.
    pub const fn new(n_dims: usize, mode: RopeMode, freq_base: f32) -> Rope {
        Rope {
            n_dims,
            mode,
            n_ctx_orig: 0,
            freq_base,
            freq_scale: 1.0,
            ext_factor: 0.0,
            attn_factor: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            sections: [0; 4],
            first_channel: 0,
        }
    }

    fn check_channels(&self, args: &Args<'_>, row: usize) -> Result<(), OpError> {
        let Rope { n_dims, first_channel, .. } = *self;
        args.word("n_dims", n_dims)?;
        args.word("first_channel", first_channel)?;
        args.param("n_dims", n_dims, n_dims > 0 && n_dims.is_multiple_of(2), "must be even and positive")?;
        args.param("n_dims", n_dims, n_dims <= row, format!("must not exceed the {row} channels of a"))?;
        let inside = first_channel.is_multiple_of(2) && first_channel <= row - n_dims;
        args.param("first_channel", first_channel, inside, "must be even, all rotated channels inside a")?;
        if self.mode == RopeMode::Vision {
            args.param("n_dims", n_dims, n_dims * 2 == row, format!("must be half of the {row} channels"))?;
            args.param("first_channel", first_channel, first_channel == 0, "must be 0 in this mode")?;
        }
        Ok(())
    }

    fn check_sections(&self, args: &Args<'_>, row: usize) -> Result<(), OpError> {
        let total: u64 = self.sections.iter().map(|&n| u64::from(n)).sum();
        let some = self.sections[..3].iter().any(|&n| n > 0);
        args.param("sections", self.sections, some, "one of the first three must be positive")?;
        let fits = total <= row as u64;
        args.param("sections", self.sections, fits, format!("must not sum to more than {row}"))
    }

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [a, positions] = args.sources();
        a.one_of(&[DType::F32, DType::F16])?;
        positions.i32()?;
        a.unit_stride()?;
        let [row, _, tokens, _] = a.extents();
        a.shape(row.is_multiple_of(2), "rows must have an even number of channels")?;
        self.check_channels(args, row)?;
        args.word("n_ctx_orig", self.n_ctx_orig)?;
        self.sections.iter().try_for_each(|&n| args.word("sections", n))?;
        let per_token = if self.mode.has_sections() { 4 } else { 1 };
        if self.mode.has_sections() {
            self.check_sections(args, row)?;
        }
        positions.shape_is(tokens.saturating_mul(per_token), "positions of the tokens of a")?;
        positions.contiguous()?;
        if let Some(factors) = args.optional(2) {
            factors.f32()?;
            factors.contiguous()?;
            let pairs = if self.mode == RopeMode::Vision { row / 2 } else { self.n_dims / 2 };
            let enough = factors.ne()[0] >= pairs;
            factors.shape(enough, format!("needs a factor for each of the {pairs} channel pairs"))?;
        }
        args.fresh(a.dtype(), a.ne())
    }
}

/// The inverse rotation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeBack(
    /// The rotation to undo.
    pub Rope,
);

const fn rope_info(name: &'static str, category: Category) -> OpInfo {
    OpInfo::new(name, category, &const { [need("a"), need("positions"), may("factors")] })
        .in_place()
        .reuses(&[0])
}

impl Operation for Rope {
    const INFO: OpInfo = rope_info("ROPE", Category::Language);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        Rope::infer(self, args)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for RopeBack {
    const INFO: OpInfo = rope_info("ROPE_BACK", Category::Training);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        self.0.infer(args)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Graph {
    /// Channels of `a` rotated by the tokens' positions, frequencies divided by optional factors.
    pub fn rope(
        &mut self,
        a: TensorId,
        positions: TensorId,
        factors: Option<TensorId>,
        rope: Rope,
    ) -> Result<TensorId, Error> {
        self.apply(rope, &[Some(a), Some(positions), factors])
    }

    /// The inverse of [`rope`](Graph::rope).
    pub fn rope_back(
        &mut self,
        a: TensorId,
        positions: TensorId,
        factors: Option<TensorId>,
        rope: Rope,
    ) -> Result<TensorId, Error> {
        self.apply(RopeBack(rope), &[Some(a), Some(positions), factors])
    }
}
