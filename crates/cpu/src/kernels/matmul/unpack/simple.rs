//! Types of 32 to 128 elements with one scale, or a scale and a minimum.

use oxcart_tensor::quant::{
    BlockIq4Nl, BlockMxfp4, BlockNvfp4, BlockQ1_0, BlockQ2_0, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1,
    BlockQ8_0, FP4_DOUBLED, IQ4_LEVELS, half_e8m0, half_ue4m3,
};

use super::{Unpack, nibbles};

/// Adds the fifth bits of 32 codes.
#[inline(always)]
fn add_high(high: u32, codes: &mut [i8]) {
    for (e, code) in codes.iter_mut().enumerate() {
        *code += ((high >> e & 1) << 4) as i8;
    }
}

impl Unpack for BlockQ4_0 {
    const GROUP: usize = 32;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        nibbles::<16>(&self.nibbles, codes, |code| code as i8 - 8);
        scales[0] = self.scale.get();
    }
}

impl Unpack for BlockQ4_1 {
    const GROUP: usize = 32;
    const MINS: bool = true;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]) {
        nibbles::<16>(&self.nibbles, codes, |code| code as i8);
        scales[0] = self.scale.get();
        mins[0] = self.min.get();
    }
}

impl Unpack for BlockQ5_0 {
    const GROUP: usize = 32;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        nibbles::<16>(&self.nibbles, codes, |code| code as i8 - 16);
        add_high(self.high.get(), codes);
        scales[0] = self.scale.get();
    }
}

impl Unpack for BlockQ5_1 {
    const GROUP: usize = 32;
    const MINS: bool = true;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]) {
        nibbles::<16>(&self.nibbles, codes, |code| code as i8);
        add_high(self.high.get(), codes);
        scales[0] = self.scale.get();
        mins[0] = self.min.get();
    }
}

impl Unpack for BlockQ8_0 {
    const GROUP: usize = 32;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        codes.copy_from_slice(&self.codes);
        scales[0] = self.scale.get();
    }
}

impl Unpack for BlockIq4Nl {
    const GROUP: usize = 32;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        nibbles::<16>(&self.nibbles, codes, |code| IQ4_LEVELS[usize::from(code)]);
        scales[0] = self.scale.get();
    }
}

impl Unpack for BlockMxfp4 {
    const GROUP: usize = 32;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        nibbles::<16>(&self.nibbles, codes, |code| FP4_DOUBLED[usize::from(code)]);
        scales[0] = half_e8m0(self.exponent);
    }
}

impl Unpack for BlockNvfp4 {
    const GROUP: usize = 16;

    #[inline(always)]
    fn unpack(&self, codes: &mut [i8], scales: &mut [f32], _: &mut [f32]) {
        nibbles::<8>(&self.nibbles, codes, |code| FP4_DOUBLED[usize::from(code)]);
        for (to, scale) in scales.iter_mut().zip(self.scales) {
            *to = half_ue4m3(scale);
        }
    }
}

impl Unpack for BlockQ1_0 {
    const GROUP: usize = 32;

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
