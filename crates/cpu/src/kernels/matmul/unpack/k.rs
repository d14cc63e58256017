//! Super-blocks of 256 elements in groups, whose small scales share a large one; and the ternary types.

use oxcart_tensor::quant::{
    BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K, BlockTq1_0, BlockTq2_0, GroupScales,
    IQ4_LEVELS,
};

use super::{Unpack, crumbs, eight, looked_up, nibbles, plane_bits, put, splat};

impl Unpack for BlockQ2K {
    const GROUP: usize = 16;
    const MINS: bool = true;
    const LEAST: i8 = 0;
    const MOST: i8 = 3;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]) {
        crumbs(&self.crumbs, codes, 0, |_| 0);
        let (scale, min) = (self.scale.get(), self.min.get());
        for ((to, to_min), nibbles) in scales.iter_mut().zip(mins).zip(self.scales) {
            *to = scale * f32::from(nibbles & 15);
            *to_min = -min * f32::from(nibbles >> 4);
        }
    }
}

impl Unpack for BlockQ3K {
    const GROUP: usize = 16;
    const LEAST: i8 = -4;
    const MOST: i8 = 3;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        crumbs(&self.crumbs, codes, 4, |e| plane_bits(&self.high, e) << 2);
        let scale = self.scale.get();
        for (to, group_scale) in scales.iter_mut().zip(self.group_scales()) {
            *to = scale * f32::from(group_scale);
        }
    }
}

/// Scales and minimums of Q4_K and Q5_K.
#[inline(always)]
fn spread_groups(scale: f32, min: f32, groups: &GroupScales, scales: &mut [f32], mins: &mut [f32]) {
    for (to, group_scale) in scales.iter_mut().zip(groups.scales()) {
        *to = scale * f32::from(group_scale);
    }
    for (to, group_min) in mins.iter_mut().zip(groups.mins()) {
        *to = -min * f32::from(group_min);
    }
}

impl Unpack for BlockQ4K {
    const GROUP: usize = 32;
    const MINS: bool = true;
    const LEAST: i8 = 0;
    const MOST: i8 = 15;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]) {
        nibbles::<32>(&self.nibbles, codes, 0);
        spread_groups(self.scale.get(), self.min.get(), &self.groups, scales, mins);
    }
}

impl Unpack for BlockQ5K {
    const GROUP: usize = 32;
    const MINS: bool = true;
    const LEAST: i8 = 0;
    const MOST: i8 = 31;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]) {
        for run in 0..4 {
            for i in 0..4 {
                let both = eight(&self.nibbles, 32 * run + 8 * i);
                for half in 0..2 {
                    let e = 64 * run + 32 * half + 8 * i;
                    let high = plane_bits(&self.high, e) << 4;
                    put(codes, e, both >> (4 * half) & splat(15) | high, 0);
                }
            }
        }
        spread_groups(self.scale.get(), self.min.get(), &self.groups, scales, mins);
    }
}

/// Codes of Q6_K: in each run of 128 elements, byte `i` of the nibbles holds elements `i` and `i + 64`, byte `i` of the crumbs
/// the upper bits of elements `i`, `i + 32`, `i + 64` and `i + 96`.
#[inline(always)]
fn crumbs_above(crumbs: &[u8; 64], nibbles: &[u8; 128], codes: &mut [i8]) {
    for run in 0..2 {
        for i in 0..4 {
            let high = eight(crumbs, 32 * run + 8 * i);
            for lane in 0..4 {
                let low = eight(nibbles, 64 * run + 32 * (lane % 2) + 8 * i) >> (4 * (lane / 2)) & splat(15);
                put(codes, 128 * run + 32 * lane + 8 * i, low | (high >> (2 * lane) & splat(3)) << 4, 32);
            }
        }
    }
}

impl Unpack for BlockQ6K {
    const GROUP: usize = 16;
    const LEAST: i8 = -32;
    const MOST: i8 = 31;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        crumbs_above(&self.crumbs, &self.nibbles, codes);
        let scale = self.scale.get();
        for (to, group_scale) in scales.iter_mut().zip(self.scales) {
            *to = scale * f32::from(group_scale);
        }
    }
}

impl Unpack for BlockIq4Xs {
    const GROUP: usize = 32;
    const LEAST: i8 = -127;
    const MOST: i8 = 113;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        looked_up::<16>(&self.nibbles, codes, &IQ4_LEVELS);
        let (scale, high) = (self.scale.get(), self.scales_high.get());
        for (g, to) in scales.iter_mut().enumerate() {
            let low = self.scales_low[g / 2] >> (4 * (g % 2)) & 15;
            let code = i16::from(low) | ((high >> (2 * g) & 3) << 4) as i16;
            *to = scale * f32::from(code - 32);
        }
    }
}

impl Unpack for BlockTq1_0 {
    const GROUP: usize = 32;
    const LEAST: i8 = -1;
    const MOST: i8 = 1;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        let (long, short) = self.digits.split_at(32);
        let (long_codes, rest) = codes.split_at_mut(160);
        let (short_codes, last_codes) = rest.split_at_mut(80);
        for (bytes, codes) in [(long, long_codes), (short, short_codes), (&self.last_digits, last_codes)] {
            let mut power = 1u8;
            for codes in codes.chunks_exact_mut(bytes.len()) {
                for (code, byte) in codes.iter_mut().zip(bytes) {
                    *code = ((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as i8 - 1;
                }
                power = power.wrapping_mul(3);
            }
        }
        scales.fill(self.scale.get());
    }
}

impl Unpack for BlockTq2_0 {
    const GROUP: usize = 32;
    const LEAST: i8 = -1;
    const MOST: i8 = 2;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        crumbs(&self.crumbs, codes, 1, |_| 0);
        scales.fill(self.scale.get());
    }
}
