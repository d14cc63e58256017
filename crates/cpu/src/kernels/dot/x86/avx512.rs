//! [`Lanes`] for AVX-512 with VNNI, in one register of 64 bytes.
//!
//! Processors that execute such an instruction in two halves still keep track of it as one, so that more blocks are under
//! way at a time. Blocks of 16 and 32 bytes are put together while they are loaded.

use std::arch::x86_64::*;

use super::short_lanes;
use crate::kernels::dot::lanes::Lanes;
use crate::simd::Avx512;

#[inline(always)]
fn load(from: &[u8; 32]) -> __m256i {
    // SAFETY: called by the functions of the token alone, and the array has 32 bytes.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
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

/// In each quarter, the first two words with the other two, of `a` and then of `b`.
#[inline(always)]
fn fold_halves(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: called by the functions of the token alone.
    unsafe {
        let crossed = _mm512_shuffle_pd::<0b0101_0101>(_mm512_castsi512_pd(a), _mm512_castsi512_pd(b));
        let straight = _mm512_mask_blend_epi32(0b1100_1100_1100_1100, a, b);
        _mm512_add_epi32(straight, _mm512_castpd_si512(crossed))
    }
}

/// In each quarter, each even word with the odd one behind it, of `a` and then of `b`.
#[inline(always)]
fn fold_pairs(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: called by the functions of the token alone.
    unsafe {
        let (a, b) = (_mm512_castsi512_ps(a), _mm512_castsi512_ps(b));
        let (even, odd) =
            (_mm512_shuffle_ps::<0b10_00_10_00>(a, b), _mm512_shuffle_ps::<0b11_01_11_01>(a, b));
        _mm512_add_epi32(_mm512_castps_si512(even), _mm512_castps_si512(odd))
    }
}

/// See [`Lanes::swap_words`].
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn swap_words([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (low_ab, high_ab) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (low_cd, high_cd) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(low_ab, low_cd),
        _mm512_unpackhi_epi64(low_ab, low_cd),
        _mm512_unpacklo_epi64(high_ab, high_cd),
        _mm512_unpackhi_epi64(high_ab, high_cd),
    ]
}

/// See [`Lanes::swap_quarters`].
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn swap_quarters([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (even_ab, odd_ab) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xDD>(a, b));
    let (even_cd, odd_cd) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xDD>(c, d));
    [
        _mm512_shuffle_i32x4::<0x88>(even_ab, even_cd),
        _mm512_shuffle_i32x4::<0x88>(odd_ab, odd_cd),
        _mm512_shuffle_i32x4::<0xDD>(even_ab, even_cd),
        _mm512_shuffle_i32x4::<0xDD>(odd_ab, odd_cd),
    ]
}

impl Lanes for Avx512 {
    short_lanes!();

    type Bytes = __m512i;
    type Sums = __m512i;
    type Floats = __m512;

    const ANY_CODES: bool = true;

    #[inline(always)]
    fn store_bytes(self, bytes: __m512i, to: &mut [u8; 64]) {
        // SAFETY: the instructions are there, and the array has 64 bytes.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), bytes) }
    }
    #[inline(always)]
    fn swap_words(self, vectors: [__m512i; 4]) -> [__m512i; 4] {
        // SAFETY: the instructions are there.
        unsafe { swap_words(vectors) }
    }
    #[inline(always)]
    fn widen(self, bytes: __m512i) -> [__m512i; 2] {
        // SAFETY: the instructions are there.
        unsafe {
            // Each byte to the upper half of its 16 bits.
            let first = _mm512_slli_epi16::<8>(bytes);
            let second = _mm512_mask_blend_epi8(0x5555_5555_5555_5555, bytes, _mm512_setzero_si512());
            let first_two = _mm512_mask_blend_epi16(0xAAAA_AAAA, first, _mm512_slli_epi32::<16>(second));
            let other_two = _mm512_mask_blend_epi16(0xAAAA_AAAA, _mm512_srli_epi32::<16>(first), second);
            [_mm512_srai_epi16::<8>(first_two), _mm512_srai_epi16::<8>(other_two)]
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
    fn quarter_pairs_of(self, [a, b, c, d]: [&[u8; 32]; 4]) -> [__m512i; 2] {
        // SAFETY: the instructions are there.
        unsafe {
            let ab = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(load(a)), load(b));
            let cd = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(load(c)), load(d));
            [_mm512_shuffle_i32x4::<0x88>(ab, cd), _mm512_shuffle_i32x4::<0xDD>(ab, cd)]
        }
    }
    #[inline(always)]
    fn octets(self, from: [u64; 8]) -> __m512i {
        let [a, b, c, d, e, f, g, h] = from.map(|octet| octet as i64);
        // SAFETY: the instructions are there.
        unsafe { _mm512_set_epi64(h, g, f, e, d, c, b, a) }
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
    fn join_field(self, a: __m512i, bytes: __m512i, shift: u32, mask: u8, to: u32) -> __m512i {
        // SAFETY: the instructions are there.
        unsafe {
            let moved = match shift >= to {
                true => _mm512_srl_epi16(bytes, _mm_cvtsi32_si128((shift - to) as i32)),
                false => _mm512_sll_epi16(bytes, _mm_cvtsi32_si128((to - shift) as i32)),
            };
            // a | moved & mask
            _mm512_ternarylogic_epi32::<0xF8>(a, moved, _mm512_set1_epi8((mask << to) as i8))
        }
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
    fn all_words(self, word: [u8; 4]) -> __m512i {
        // SAFETY: the instructions are there.
        unsafe { _mm512_set1_epi32(i32::from_le_bytes(word)) }
    }
    #[inline(always)]
    fn all_quarters(self, quarter: &[u8; 16]) -> __m512i {
        // SAFETY: the instructions are there, and the array has 16 bytes.
        unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(quarter.as_ptr().cast())) }
    }
    #[inline(always)]
    fn dot_codes(self, sums: __m512i, codes: __m512i, acts: __m512i) -> __m512i {
        // SAFETY: the instructions are there.
        unsafe { _mm512_dpbusd_epi32(sums, codes, acts) }
    }
    #[inline(always)]
    fn dot_levels(self, sums: __m512i, levels: __m512i, acts: __m512i) -> __m512i {
        self.dot_signed(sums, levels, acts)
    }
    #[inline(always)]
    fn dot_signed(self, sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // The instruction wants one side unsigned: with the other sign bit, it is that and 128 more.
        // SAFETY: the instructions are there.
        unsafe {
            let flip = _mm512_set1_epi8(-128);
            let excess = _mm512_dpbusd_epi32(_mm512_setzero_si512(), flip, b);
            _mm512_dpbusd_epi32(_mm512_sub_epi32(sums, excess), _mm512_xor_si512(a, flip), b)
        }
    }
    #[inline(always)]
    fn splat_sums(self, x: i32) -> __m512i {
        // SAFETY: the instructions are there.
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    fn swap_quarters(self, vectors: [__m512i; 4]) -> [__m512i; 4] {
        // SAFETY: the instructions are there.
        unsafe { swap_quarters(vectors) }
    }
    #[inline(always)]
    fn add_sums(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the instructions are there.
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    fn fold_words(self, [a, b, c, d]: [__m512i; 4]) -> __m512i {
        fold_pairs(fold_halves(a, b), fold_halves(c, d))
    }
    #[inline(always)]
    fn store_sums(self, sums: __m512i, to: &mut [i32; 16]) {
        // SAFETY: the instructions are there, and the array has sixteen integers.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), sums) }
    }
    #[inline(always)]
    fn load_sums(self, from: &[i32; 16]) -> __m512i {
        // SAFETY: the instructions are there, and the array has sixteen integers.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
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
    fn side_by_side_f16s(self, bits: [u16; 16]) -> __m512 {
        // By way of memory, loading all of them would wait until the last one is written.
        let mut halves = [0; 16];
        for i in 0..16 {
            halves[i] = bits[i].cast_signed();
        }
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = halves;
        // SAFETY: the instructions are there.
        unsafe { _mm512_cvtph_ps(_mm256_setr_epi16(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)) }
    }
    #[inline(always)]
    fn load_bf16s(self, from: &[u8; 32]) -> __m512 {
        // SAFETY: the instructions are there.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(load(from)))) }
    }
}
