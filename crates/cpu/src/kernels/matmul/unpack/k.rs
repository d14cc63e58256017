//! Super-blocks of 256 elements in groups, whose small scales share a large one; and the ternary types.

use oxcart_tensor::quant::{
    BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K, BlockTq1_0, BlockTq2_0, GroupScales,
    IQ4_LEVELS,
};

use super::{Unpack, add_bits, crumbs, nibbles};

impl Unpack for BlockQ2K {
    const GROUP: usize = 16;
    const MINS: bool = true;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]) {
        crumbs(&self.crumbs, codes, 0);
        let (scale, min) = (self.scale.get(), self.min.get());
        for ((to, to_min), nibbles) in scales.iter_mut().zip(mins).zip(self.scales) {
            *to = scale * f32::from(nibbles & 15);
            *to_min = -min * f32::from(nibbles >> 4);
        }
    }
}

impl Unpack for BlockQ3K {
    const GROUP: usize = 16;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        crumbs(&self.crumbs, codes, 4);
        add_bits(&self.high, codes, 2);
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

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]) {
        nibbles::<32>(&self.nibbles, codes, |code| code as i8);
        spread_groups(self.scale.get(), self.min.get(), &self.groups, scales, mins);
    }
}

impl Unpack for BlockQ5K {
    const GROUP: usize = 32;
    const MINS: bool = true;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]) {
        nibbles::<32>(&self.nibbles, codes, |code| code as i8);
        add_bits(&self.high, codes, 4);
        spread_groups(self.scale.get(), self.min.get(), &self.groups, scales, mins);
    }
}

impl Unpack for BlockQ6K {
    const GROUP: usize = 16;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        let runs = self.nibbles.chunks_exact(64).zip(self.crumbs.chunks_exact(32));
        for ((nibbles, crumbs), codes) in runs.zip(codes.chunks_exact_mut(128)) {
            for (lane, codes) in codes.chunks_exact_mut(32).enumerate() {
                let low = &nibbles[32 * (lane % 2)..][..32];
                for ((low, high), code) in low.iter().zip(crumbs).zip(codes) {
                    *code = (low >> (4 * (lane / 2)) & 15 | (high >> (2 * lane) & 3) << 4) as i8 - 32;
                }
            }
        }
        let scale = self.scale.get();
        for (to, group_scale) in scales.iter_mut().zip(self.scales) {
            *to = scale * f32::from(group_scale);
        }
    }
}

impl Unpack for BlockIq4Xs {
    const GROUP: usize = 32;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        nibbles::<16>(&self.nibbles, codes, |code| IQ4_LEVELS[usize::from(code)]);
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

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        crumbs(&self.crumbs, codes, 1);
        scales.fill(self.scale.get());
    }
}
