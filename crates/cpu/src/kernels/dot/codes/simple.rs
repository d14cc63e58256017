//! Types of 32 to 128 elements with one scale, or one scale per 16.

use oxcart_tensor::quant::{
    BlockIq4Nl, BlockMxfp4, BlockNvfp4, BlockQ1_0, BlockQ2_0, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1,
    BlockQ8_0, FP4_DOUBLED, IQ4_LEVELS,
};
use zerocopy::IntoBytes;

use super::{Codes, byte_pairs_of, bytes_of, chunk_of, row_by_row};
use crate::kernels::dot::lanes::Lanes;
use crate::kernels::dot::swar::{ONES, spread_crumbs};

/// A type of 32 elements, two vectors of which come from a block of each of four rows.
macro_rules! blocks_of_32 {
    ($type:ty $(, $which:ident: $kind:ty = $value:expr)?, |$s:ident, $rows:ident, $block:ident| $codes:block) => {
        impl Codes for $type {
            const LEN: usize = 32;
            $(const $which: $kind = $value;)?

            #[inline(always)]
            fn quarters<S: Lanes>(s: S, rows: [&[Self]; 4], part: usize) -> [S::Bytes; 4] {
                let [a, b] = Self::block_quarters(s, rows, 2 * part);
                let [c, d] = Self::block_quarters(s, rows, 2 * part + 1);
                [a, b, c, d]
            }

            #[inline(always)]
            fn block_quarters<S: Lanes>($s: S, $rows: [&[Self]; 4], $block: usize) -> [S::Bytes; 2] {
                $codes
            }
        }
    };
}

/// The low nibbles of a block, then the high ones.
macro_rules! nibbles_of {
    ($s:ident, $rows:ident[$block:ident]) => {{
        let nibbles = bytes_of!($s, $rows[$block].nibbles, 0);
        [$s.field(nibbles, 0, 15), $s.field(nibbles, 4, 15)]
    }};
}

/// The same, each with a fifth bit above it.
macro_rules! fives_of {
    ($s:ident, $rows:ident[$block:ident]) => {{
        let [low, high] = nibbles_of!($s, $rows[$block]);
        let (mut of_low, mut of_high) = (0, 0);
        for q in 0..4 {
            let bits = u64::from($rows[q][$block].high.get());
            of_low |= (bits & 0xFFFF) << (16 * q);
            of_high |= (bits >> 16) << (16 * q);
        }
        [$s.add_where(of_low, 16, low), $s.add_where(of_high, 16, high)]
    }};
}

blocks_of_32!(BlockQ8_0, SIGNED: bool = true, |s, rows, block| { byte_pairs_of!(s, rows[block].codes, 0) });

blocks_of_32!(BlockQ4_0, MIDDLE: u8 = 8, |s, rows, block| { nibbles_of!(s, rows[block]) });

blocks_of_32!(BlockQ4_1, |s, rows, block| { nibbles_of!(s, rows[block]) });

blocks_of_32!(BlockQ5_0, MIDDLE: u8 = 16, |s, rows, block| { fives_of!(s, rows[block]) });

blocks_of_32!(BlockQ5_1, |s, rows, block| { fives_of!(s, rows[block]) });

blocks_of_32!(BlockIq4Nl, SIGNED: bool = true, |s, rows, block| {
    let [low, high] = nibbles_of!(s, rows[block]);
    [s.lookup(&IQ4_LEVELS, low), s.lookup(&IQ4_LEVELS, high)]
});

/// The largest of [`FP4_DOUBLED`].
const FP4_MIDDLE: u8 = 12;

/// [`FP4_DOUBLED`], moved up so that nothing is negative.
const FP4_CODES: [i8; 16] = {
    let mut codes = FP4_DOUBLED;
    let mut i = 0;
    while i < 16 {
        codes[i] += FP4_MIDDLE as i8;
        i += 1;
    }
    codes
};

blocks_of_32!(BlockMxfp4, MIDDLE: u8 = FP4_MIDDLE, |s, rows, block| {
    let [low, high] = nibbles_of!(s, rows[block]);
    [s.lookup(&FP4_CODES, low), s.lookup(&FP4_CODES, high)]
});

row_by_row!(BlockQ1_0, 128, middle = 1, |s, block, part| {
    s.add_where(u64::from_le_bytes(*chunk_of(&block.bits, 8 * part)), 2, s.all(0))
});

row_by_row!(BlockQ2_0, 64, middle = 1, |s, block, _part| {
    let mut octets = [0; 8];
    for (octet, crumbs) in octets.iter_mut().zip(block.crumbs.as_chunks::<2>().0) {
        *octet = spread_crumbs(u16::from_le_bytes(*crumbs));
    }
    s.octets(octets)
});

row_by_row!(BlockNvfp4, 64, middle = FP4_MIDDLE, |s, block, _part| {
    let mut octets = [0; 8];
    let runs = block.nibbles.as_chunks::<8>().0;
    for (pair, bytes) in octets.as_chunks_mut::<2>().0.iter_mut().zip(runs) {
        let nibbles = u64::from_le_bytes(*bytes);
        *pair = [nibbles & (15 * ONES), nibbles >> 4 & (15 * ONES)];
    }
    s.lookup(&FP4_CODES, s.octets(octets))
});
