//! [`Lanes`] for AVX2 with FMA and F16C, in two registers of 32 bytes.

use std::arch::x86_64::*;

use super::{load, short_lanes, twice};
use crate::kernels::dot::lanes::Lanes;
use crate::simd::Avx2;

/// Both parts of an array, or of two.
macro_rules! each {
    (|$i:ident| $part:expr) => {{
        // A closure would not be compiled for the instruction set.
        let low = {
            let $i = 0;
            $part
        };
        let high = {
            let $i = 1;
            $part
        };
        [low, high]
    }};
}

/// Masks of bytes from bits.
#[inline(always)]
fn where_set(bits: u32) -> __m256i {
    // SAFETY: called by the functions of the token alone.
    unsafe {
        // Each byte gets the one of four that has its bit.
        let which = _mm256_set_epi64x(
            0x0303_0303_0303_0303,
            0x0202_0202_0202_0202,
            0x0101_0101_0101_0101,
            0x0000_0000_0000_0000,
        );
        let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), which);
        let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit)
    }
}

/// Word `i` of vector `r` becomes word `r` of vector `i`.
#[inline(always)]
fn transpose_eight(mut v: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: called by the functions of the token alone.
    unsafe {
        let mut w = v;
        for r in 0..4 {
            w[2 * r] = _mm256_unpacklo_epi32(v[2 * r], v[2 * r + 1]);
            w[2 * r + 1] = _mm256_unpackhi_epi32(v[2 * r], v[2 * r + 1]);
        }
        for r in 0..2 {
            v[4 * r] = _mm256_unpacklo_epi64(w[4 * r], w[4 * r + 2]);
            v[4 * r + 1] = _mm256_unpackhi_epi64(w[4 * r], w[4 * r + 2]);
            v[4 * r + 2] = _mm256_unpacklo_epi64(w[4 * r + 1], w[4 * r + 3]);
            v[4 * r + 3] = _mm256_unpackhi_epi64(w[4 * r + 1], w[4 * r + 3]);
        }
        // Now half h of v[4 * f + i] is word 4 * h + i of rows 4 * f to 4 * f + 3.
        for i in 0..4 {
            w[i] = _mm256_permute2x128_si256::<0x20>(v[i], v[4 + i]);
            w[4 + i] = _mm256_permute2x128_si256::<0x31>(v[i], v[4 + i]);
        }
        w
    }
}

/// Sums of neighbouring words.
#[inline(always)]
fn pairs(words: __m256i) -> __m256i {
    // SAFETY: called by the functions of the token alone.
    unsafe { _mm256_madd_epi16(words, _mm256_set1_epi16(1)) }
}

impl Lanes for Avx2 {
    short_lanes!();

    type Bytes = [__m256i; 2];
    type Sums = [__m256i; 2];
    type Floats = [__m256; 2];

    #[inline(always)]
    fn bytes(self, from: &[u8; 64]) -> [__m256i; 2] {
        // SAFETY: the instructions are there, and both halves of the array have 32 bytes.
        unsafe { each!(|i| _mm256_loadu_si256(from.as_ptr().add(32 * i).cast())) }
    }
    #[inline(always)]
    fn store_bytes(self, bytes: [__m256i; 2], to: &mut [u8; 64]) {
        // SAFETY: the instructions are there, and both halves of the array have 32 bytes.
        unsafe {
            _mm256_storeu_si256(to.as_mut_ptr().cast(), bytes[0]);
            _mm256_storeu_si256(to.as_mut_ptr().add(32).cast(), bytes[1]);
        }
    }
    #[inline(always)]
    fn transpose(self, from: [[__m256i; 2]; 16]) -> [[__m256i; 2]; 16] {
        let mut to = from;
        // Squares of eight rows by eight words.
        for (half, words) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let mut v = [from[0][0]; 8];
            for r in 0..8 {
                v[r] = from[8 * half + r][words];
            }
            let v = transpose_eight(v);
            for i in 0..8 {
                to[8 * words + i][half] = v[i];
            }
        }
        to
    }
    #[inline(always)]
    fn quarters_of(self, [a, b, c, d]: [&[u8; 16]; 4]) -> [__m256i; 2] {
        // SAFETY: the instructions are there, and the arrays have 16 bytes.
        unsafe {
            let (a, b) = (_mm_loadu_si128(a.as_ptr().cast()), _mm_loadu_si128(b.as_ptr().cast()));
            let (c, d) = (_mm_loadu_si128(c.as_ptr().cast()), _mm_loadu_si128(d.as_ptr().cast()));
            [_mm256_set_m128i(b, a), _mm256_set_m128i(d, c)]
        }
    }
    #[inline(always)]
    fn halves(self, a: &[u8; 32], b: &[u8; 32]) -> [__m256i; 2] {
        [load(a), load(b)]
    }
    #[inline(always)]
    fn octets(self, from: [u64; 8]) -> [__m256i; 2] {
        let [a, b, c, d, e, f, g, h] = from.map(|octet| octet as i64);
        // SAFETY: the instructions are there.
        unsafe { [_mm256_set_epi64x(d, c, b, a), _mm256_set_epi64x(h, g, f, e)] }
    }
    #[inline(always)]
    fn nibbles(self, a: &[u8; 16], b: &[u8; 16]) -> [__m256i; 2] {
        let from = [a, b];
        // SAFETY: the instructions are there, and the arrays have 16 bytes.
        unsafe {
            each!(|i| {
                let both = twice(from[i]);
                let shifted = _mm256_srlv_epi64(both, _mm256_set_epi64x(4, 4, 0, 0));
                _mm256_and_si256(shifted, _mm256_set1_epi8(15))
            })
        }
    }
    #[inline(always)]
    fn planes(self, bytes: &[u8; 32], low: u32, high: u32, mask: u8) -> [__m256i; 2] {
        let bytes = load(bytes);
        let shifts = [low, high];
        // SAFETY: the instructions are there.
        unsafe {
            each!(|i| {
                let shifted = _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(shifts[i] as i32));
                _mm256_and_si256(shifted, _mm256_set1_epi8(mask as i8))
            })
        }
    }
    #[inline(always)]
    fn field(self, bytes: [__m256i; 2], shift: u32, mask: u8) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe {
            each!(|i| {
                let shifted = _mm256_srl_epi16(bytes[i], _mm_cvtsi32_si128(shift as i32));
                _mm256_and_si256(shifted, _mm256_set1_epi8(mask as i8))
            })
        }
    }
    #[inline(always)]
    fn join(self, a: [__m256i; 2], b: [__m256i; 2], shift: u32) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe { each!(|i| _mm256_add_epi8(a[i], _mm256_sll_epi16(b[i], _mm_cvtsi32_si128(shift as i32)))) }
    }
    #[inline(always)]
    fn lookup(self, table: &[i8; 16], index: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the instructions are there, and the array has 16 bytes.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            each!(|i| _mm256_shuffle_epi8(table, index[i]))
        }
    }
    #[inline(always)]
    fn all(self, byte: u8) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe { [_mm256_set1_epi8(byte as i8); 2] }
    }
    #[inline(always)]
    fn no_sums(self) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe { [_mm256_setzero_si256(); 2] }
    }
    #[inline(always)]
    fn splat_sums(self, x: i32) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe { [_mm256_set1_epi32(x); 2] }
    }
    #[inline(always)]
    fn add_sums(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe { each!(|i| _mm256_add_epi32(a[i], b[i])) }
    }
    #[inline(always)]
    fn fours(self, [a, b, c, d]: [[__m256i; 2]; 4]) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe { each!(|i| _mm256_hadd_epi32(_mm256_hadd_epi32(a[i], b[i]), _mm256_hadd_epi32(c[i], d[i]))) }
    }
    #[inline(always)]
    fn swap_quarters(self, [a, b, c, d]: [[__m256i; 2]; 4]) -> [[__m256i; 2]; 4] {
        // SAFETY: the instructions are there.
        unsafe {
            let even = each!(|i| [
                _mm256_permute2x128_si256::<0x20>(a[i], b[i]),
                _mm256_permute2x128_si256::<0x20>(c[i], d[i])
            ]);
            let odd = each!(|i| [
                _mm256_permute2x128_si256::<0x31>(a[i], b[i]),
                _mm256_permute2x128_si256::<0x31>(c[i], d[i])
            ]);
            [even[0], odd[0], even[1], odd[1]]
        }
    }
    #[inline(always)]
    fn no_floats(self) -> [__m256; 2] {
        // SAFETY: the instructions are there.
        unsafe { [_mm256_setzero_ps(); 2] }
    }
    #[inline(always)]
    fn to_floats(self, sums: [__m256i; 2]) -> [__m256; 2] {
        // SAFETY: the instructions are there.
        unsafe { each!(|i| _mm256_cvtepi32_ps(sums[i])) }
    }
    #[inline(always)]
    fn fused(self, a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the instructions are there.
        unsafe { each!(|i| _mm256_fmadd_ps(a[i], b[i], c[i])) }
    }
    #[inline(always)]
    fn splat_floats(self, x: f32) -> [__m256; 2] {
        // SAFETY: the instructions are there.
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    fn total(self, v: [__m256; 2]) -> f32 {
        // SAFETY: the instructions are there.
        unsafe {
            let eight = _mm256_add_ps(v[0], v[1]);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    fn store_f32s(self, floats: [__m256; 2], to: &mut [f32; 16]) {
        // SAFETY: the instructions are there, and both halves of the array have 32 bytes.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), floats[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), floats[1]);
        }
    }
    #[inline(always)]
    fn load_f32s(self, from: &[u8; 64]) -> [__m256; 2] {
        // SAFETY: the instructions are there, and both halves of the array have 32 bytes.
        unsafe { each!(|i| _mm256_loadu_ps(from.as_ptr().add(32 * i).cast())) }
    }
    #[inline(always)]
    fn load_f16s(self, from: &[u8; 32]) -> [__m256; 2] {
        // SAFETY: the instructions are there, and both halves of the array have 16 bytes.
        unsafe { each!(|i| _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().add(16 * i).cast()))) }
    }
    #[inline(always)]
    fn load_bf16s(self, from: &[u8; 32]) -> [__m256; 2] {
        // SAFETY: the instructions are there, and both halves of the array have 16 bytes.
        unsafe {
            each!(|i| {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().add(16 * i).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            })
        }
    }

    #[inline(always)]
    fn add_where(self, bits: u64, value: u8, bytes: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe {
            let value = _mm256_set1_epi8(value as i8);
            each!(|i| _mm256_add_epi8(
                bytes[i],
                _mm256_and_si256(where_set((bits >> (32 * i)) as u32), value)
            ))
        }
    }
    #[inline(always)]
    fn negate_where(self, bits: u64, bytes: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe {
            each!(|i| {
                let mask = where_set((bits >> (32 * i)) as u32);
                _mm256_sub_epi8(_mm256_xor_si256(bytes[i], mask), mask)
            })
        }
    }
    #[inline(always)]
    fn dot_codes(self, codes: [__m256i; 2], acts: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe { each!(|i| pairs(_mm256_maddubs_epi16(codes[i], acts[i]))) }
    }
    #[inline(always)]
    fn dot_levels(self, levels: [__m256i; 2], acts: [__m256i; 2]) -> [__m256i; 2] {
        // The instruction wants one side unsigned: activations give their signs to the levels, which all have an opposite.
        // SAFETY: the instructions are there.
        unsafe {
            each!(|i| {
                let (acts, levels) = (_mm256_abs_epi8(acts[i]), _mm256_sign_epi8(levels[i], acts[i]));
                pairs(_mm256_maddubs_epi16(acts, levels))
            })
        }
    }
    #[inline(always)]
    fn dot_signed(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        // By way of 16 bits, because -128 has no opposite among bytes, and two products of it are too large for less.
        // SAFETY: the instructions are there.
        unsafe {
            each!(|i| {
                let low = _mm256_madd_epi16(
                    _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(a[i])),
                    _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(b[i])),
                );
                let high = _mm256_madd_epi16(_mm256_srai_epi16::<8>(a[i]), _mm256_srai_epi16::<8>(b[i]));
                _mm256_add_epi32(low, high)
            })
        }
    }
}
