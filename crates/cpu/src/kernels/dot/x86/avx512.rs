//! [`Lanes`] for AVX-512 with VNNI, in one register of 64 bytes.
//!
//! Processors that execute such an instruction in two halves still keep track of it as one, so that more blocks are under
//! way at a time. Blocks of 16 and 32 bytes are put together while they are loaded.

use std::arch::x86_64::*;

use super::{load, short_lanes, twice};
use crate::kernels::dot::lanes::Lanes;
use crate::simd::Avx512;

/// One register from two.
#[inline(always)]
fn both(low: __m256i, high: __m256i) -> __m512i {
    // SAFETY: called by the functions of the token alone.
    unsafe { _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high) }
}

/// One number for each half.
#[inline(always)]
fn halves_of_words(low: i16, high: i16) -> __m512i {
    // SAFETY: called by the functions of the token alone.
    unsafe { both(_mm256_set1_epi16(low), _mm256_set1_epi16(high)) }
}

/// Sums of `levels * acts`, for levels that are the same within each quarter.
///
/// The instruction wants the activations unsigned here. With the other sign bit, they are that and 128 more, so the
/// sum starts with what takes 128 off four of them.
#[inline(always)]
fn negative(levels: __m512i, acts: __m512i) -> __m512i {
    // SAFETY: called by the functions of the token alone.
    unsafe {
        let high = _mm512_set1_epi8(-128);
        let excess = _mm512_dpbusd_epi32(_mm512_setzero_si512(), high, levels);
        let start = _mm512_sub_epi32(_mm512_setzero_si512(), excess);
        _mm512_dpbusd_epi32(start, _mm512_xor_si512(acts, high), levels)
    }
}

/// Each lane of the lower half with its partner in the upper one, of `a` and then of `b`.
#[inline(always)]
fn add_halves(a: __m512, b: __m512) -> __m512 {
    // SAFETY: called by the functions of the token alone.
    unsafe {
        let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b);
        _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b))
    }
}

/// In each quarter, the first two lanes with the other two, of `a` and then of `b`.
#[inline(always)]
fn add_pairs(a: __m512, b: __m512) -> __m512 {
    // SAFETY: called by the functions of the token alone.
    unsafe {
        let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
        let low = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
        _mm512_add_ps(low, _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)))
    }
}

impl Lanes for Avx512 {
    short_lanes!();

    type Bytes = __m512i;
    type Sums = __m512i;
    type Floats = __m512;

    const ANY_CODES: bool = true;

    #[inline(always)]
    fn bytes(self, from: &[u8; 64]) -> __m512i {
        // SAFETY: the instructions are there, and the array has 64 bytes.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }
    #[inline(always)]
    fn store_bytes(self, bytes: __m512i, to: &mut [u8; 64]) {
        // SAFETY: the instructions are there, and the array has 64 bytes.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), bytes) }
    }
    #[inline(always)]
    fn transpose(self, mut v: [__m512i; 16]) -> [__m512i; 16] {
        // SAFETY: the instructions are there.
        unsafe {
            // Pairs of rows, then fours, within each quarter of the vector.
            let mut w = v;
            for r in 0..8 {
                w[2 * r] = _mm512_unpacklo_epi32(v[2 * r], v[2 * r + 1]);
                w[2 * r + 1] = _mm512_unpackhi_epi32(v[2 * r], v[2 * r + 1]);
            }
            for r in 0..4 {
                v[4 * r] = _mm512_unpacklo_epi64(w[4 * r], w[4 * r + 2]);
                v[4 * r + 1] = _mm512_unpackhi_epi64(w[4 * r], w[4 * r + 2]);
                v[4 * r + 2] = _mm512_unpacklo_epi64(w[4 * r + 1], w[4 * r + 3]);
                v[4 * r + 3] = _mm512_unpackhi_epi64(w[4 * r + 1], w[4 * r + 3]);
            }
            // Now quarter q of v[4 * f + i] is word 4 * q + i of rows 4 * f to 4 * f + 3.
            for i in 0..4 {
                let low = _mm512_shuffle_i32x4::<0b01_00_01_00>(v[i], v[4 + i]);
                let low2 = _mm512_shuffle_i32x4::<0b01_00_01_00>(v[8 + i], v[12 + i]);
                let high = _mm512_shuffle_i32x4::<0b11_10_11_10>(v[i], v[4 + i]);
                let high2 = _mm512_shuffle_i32x4::<0b11_10_11_10>(v[8 + i], v[12 + i]);
                w[i] = _mm512_shuffle_i32x4::<0b10_00_10_00>(low, low2);
                w[4 + i] = _mm512_shuffle_i32x4::<0b11_01_11_01>(low, low2);
                w[8 + i] = _mm512_shuffle_i32x4::<0b10_00_10_00>(high, high2);
                w[12 + i] = _mm512_shuffle_i32x4::<0b11_01_11_01>(high, high2);
            }
            w
        }
    }
    #[inline(always)]
    fn quarters_of(self, [a, b, c, d]: [&[u8; 16]; 4]) -> __m512i {
        // SAFETY: the instructions are there, and the arrays have 16 bytes.
        unsafe {
            let low = _mm512_castsi128_si512(_mm_loadu_si128(a.as_ptr().cast()));
            let low = _mm512_inserti32x4::<1>(low, _mm_loadu_si128(b.as_ptr().cast()));
            let low = _mm512_inserti32x4::<2>(low, _mm_loadu_si128(c.as_ptr().cast()));
            _mm512_inserti32x4::<3>(low, _mm_loadu_si128(d.as_ptr().cast()))
        }
    }
    #[inline(always)]
    fn halves(self, a: &[u8; 32], b: &[u8; 32]) -> __m512i {
        both(load(a), load(b))
    }
    #[inline(always)]
    fn octets(self, from: [u64; 8]) -> __m512i {
        let [a, b, c, d, e, f, g, h] = from.map(|octet| octet as i64);
        // SAFETY: the instructions are there.
        unsafe { _mm512_set_epi64(h, g, f, e, d, c, b, a) }
    }
    #[inline(always)]
    fn nibbles(self, a: &[u8; 16], b: &[u8; 16]) -> __m512i {
        // SAFETY: the instructions are there.
        unsafe {
            let shifts = _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0);
            let shifted = _mm512_srlv_epi64(both(twice(a), twice(b)), shifts);
            _mm512_and_si512(shifted, _mm512_set1_epi8(15))
        }
    }
    #[inline(always)]
    fn planes(self, bytes: &[u8; 32], low: u32, high: u32, mask: u8) -> __m512i {
        // SAFETY: the instructions are there.
        unsafe {
            let bytes = _mm512_broadcast_i64x4(load(bytes));
            let shifted = _mm512_srlv_epi16(bytes, halves_of_words(low as i16, high as i16));
            _mm512_and_si512(shifted, _mm512_set1_epi8(mask as i8))
        }
    }
    #[inline(always)]
    fn field(self, bytes: __m512i, shift: u32, mask: u8) -> __m512i {
        // SAFETY: the instructions are there.
        unsafe {
            let shifted = _mm512_srl_epi16(bytes, _mm_cvtsi32_si128(shift as i32));
            _mm512_and_si512(shifted, _mm512_set1_epi8(mask as i8))
        }
    }
    #[inline(always)]
    fn join(self, a: __m512i, b: __m512i, shift: u32) -> __m512i {
        // SAFETY: the instructions are there.
        unsafe { _mm512_add_epi8(a, _mm512_sll_epi16(b, _mm_cvtsi32_si128(shift as i32))) }
    }
    #[inline(always)]
    fn lookup(self, table: &[i8; 16], index: __m512i) -> __m512i {
        // SAFETY: the instructions are there, and the array has 16 bytes.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, index)
        }
    }
    #[inline(always)]
    fn add_where(self, bits: u64, value: u8, bytes: __m512i) -> __m512i {
        // SAFETY: the instructions are there.
        unsafe { _mm512_mask_add_epi8(bytes, bits, bytes, _mm512_set1_epi8(value as i8)) }
    }
    #[inline(always)]
    fn negate_where(self, bits: u64, bytes: __m512i) -> __m512i {
        // SAFETY: the instructions are there.
        unsafe { _mm512_mask_sub_epi8(bytes, bits, _mm512_setzero_si512(), bytes) }
    }
    #[inline(always)]
    fn all(self, byte: u8) -> __m512i {
        // SAFETY: the instructions are there.
        unsafe { _mm512_set1_epi8(byte as i8) }
    }
    #[inline(always)]
    fn dot_codes(self, codes: __m512i, acts: __m512i) -> __m512i {
        // SAFETY: the instructions are there.
        unsafe { _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, acts) }
    }
    #[inline(always)]
    fn dot_levels(self, levels: __m512i, acts: __m512i) -> __m512i {
        self.dot_signed(levels, acts)
    }
    #[inline(always)]
    fn dot_signed(self, a: __m512i, b: __m512i) -> __m512i {
        // The instruction wants one side unsigned: with the other sign bit, it is that and 128 more.
        // SAFETY: the instructions are there.
        unsafe {
            let flip = _mm512_set1_epi8(-128);
            _mm512_dpbusd_epi32(negative(flip, b), _mm512_xor_si512(a, flip), b)
        }
    }
    #[inline(always)]
    fn no_sums(self) -> __m512i {
        // SAFETY: the instructions are there.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    fn splat_sums(self, x: i32) -> __m512i {
        // SAFETY: the instructions are there.
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    fn add_sums(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the instructions are there.
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    fn fours(self, [a, b, c, d]: [__m512i; 4]) -> __m512i {
        // SAFETY: the instructions are there.
        unsafe {
            let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
        }
    }
    #[inline(always)]
    fn swap_quarters(self, [a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
        // SAFETY: the instructions are there.
        unsafe {
            let (even_ab, odd_ab) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xDD>(a, b));
            let (even_cd, odd_cd) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xDD>(c, d));
            [
                _mm512_shuffle_i32x4::<0x88>(even_ab, even_cd),
                _mm512_shuffle_i32x4::<0x88>(odd_ab, odd_cd),
                _mm512_shuffle_i32x4::<0xDD>(even_ab, even_cd),
                _mm512_shuffle_i32x4::<0xDD>(odd_ab, odd_cd),
            ]
        }
    }
    #[inline(always)]
    fn no_floats(self) -> __m512 {
        // SAFETY: the instructions are there.
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    fn to_floats(self, sums: __m512i) -> __m512 {
        // SAFETY: the instructions are there.
        unsafe { _mm512_cvtepi32_ps(sums) }
    }
    #[inline(always)]
    fn fused(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the instructions are there.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn splat_floats(self, x: f32) -> __m512 {
        // SAFETY: the instructions are there.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn total(self, v: __m512) -> f32 {
        // SAFETY: the instructions are there.
        unsafe {
            let eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    fn totals(self, v: [__m512; 16]) -> [f32; 16] {
        // SAFETY: the instructions are there.
        unsafe {
            let mut fours = [_mm512_setzero_ps(); 4];
            for i in 0..4 {
                // Of vectors i, i + 4, i + 8 and i + 12, a quarter of the lanes each.
                let (low, high) = (add_halves(v[i], v[i + 4]), add_halves(v[i + 8], v[i + 12]));
                let even = _mm512_shuffle_f32x4::<0b10_00_10_00>(low, high);
                fours[i] = _mm512_add_ps(even, _mm512_shuffle_f32x4::<0b11_01_11_01>(low, high));
            }
            let (low, high) = (add_pairs(fours[0], fours[1]), add_pairs(fours[2], fours[3]));
            let even = _mm512_shuffle_ps::<0b10_00_10_00>(low, high);
            let sums = _mm512_add_ps(even, _mm512_shuffle_ps::<0b11_01_11_01>(low, high));
            let mut totals = [0.0; 16];
            _mm512_storeu_ps(totals.as_mut_ptr(), sums);
            totals
        }
    }
    #[inline(always)]
    fn store_f32s(self, floats: __m512, to: &mut [f32; 16]) {
        // SAFETY: the instructions are there, and the array has sixteen numbers.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), floats) }
    }
    #[inline(always)]
    fn load_f32s(self, from: &[u8; 64]) -> __m512 {
        // SAFETY: the instructions are there, and the array has 64 bytes.
        unsafe { _mm512_loadu_ps(from.as_ptr().cast()) }
    }
    #[inline(always)]
    fn load_f16s(self, from: &[u8; 32]) -> __m512 {
        // SAFETY: the instructions are there.
        unsafe { _mm512_cvtph_ps(load(from)) }
    }
    #[inline(always)]
    fn load_bf16s(self, from: &[u8; 32]) -> __m512 {
        // SAFETY: the instructions are there.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(load(from)))) }
    }
}
