//! What the codebooks of the IQ formats can say about eight values: [`Signed`] for IQ2 and IQ3, [`Shifted`] for IQ1.

use super::fit::{Codec, MAX_OCTETS, Octet, Shape};
use super::lattice::{G1, Grid, least};

/// How a format stores signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signs {
    /// Eight bits for eight values.
    Free,
    /// Seven bits for eight values; the number of negative ones is even.
    Even,
}

/// Magnitudes from a grid, and signs. An octet takes one point of eight elements or two of four.
pub(super) struct Signed<const E: usize, const R: usize, const N: usize> {
    pub(super) grid: &'static Grid<E, R, N>,
    pub(super) signs: Signs,
    /// Octets that share a scale.
    pub(super) octets: usize,
    /// Scale of a group with scale code 0 when the scale of the block is one.
    pub(super) unit: f32,
}

/// Eight values as grid points and sign bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SignedCode {
    /// Index of the point, or of both.
    pub(super) points: [u16; 2],
    /// Bit `j` is set when value `j` is negative.
    pub(super) signs: u8,
}

impl<const E: usize, const R: usize, const N: usize> Signed<E, R, N> {
    /// The error of each magnitude at each place, and the signs this takes.
    fn costs(&self, octet: &Octet, scale: f32) -> ([[f32; R]; 8], u8) {
        let values = self.grid.levels().map(|level| scale * f32::from(level));
        let row = |x: f32, w: f32| values.map(|v| w * (x - v) * (x - v));
        let mut costs: [[f32; R]; 8] = std::array::from_fn(|j| row(octet.x[j].abs(), octet.w[j]));
        let mut signs = (0..8).fold(0, |signs, j| signs | u8::from(octet.x[j] < 0.0) << j);
        if self.signs == Signs::Even && signs.count_ones() % 2 == 1 {
            // One value has to be written with the wrong sign: the one where that costs least.
            let wrong = |j: usize| row(-octet.x[j].abs(), octet.w[j]);
            let prices: [f32; 8] = std::array::from_fn(|j| wrong(j)[0] - least(&costs[j]));
            let cheapest = (1..8).fold(0, |best, j| if prices[j] < prices[best] { j } else { best });
            costs[cheapest] = wrong(cheapest);
            signs ^= 1 << cheapest;
        }
        (costs, signs)
    }
}

impl<const E: usize, const R: usize, const N: usize> Codec for Signed<E, R, N> {
    type Code = SignedCode;

    fn shape(&self) -> Shape {
        Shape {
            octets: self.octets,
            max_scale: 15,
            unit: self.unit,
            top: f32::from(self.grid.levels()[R - 1]),
        }
    }

    fn nearest(&self, octets: &[Octet], scale: f32, codes: &mut [SignedCode]) {
        for (octet, code) in octets.iter().zip(codes) {
            let (costs, signs) = self.costs(octet, scale);
            for (costs, point) in costs.as_chunks().0.iter().zip(&mut code.points) {
                *point = self.grid.nearest(costs, *point).0;
            }
            code.signs = signs;
        }
    }

    fn levels(&self, code: &SignedCode) -> [f32; 8] {
        let mut levels = [0.0; 8];
        for (levels, &point) in levels.as_chunks_mut::<E>().0.iter_mut().zip(&code.points) {
            *levels = self.grid.points()[usize::from(point)].map(f32::from);
        }
        std::array::from_fn(|j| if code.signs >> j & 1 == 1 { -levels[j] } else { levels[j] })
    }
}

/// Points of the IQ1 grid, moved up or down a little.
pub(super) struct Shifted {
    /// Octets that share a scale.
    pub(super) octets: usize,
    /// Whether they share the direction of the shift as well.
    pub(super) one_shift: bool,
}

/// Eight values as a shifted grid point.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ShiftedCode {
    /// Index of the point.
    pub(super) point: u16,
    /// Whether the shift goes down.
    pub(super) down: bool,
}

/// How far a point moves.
const SHIFT: f32 = 0.125;

impl ShiftedCode {
    /// What is added to each level.
    pub(super) fn shift(self) -> f32 {
        if self.down { -SHIFT } else { SHIFT }
    }
}

/// The error of each level at each place, with a shift of the levels.
fn shifted_costs(octet: &Octet, scale: f32, shift: f32) -> [[f32; 3]; 8] {
    let values = G1.levels().map(|level| scale * (f32::from(level) + shift));
    std::array::from_fn(|j| values.map(|v| octet.w[j] * (octet.x[j] - v) * (octet.x[j] - v)))
}

impl Codec for Shifted {
    type Code = ShiftedCode;

    fn shape(&self) -> Shape {
        Shape { octets: self.octets, max_scale: 7, unit: 1.0, top: 1.0 + SHIFT }
    }

    fn nearest(&self, octets: &[Octet], scale: f32, codes: &mut [ShiftedCode]) {
        // The shift is chosen as if every combination of levels were a point. Looking for points with both shifts
        // takes twice the time, and on random values makes the error at most one percent smaller.
        let free_cost = |costs: &[[f32; 3]; 8]| -> f32 { costs.iter().map(|cost| least(cost)).sum() };
        let mut up_costs = [[[0.0; 3]; 8]; MAX_OCTETS];
        let mut down_costs = up_costs;
        let mut excess = [0.0; MAX_OCTETS]; // of going down
        for (i, octet) in octets.iter().enumerate() {
            up_costs[i] = shifted_costs(octet, scale, SHIFT);
            down_costs[i] = shifted_costs(octet, scale, -SHIFT);
            excess[i] = free_cost(&down_costs[i]) - free_cost(&up_costs[i]);
        }
        if self.one_shift {
            excess = [excess.iter().sum(); MAX_OCTETS];
        }
        for (i, code) in codes.iter_mut().enumerate() {
            code.down = excess[i] < 0.0;
            let costs = if code.down { &down_costs[i] } else { &up_costs[i] };
            code.point = G1.nearest(costs, code.point).0;
        }
    }

    fn levels(&self, code: &ShiftedCode) -> [f32; 8] {
        G1.points()[usize::from(code.point)].map(|level| f32::from(level) + code.shift())
    }
}
