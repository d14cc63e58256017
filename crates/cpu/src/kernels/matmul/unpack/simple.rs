//! Types of 32 to 128 elements with one scale, or a scale and a minimum.

use oxcart_tensor::quant::{
    BlockIq4Nl, BlockMxfp4, BlockNvfp4, BlockQ1_0, BlockQ2_0, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1,
    BlockQ8_0, FP4_DOUBLED, IQ4_LEVELS, half_e8m0, half_ue4m3,
};

use super::{Unpack, eight, looked_up, nibbles, put, splat};

/// Codes of five bits: nibbles, and above them bit `e` of `high` for element `e`.
#[inline(always)]
fn five_bits(nibbles: &[u8; 16], high: u32, codes: &mut [i8], minus: u8) {
    for i in 0..2 {
        let both = eight(nibbles, 8 * i);
        for half in 0..2 {
            let e = 16 * half + 8 * i;
            // Bit j of the byte alone in byte j, then at its top.
            let bits = splat((high >> e) as u8) & 0x8040_2010_0804_0201;
            let bits = (bits + splat(127)) & splat(128);
            put(codes, e, both >> (4 * half) & splat(15) | bits >> 3, minus);
        }
    }
}

impl Unpack for BlockQ4_0 {
    const GROUP: usize = 32;
    const LEAST: i8 = -8;
    const MOST: i8 = 7;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        nibbles::<16>(&self.nibbles, codes, 8);
        scales[0] = self.scale.get();
    }
}

impl Unpack for BlockQ4_1 {
    const GROUP: usize = 32;
    const MINS: bool = true;
    const LEAST: i8 = 0;
    const MOST: i8 = 15;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]) {
        nibbles::<16>(&self.nibbles, codes, 0);
        scales[0] = self.scale.get();
        mins[0] = self.min.get();
    }
}

impl Unpack for BlockQ5_0 {
    const GROUP: usize = 32;
    const LEAST: i8 = -16;
    const MOST: i8 = 15;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        five_bits(&self.nibbles, self.high.get(), codes, 16);
        scales[0] = self.scale.get();
    }
}

impl Unpack for BlockQ5_1 {
    const GROUP: usize = 32;
    const MINS: bool = true;
    const LEAST: i8 = 0;
    const MOST: i8 = 31;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]) {
        five_bits(&self.nibbles, self.high.get(), codes, 0);
        scales[0] = self.scale.get();
        mins[0] = self.min.get();
    }
}

impl Unpack for BlockQ8_0 {
    const GROUP: usize = 32;
    const LEAST: i8 = i8::MIN;
    const MOST: i8 = i8::MAX;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        codes.copy_from_slice(&self.codes);
        scales[0] = self.scale.get();
    }
}

impl Unpack for BlockIq4Nl {
    const GROUP: usize = 32;
    const LEAST: i8 = -127;
    const MOST: i8 = 113;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        looked_up::<16>(&self.nibbles, codes, &IQ4_LEVELS);
        scales[0] = self.scale.get();
    }
}

impl Unpack for BlockMxfp4 {
    const GROUP: usize = 32;
    const LEAST: i8 = -12;
    const MOST: i8 = 12;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        looked_up::<16>(&self.nibbles, codes, &FP4_DOUBLED);
        scales[0] = half_e8m0(self.exponent);
    }
}

impl Unpack for BlockNvfp4 {
    const GROUP: usize = 16;
    const LEAST: i8 = -12;
    const MOST: i8 = 12;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        looked_up::<8>(&self.nibbles, codes, &FP4_DOUBLED);
        for (to, scale) in scales.iter_mut().zip(self.scales) {
            *to = half_ue4m3(scale);
        }
    }
}

impl Unpack for BlockQ1_0 {
    const GROUP: usize = 32;
    const LEAST: i8 = -1;
    const MOST: i8 = 1;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        for (codes, byte) in codes.chunks_exact_mut(8).zip(self.bits) {
            for (bit, code) in codes.iter_mut().enumerate() {
                *code = (byte >> bit & 1) as i8 * 2 - 1;
            }
        }
        scales.fill(self.scale.get());
    }
}

impl Unpack for BlockQ2_0 {
    const GROUP: usize = 32;
    const LEAST: i8 = -1;
    const MOST: i8 = 2;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        for (codes, byte) in codes.chunks_exact_mut(4).zip(self.crumbs) {
            for (lane, code) in codes.iter_mut().enumerate() {
                *code = (byte >> (2 * lane) & 3) as i8 - 1;
            }
        }
        scales.fill(self.scale.get());
    }
}
