//! Weights whose partner is Q8_K: blocks of 256 elements in groups of 16 or 32 with small integers as scales.
//!
//! All of a block is added up as integers; there is one number to multiply them with at the end.

use oxcart_tensor::quant::{
    BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K, BlockQ8K, BlockTq1_0, BlockTq2_0,
    GroupScales, IQ4_LEVELS, StoredF16,
};

use super::lanes::Lanes;
use super::swar::{ONES, minus_32, spread_crumbs, spread_nibbles};
use super::{Plain, blocks, chunk_of, totals};

/// What is to be taken off the sums of a block.
pub(super) enum Offset<S: Lanes> {
    /// Nothing.
    None,
    /// The codes are too large by two to this power.
    Middle(u32),
    /// A number times an integer per group of 16 elements.
    Min(f32, S::Groups),
}

/// A block of 256 weights.
pub(super) trait Large: Plain {
    /// Pairwise sums of the products of 64 elements.
    fn words<S: Lanes>(&self, s: S, part: usize, acts: S::Bytes) -> S::Words;
    /// Signed scales of sixteen groups; `None` if there are none.
    fn scales<S: Lanes>(&self, s: S) -> Option<S::Groups>;
    /// What everything is to be multiplied with.
    fn scale<S: Lanes>(&self, s: S) -> f32;

    #[inline(always)]
    fn offset<S: Lanes>(&self, _s: S) -> Offset<S> {
        Offset::None
    }
}

/// The dot products of some rows of large blocks with one more.
#[inline(always)]
pub(super) fn large<S: Lanes, W: Large, const N: usize>(s: S, rows: [&[u8]; N], acts: &[u8]) -> [f32; N] {
    let acts = blocks::<BlockQ8K>(acts);
    let mut weights: [&[W]; N] = [&[]; N];
    for n in 0..N {
        weights[n] = &blocks(rows[n])[..acts.len()];
    }
    let mut so_far = [s.no_floats(); N];
    for (i, acts) in acts.iter().enumerate() {
        if S::MANY_REGISTERS {
            let mut side_by_side = [&weights[0][i]; N];
            for n in 0..N {
                side_by_side[n] = &weights[n][i];
            }
            so_far = add_blocks(s, side_by_side, acts, so_far);
        } else {
            for n in 0..N {
                [so_far[n]] = add_blocks(s, [&weights[n][i]], acts, [so_far[n]]);
            }
        }
    }
    totals(s, so_far)
}

/// Adds the products of one block of each row. Rows are computed side by side: nothing of one waits for another.
#[inline(always)]
fn add_blocks<S: Lanes, W: Large, const N: usize>(
    s: S,
    weights: [&W; N],
    a: &BlockQ8K,
    mut so_far: [S::Floats; N],
) -> [S::Floats; N] {
    let codes: &[u8; 256] = zerocopy::transmute_ref!(&a.codes);
    let mut groups = [None; N];
    for n in 0..N {
        groups[n] = weights[n].scales(s);
    }
    let mut sums = [s.no_sums(); N];
    for part in 0..4 {
        let acts = s.bytes(chunk_of(codes, 64 * part));
        for n in 0..N {
            let words = weights[n].words(s, part, acts);
            sums[n] = match groups[n] {
                Some(groups) => s.add_scaled(sums[n], words, s.scales(groups), part),
                None => s.add_words(sums[n], words),
            };
        }
    }
    for n in 0..N {
        so_far[n] = add_sums(s, weights[n], a, groups[n], sums[n], so_far[n]);
    }
    so_far
}

/// Adds what the sums of a block mean.
#[inline(always)]
fn add_sums<S: Lanes, W: Large>(
    s: S,
    w: &W,
    a: &BlockQ8K,
    groups: Option<S::Groups>,
    sums: S::Sums,
    to: S::Floats,
) -> S::Floats {
    let act_scale = a.scale.get();
    let group_sums: &[u8; 32] = zerocopy::transmute_ref!(&a.sums);
    let scale = s.splat_floats(w.scale(s) * act_scale);
    match w.offset(s) {
        Offset::None => s.mul_add_floats(s.to_floats(sums), scale, to),
        Offset::Middle(power) => {
            let excess = s.dot_groups(groups.unwrap_or(s.interleaved(ONES, ONES)), group_sums);
            s.mul_add_floats(s.to_floats(s.sub_sums(sums, excess, power)), scale, to)
        }
        Offset::Min(min, mins) => {
            let min = s.splat_floats(-min * act_scale);
            let to = s.mul_add_floats(s.to_floats(s.dot_groups(mins, group_sums)), min, to);
            s.mul_add_floats(s.to_floats(sums), scale, to)
        }
    }
}

#[inline(always)]
fn half<S: Lanes>(s: S, stored: StoredF16) -> f32 {
    s.half(u16::from_le_bytes(zerocopy::transmute!(stored)))
}

/// 64 2-bit codes from 64 bytes that hold 256 of them.
#[inline(always)]
fn crumbs<S: Lanes>(s: S, crumbs: &[u8; 64], part: usize) -> S::Bytes {
    let shift = 4 * (part as u32 % 2);
    s.planes(chunk_of(crumbs, 32 * (part / 2)), shift, shift + 2, 3)
}

/// 64 bits from 32 bytes that hold 256 of them.
#[inline(always)]
fn bits<S: Lanes>(s: S, bits: &[u8; 32], part: usize) -> S::Bytes {
    s.planes(bits, 2 * part as u32, 2 * part as u32 + 1, 1)
}

impl Large for BlockQ2K {
    #[inline(always)]
    fn words<S: Lanes>(&self, s: S, part: usize, acts: S::Bytes) -> S::Words {
        s.code_words(crumbs(s, &self.crumbs, part), acts)
    }
    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S) -> Option<S::Groups> {
        Some(s.group_field(s.groups(&self.scales), 0, 15))
    }
    #[inline(always)]
    fn scale<S: Lanes>(&self, s: S) -> f32 {
        half(s, self.scale)
    }
    #[inline(always)]
    fn offset<S: Lanes>(&self, s: S) -> Offset<S> {
        Offset::Min(half(s, self.min), s.group_field(s.groups(&self.scales), 4, 15))
    }
}

impl Large for BlockQ3K {
    #[inline(always)]
    fn words<S: Lanes>(&self, s: S, part: usize, acts: S::Bytes) -> S::Words {
        let codes = s.join(crumbs(s, &self.crumbs, part), bits(s, &self.high, part), 2);
        s.code_words(codes, acts)
    }
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
    #[inline(always)]
    fn offset<S: Lanes>(&self, _s: S) -> Offset<S> {
        Offset::Middle(2)
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
    fn words<S: Lanes>(&self, s: S, part: usize, acts: S::Bytes) -> S::Words {
        s.code_words(s.planes(chunk_of(&self.nibbles, 32 * part), 0, 4, 15), acts)
    }
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
    fn offset<S: Lanes>(&self, s: S) -> Offset<S> {
        let (_, mins) = six_bits(&self.groups);
        Offset::Min(half(s, self.min), s.interleaved(mins, mins))
    }
}

impl Large for BlockQ5K {
    #[inline(always)]
    fn words<S: Lanes>(&self, s: S, part: usize, acts: S::Bytes) -> S::Words {
        let low = s.planes(chunk_of(&self.nibbles, 32 * part), 0, 4, 15);
        s.code_words(s.join(low, bits(s, &self.high, part), 4), acts)
    }
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
    fn offset<S: Lanes>(&self, s: S) -> Offset<S> {
        let (_, mins) = six_bits(&self.groups);
        Offset::Min(half(s, self.min), s.interleaved(mins, mins))
    }
}

impl Large for BlockQ6K {
    #[inline(always)]
    fn words<S: Lanes>(&self, s: S, part: usize, acts: S::Bytes) -> S::Words {
        let nibbles = s.bytes(chunk_of(&self.nibbles, 64 * (part / 2)));
        let low = s.field(nibbles, 4 * (part as u32 % 2), 15);
        s.code_words(s.join(low, crumbs(s, &self.crumbs, part), 4), acts)
    }
    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S) -> Option<S::Groups> {
        Some(s.groups(zerocopy::transmute_ref!(&self.scales)))
    }
    #[inline(always)]
    fn scale<S: Lanes>(&self, s: S) -> f32 {
        half(s, self.scale)
    }
    #[inline(always)]
    fn offset<S: Lanes>(&self, _s: S) -> Offset<S> {
        Offset::Middle(5)
    }
}

impl Large for BlockIq4Xs {
    #[inline(always)]
    fn words<S: Lanes>(&self, s: S, part: usize, acts: S::Bytes) -> S::Words {
        let nibbles = s.nibbles(chunk_of(&self.nibbles, 32 * part), chunk_of(&self.nibbles, 32 * part + 16));
        s.level_words(s.lookup(&IQ4_LEVELS, nibbles), acts)
    }
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
    fn words<S: Lanes>(&self, s: S, part: usize, acts: S::Bytes) -> S::Words {
        s.code_words(crumbs(s, &self.crumbs, part), acts)
    }
    #[inline(always)]
    fn scales<S: Lanes>(&self, _s: S) -> Option<S::Groups> {
        None
    }
    #[inline(always)]
    fn scale<S: Lanes>(&self, s: S) -> f32 {
        half(s, self.scale)
    }
    #[inline(always)]
    fn offset<S: Lanes>(&self, _s: S) -> Offset<S> {
        Offset::Middle(0)
    }
}

/// The digits of a run of bytes: the first of each byte, then the second, and so on.
#[inline(always)]
fn digits<const BYTES: usize>(bytes: &[u8; BYTES], digits: &mut [u8]) {
    let mut rest = *bytes;
    for digits in digits.chunks_exact_mut(BYTES) {
        for (rest, digit) in rest.iter_mut().zip(digits) {
            let next = u16::from(*rest) * 3;
            *digit = (next >> 8) as u8;
            *rest = next as u8;
        }
    }
}

impl Large for BlockTq1_0 {
    #[inline(always)]
    fn words<S: Lanes>(&self, s: S, part: usize, acts: S::Bytes) -> S::Words {
        let mut codes = [0; 256];
        let (long, rest) = codes.split_at_mut(160);
        let (short, last) = rest.split_at_mut(80);
        digits::<32>(chunk_of(&self.digits, 0), long);
        digits::<16>(chunk_of(&self.digits, 32), short);
        digits::<4>(&self.last_digits, last);
        s.code_words(s.bytes(chunk_of(&codes, 64 * part)), acts)
    }
    #[inline(always)]
    fn scales<S: Lanes>(&self, _s: S) -> Option<S::Groups> {
        None
    }
    #[inline(always)]
    fn scale<S: Lanes>(&self, s: S) -> f32 {
        half(s, self.scale)
    }
    #[inline(always)]
    fn offset<S: Lanes>(&self, _s: S) -> Offset<S> {
        Offset::Middle(0)
    }
}
