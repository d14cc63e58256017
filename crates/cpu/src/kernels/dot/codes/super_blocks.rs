//! Types of 256 elements whose codes are fields of bits: K-quants, IQ4_XS and the ternary types.

use oxcart_tensor::quant::{
    BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K, BlockTq1_0, BlockTq2_0, IQ4_LEVELS,
};

use super::{Aside, Codes, ROWS, Steps, block_of, chunk_of, sixteen, twice};
use crate::kernels::dot::lanes::Lanes;

/// 64 2-bit codes from 64 bytes that hold 256 of them.
#[inline(always)]
fn crumbs<S: Lanes>(s: S, crumbs: &[u8; 64], part: usize) -> S::Bytes {
    let shift = 4 * (part as u32 % 2);
    s.planes(chunk_of(crumbs, 32 * (part / 2)), shift, shift + 2, 3)
}

/// The first block of sixteen rows: 64 bytes of each, side by side.
macro_rules! words_of {
    ($s:ident, $rows:ident, $aside:expr, |$block:ident| $bytes:expr) => {
        $s.transpose(sixteen!(|r| {
            $aside(r);
            let $block = &$rows[r][0];
            $s.bytes(chunk_of($bytes, 0))
        }))
    };
}

/// Codes of two bits of sixteen rows, made from words of them: `above` is what is to be put above them.
macro_rules! crumbs_side_by_side {
    ($s:ident, $words:ident, $to:ident, |$step:ident, $crumbs:ident| $codes:expr) => {
        sixteen!(|i| {
            for lane in 0..4 {
                let $step = 32 * (i / 8) + 8 * lane + i % 8;
                let $crumbs = $s.field($words[i], 2 * lane as u32, 3);
                $to.put($s, $step, $codes);
            }
        });
    };
}

/// 64 bits from 32 bytes that hold 256 of them.
#[inline(always)]
fn bits<S: Lanes>(s: S, bits: &[u8; 32], part: usize) -> S::Bytes {
    s.planes(bits, 2 * part as u32, 2 * part as u32 + 1, 1)
}

impl Codes for BlockQ2K {
    const LEN: usize = 256;

    #[inline(always)]
    fn codes<S: Lanes>(s: S, blocks: &[Self], part: usize) -> S::Bytes {
        let (block, part) = block_of(blocks, part);
        crumbs(s, &block.crumbs, part)
    }

    #[inline(always)]
    fn side_by_side<S: Lanes>(s: S, rows: [&[Self]; ROWS], to: &mut Steps<'_>, aside: &mut impl Aside) {
        let words = words_of!(s, rows, |r| aside.elements(r, 0, 256), |block| &block.crumbs);
        crumbs_side_by_side!(s, words, to, |_step, crumbs| crumbs);
    }
}

impl Codes for BlockQ3K {
    const LEN: usize = 256;
    const MIDDLE: u8 = 4;

    #[inline(always)]
    fn codes<S: Lanes>(s: S, blocks: &[Self], part: usize) -> S::Bytes {
        let (block, part) = block_of(blocks, part);
        s.join(crumbs(s, &block.crumbs, part), bits(s, &block.high, part), 2)
    }

    #[inline(always)]
    fn side_by_side<S: Lanes>(s: S, rows: [&[Self]; ROWS], to: &mut Steps<'_>, aside: &mut impl Aside) {
        let words = words_of!(s, rows, |r| aside.elements(r, 0, 256), |block| &block.crumbs);
        // Bits of 32 bytes are the lower half of what comes side by side.
        let high = s.transpose(sixteen!(|r| s.halves(&rows[r][0].high, &rows[r][0].high)));
        crumbs_side_by_side!(s, words, to, |step, crumbs| {
            s.join(crumbs, s.field(high[step % 8], step as u32 / 8, 1), 2)
        });
    }
}

impl Codes for BlockQ4K {
    const LEN: usize = 256;

    #[inline(always)]
    fn codes<S: Lanes>(s: S, blocks: &[Self], part: usize) -> S::Bytes {
        let (block, part) = block_of(blocks, part);
        s.planes(chunk_of(&block.nibbles, 32 * part), 0, 4, 15)
    }

    #[inline(always)]
    fn side_by_side<S: Lanes>(s: S, rows: [&[Self]; ROWS], to: &mut Steps<'_>, aside: &mut impl Aside) {
        twice!(|half| {
            let words = words_of!(s, rows, |r| aside.elements(r, 128 * half, 128), |block| &block.nibbles
                [64 * half..]);
            sixteen!(|i| {
                let step = 32 * half + 16 * (i / 8) + i % 8;
                to.put(s, step, s.field(words[i], 0, 15));
                to.put(s, step + 8, s.field(words[i], 4, 15));
            });
        });
    }
}

impl Codes for BlockQ5K {
    const LEN: usize = 256;

    #[inline(always)]
    fn codes<S: Lanes>(s: S, blocks: &[Self], part: usize) -> S::Bytes {
        let (block, part) = block_of(blocks, part);
        let low = s.planes(chunk_of(&block.nibbles, 32 * part), 0, 4, 15);
        s.join(low, bits(s, &block.high, part), 4)
    }

    #[inline(always)]
    fn side_by_side<S: Lanes>(s: S, rows: [&[Self]; ROWS], to: &mut Steps<'_>, aside: &mut impl Aside) {
        let high = s.transpose(sixteen!(|r| s.halves(&rows[r][0].high, &rows[r][0].high)));
        twice!(|half| {
            let words = words_of!(s, rows, |r| aside.elements(r, 128 * half, 128), |block| &block.nibbles
                [64 * half..]);
            sixteen!(|i| {
                let (step, bit) = (32 * half + 16 * (i / 8) + i % 8, 4 * half as u32 + 2 * (i as u32 / 8));
                let bits = high[i % 8];
                to.put(s, step, s.join(s.field(words[i], 0, 15), s.field(bits, bit, 1), 4));
                to.put(s, step + 8, s.join(s.field(words[i], 4, 15), s.field(bits, bit + 1, 1), 4));
            });
        });
    }
}

impl Codes for BlockQ6K {
    const LEN: usize = 256;
    const MIDDLE: u8 = 32;

    #[inline(always)]
    fn codes<S: Lanes>(s: S, blocks: &[Self], part: usize) -> S::Bytes {
        let (block, part) = block_of(blocks, part);
        let nibbles = s.bytes(chunk_of(&block.nibbles, 64 * (part / 2)));
        let low = s.field(nibbles, 4 * (part as u32 % 2), 15);
        s.join(low, crumbs(s, &block.crumbs, part), 4)
    }

    #[inline(always)]
    fn side_by_side<S: Lanes>(s: S, rows: [&[Self]; ROWS], to: &mut Steps<'_>, aside: &mut impl Aside) {
        let crumbs = words_of!(s, rows, |_| (), |block| &block.crumbs);
        twice!(|half| {
            let words = words_of!(s, rows, |r| aside.elements(r, 128 * half, 128), |block| &block.nibbles
                [64 * half..]);
            sixteen!(|i| {
                let (step, above) = (32 * half + i, crumbs[8 * half + i % 8]);
                let (low, high) = (s.field(words[i], 0, 15), s.field(words[i], 4, 15));
                let shift = 2 * (i as u32 / 8);
                to.put(s, step, s.join(low, s.field(above, shift, 3), 4));
                to.put(s, step + 16, s.join(high, s.field(above, shift + 4, 3), 4));
            });
        });
    }
}

impl Codes for BlockIq4Xs {
    const LEN: usize = 256;
    const SIGNED: bool = true;

    #[inline(always)]
    fn codes<S: Lanes>(s: S, blocks: &[Self], part: usize) -> S::Bytes {
        let (block, part) = block_of(blocks, part);
        let (a, b) = (chunk_of(&block.nibbles, 32 * part), chunk_of(&block.nibbles, 32 * part + 16));
        s.lookup(&IQ4_LEVELS, s.nibbles(a, b))
    }

    #[inline(always)]
    fn side_by_side<S: Lanes>(s: S, rows: [&[Self]; ROWS], to: &mut Steps<'_>, aside: &mut impl Aside) {
        twice!(|half| {
            let words = words_of!(s, rows, |r| aside.elements(r, 128 * half, 128), |block| &block.nibbles
                [64 * half..]);
            sixteen!(|i| {
                let step = 32 * half + 8 * (i / 4) + i % 4;
                to.put(s, step, s.lookup(&IQ4_LEVELS, s.field(words[i], 0, 15)));
                to.put(s, step + 4, s.lookup(&IQ4_LEVELS, s.field(words[i], 4, 15)));
            });
        });
    }
}

impl Codes for BlockTq2_0 {
    const LEN: usize = 256;
    const MIDDLE: u8 = 1;

    #[inline(always)]
    fn codes<S: Lanes>(s: S, blocks: &[Self], part: usize) -> S::Bytes {
        let (block, part) = block_of(blocks, part);
        crumbs(s, &block.crumbs, part)
    }

    #[inline(always)]
    fn side_by_side<S: Lanes>(s: S, rows: [&[Self]; ROWS], to: &mut Steps<'_>, aside: &mut impl Aside) {
        let words = words_of!(s, rows, |r| aside.elements(r, 0, 256), |block| &block.crumbs);
        crumbs_side_by_side!(s, words, to, |_step, crumbs| crumbs);
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

impl Codes for BlockTq1_0 {
    const LEN: usize = 256;
    const MIDDLE: u8 = 1;

    #[inline(always)]
    fn codes<S: Lanes>(s: S, blocks: &[Self], part: usize) -> S::Bytes {
        let (block, part) = block_of(blocks, part);
        let mut codes = [0; 256];
        let (long, rest) = codes.split_at_mut(160);
        let (short, last) = rest.split_at_mut(80);
        digits::<32>(chunk_of(&block.digits, 0), long);
        digits::<16>(chunk_of(&block.digits, 32), short);
        digits::<4>(&block.last_digits, last);
        s.bytes(chunk_of(&codes, 64 * part))
    }
}
