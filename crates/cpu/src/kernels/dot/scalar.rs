//! Arrays: the definition of what [`Lanes`] means.

use half::f16;

use super::lanes::Lanes;
use crate::simd::{Scalar, fused};

type Bytes = [u8; 64];
type Sums = [i32; 16];
type Floats = [f32; 16];

/// An array of what is given for each index. The standard library's way is a call for each where compilers are not told to do
/// their utmost, as in tests.
#[inline(always)]
fn each<T: Copy, const N: usize>(element: impl Fn(usize) -> T) -> [T; N] {
    let mut all = [element(0); N];
    for (i, to) in all.iter_mut().enumerate().skip(1) {
        *to = element(i);
    }
    all
}

/// Adds `product` of its four elements to each lane.
#[inline(always)]
fn add_fours(sums: Sums, product: impl Fn(usize) -> i32) -> Sums {
    each(|lane| {
        let at = 4 * lane;
        sums[lane].wrapping_add(product(at) + product(at + 1) + product(at + 2) + product(at + 3))
    })
}

#[inline(always)]
fn signed(byte: u8) -> i32 {
    i32::from(byte as i8)
}

#[inline(always)]
fn word(from: &[u8], index: usize) -> u16 {
    u16::from_le_bytes([from[2 * index], from[2 * index + 1]])
}

impl Lanes for Scalar {
    type Bytes = Bytes;
    type Sums = Sums;
    type Floats = Floats;

    #[inline(always)]
    fn store_bytes(self, bytes: Bytes, to: &mut [u8; 64]) {
        *to = bytes;
    }
    #[inline(always)]
    fn swap_words(self, v: [Bytes; 4]) -> [Bytes; 4] {
        each(|i| each(|at| v[at / 4 % 4][at / 16 * 16 + 4 * i + at % 4]))
    }
    #[inline(always)]
    fn widen(self, bytes: Bytes) -> [Bytes; 2] {
        each(|half| {
            each(|at| {
                let wide = signed(bytes[at / 4 * 4 + 2 * half + at / 2 % 2]) as i16;
                wide.to_le_bytes()[at % 2]
            })
        })
    }
    #[inline(always)]
    fn quarters_of(self, from: [&[u8; 16]; 4]) -> Bytes {
        each(|i| from[i / 16][i % 16])
    }
    #[inline(always)]
    fn octets(self, from: [u64; 8]) -> Bytes {
        each(|i| from[i / 8].to_le_bytes()[i % 8])
    }
    #[inline(always)]
    fn field(self, bytes: Bytes, shift: u32, mask: u8) -> Bytes {
        each(|i| bytes[i] >> shift & mask)
    }
    #[inline(always)]
    fn join(self, a: Bytes, b: Bytes, shift: u32) -> Bytes {
        each(|i| a[i].wrapping_add(b[i] << shift))
    }
    #[inline(always)]
    fn lookup(self, table: &[i8; 16], index: Bytes) -> Bytes {
        each(|i| table[usize::from(index[i] & 15)] as u8)
    }
    #[inline(always)]
    fn add_where(self, bits: u64, value: u8, bytes: Bytes) -> Bytes {
        each(|i| bytes[i].wrapping_add(if bits >> i & 1 == 1 { value } else { 0 }))
    }
    #[inline(always)]
    fn negate_where(self, bits: u64, bytes: Bytes) -> Bytes {
        each(|i| if bits >> i & 1 == 1 { bytes[i].wrapping_neg() } else { bytes[i] })
    }
    #[inline(always)]
    fn all(self, byte: u8) -> Bytes {
        [byte; 64]
    }
    #[inline(always)]
    fn all_words(self, word: [u8; 4]) -> Bytes {
        each(|at| word[at % 4])
    }

    #[inline(always)]
    fn all_quarters(self, quarter: &[u8; 16]) -> Bytes {
        each(|at| quarter[at % 16])
    }

    #[inline(always)]
    fn dot_codes(self, sums: Sums, codes: Bytes, acts: Bytes) -> Sums {
        add_fours(sums, |i| i32::from(codes[i]) * signed(acts[i]))
    }
    #[inline(always)]
    fn dot_levels(self, sums: Sums, levels: Bytes, acts: Bytes) -> Sums {
        self.dot_signed(sums, levels, acts)
    }
    #[inline(always)]
    fn dot_signed(self, sums: Sums, a: Bytes, b: Bytes) -> Sums {
        add_fours(sums, |i| signed(a[i]) * signed(b[i]))
    }

    #[inline(always)]
    fn splat_sums(self, x: i32) -> Sums {
        [x; 16]
    }
    #[inline(always)]
    fn swap_quarters(self, v: [Bytes; 4]) -> [Bytes; 4] {
        each(|q| each(|at| v[at / 16][16 * q + at % 16]))
    }
    #[inline(always)]
    fn add_sums(self, a: Sums, b: Sums) -> Sums {
        each(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    fn fold_words(self, v: [Sums; 4]) -> Sums {
        each(|at| {
            let quarter = &v[at % 4][at / 4 * 4..][..4];
            quarter.iter().fold(0i32, |sum, word| sum.wrapping_add(*word))
        })
    }
    #[inline(always)]
    fn store_sums(self, sums: Sums, to: &mut [i32; 16]) {
        *to = sums;
    }
    #[inline(always)]
    fn load_sums(self, from: &[i32; 16]) -> Sums {
        *from
    }

    #[inline(always)]
    fn no_floats(self) -> Floats {
        [0.0; 16]
    }
    #[inline(always)]
    fn to_floats(self, sums: Sums) -> Floats {
        each(|i| sums[i] as f32)
    }
    #[inline(always)]
    fn fused(self, a: Floats, b: Floats, c: Floats) -> Floats {
        each(|i| fused(a[i], b[i], c[i]))
    }
    #[inline(always)]
    fn splat_floats(self, x: f32) -> Floats {
        [x; 16]
    }
    #[inline(always)]
    fn total(self, v: Floats) -> f32 {
        // Pairwise, as vectors do it.
        let eight: [f32; 8] = each(|i| v[i] + v[i + 8]);
        let four: [f32; 4] = each(|i| eight[i] + eight[i + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }
    #[inline(always)]
    fn store_f32s(self, floats: Floats, to: &mut [f32; 16]) {
        *to = floats;
    }
    #[inline(always)]
    fn load_f32s(self, from: &[u8; 64]) -> Floats {
        each(|i| f32::from_le_bytes([from[4 * i], from[4 * i + 1], from[4 * i + 2], from[4 * i + 3]]))
    }
    #[inline(always)]
    fn load_f16s(self, from: &[u8; 32]) -> Floats {
        each(|i| f16::from_bits(word(from, i)).to_f32_const())
    }
    #[inline(always)]
    fn load_bf16s(self, from: &[u8; 32]) -> Floats {
        each(|i| f32::from_bits(u32::from(word(from, i)) << 16))
    }

    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        f16::from_bits(bits).to_f32_const()
    }
}
