//! Types of 256 elements whose codes are fields of bits: K-quants, IQ4_XS and the ternary types.

use oxcart_tensor::quant::{
    BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K, BlockTq1_0, BlockTq2_0, IQ4_LEVELS,
};
use zerocopy::IntoBytes;

use super::{Codes, byte_pairs_of, chunk_of, row_by_row};
use crate::kernels::dot::lanes::Lanes;

/// A type of 256 elements, given how 64 of them come apart.
macro_rules! fields {
    ($type:ty $(, $which:ident: $kind:ty = $value:expr)?, |$s:ident, $rows:ident, $block:ident, $part:ident| $codes:block) => {
        impl Codes for $type {
            const LEN: usize = 256;
            const INTERLEAVED: bool = true;
            $(const $which: $kind = $value;)?

            #[inline(always)]
            fn quarters<S: Lanes>($s: S, $rows: [&[Self]; 4], part: usize) -> [S::Bytes; 4] {
                let ($block, $part) = (part / 4, part % 4);
                $codes
            }
        }
    };
}

/// `bytes >> low & mask` of 32 bytes, then `bytes >> high & mask`.
macro_rules! planes_of {
    ($s:ident, $rows:ident[$block:ident].$field:ident, $at:expr, $low:expr, $high:expr, $mask:literal) => {{
        let (low, high) = ($low as u32, $high as u32);
        let [a, b] = byte_pairs_of!($s, $rows[$block].$field, $at);
        [$s.field(a, low, $mask), $s.field(b, low, $mask), $s.field(a, high, $mask), $s.field(b, high, $mask)]
    }};
}

/// The same above codes that are there already, from bit `to` on.
macro_rules! planes_above {
    ($s:ident, $codes:expr, $rows:ident[$block:ident].$field:ident, $at:expr, $low:expr, $high:expr, $mask:literal, $to:literal) => {{
        let (low, high, codes) = ($low as u32, $high as u32, $codes);
        let [a, b] = byte_pairs_of!($s, $rows[$block].$field, $at);
        [
            $s.join_field(codes[0], a, low, $mask, $to),
            $s.join_field(codes[1], b, low, $mask, $to),
            $s.join_field(codes[2], a, high, $mask, $to),
            $s.join_field(codes[3], b, high, $mask, $to),
        ]
    }};
}

/// 64 codes of two bits from 64 bytes that hold 256 of them.
macro_rules! crumbs_of {
    ($s:ident, $rows:ident[$block:ident], $part:ident) => {{
        let shift = 4 * ($part % 2);
        planes_of!($s, $rows[$block].crumbs, 32 * ($part / 2), shift, shift + 2, 3)
    }};
}

/// Codes with a bit above them, from bit `to` on: 64 bits from 32 bytes that hold 256 of them.
macro_rules! bits_above {
    ($s:ident, $codes:expr, $rows:ident[$block:ident], $part:ident, $to:literal) => {
        planes_above!($s, $codes, $rows[$block].high, 0, 2 * $part, 2 * $part + 1, 1, $to)
    };
}

fields!(BlockQ2K, |s, rows, block, part| { crumbs_of!(s, rows[block], part) });

fields!(BlockTq2_0, MIDDLE: u8 = 1, |s, rows, block, part| { crumbs_of!(s, rows[block], part) });

fields!(BlockQ3K, MIDDLE: u8 = 4, |s, rows, block, part| {
    bits_above!(s, crumbs_of!(s, rows[block], part), rows[block], part, 2)
});

fields!(BlockQ4K, |s, rows, block, part| { planes_of!(s, rows[block].nibbles, 32 * part, 0, 4, 15) });

fields!(BlockQ5K, |s, rows, block, part| {
    let low = planes_of!(s, rows[block].nibbles, 32 * part, 0, 4, 15);
    bits_above!(s, low, rows[block], part, 4)
});

fields!(BlockQ6K, MIDDLE: u8 = 32, |s, rows, block, part| {
    let (first, shift) = (64 * (part / 2), 4 * (part as u32 % 2));
    let [a, b] = byte_pairs_of!(s, rows[block].nibbles, first);
    let [c, d] = byte_pairs_of!(s, rows[block].nibbles, first + 32);
    let low = [s.field(a, shift, 15), s.field(b, shift, 15), s.field(c, shift, 15), s.field(d, shift, 15)];
    planes_above!(s, low, rows[block].crumbs, 32 * (part / 2), shift, shift + 2, 3, 4)
});

fields!(BlockIq4Xs, SIGNED: bool = true, |s, rows, block, part| {
    let [a, b] = byte_pairs_of!(s, rows[block].nibbles, 32 * part);
    [
        s.lookup(&IQ4_LEVELS, s.field(a, 0, 15)),
        s.lookup(&IQ4_LEVELS, s.field(a, 4, 15)),
        s.lookup(&IQ4_LEVELS, s.field(b, 0, 15)),
        s.lookup(&IQ4_LEVELS, s.field(b, 4, 15)),
    ]
});

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

row_by_row!(BlockTq1_0, 256, middle = 1, |s, block, part| {
    let mut codes = [0; 256];
    let (long, rest) = codes.split_at_mut(160);
    let (short, last) = rest.split_at_mut(80);
    digits::<32>(chunk_of(&block.digits, 0), long);
    digits::<16>(chunk_of(&block.digits, 32), short);
    digits::<4>(&block.last_digits, last);
    let quarter = |q: usize| chunk_of(&codes, 64 * part + 16 * q);
    s.quarters_of([quarter(0), quarter(1), quarter(2), quarter(3)])
});
