//! [`Lanes`] for AVX2 with FMA and F16C, in two registers of 32 bytes.

use std::arch::x86_64::*;

use super::short_lanes;
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

/// Sums of neighbouring words.
#[inline(always)]
fn pairs(words: __m256i) -> __m256i {
    // SAFETY: called by the functions of the token alone.
    unsafe { _mm256_madd_epi16(words, _mm256_set1_epi16(1)) }
}

/// In each quarter, the first two words with the other two, of `a` and then of `b`.
#[inline(always)]
fn fold_halves(a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: called by the functions of the token alone.
    unsafe {
        let crossed = _mm256_shuffle_pd::<0b0101>(_mm256_castsi256_pd(a), _mm256_castsi256_pd(b));
        _mm256_add_epi32(_mm256_blend_epi32::<0b1100_1100>(a, b), _mm256_castpd_si256(crossed))
    }
}

/// In each quarter, each even word with the odd one behind it, of `a` and then of `b`.
#[inline(always)]
fn fold_pairs(a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: called by the functions of the token alone.
    unsafe {
        let (a, b) = (_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
        let (even, odd) =
            (_mm256_shuffle_ps::<0b10_00_10_00>(a, b), _mm256_shuffle_ps::<0b11_01_11_01>(a, b));
        _mm256_add_epi32(_mm256_castps_si256(even), _mm256_castps_si256(odd))
    }
}

impl Lanes for Avx2 {
    short_lanes!();

    type Bytes = [__m256i; 2];
    type Sums = [__m256i; 2];
    type Floats = [__m256; 2];

    #[inline(always)]
    fn store_bytes(self, bytes: [__m256i; 2], to: &mut [u8; 64]) {
        // SAFETY: the instructions are there, and both halves of the array have 32 bytes.
        unsafe {
            _mm256_storeu_si256(to.as_mut_ptr().cast(), bytes[0]);
            _mm256_storeu_si256(to.as_mut_ptr().add(32).cast(), bytes[1]);
        }
    }
    #[inline(always)]
    fn swap_words(self, [a, b, c, d]: [[__m256i; 2]; 4]) -> [[__m256i; 2]; 4] {
        // SAFETY: the instructions are there.
        unsafe {
            let low_ab = each!(|i| _mm256_unpacklo_epi32(a[i], b[i]));
            let high_ab = each!(|i| _mm256_unpackhi_epi32(a[i], b[i]));
            let low_cd = each!(|i| _mm256_unpacklo_epi32(c[i], d[i]));
            let high_cd = each!(|i| _mm256_unpackhi_epi32(c[i], d[i]));
            [
                each!(|i| _mm256_unpacklo_epi64(low_ab[i], low_cd[i])),
                each!(|i| _mm256_unpackhi_epi64(low_ab[i], low_cd[i])),
                each!(|i| _mm256_unpacklo_epi64(high_ab[i], high_cd[i])),
                each!(|i| _mm256_unpackhi_epi64(high_ab[i], high_cd[i])),
            ]
        }
    }
    #[inline(always)]
    fn widen(self, bytes: [__m256i; 2]) -> [[__m256i; 2]; 2] {
        // SAFETY: the instructions are there.
        unsafe {
            // Each byte to the upper half of its 16 bits.
            let first_two = _mm256_setr_epi8(
                -1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1, 0, -1, 1, -1, 4, -1, 5, -1, 8,
                -1, 9, -1, 12, -1, 13,
            );
            let other_two = _mm256_setr_epi8(
                -1, 2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1, 2, -1, 3, -1, 6, -1, 7, -1,
                10, -1, 11, -1, 14, -1, 15,
            );
            [
                each!(|i| _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(bytes[i], first_two))),
                each!(|i| _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(bytes[i], other_two))),
            ]
        }
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
    fn octets(self, from: [u64; 8]) -> [__m256i; 2] {
        let [a, b, c, d, e, f, g, h] = from.map(|octet| octet as i64);
        // SAFETY: the instructions are there.
        unsafe { [_mm256_set_epi64x(d, c, b, a), _mm256_set_epi64x(h, g, f, e)] }
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
    fn all_words(self, word: [u8; 4]) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe { [_mm256_set1_epi32(i32::from_le_bytes(word)); 2] }
    }
    #[inline(always)]
    fn all_quarters(self, quarter: &[u8; 16]) -> [__m256i; 2] {
        // SAFETY: the instructions are there, and the array has 16 bytes.
        unsafe { [_mm256_broadcastsi128_si256(_mm_loadu_si128(quarter.as_ptr().cast())); 2] }
    }
    #[inline(always)]
    fn splat_sums(self, x: i32) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe { [_mm256_set1_epi32(x); 2] }
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
    fn add_sums(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe { each!(|i| _mm256_add_epi32(a[i], b[i])) }
    }
    #[inline(always)]
    fn fold_words(self, [a, b, c, d]: [[__m256i; 2]; 4]) -> [__m256i; 2] {
        each!(|i| fold_pairs(fold_halves(a[i], b[i]), fold_halves(c[i], d[i])))
    }
    #[inline(always)]
    fn store_sums(self, sums: [__m256i; 2], to: &mut [i32; 16]) {
        // SAFETY: the instructions are there, and both halves of the array have 32 bytes.
        unsafe {
            _mm256_storeu_si256(to.as_mut_ptr().cast(), sums[0]);
            _mm256_storeu_si256(to.as_mut_ptr().add(8).cast(), sums[1]);
        }
    }
    #[inline(always)]
    fn load_sums(self, from: &[i32; 16]) -> [__m256i; 2] {
        // SAFETY: the instructions are there, and both halves of the array have 32 bytes.
        unsafe { each!(|i| _mm256_loadu_si256(from.as_ptr().add(8 * i).cast())) }
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
    fn dot_codes(self, sums: [__m256i; 2], codes: [__m256i; 2], acts: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe { each!(|i| _mm256_add_epi32(sums[i], pairs(_mm256_maddubs_epi16(codes[i], acts[i])))) }
    }
    #[inline(always)]
    fn dot_levels(self, sums: [__m256i; 2], levels: [__m256i; 2], acts: [__m256i; 2]) -> [__m256i; 2] {
        // The instruction wants one side unsigned: activations give their signs to the levels, which all have an opposite.
        // SAFETY: the instructions are there.
        unsafe {
            each!(|i| {
                let (acts, levels) = (_mm256_abs_epi8(acts[i]), _mm256_sign_epi8(levels[i], acts[i]));
                _mm256_add_epi32(sums[i], pairs(_mm256_maddubs_epi16(acts, levels)))
            })
        }
    }
    #[inline(always)]
    fn dot_small(self, codes: [[__m256i; 2]; 2], acts: [[__m256i; 2]; 2]) -> [__m256i; 2] {
        // Two sums of two products fit 16 bits.
        // SAFETY: the instructions are there.
        unsafe {
            each!(|i| {
                let first = _mm256_maddubs_epi16(codes[0][i], acts[0][i]);
                pairs(_mm256_add_epi16(first, _mm256_maddubs_epi16(codes[1][i], acts[1][i])))
            })
        }
    }
    #[inline(always)]
    fn dot_signed(self, sums: [__m256i; 2], a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        // The instruction wants one side unsigned, where 128 is still a number: `a` gives its signs to `b`. Two products of 128
        // and 127 fit 16 bits.
        // SAFETY: the instructions are there.
        unsafe {
            each!(|i| {
                let (a, b) = (_mm256_abs_epi8(a[i]), _mm256_sign_epi8(b[i], a[i]));
                _mm256_add_epi32(sums[i], pairs(_mm256_maddubs_epi16(a, b)))
            })
        }
    }
}
