//! Weights whose partner is Q8_K: blocks of 256 elements in groups of 16 or 32 with small integers as scales.
//!
//! All of a block is added up as integers; there is one number to multiply them with at the end.

use oxcart_tensor::quant::{
    BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K, BlockQ8K, BlockTq1_0, BlockTq2_0,
    GroupScales, StoredF16,
};

use super::codes::Codes;
use super::lanes::Lanes;
use super::swar::{ONES, minus_32, spread_crumbs, spread_nibbles};
use super::{blocks, chunk_of};

/// A block of 256 weights.
pub(super) trait Large: Codes {
    /// Signed scales of sixteen groups; `None` if there are none.
    fn scales<S: Lanes>(&self, s: S) -> Option<S::Groups>;
    /// What everything is to be multiplied with.
    fn scale<S: Lanes>(&self, s: S) -> f32;

    /// A number to be taken off times an integer per group of 16 elements.
    #[inline(always)]
    fn min<S: Lanes>(&self, _s: S) -> Option<(f32, S::Groups)> {
        None
    }
}

/// The dot product of a row of large blocks with its partner.
#[inline(always)]
pub(super) fn large<S: Lanes, W: Large>(s: S, row: &[u8], acts: &[u8]) -> f32 {
    let mut sum = s.no_floats();
    for (weights, acts) in blocks::<W>(row).iter().zip(blocks::<BlockQ8K>(acts)) {
        sum = add_block(s, weights, acts, sum);
    }
    s.total(sum)
}

/// Adds the products of one block.
#[inline(always)]
fn add_block<S: Lanes, W: Large>(s: S, w: &W, a: &BlockQ8K, to: S::Floats) -> S::Floats {
    let codes: &[u8; 256] = zerocopy::transmute_ref!(&a.codes);
    let groups = w.scales(s);
    let mut sums = s.no_sums();
    for part in 0..4 {
        let acts = s.bytes(chunk_of(codes, 64 * part));
        let weights = W::codes(s, std::slice::from_ref(w), part);
        let words = if W::SIGNED { s.level_words(weights, acts) } else { s.code_words(weights, acts) };
        sums = match groups {
            Some(groups) => s.add_scaled(sums, words, s.scales(groups), part),
            None => s.add_words(sums, words),
        };
    }
    let act_scale = a.scale.get();
    let group_sums: &[u8; 32] = zerocopy::transmute_ref!(&a.sums);
    if W::MIDDLE != 0 {
        let excess = s.dot_groups(groups.unwrap_or(s.interleaved(ONES, ONES)), group_sums);
        sums = s.sub_sums(sums, excess, W::MIDDLE.trailing_zeros());
    }
    let to = match w.min(s) {
        Some((min, mins)) => {
            let min = s.splat_floats(-min * act_scale);
            s.mul_add_floats(s.to_floats(s.dot_groups(mins, group_sums)), min, to)
        }
        None => to,
    };
    s.mul_add_floats(s.to_floats(sums), s.splat_floats(w.scale(s) * act_scale), to)
}

#[inline(always)]
fn half<S: Lanes>(s: S, stored: StoredF16) -> f32 {
    s.half(u16::from_le_bytes(zerocopy::transmute!(stored)))
}

impl Large for BlockQ2K {
    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S) -> Option<S::Groups> {
        Some(s.group_field(s.groups(&self.scales), 0, 15))
    }
    #[inline(always)]
    fn scale<S: Lanes>(&self, s: S) -> f32 {
        half(s, self.scale)
    }
    #[inline(always)]
    fn min<S: Lanes>(&self, s: S) -> Option<(f32, S::Groups)> {
        Some((half(s, self.min), s.group_field(s.groups(&self.scales), 4, 15)))
    }
}

impl Large for BlockQ3K {
    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S) -> Option<S::Groups> {
        let low = u64::from_le_bytes(*chunk_of(&self.scales, 0));
        let high = u64::from(u32::from_le_bytes(*chunk_of(&self.scales, 8)));
        let join = |low: u64, high: u64| minus_32(low & (15 * ONES) | (high & (3 * ONES)) << 4);
        let first = join(low, high | high >> 2 << 32);
        let second = join(low >> 4, high >> 4 | high >> 6 << 32);
        Some(s.groups(&zerocopy::transmute!([first.to_le(), second.to_le()])))
    }
    #[inline(always)]
    fn scale<S: Lanes>(&self, s: S) -> f32 {
        half(s, self.scale)
    }
}

/// Six bits each: scales and minimums of eight groups.
#[inline(always)]
fn six_bits(groups: &GroupScales) -> (u64, u64) {
    let bytes: &[u8; 12] = zerocopy::transmute_ref!(groups);
    let word = |at| u32::from_le_bytes(*chunk_of(bytes, at));
    let (first, second, third) = (word(0), word(4), word(8));
    let join = |low: u32, high: u32, top: u32| {
        u64::from(low & 0x3F3F_3F3F) | u64::from(high & 0x0F0F_0F0F | top >> 2 & 0x3030_3030) << 32
    };
    (join(first, third, first), join(second, third >> 4, second))
}

impl Large for BlockQ4K {
    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S) -> Option<S::Groups> {
        let (scales, _) = six_bits(&self.groups);
        Some(s.interleaved(scales, scales))
    }
    #[inline(always)]
    fn scale<S: Lanes>(&self, s: S) -> f32 {
        half(s, self.scale)
    }
    #[inline(always)]
    fn min<S: Lanes>(&self, s: S) -> Option<(f32, S::Groups)> {
        let (_, mins) = six_bits(&self.groups);
        Some((half(s, self.min), s.interleaved(mins, mins)))
    }
}

impl Large for BlockQ5K {
    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S) -> Option<S::Groups> {
        let (scales, _) = six_bits(&self.groups);
        Some(s.interleaved(scales, scales))
    }
    #[inline(always)]
    fn scale<S: Lanes>(&self, s: S) -> f32 {
        half(s, self.scale)
    }
    #[inline(always)]
    fn min<S: Lanes>(&self, s: S) -> Option<(f32, S::Groups)> {
        let (_, mins) = six_bits(&self.groups);
        Some((half(s, self.min), s.interleaved(mins, mins)))
    }
}

impl Large for BlockQ6K {
    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S) -> Option<S::Groups> {
        Some(s.groups(zerocopy::transmute_ref!(&self.scales)))
    }
    #[inline(always)]
    fn scale<S: Lanes>(&self, s: S) -> f32 {
        half(s, self.scale)
    }
}

impl Large for BlockIq4Xs {
    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S) -> Option<S::Groups> {
        let low = spread_nibbles(u32::from_le_bytes(self.scales_low));
        let scales = minus_32(low | spread_crumbs(self.scales_high.get()) << 4);
        Some(s.interleaved(scales, scales))
    }
    #[inline(always)]
    fn scale<S: Lanes>(&self, s: S) -> f32 {
        half(s, self.scale)
    }
}

impl Large for BlockTq2_0 {
    #[inline(always)]
    fn scales<S: Lanes>(&self, _s: S) -> Option<S::Groups> {
        None
    }
    #[inline(always)]
    fn scale<S: Lanes>(&self, s: S) -> f32 {
        half(s, self.scale)
    }
}

impl Large for BlockTq1_0 {
    #[inline(always)]
    fn scales<S: Lanes>(&self, _s: S) -> Option<S::Groups> {
        None
    }
    #[inline(always)]
    fn scale<S: Lanes>(&self, s: S) -> f32 {
        half(s, self.scale)
    }
}
