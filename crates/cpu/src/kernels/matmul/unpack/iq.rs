//! Codebook types: points of a grid with signs, or moved by an eighth.

use half::f16;
use oxcart_tensor::quant::from_f16;
use oxcart_tensor::quant::iq::{
    BlockIq1M, BlockIq1S, BlockIq2S, BlockIq2Xs, BlockIq2Xxs, BlockIq3S, BlockIq3Xxs, G1, G2_S, G2_XS,
    G2_XXS, G3_S, G3_XXS, even_signs,
};
use zerocopy::little_endian::U16;

use super::Unpack;

/// Levels, negated where a bit is set.
#[inline(always)]
fn signed(levels: &[i8], signs: u8, codes: &mut [i8]) {
    for (j, (code, &level)) in codes.iter_mut().zip(levels).enumerate() {
        let negative = -((signs >> j & 1) as i8);
        *code = (level ^ negative) - negative;
    }
}

/// Four bits of scale, two groups per byte.
#[inline(always)]
fn scale_code(scales: &[u8], group: usize) -> f32 {
    f32::from(scales[group / 2] >> (4 * (group % 2)) & 15)
}

/// Levels of [`G1`] moved up or down by an eighth, in eighths.
#[inline(always)]
fn shifted(point: u16, down: bool, codes: &mut [i8]) {
    let shift = if down { -1 } else { 1 };
    for (code, &level) in codes.iter_mut().zip(&G1.points()[usize::from(point)]) {
        *code = 8 * level + shift;
    }
}

/// The value of a scale that is stored as bits.
#[inline(always)]
fn value(scale: U16) -> f32 {
    from_f16(f16::from_bits(scale.get()))
}

impl Unpack for BlockIq1S {
    const GROUP: usize = 32;
    const LEAST: i8 = -9;
    const MOST: i8 = 9;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        let scale = value(self.scale) * 0.125;
        for (g, codes) in codes.chunks_exact_mut(32).enumerate() {
            let word = self.groups[g].get();
            scales[g] = scale * f32::from(1 + 2 * (word >> 12 & 7));
            for (i, codes) in codes.chunks_exact_mut(8).enumerate() {
                let point = u16::from(self.points_low[g][i]) | (word >> (3 * i) & 7) << 8;
                shifted(point, word >> 15 == 1, codes);
            }
        }
    }
}

impl Unpack for BlockIq1M {
    const GROUP: usize = 16;
    const LEAST: i8 = -9;
    const MOST: i8 = 9;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        let scale = from_f16(self.scale()) * 0.125;
        for (g, to) in scales.iter_mut().enumerate() {
            *to = scale * f32::from(1 + 2 * (self.scales[g / 4].get() >> (3 * (g % 4)) & 7));
        }
        for (i, codes) in codes.chunks_exact_mut(8).enumerate() {
            let high = self.points_high[i / 2] >> (4 * (i % 2));
            shifted(u16::from(self.points_low[i]) | u16::from(high & 7) << 8, high & 8 != 0, codes);
        }
    }
}

impl Unpack for BlockIq2Xxs {
    const GROUP: usize = 32;
    const LEAST: i8 = -43;
    const MOST: i8 = 43;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        let scale = value(self.scale);
        for ((group, codes), to) in self.groups.iter().zip(codes.chunks_exact_mut(32)).zip(scales) {
            let word = group.signs_and_scale.get();
            *to = scale * (0.5 + (word >> 28) as f32) * 0.25;
            for (i, codes) in codes.chunks_exact_mut(8).enumerate() {
                let signs = even_signs((word >> (7 * i)) as u8);
                signed(&G2_XXS.points()[usize::from(group.points[i])], signs, codes);
            }
        }
    }
}

impl Unpack for BlockIq2Xs {
    const GROUP: usize = 16;
    const LEAST: i8 = -43;
    const MOST: i8 = 43;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        let scale = value(self.scale);
        for (g, to) in scales.iter_mut().enumerate() {
            *to = scale * (0.5 + scale_code(&self.scales, g)) * 0.25;
        }
        for (octet, codes) in self.octets.iter().zip(codes.chunks_exact_mut(8)) {
            let signs = even_signs((octet.get() >> 9) as u8);
            signed(&G2_XS.points()[usize::from(octet.get() & 0x1FF)], signs, codes);
        }
    }
}

impl Unpack for BlockIq2S {
    const GROUP: usize = 16;
    const LEAST: i8 = -43;
    const MOST: i8 = 43;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        let scale = value(self.scale);
        for (g, to) in scales.iter_mut().enumerate() {
            *to = scale * (0.5 + scale_code(&self.scales, g)) * 0.25;
        }
        for (i, codes) in codes.chunks_exact_mut(8).enumerate() {
            let high = self.points_high[i / 4] >> (2 * (i % 4)) & 3;
            let point = usize::from(self.points_low[i]) | usize::from(high) << 8;
            signed(&G2_S.points()[point], self.signs[i], codes);
        }
    }
}

impl Unpack for BlockIq3Xxs {
    const GROUP: usize = 32;
    const LEAST: i8 = -62;
    const MOST: i8 = 62;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        let scale = value(self.scale);
        for (g, codes) in codes.chunks_exact_mut(32).enumerate() {
            let word = self.signs_and_scale[g].get();
            scales[g] = scale * (0.5 + (word >> 28) as f32) * 0.5;
            for (i, codes) in codes.chunks_exact_mut(8).enumerate() {
                let signs = even_signs((word >> (7 * i)) as u8);
                let (first, second) = codes.split_at_mut(4);
                signed(&G3_XXS.points()[usize::from(self.points[g][2 * i])], signs, first);
                signed(&G3_XXS.points()[usize::from(self.points[g][2 * i + 1])], signs >> 4, second);
            }
        }
    }
}

impl Unpack for BlockIq3S {
    const GROUP: usize = 32;
    const LEAST: i8 = -15;
    const MOST: i8 = 15;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        let scale = value(self.scale);
        for (g, codes) in codes.chunks_exact_mut(32).enumerate() {
            scales[g] = scale * (1.0 + 2.0 * scale_code(&self.scales, g));
            let point = |k: usize| {
                let high = self.points_high[g] >> k & 1;
                usize::from(self.points_low[g][k]) | usize::from(high) << 8
            };
            for (i, codes) in codes.chunks_exact_mut(8).enumerate() {
                let (first, second) = codes.split_at_mut(4);
                signed(&G3_S.points()[point(2 * i)], self.signs[g][i], first);
                signed(&G3_S.points()[point(2 * i + 1)], self.signs[g][i] >> 4, second);
            }
        }
    }
}
