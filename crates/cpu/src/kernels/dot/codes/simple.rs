//! Types of 32 to 128 elements with one scale, or one scale per 16.

use oxcart_tensor::quant::{
    BlockIq4Nl, BlockMxfp4, BlockNvfp4, BlockQ1_0, BlockQ2_0, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1,
    BlockQ8_0, FP4_DOUBLED, IQ4_LEVELS,
};
use zerocopy::little_endian::U32;

use super::{Aside, Codes, ROWS, Steps, block_of, chunk_of, sixteen, twice};
use crate::kernels::dot::lanes::Lanes;
use crate::kernels::dot::swar::{ONES, spread_crumbs};

/// The two blocks of 32 elements that a part is.
#[inline(always)]
fn two<B: Codes>(blocks: &[B], part: usize) -> &[B; 2] {
    chunk_of(blocks, 2 * part)
}

/// Codes of sixteen rows of blocks with 32 nibbles.
macro_rules! nibbles_side_by_side {
    ($s:ident, $rows:ident, $to:ident, $aside:ident, |$nibbles:ident| $codes:expr) => {
        twice!(|half| {
            let words = $s.transpose(sixteen!(|r| {
                $aside.elements(r, 128 * half, 128);
                let [a, b, c, d]: &[Self; 4] = chunk_of($rows[r], 4 * half);
                $s.quarters_of([&a.nibbles, &b.nibbles, &c.nibbles, &d.nibbles])
            }));
            sixteen!(|i| {
                let step = 32 * half + 8 * (i / 4) + i % 4;
                let $nibbles = $s.field(words[i], 0, 15);
                $to.put($s, step, $codes);
                let $nibbles = $s.field(words[i], 4, 15);
                $to.put($s, step + 4, $codes);
            });
        });
    };
}

impl Codes for BlockQ8_0 {
    const LEN: usize = 32;
    const SIGNED: bool = true;

    #[inline(always)]
    fn codes<S: Lanes>(s: S, blocks: &[Self], part: usize) -> S::Bytes {
        let [a, b] = two(blocks, part);
        s.halves(zerocopy::transmute_ref!(&a.codes), zerocopy::transmute_ref!(&b.codes))
    }

    #[inline(always)]
    fn side_by_side<S: Lanes>(s: S, rows: [&[Self]; ROWS], to: &mut Steps<'_>, aside: &mut impl Aside) {
        for part in 0..4 {
            to.put_all(
                s,
                16 * part,
                s.transpose(sixteen!(|r| {
                    aside.elements(r, 64 * part, 64);
                    Self::codes(s, rows[r], part)
                })),
            );
        }
    }
}

impl Codes for BlockQ4_0 {
    const LEN: usize = 32;
    const MIDDLE: u8 = 8;

    #[inline(always)]
    fn codes<S: Lanes>(s: S, blocks: &[Self], part: usize) -> S::Bytes {
        let [a, b] = two(blocks, part);
        s.nibbles(&a.nibbles, &b.nibbles)
    }

    #[inline(always)]
    fn side_by_side<S: Lanes>(s: S, rows: [&[Self]; ROWS], to: &mut Steps<'_>, aside: &mut impl Aside) {
        nibbles_side_by_side!(s, rows, to, aside, |nibbles| nibbles);
    }
}

impl Codes for BlockQ4_1 {
    const LEN: usize = 32;

    #[inline(always)]
    fn codes<S: Lanes>(s: S, blocks: &[Self], part: usize) -> S::Bytes {
        let [a, b] = two(blocks, part);
        s.nibbles(&a.nibbles, &b.nibbles)
    }

    #[inline(always)]
    fn side_by_side<S: Lanes>(s: S, rows: [&[Self]; ROWS], to: &mut Steps<'_>, aside: &mut impl Aside) {
        nibbles_side_by_side!(s, rows, to, aside, |nibbles| nibbles);
    }
}

/// Codes of five bits.
#[inline(always)]
fn five<S: Lanes>(s: S, (a, a_high): (&[u8; 16], U32), (b, b_high): (&[u8; 16], U32)) -> S::Bytes {
    let high = u64::from(a_high.get()) | u64::from(b_high.get()) << 32;
    s.add_where(high, 16, s.nibbles(a, b))
}

impl Codes for BlockQ5_0 {
    const LEN: usize = 32;
    const MIDDLE: u8 = 16;

    #[inline(always)]
    fn codes<S: Lanes>(s: S, blocks: &[Self], part: usize) -> S::Bytes {
        let [a, b] = two(blocks, part);
        five(s, (&a.nibbles, a.high), (&b.nibbles, b.high))
    }

    #[inline(always)]
    fn side_by_side<S: Lanes>(s: S, rows: [&[Self]; ROWS], to: &mut Steps<'_>, aside: &mut impl Aside) {
        for part in 0..4 {
            to.put_all(
                s,
                16 * part,
                s.transpose(sixteen!(|r| {
                    aside.elements(r, 64 * part, 64);
                    Self::codes(s, rows[r], part)
                })),
            );
        }
    }
}

impl Codes for BlockQ5_1 {
    const LEN: usize = 32;

    #[inline(always)]
    fn codes<S: Lanes>(s: S, blocks: &[Self], part: usize) -> S::Bytes {
        let [a, b] = two(blocks, part);
        five(s, (&a.nibbles, a.high), (&b.nibbles, b.high))
    }

    #[inline(always)]
    fn side_by_side<S: Lanes>(s: S, rows: [&[Self]; ROWS], to: &mut Steps<'_>, aside: &mut impl Aside) {
        for part in 0..4 {
            to.put_all(
                s,
                16 * part,
                s.transpose(sixteen!(|r| {
                    aside.elements(r, 64 * part, 64);
                    Self::codes(s, rows[r], part)
                })),
            );
        }
    }
}

impl Codes for BlockIq4Nl {
    const LEN: usize = 32;
    const SIGNED: bool = true;

    #[inline(always)]
    fn codes<S: Lanes>(s: S, blocks: &[Self], part: usize) -> S::Bytes {
        let [a, b] = two(blocks, part);
        s.lookup(&IQ4_LEVELS, s.nibbles(&a.nibbles, &b.nibbles))
    }

    #[inline(always)]
    fn side_by_side<S: Lanes>(s: S, rows: [&[Self]; ROWS], to: &mut Steps<'_>, aside: &mut impl Aside) {
        nibbles_side_by_side!(s, rows, to, aside, |nibbles| s.lookup(&IQ4_LEVELS, nibbles));
    }
}

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

impl Codes for BlockMxfp4 {
    const LEN: usize = 32;
    const MIDDLE: u8 = FP4_MIDDLE;

    #[inline(always)]
    fn codes<S: Lanes>(s: S, blocks: &[Self], part: usize) -> S::Bytes {
        let [a, b] = two(blocks, part);
        s.lookup(&FP4_CODES, s.nibbles(&a.nibbles, &b.nibbles))
    }

    #[inline(always)]
    fn side_by_side<S: Lanes>(s: S, rows: [&[Self]; ROWS], to: &mut Steps<'_>, aside: &mut impl Aside) {
        nibbles_side_by_side!(s, rows, to, aside, |nibbles| s.lookup(&FP4_CODES, nibbles));
    }
}

impl Codes for BlockQ1_0 {
    const LEN: usize = 128;
    const MIDDLE: u8 = 1;

    #[inline(always)]
    fn codes<S: Lanes>(s: S, blocks: &[Self], part: usize) -> S::Bytes {
        let (block, part) = block_of(blocks, part);
        s.add_where(u64::from_le_bytes(*chunk_of(&block.bits, 8 * part)), 2, s.all(0))
    }
}

impl Codes for BlockQ2_0 {
    const LEN: usize = 64;
    const MIDDLE: u8 = 1;

    #[inline(always)]
    fn codes<S: Lanes>(s: S, blocks: &[Self], part: usize) -> S::Bytes {
        let mut octets = [0; 8];
        for (octet, crumbs) in octets.iter_mut().zip(blocks[part].crumbs.as_chunks::<2>().0) {
            *octet = spread_crumbs(u16::from_le_bytes(*crumbs));
        }
        s.octets(octets)
    }
}

impl Codes for BlockNvfp4 {
    const LEN: usize = 64;
    const MIDDLE: u8 = FP4_MIDDLE;

    #[inline(always)]
    fn codes<S: Lanes>(s: S, blocks: &[Self], part: usize) -> S::Bytes {
        let mut octets = [0; 8];
        let runs = blocks[part].nibbles.as_chunks::<8>().0;
        for (pair, bytes) in octets.as_chunks_mut::<2>().0.iter_mut().zip(runs) {
            let nibbles = u64::from_le_bytes(*bytes);
            *pair = [nibbles & (15 * ONES), nibbles >> 4 & (15 * ONES)];
        }
        s.lookup(&FP4_CODES, s.octets(octets))
    }
}
