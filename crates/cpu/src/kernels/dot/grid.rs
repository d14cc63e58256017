//! The codebook formats IQ1, IQ2 and IQ3: their scales.

use oxcart_tensor::quant::iq::{
    BlockIq1M, BlockIq1S, BlockIq2S, BlockIq2Xs, BlockIq2Xxs, BlockIq3S, BlockIq3Xxs,
};

use super::lanes::Lanes;
use super::large::Large;
use super::swar::ONES;

/// Odd scales `1 + 2 * code` of sixteen groups, from a nibble each.
#[inline(always)]
fn odd_scales<S: Lanes>(s: S, nibbles: u64) -> S::Groups {
    s.interleaved(ONES + 2 * (nibbles & (15 * ONES)), ONES + 2 * (nibbles >> 4 & (15 * ONES)))
}

/// Odd scales of eight groups of 32.
#[inline(always)]
fn odd_scales_of_eight<S: Lanes>(s: S, code: impl Fn(usize) -> u8) -> S::Groups {
    let codes = (0..8).fold(0, |codes, group| codes | u64::from(code(group)) << (8 * group));
    s.interleaved(ONES + 2 * codes, ONES + 2 * codes)
}

impl Large for BlockIq2Xxs {
    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S) -> Option<S::Groups> {
        Some(odd_scales_of_eight(s, |group| (self.groups[group].signs_and_scale.get() >> 28) as u8))
    }
    #[inline(always)]
    fn scale<S: Lanes>(&self, s: S) -> f32 {
        0.125 * s.half(self.scale.get())
    }
}

impl Large for BlockIq2Xs {
    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S) -> Option<S::Groups> {
        Some(odd_scales(s, u64::from_le_bytes(self.scales)))
    }
    #[inline(always)]
    fn scale<S: Lanes>(&self, s: S) -> f32 {
        0.125 * s.half(self.scale.get())
    }
}

impl Large for BlockIq2S {
    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S) -> Option<S::Groups> {
        Some(odd_scales(s, u64::from_le_bytes(self.scales)))
    }
    #[inline(always)]
    fn scale<S: Lanes>(&self, s: S) -> f32 {
        0.125 * s.half(self.scale.get())
    }
}

impl Large for BlockIq3Xxs {
    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S) -> Option<S::Groups> {
        Some(odd_scales_of_eight(s, |group| (self.signs_and_scale[group].get() >> 28) as u8))
    }
    #[inline(always)]
    fn scale<S: Lanes>(&self, s: S) -> f32 {
        0.25 * s.half(self.scale.get())
    }
}

impl Large for BlockIq3S {
    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S) -> Option<S::Groups> {
        Some(odd_scales_of_eight(s, |group| self.scales[group / 2] >> (4 * (group % 2)) & 15))
    }
    #[inline(always)]
    fn scale<S: Lanes>(&self, s: S) -> f32 {
        s.half(self.scale.get())
    }
}

impl Large for BlockIq1S {
    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S) -> Option<S::Groups> {
        Some(odd_scales_of_eight(s, |group| (self.groups[group].get() >> 12 & 7) as u8))
    }
    #[inline(always)]
    fn scale<S: Lanes>(&self, s: S) -> f32 {
        0.125 * s.half(self.scale.get())
    }
}

impl Large for BlockIq1M {
    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S) -> Option<S::Groups> {
        let code = |group: usize| u64::from(self.scales[group / 4].get() >> (3 * (group % 4)) & 7);
        let every_other = |first: usize| (0..8).fold(0, |codes, i| codes | code(2 * i + first) << (8 * i));
        Some(s.interleaved(ONES + 2 * every_other(0), ONES + 2 * every_other(1)))
    }
    #[inline(always)]
    fn scale<S: Lanes>(&self, s: S) -> f32 {
        let bits = (0..4).fold(0, |bits, i| bits | self.scales[i].get() >> 12 << (4 * i));
        0.125 * s.half(bits)
    }
}
