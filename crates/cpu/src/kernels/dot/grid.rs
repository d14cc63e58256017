//! The codebook formats IQ1, IQ2 and IQ3: points of a grid, with signs or with a shift.

use oxcart_tensor::quant::iq::{
    BlockIq1M, BlockIq1S, BlockIq2S, BlockIq2Xs, BlockIq2Xxs, BlockIq3S, BlockIq3Xxs, G1, G2_S, G2_XS,
    G2_XXS, G3_S, G3_XXS, even_signs,
};

use super::chunk_of;
use super::lanes::Lanes;
use super::large::{Large, ONES};

/// The bytes of a point as a number.
#[inline(always)]
fn octet(point: [i8; 8]) -> u64 {
    u64::from_le_bytes(point.map(|level| level as u8))
}

/// Two points of four as a number.
#[inline(always)]
fn quads(low: [i8; 4], high: [i8; 4]) -> u64 {
    let word = |point: [i8; 4]| u64::from(u32::from_le_bytes(point.map(|level| level as u8)));
    word(low) | word(high) << 32
}

/// Eight octets from what makes one.
#[inline(always)]
fn octets(mut octet: impl FnMut(usize) -> u64) -> [u64; 8] {
    [octet(0), octet(1), octet(2), octet(3), octet(4), octet(5), octet(6), octet(7)]
}

/// The signs of 64 elements from eight fields of seven.
#[inline(always)]
fn signs(field: impl Fn(usize) -> u8) -> u64 {
    (0..8).fold(0, |signs, i| signs | u64::from(even_signs(field(i))) << (8 * i))
}

/// Odd scales `1 + 2 * code` of sixteen groups, from a nibble each.
#[inline(always)]
fn odd_scales<S: Lanes>(s: S, nibbles: u64) -> S::Groups {
    const LOW: u64 = 0x0F0F_0F0F_0F0F_0F0F;
    s.interleaved(ONES + 2 * (nibbles & LOW), ONES + 2 * (nibbles >> 4 & LOW))
}

/// Odd scales of eight groups of 32.
#[inline(always)]
fn odd_scales_of_eight<S: Lanes>(s: S, code: impl Fn(usize) -> u8) -> S::Groups {
    let codes = (0..8).fold(0, |codes, group| codes | u64::from(code(group)) << (8 * group));
    s.interleaved(ONES + 2 * codes, ONES + 2 * codes)
}

impl Large for BlockIq2Xxs {
    #[inline(always)]
    fn words<S: Lanes>(&self, s: S, part: usize, acts: S::Bytes) -> S::Words {
        let groups: &[_; 2] = chunk_of(&self.groups, 2 * part);
        let points = octets(|i| octet(G2_XXS.points()[usize::from(groups[i / 4].points[i % 4])]));
        let signs = signs(|i| (groups[i / 4].signs_and_scale.get() >> (7 * (i % 4))) as u8);
        s.level_words(s.negate_where(signs, s.octets(points)), acts)
    }
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
    fn words<S: Lanes>(&self, s: S, part: usize, acts: S::Bytes) -> S::Words {
        let codes: &[_; 8] = chunk_of(&self.octets, 8 * part);
        let points = octets(|i| octet(G2_XS.points()[usize::from(codes[i].get() & 511)]));
        let signs = signs(|i| (codes[i].get() >> 9) as u8);
        s.level_words(s.negate_where(signs, s.octets(points)), acts)
    }
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
    fn words<S: Lanes>(&self, s: S, part: usize, acts: S::Bytes) -> S::Words {
        let low: &[u8; 8] = chunk_of(&self.points_low, 8 * part);
        let high = u16::from_le_bytes(*chunk_of(&self.points_high, 2 * part));
        let points = octets(|i| {
            let point = u16::from(low[i]) | (high >> (2 * i) & 3) << 8;
            octet(G2_S.points()[usize::from(point)])
        });
        let signs = u64::from_le_bytes(*chunk_of(&self.signs, 8 * part));
        s.level_words(s.negate_where(signs, s.octets(points)), acts)
    }
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
    fn words<S: Lanes>(&self, s: S, part: usize, acts: S::Bytes) -> S::Words {
        let codes = self.points.as_flattened();
        let points = octets(|i| {
            let [low, high]: [u8; 2] = *chunk_of(codes, 16 * part + 2 * i);
            quads(G3_XXS.points()[usize::from(low)], G3_XXS.points()[usize::from(high)])
        });
        let words: &[_; 2] = chunk_of(&self.signs_and_scale, 2 * part);
        let signs = signs(|i| (words[i / 4].get() >> (7 * (i % 4))) as u8);
        s.level_words(s.negate_where(signs, s.octets(points)), acts)
    }
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
    fn words<S: Lanes>(&self, s: S, part: usize, acts: S::Bytes) -> S::Words {
        let low = self.points_low.as_flattened();
        let high = u16::from_le_bytes(*chunk_of(&self.points_high, 2 * part));
        let point = |k: usize| {
            let point = u16::from(low[16 * part + k]) | (high >> k & 1) << 8;
            G3_S.points()[usize::from(point)]
        };
        let points = octets(|i| quads(point(2 * i), point(2 * i + 1)));
        let signs = u64::from_le_bytes(*chunk_of(self.signs.as_flattened(), 8 * part));
        s.level_words(s.negate_where(signs, s.octets(points)), acts)
    }
    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S) -> Option<S::Groups> {
        Some(odd_scales_of_eight(s, |group| self.scales[group / 2] >> (4 * (group % 2)) & 15))
    }
    #[inline(always)]
    fn scale<S: Lanes>(&self, s: S) -> f32 {
        s.half(self.scale.get())
    }
}

/// Pairwise sums of the products with points of [`G1`], in eighths because of the shift.
#[inline(always)]
fn shifted_words<S: Lanes>(s: S, points: [u64; 8], up: u64, acts: S::Bytes) -> S::Words {
    // Levels -1, 0, 1 become 0, 1, 2, which can be multiplied by 8 without leaving a byte; then comes one eighth less
    // than that was too much, or one more.
    let codes = s.join(s.octets(points), s.all(1), 0);
    s.level_words(s.add_where(up, 2, s.join(s.all(-9_i8 as u8), codes, 3)), acts)
}

/// All bits of each byte whose bit is set.
#[inline(always)]
fn whole_bytes(bits: u8) -> u64 {
    (0..8).fold(0, |bytes, i| bytes | (u64::from(bits >> i & 1) * 0xFF) << (8 * i))
}

impl Large for BlockIq1S {
    #[inline(always)]
    fn words<S: Lanes>(&self, s: S, part: usize, acts: S::Bytes) -> S::Words {
        let low = self.points_low.as_flattened();
        let words: &[_; 2] = chunk_of(&self.groups, 2 * part);
        let points = octets(|i| {
            let point = u16::from(low[8 * part + i]) | (words[i / 4].get() >> (3 * (i % 4)) & 7) << 8;
            octet(G1.points()[usize::from(point)])
        });
        let up = |word: u16| if word >> 15 == 0 { u64::from(u32::MAX) } else { 0 };
        shifted_words(s, points, up(words[0].get()) | up(words[1].get()) << 32, acts)
    }
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
    fn words<S: Lanes>(&self, s: S, part: usize, acts: S::Bytes) -> S::Words {
        let low: &[u8; 8] = chunk_of(&self.points_low, 8 * part);
        let high = u32::from_le_bytes(*chunk_of(&self.points_high, 4 * part));
        let points = octets(|i| {
            let point = u32::from(low[i]) | (high >> (4 * i) & 7) << 8;
            octet(G1.points()[point as usize])
        });
        let up = (0..8).fold(0, |up, i| up | (!high >> (4 * i + 3) & 1) << i);
        shifted_words(s, points, whole_bytes(up as u8), acts)
    }
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
