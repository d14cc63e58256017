//! Arrays: the definition of what [`Lanes`] means.

use half::f16;

use super::lanes::Lanes;
use crate::simd::Scalar;

type Bytes = [u8; 64];
type Sums = [i32; 16];
type Floats = [f32; 16];

/// Lane `i` is the sum of `product` over its four elements.
#[inline(always)]
fn fours(product: impl Fn(usize) -> i32) -> Sums {
    std::array::from_fn(|lane| {
        let at = 4 * lane;
        product(at) + product(at + 1) + product(at + 2) + product(at + 3)
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
    type Scales = [i8; 16];
    type Pair = [f32; 2];

    #[inline(always)]
    fn bytes(self, from: &[u8; 64]) -> Bytes {
        *from
    }
    #[inline(always)]
    fn halves(self, a: &[u8; 32], b: &[u8; 32]) -> Bytes {
        std::array::from_fn(|i| if i < 32 { a[i] } else { b[i - 32] })
    }
    #[inline(always)]
    fn octets(self, from: [u64; 8]) -> Bytes {
        std::array::from_fn(|i| from[i / 8].to_le_bytes()[i % 8])
    }
    #[inline(always)]
    fn nibbles(self, a: &[u8; 16], b: &[u8; 16]) -> Bytes {
        std::array::from_fn(|i| {
            let byte = if i < 32 { a[i % 16] } else { b[i % 16] };
            if i % 32 < 16 { byte & 15 } else { byte >> 4 }
        })
    }
    #[inline(always)]
    fn planes(self, bytes: &[u8; 32], low: u32, high: u32, mask: u8) -> Bytes {
        std::array::from_fn(|i| bytes[i % 32] >> (if i < 32 { low } else { high }) & mask)
    }
    #[inline(always)]
    fn field(self, bytes: Bytes, shift: u32, mask: u8) -> Bytes {
        bytes.map(|byte| byte >> shift & mask)
    }
    #[inline(always)]
    fn join(self, a: Bytes, b: Bytes, shift: u32) -> Bytes {
        std::array::from_fn(|i| a[i].wrapping_add(b[i] << shift))
    }
    #[inline(always)]
    fn lookup(self, table: &[i8; 16], index: Bytes) -> Bytes {
        index.map(|index| table[usize::from(index & 15)] as u8)
    }
    #[inline(always)]
    fn add_where(self, bits: u64, value: u8, bytes: Bytes) -> Bytes {
        std::array::from_fn(|i| bytes[i].wrapping_add(if bits >> i & 1 == 1 { value } else { 0 }))
    }
    #[inline(always)]
    fn negate_where(self, bits: u64, bytes: Bytes) -> Bytes {
        std::array::from_fn(|i| if bits >> i & 1 == 1 { bytes[i].wrapping_neg() } else { bytes[i] })
    }
    #[inline(always)]
    fn all(self, byte: u8) -> Bytes {
        [byte; 64]
    }

    #[inline(always)]
    fn dot_codes(self, codes: Bytes, acts: Bytes) -> Sums {
        fours(|i| i32::from(codes[i]) * signed(acts[i]))
    }
    #[inline(always)]
    fn dot_centred(self, codes: Bytes, middle: u8, acts: Bytes) -> Sums {
        fours(|i| (i32::from(codes[i]) - i32::from(middle)) * signed(acts[i]))
    }
    #[inline(always)]
    fn dot_signed(self, a: Bytes, b: Bytes) -> Sums {
        fours(|i| signed(a[i]) * signed(b[i]))
    }

    #[inline(always)]
    fn no_sums(self) -> Sums {
        [0; 16]
    }
    #[inline(always)]
    fn add_sums(self, a: Sums, b: Sums) -> Sums {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    fn sub_sums(self, a: Sums, b: Sums, shift: u32) -> Sums {
        std::array::from_fn(|i| a[i].wrapping_sub(b[i] << shift))
    }
    #[inline(always)]
    fn scales(self, from: [u8; 16]) -> [i8; 16] {
        from.map(|byte| byte as i8)
    }
    #[inline(always)]
    fn add_scaled(self, to: Sums, sums: Sums, scales: [i8; 16], part: usize) -> Sums {
        std::array::from_fn(|i| to[i].wrapping_add(sums[i] * i32::from(scales[4 * part + i / 4])))
    }
    #[inline(always)]
    fn dot_groups(self, scales: [u8; 16], sums: &[u8; 32]) -> Sums {
        std::array::from_fn(|i| signed(scales[i]) * i32::from(word(sums, i) as i16))
    }

    #[inline(always)]
    fn no_floats(self) -> Floats {
        [0.0; 16]
    }
    #[inline(always)]
    fn to_floats(self, sums: Sums) -> Floats {
        sums.map(|sum| sum as f32)
    }
    #[inline(always)]
    fn mul_add_floats(self, a: Floats, b: Floats, c: Floats) -> Floats {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn add_floats(self, a: Floats, b: Floats) -> Floats {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn splat_floats(self, x: f32) -> Floats {
        [x; 16]
    }
    #[inline(always)]
    fn quarters(self, numbers: [f32; 4]) -> Floats {
        std::array::from_fn(|i| numbers[i / 4])
    }
    #[inline(always)]
    fn total(self, v: Floats) -> f32 {
        // Pairwise, as vectors do it.
        let eight: [f32; 8] = std::array::from_fn(|i| v[i] + v[i + 8]);
        let four: [f32; 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }
    #[inline(always)]
    fn load_f32s(self, from: &[u8; 64]) -> Floats {
        std::array::from_fn(|i| {
            f32::from_le_bytes([from[4 * i], from[4 * i + 1], from[4 * i + 2], from[4 * i + 3]])
        })
    }
    #[inline(always)]
    fn load_f16s(self, from: &[u8; 32]) -> Floats {
        std::array::from_fn(|i| f16::from_bits(word(from, i)).to_f32_const())
    }
    #[inline(always)]
    fn load_bf16s(self, from: &[u8; 32]) -> Floats {
        std::array::from_fn(|i| f32::from_bits(u32::from(word(from, i)) << 16))
    }

    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        f16::from_bits(bits).to_f32_const()
    }
    #[inline(always)]
    fn heads(self, a: &[u8; 8], b: &[u8; 8]) -> [f32; 2] {
        std::array::from_fn(|i| self.half(word(a, i)) * self.half(word(b, i)))
    }
    #[inline(always)]
    fn head(self, x: f32) -> [f32; 2] {
        [x, 0.0]
    }
    #[inline(always)]
    fn no_pair(self) -> [f32; 2] {
        [0.0; 2]
    }
    #[inline(always)]
    fn add_pairs(self, a: [f32; 2], b: [f32; 2]) -> [f32; 2] {
        [a[0] + b[0], a[1] + b[1]]
    }
    #[inline(always)]
    fn spread(self, a: [f32; 2], b: [f32; 2]) -> Floats {
        std::array::from_fn(|i| if i < 8 { a[0] } else { b[0] })
    }
    #[inline(always)]
    fn second(self, pair: [f32; 2]) -> f32 {
        pair[1]
    }
}
