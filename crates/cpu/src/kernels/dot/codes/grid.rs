//! The codebook formats IQ1, IQ2 and IQ3: points of a grid, with signs or with a shift.

use oxcart_tensor::quant::iq::{
    BlockIq1M, BlockIq1S, BlockIq2S, BlockIq2Xs, BlockIq2Xxs, BlockIq3S, BlockIq3Xxs, G1, G2_S, G2_XS,
    G2_XXS, G3_S, G3_XXS,
};

use super::{Codes, chunk_of, row_by_row};
use crate::kernels::dot::lanes::Lanes;
use crate::kernels::dot::swar::{even_signs, spread_bits};

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

/// The signs of 64 elements from two words with four fields of seven bits each.
#[inline(always)]
fn packed_signs(low: u32, high: u32) -> u64 {
    let spread = |word: u32| {
        let word = u64::from(word);
        word & 0x7F | (word & 0x7F << 7) << 1 | (word & 0x7F << 14) << 2 | (word & 0x7F << 21) << 3
    };
    even_signs(spread(low) | spread(high) << 32)
}

row_by_row!(BlockIq2Xxs, 256, signed = true, |s, block, part| {
    let groups: &[_; 2] = chunk_of(&block.groups, 2 * part);
    let points = octets(|i| octet(G2_XXS.points()[usize::from(groups[i / 4].points[i % 4])]));
    let signs = packed_signs(groups[0].signs_and_scale.get(), groups[1].signs_and_scale.get());
    s.negate_where(signs, s.octets(points))
});

row_by_row!(BlockIq2Xs, 256, signed = true, |s, block, part| {
    let codes: &[_; 8] = chunk_of(&block.octets, 8 * part);
    let points = octets(|i| octet(G2_XS.points()[usize::from(codes[i].get() & 511)]));
    let fields = (0..8).fold(0, |fields, i| fields | u64::from(codes[i].get() >> 9) << (8 * i));
    s.negate_where(even_signs(fields), s.octets(points))
});

row_by_row!(BlockIq2S, 256, signed = true, |s, block, part| {
    let low: &[u8; 8] = chunk_of(&block.points_low, 8 * part);
    let high = u16::from_le_bytes(*chunk_of(&block.points_high, 2 * part));
    let points = octets(|i| {
        let point = u16::from(low[i]) | (high >> (2 * i) & 3) << 8;
        octet(G2_S.points()[usize::from(point)])
    });
    s.negate_where(u64::from_le_bytes(*chunk_of(&block.signs, 8 * part)), s.octets(points))
});

row_by_row!(BlockIq3Xxs, 256, signed = true, |s, block, part| {
    let codes = block.points.as_flattened();
    let points = octets(|i| {
        let [low, high]: [u8; 2] = *chunk_of(codes, 16 * part + 2 * i);
        quads(G3_XXS.points()[usize::from(low)], G3_XXS.points()[usize::from(high)])
    });
    let words: &[_; 2] = chunk_of(&block.signs_and_scale, 2 * part);
    s.negate_where(packed_signs(words[0].get(), words[1].get()), s.octets(points))
});

row_by_row!(BlockIq3S, 256, signed = true, |s, block, part| {
    let low = block.points_low.as_flattened();
    let high = u16::from_le_bytes(*chunk_of(&block.points_high, 2 * part));
    let point = |k: usize| {
        let point = u16::from(low[16 * part + k]) | (high >> k & 1) << 8;
        G3_S.points()[usize::from(point)]
    };
    let points = octets(|i| quads(point(2 * i), point(2 * i + 1)));
    let signs = u64::from_le_bytes(*chunk_of(block.signs.as_flattened(), 8 * part));
    s.negate_where(signs, s.octets(points))
});

/// Points of [`G1`] moved up or down by an eighth, in eighths.
#[inline(always)]
fn shifted<S: Lanes>(s: S, points: [u64; 8], up: u64) -> S::Bytes {
    // Levels -1, 0, 1 become 0, 1, 2, which can be multiplied by 8 without leaving a byte; then comes one eighth less
    // than that was too much, or one more.
    let codes = s.join(s.octets(points), s.all(1), 0);
    s.add_where(up, 2, s.join(s.all(-9_i8 as u8), codes, 3))
}

row_by_row!(BlockIq1S, 256, signed = true, |s, block, part| {
    let low = block.points_low.as_flattened();
    let words: &[_; 2] = chunk_of(&block.groups, 2 * part);
    let points = octets(|i| {
        let point = u16::from(low[8 * part + i]) | (words[i / 4].get() >> (3 * (i % 4)) & 7) << 8;
        octet(G1.points()[usize::from(point)])
    });
    let up = |word: u16| if word >> 15 == 0 { u64::from(u32::MAX) } else { 0 };
    shifted(s, points, up(words[0].get()) | up(words[1].get()) << 32)
});

row_by_row!(BlockIq1M, 256, signed = true, |s, block, part| {
    let low: &[u8; 8] = chunk_of(&block.points_low, 8 * part);
    let high = u32::from_le_bytes(*chunk_of(&block.points_high, 4 * part));
    let points = octets(|i| {
        let point = u32::from(low[i]) | (high >> (4 * i) & 7) << 8;
        octet(G1.points()[point as usize])
    });
    let up = (0..8).fold(0, |up, i| up | (!high >> (4 * i + 3) & 1) << i);
    shifted(s, points, spread_bits(up as u8))
});
