//! The search behind every encoder of this folder: groups of eight-value runs that share a scale, in blocks that
//! share the unit of those scales.
//!
//! All formats write a value as `d * unit * (2c + 1) * q`: `d` and the constant `unit` belong to the block, the code `c` to a group, and `q`
//! comes from a codebook. What a codebook can say about eight values is behind [`Codec`]; everything about scales is
//! here. Errors are weighted sums of squares of true decoded values, never of idealized levels, so no correction
//! factor is needed anywhere.
//!
//! Invariant: values are scaled to magnitudes of at most one and weights likewise before any product is formed, so
//! nothing overflows, whatever finite block comes in.

use half::f16;
use zerocopy::FromZeros;

use super::BLOCK_LEN;
use crate::quant::Importance;

/// Groups of the formats with the smallest groups.
pub(super) const MAX_GROUPS: usize = BLOCK_LEN / 16;
/// Octets of the formats with the largest groups.
const MAX_OCTETS: usize = 4;

/// Eight consecutive values and how much each matters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Octet {
    pub(super) x: [f32; 8],
    pub(super) w: [f32; 8],
}

/// The numbers of a format.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Octets that share a scale.
    pub(super) octets: usize,
    /// The largest scale code.
    pub(super) max_scale: u8,
    /// Scale of a group with scale code 0 when the scale of the block is one.
    pub(super) unit: f32,
    /// The largest magnitude a code can mean.
    pub(super) top: f32,
}

/// A way to write groups of octets with codebook points.
pub(super) trait Codec {
    /// How one octet is written.
    type Code: Copy + Default;

    /// The numbers that tell formats with the same kind of code apart.
    fn shape(&self) -> Shape;

    /// Finds the codes with the least error at `scale`. What `codes` holds before is where the search starts.
    fn nearest(&self, octets: &[Octet], scale: f32, codes: &mut [Self::Code]);

    /// What a code means at scale one.
    fn levels(&self, code: &Self::Code) -> [f32; 8];
}

/// A block as its format packs it.
pub(super) struct Fitted<C> {
    /// Scale of the block.
    pub(super) d: f16,
    /// Scale code of each group.
    pub(super) scales: [u8; MAX_GROUPS],
    /// Code of each octet.
    pub(super) codes: [C; BLOCK_LEN / 8],
}

/// Packs one block. A block of zeros, or of values so small that `d` is zero, is all zero bytes.
pub(super) fn encode<D: Codec, B: FromZeros>(
    codec: &D,
    values: &[f32],
    weigh: impl FnOnce(&Scaled) -> [f32; BLOCK_LEN],
    pack: impl FnOnce(Fitted<D::Code>) -> B,
) -> B {
    let fitted = Scaled::new(values).and_then(|block| block.fit(codec, &weigh(&block)));
    fitted.map_or_else(B::new_zeroed, pack)
}

/// One group written in one way: codes, and the two sums that give the error at any scale.
#[derive(Clone, Copy)]
struct Fit<C> {
    codes: [C; MAX_OCTETS],
    /// Sum of `w * x * q`.
    xq: f32,
    /// Sum of `w * q * q`.
    qq: f32,
}

impl<C: Copy + Default> Fit<C> {
    fn new<D: Codec<Code = C>>(codec: &D, octets: &[Octet], scale: f32, mut codes: [C; MAX_OCTETS]) -> Self {
        codec.nearest(octets, scale, &mut codes[..octets.len()]);
        let (mut xq, mut qq) = (0.0, 0.0);
        for (octet, code) in octets.iter().zip(&codes) {
            let levels = codec.levels(code);
            for ((x, w), q) in octet.x.iter().zip(&octet.w).zip(levels) {
                xq += w * x * q;
                qq += w * q * q;
            }
        }
        Fit { codes, xq, qq }
    }

    /// The scale at which the error is least.
    fn best_scale(&self) -> f32 {
        if self.qq > 0.0 { (self.xq / self.qq).max(0.0) } else { 0.0 }
    }

    /// How much the error at the best scale is below that of writing zeros.
    fn gain(&self) -> f32 {
        self.xq * self.best_scale()
    }

    /// The error at `scale`, less a term that no code changes.
    fn error(&self, scale: f32) -> f32 {
        scale * (scale * self.qq - 2.0 * self.xq)
    }
}

/// Ratios of the scales tried first to the scale that reaches a group's largest value.
const RATIOS: [f32; 10] = [0.60, 0.68, 0.75, 0.81, 0.87, 0.93, 0.99, 1.06, 1.15, 1.25];

/// The best way found to write one group at a scale of its own.
fn search_group<D: Codec>(codec: &D, octets: &[Octet]) -> Fit<D::Code> {
    let peak = octets.iter().flat_map(|octet| &octet.x).fold(0.0, |peak: f32, x| peak.max(x.abs()));
    let mut best = Fit::new(codec, octets, RATIOS[0] * peak / codec.shape().top, Default::default());
    for ratio in &RATIOS[1..] {
        let fit = Fit::new(codec, octets, ratio * peak / codec.shape().top, best.codes);
        if fit.gain() > best.gain() {
            best = fit;
        }
    }
    for _ in 0..2 {
        let fit = Fit::new(codec, octets, best.best_scale(), best.codes);
        if fit.gain() <= best.gain() {
            break;
        }
        best = fit;
    }
    best
}

/// The scale code whose scale is nearest to `scale` when the smallest scale is `unit`.
fn scale_code(scale: f32, unit: f32, max: u8) -> u8 {
    // The cast saturates, which is what is wanted of a quotient out of range.
    ((0.5 * (scale / unit - 1.0)).round_ties_even() as u8).min(max)
}

/// The smallest scale, as a real number, with which the scales of all groups can be told best.
fn search_unit<C: Copy + Default>(fits: &[Fit<C>], max_scale: u8) -> f32 {
    let peak = fits.iter().map(Fit::best_scale).fold(0.0, f32::max);
    let steps = f32::from(2 * max_scale + 1);
    let (mut best, mut best_error) = (peak / steps, f32::INFINITY);
    for k in -8..=8 {
        let mut unit = peak / (steps + 0.25 * k as f32);
        for _ in 0..2 {
            let (mut xq, mut qq, mut error) = (0.0, 0.0, 0.0);
            for fit in fits {
                let times = f32::from(2 * scale_code(fit.best_scale(), unit, max_scale) + 1);
                xq += times * fit.xq;
                qq += times * times * fit.qq;
                error += fit.error(times * unit);
            }
            if error < best_error {
                (best, best_error) = (unit, error);
            }
            unit = if qq > 0.0 { (xq / qq).max(0.0) } else { 0.0 };
        }
    }
    best
}

/// The block with magnitudes of at most one.
pub(super) struct Scaled {
    peak: f32,
    x: [f32; BLOCK_LEN],
}

impl Scaled {
    /// `None` when all values are zero.
    fn new(values: &[f32]) -> Option<Self> {
        assert_eq!(values.len(), BLOCK_LEN, "an encoder gets exactly one block");
        let peak = values.iter().fold(0.0, |peak: f32, x| peak.max(x.abs()));
        (peak > 0.0).then(|| Scaled { peak, x: std::array::from_fn(|i| values[i] / peak) })
    }

    fn mean_square(&self) -> f32 {
        self.x.iter().map(|x| x * x).sum::<f32>() / BLOCK_LEN as f32
    }

    /// Weights that grow with the square of a value, from `floor` times the mean square.
    pub(super) fn plain_weights(&self, floor: f32) -> [f32; BLOCK_LEN] {
        let floor = floor * self.mean_square();
        self.x.map(|x| floor + x * x)
    }

    /// Importance, growing with the values from where they exceed `spread` times their mean square. Importance of
    /// nothing but zeros says nothing: all values count alike then.
    pub(super) fn weights(&self, importance: Importance<'_>, spread: f32) -> [f32; BLOCK_LEN] {
        let importance = importance.weights;
        let spread = spread * self.mean_square();
        let top = importance.iter().fold(0.0, |top: f32, &w| top.max(w)).min(f32::MAX);
        let scale = |w: f32| if top > 0.0 { w.clamp(0.0, top) / top } else { 1.0 };
        std::array::from_fn(|i| scale(importance[i]) * (spread + self.x[i] * self.x[i]).sqrt())
    }

    /// Finds `d`, scale codes and codes with a small weighted error. `None` when `d` is so small that it is zero.
    fn fit<D: Codec>(&self, codec: &D, weights: &[f32; BLOCK_LEN]) -> Option<Fitted<D::Code>> {
        let shape = codec.shape();
        let (x, w) = (self.x.as_chunks().0, weights.as_chunks().0);
        let octets: [Octet; BLOCK_LEN / 8] = std::array::from_fn(|i| Octet { x: x[i], w: w[i] });
        let groups = octets.chunks_exact(shape.octets);
        let n = groups.len();

        let mut fits = [Fit { codes: Default::default(), xq: 0.0, qq: 0.0 }; MAX_GROUPS];
        for (fit, octets) in fits.iter_mut().zip(groups.clone()) {
            *fit = search_group(codec, octets);
        }
        let fits = &mut fits[..n];
        let to_half = |unit: f32| f16::from_f32((unit * self.peak / shape.unit).min(f16::MAX.to_f32()));
        let to_unit = |d: f16| d.to_f32() * shape.unit / self.peak;

        let mut d = to_half(search_unit(fits, shape.max_scale));
        let mut scales = [0; MAX_GROUPS];
        for round in 0..2 {
            let unit = to_unit(d);
            if unit <= 0.0 {
                return None;
            }
            let (mut xq, mut qq) = (0.0, 0.0);
            for ((fit, octets), scale) in fits.iter_mut().zip(groups.clone()).zip(&mut scales) {
                let near =
                    if round == 0 { scale_code(fit.best_scale(), unit, shape.max_scale) } else { *scale };
                (*fit, *scale) = search_scale(codec, octets, fit, unit, near);
                let times = f32::from(2 * *scale + 1);
                xq += times * fit.xq;
                qq += times * times * fit.qq;
            }
            let error = |unit: f32| unit * (unit * qq - 2.0 * xq);
            let refitted = to_half(if qq > 0.0 { xq / qq } else { 0.0 });
            if error(to_unit(refitted)) >= error(unit) {
                break;
            }
            d = refitted;
        }
        let codes = std::array::from_fn(|i| fits[i / shape.octets].codes[i % shape.octets]);
        Some(Fitted { d, scales, codes })
    }
}

/// The best way to write a group with one of the scale codes around `near`.
fn search_scale<D: Codec>(
    codec: &D,
    octets: &[Octet],
    start: &Fit<D::Code>,
    unit: f32,
    near: u8,
) -> (Fit<D::Code>, u8) {
    let at = |code: u8| {
        let scale = unit * f32::from(2 * code + 1);
        let fit = Fit::new(codec, octets, scale, start.codes);
        (fit, code, fit.error(scale))
    };
    let mut best = at(near);
    for code in near.saturating_sub(1)..=(near + 1).min(codec.shape().max_scale) {
        if code != near {
            let found = at(code);
            if found.2 < best.2 {
                best = found;
            }
        }
    }
    (best.0, best.1)
}
