//! The search behind every encoder of this folder: octets of values in groups that share a scale, groups in blocks
//! that share the unit of those scales.
//!
//! All formats write a value as `d * unit * (2c + 1) * q`: `d` belongs to the block, `unit` to the format, the scale
//! code `c` to a group, and `q` comes from a codebook. What a codebook can say about eight values is behind [`Codec`];
//! everything about scales is here. First each group gets the scale that suits it, then the block gets the `d` whose
//! multiples are near those scales, then codes are found once more for the scales that can be stored.
//!
//! Invariant: errors are sums over what decoding gives, so no correction factors exist; and values and weights are at
//! most one before any product is formed, so nothing overflows, whatever finite block comes in.

use half::f16;
use zerocopy::FromZeros;

use super::BLOCK_LEN;
use crate::quant::Importance;

/// Groups of the formats with the smallest groups.
const MAX_GROUPS: usize = BLOCK_LEN / 16;
/// Octets of the formats with the largest groups.
pub(super) const MAX_OCTETS: usize = 4;

/// Scales tried for a group, as multiples of the one with which the codebook just reaches its largest value.
const FIRST_SCALES: [f32; 4] = [0.62, 0.78, 0.94, 1.10];
/// More of them, for groups of nearly one magnitude: they may suit a small level of the codebook better than a large.
const FLAT_SCALES: [f32; 8] = [1.3, 1.7, 2.2, 3.0, 4.0, 5.4, 10.0, 15.0];
/// How small the least magnitude of such a group may be, as a part of the largest.
const FLAT: f32 = 0.6;
/// How often a group's codes are then found anew at the scale that suits the codes before.
const REFITS: usize = 2;

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
    /// Scale of a group with scale code 0 when `d` is one.
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

    /// Finds the codes of a group with the least error at `scale`, or nearly so. What `codes` holds before is where the
    /// search starts; it decides how long that takes, not what is found.
    fn nearest(&self, octets: &[Octet], scale: f32, codes: &mut [Self::Code]);

    /// What a code means at scale one.
    fn levels(&self, code: &Self::Code) -> [f32; 8];
}

/// A block, ready to be packed.
pub(super) struct Fitted<C> {
    /// Scale of the block.
    pub(super) d: f16,
    /// Scale code of each group; formats with fewer groups use the first.
    pub(super) scales: [u8; MAX_GROUPS],
    /// Code of each octet.
    pub(super) codes: [C; BLOCK_LEN / 8],
}

/// Packs one block. It is all zero bytes when nothing is better than zeros.
pub(super) fn encode<D: Codec, B: FromZeros>(
    codec: &D,
    values: &[f32],
    weigh: impl FnOnce(&Scaled) -> [f32; BLOCK_LEN],
    pack: impl FnOnce(Fitted<D::Code>) -> B,
) -> B {
    let fitted = Scaled::new(values).and_then(|block| block.fit(codec, &weigh(&block)));
    fitted.map_or_else(B::new_zeroed, pack)
}

/// A block with magnitudes of at most one.
pub(super) struct Scaled {
    /// What the values were divided by.
    peak: f32,
    x: [f32; BLOCK_LEN],
}

impl Scaled {
    /// `None` when all values are zero.
    fn new(values: &[f32]) -> Option<Self> {
        assert_eq!(values.len(), BLOCK_LEN, "an encoder gets exactly one block");
        let peak = peak(values);
        (peak > 0.0).then(|| Scaled { peak, x: std::array::from_fn(|i| values[i] / peak) })
    }

    /// The importance of each value, or one, times a factor that grows with its magnitude: about linearly from where
    /// its square exceeds `spread` times the mean square. Importance of nothing but zeros is as good as none.
    pub(super) fn weights(&self, importance: Option<Importance<'_>>, spread: f32) -> [f32; BLOCK_LEN] {
        let spread = spread * self.x.iter().map(|x| x * x).sum::<f32>() / BLOCK_LEN as f32;
        let given = importance.map_or(&[][..], |importance| importance.weights);
        let top = peak(given).min(f32::MAX);
        let important = |i: usize| if top > 0.0 { given[i].clamp(0.0, top) / top } else { 1.0 };
        std::array::from_fn(|i| important(i) * (spread + self.x[i] * self.x[i]).sqrt())
    }

    /// Finds `d`, scale codes and codes with a small weighted error. `None` when zeros are not worse.
    fn fit<D: Codec>(&self, codec: &D, weights: &[f32; BLOCK_LEN]) -> Option<Fitted<D::Code>> {
        let shape = codec.shape();
        let to_half = |unit: f32| {
            let d = (unit * self.peak / shape.unit).min(f16::MAX.to_f32());
            f16::from_f32(d).max(f16::MIN_POSITIVE_SUBNORMAL)
        };
        let to_unit = |d: f16| d.to_f32() * shape.unit / self.peak;

        let (x, w) = (self.x.as_chunks().0, weights.as_chunks().0);
        let octets: [Octet; BLOCK_LEN / 8] = std::array::from_fn(|i| Octet { x: x[i], w: w[i] });
        let groups = octets.chunks_exact(shape.octets);
        let mut fits = [Fit::default(); MAX_GROUPS];
        let fits = &mut fits[..groups.len()];
        for (fit, octets) in fits.iter_mut().zip(groups.clone()) {
            *fit = search_group(codec, octets);
        }

        let d = to_half(search_unit(fits, shape.max_scale));
        let mut scales = [0; MAX_GROUPS];
        let mut sums = Sums::default();
        for ((fit, scale), octets) in fits.iter_mut().zip(&mut scales).zip(groups) {
            (*fit, *scale) = search_scale(codec, octets, fit, to_unit(d));
            sums.add(&fit.sums, multiple(*scale));
        }
        let refitted = to_half(sums.best_scale());
        let error = |d: f16| sums.error(to_unit(d));
        let d = if error(refitted) < error(d) { refitted } else { d };

        let codes = std::array::from_fn(|i| fits[i / shape.octets].codes[i % shape.octets]);
        (error(d) < 0.0).then_some(Fitted { d, scales, codes })
    }
}

/// The largest magnitude.
fn peak(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |peak, value| value.abs().max(peak))
}

/// What a scale code multiplies the smallest scale with.
fn multiple(scale_code: u8) -> f32 {
    f32::from(2 * scale_code + 1)
}

/// The two sums that give the error of values `x`, written with levels `q`, at any scale.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// Sum of `w * x * q`.
    xq: f32,
    /// Sum of `w * q * q`.
    qq: f32,
}

impl Sums {
    /// Adds values that are written with levels `times` as large.
    fn add(&mut self, other: &Sums, times: f32) {
        self.xq += times * other.xq;
        self.qq += times * times * other.qq;
    }

    /// The scale at which the error is least.
    fn best_scale(&self) -> f32 {
        if self.qq > 0.0 { (self.xq / self.qq).max(0.0) } else { 0.0 }
    }

    /// The error at `scale`, less that of writing zeros.
    fn error(&self, scale: f32) -> f32 {
        scale * (scale * self.qq - 2.0 * self.xq)
    }

    /// The error at the best scale, less that of writing zeros.
    fn least_error(&self) -> f32 {
        -self.xq * self.best_scale()
    }
}

/// One group written in one way.
#[derive(Clone, Copy, Default)]
struct Fit<C> {
    codes: [C; MAX_OCTETS],
    sums: Sums,
}

impl<C: Copy> Fit<C> {
    /// The best way at a scale. The search starts from `codes`.
    fn new<D: Codec<Code = C>>(codec: &D, octets: &[Octet], scale: f32, mut codes: [C; MAX_OCTETS]) -> Self {
        codec.nearest(octets, scale, &mut codes[..octets.len()]);
        let mut sums = Sums::default();
        for (octet, code) in octets.iter().zip(&codes) {
            for ((x, w), q) in octet.x.iter().zip(&octet.w).zip(codec.levels(code)) {
                sums.xq += w * x * q;
                sums.qq += w * q * q;
            }
        }
        Fit { codes, sums }
    }
}

/// The best way found to write one group at a scale of its own.
fn search_group<D: Codec>(codec: &D, octets: &[Octet]) -> Fit<D::Code> {
    let peak = octets.iter().map(|octet| peak(&octet.x)).fold(0.0, f32::max);
    let reach = peak / codec.shape().top;
    let mut best = Fit::new(codec, octets, FIRST_SCALES[0] * reach, Default::default());
    let is_flat = octets.iter().all(|octet| octet.x.iter().all(|x| x.abs() >= FLAT * peak));
    let flat_scales = if is_flat { &FLAT_SCALES[..] } else { &[] };
    for times in FIRST_SCALES[1..].iter().chain(flat_scales) {
        let fit = Fit::new(codec, octets, times * reach, best.codes);
        if fit.sums.least_error() < best.sums.least_error() {
            best = fit;
        }
    }
    for _ in 0..REFITS {
        let fit = Fit::new(codec, octets, best.sums.best_scale(), best.codes);
        if fit.sums.least_error() >= best.sums.least_error() {
            break;
        }
        best = fit;
    }
    best
}

/// The smallest scale whose multiples are nearest to the scales of all groups.
fn search_unit<C>(fits: &[Fit<C>], max_scale: u8) -> f32 {
    let peak = fits.iter().map(|fit| fit.sums.best_scale()).fold(0.0, f32::max);
    let (mut best, mut best_error) = (0.0, 0.0);
    for quarters in -8..=8 {
        let mut unit = peak / (multiple(max_scale) + 0.25 * quarters as f32);
        // The second unit is the one that suits the scale codes which the first one leads to.
        for _ in 0..2 {
            let mut sums = Sums::default();
            for fit in fits {
                // The cast saturates, which is right for quotients out of range.
                let code = (0.5 * (fit.sums.best_scale() / unit - 1.0)).round_ties_even() as u8;
                sums.add(&fit.sums, multiple(code.min(max_scale)));
            }
            if sums.error(unit) < best_error {
                (best, best_error) = (unit, sums.error(unit));
            }
            unit = sums.best_scale();
        }
    }
    best
}

/// The best way to write a group with one of the two scale codes around the scale that suits it.
fn search_scale<D: Codec>(
    codec: &D,
    octets: &[Octet],
    start: &Fit<D::Code>,
    unit: f32,
) -> (Fit<D::Code>, u8) {
    let max_scale = codec.shape().max_scale;
    let below = ((0.5 * (start.sums.best_scale() / unit - 1.0)) as u8).min(max_scale);
    let at = |code: u8| {
        let scale = unit * multiple(code);
        let fit = Fit::new(codec, octets, scale, start.codes);
        (fit, code, fit.sums.error(scale))
    };
    let (low, high) = (at(below), at((below + 1).min(max_scale)));
    let (fit, code, _) = if low.2 <= high.2 { low } else { high };
    (fit, code)
}
