//! One register of 64 bytes: AVX-512 with VNNI.

use std::arch::x86_64::*;

use crate::kernels::dot::lanes::Lanes;
use crate::simd::Avx512;

/// Each of two bytes for half of the 16-bit lanes.
#[inline(always)]
fn halves_of_words(low: u32, high: u32) -> __m512i {
    let (low, high) = (low as i32 * 0x1_0001, high as i32 * 0x1_0001);
    // SAFETY: called by the functions of the token alone.
    unsafe { _mm512_inserti64x4::<1>(_mm512_set1_epi32(low), _mm256_set1_epi32(high)) }
}

// SAFETY of every block in here: the token exists only where the processor has the instructions, and loads are from
// arrays of exactly the loaded size; what else there is to say is said where it matters.
impl Lanes for Avx512 {
    type Bytes = __m512i;
    type Sums = __m512i;
    type Floats = __m512;
    type Scales = __m512i;
    type Pair = __m128;

    #[inline(always)]
    fn bytes(self, from: &[u8; 64]) -> __m512i {
        // SAFETY: the instructions are there, and the array has 64 bytes.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }
    #[inline(always)]
    fn halves(self, a: &[u8; 32], b: &[u8; 32]) -> __m512i {
        // SAFETY: the instructions are there, and the arrays have 32 bytes.
        unsafe {
            let (a, b) = (_mm256_loadu_si256(a.as_ptr().cast()), _mm256_loadu_si256(b.as_ptr().cast()));
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b)
        }
    }
    #[inline(always)]
    fn octets(self, from: [u64; 8]) -> __m512i {
        let [a, b, c, d, e, f, g, h] = from.map(|octet| octet as i64);
        // SAFETY: the instructions are there.
        unsafe { _mm512_set_epi64(h, g, f, e, d, c, b, a) }
    }
    #[inline(always)]
    fn nibbles(self, a: &[u8; 16], b: &[u8; 16]) -> __m512i {
        // SAFETY: the instructions are there, and the arrays have 16 bytes.
        unsafe {
            let (a, b) = (_mm_loadu_si128(a.as_ptr().cast()), _mm_loadu_si128(b.as_ptr().cast()));
            let both = _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(a), 0xFF00, b);
            let shifts = _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0);
            _mm512_and_si512(_mm512_srlv_epi64(both, shifts), _mm512_set1_epi8(15))
        }
    }
    #[inline(always)]
    fn planes(self, bytes: &[u8; 32], low: u32, high: u32, mask: u8) -> __m512i {
        // SAFETY: the instructions are there, and the array has 32 bytes.
        unsafe {
            let twice = _mm512_broadcast_i64x4(_mm256_loadu_si256(bytes.as_ptr().cast()));
            let shifted = _mm512_srlv_epi16(twice, halves_of_words(low, high));
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
    fn dot_centred(self, codes: __m512i, middle: u8, acts: __m512i) -> __m512i {
        // SAFETY: the instructions are there.
        unsafe {
            let zero = _mm512_setzero_si512();
            let excess = _mm512_dpbusd_epi32(zero, _mm512_set1_epi8(middle as i8), acts);
            _mm512_sub_epi32(_mm512_dpbusd_epi32(zero, codes, acts), excess)
        }
    }
    #[inline(always)]
    fn dot_signed(self, a: __m512i, b: __m512i) -> __m512i {
        // The instruction wants one side unsigned: the other sign bit makes it 128 more.
        // SAFETY: the instructions are there.
        let codes = unsafe { _mm512_xor_si512(a, _mm512_set1_epi8(-128)) };
        self.dot_centred(codes, 128, b)
    }

    #[inline(always)]
    fn no_sums(self) -> __m512i {
        // SAFETY: the instructions are there.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    fn add_sums(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the instructions are there.
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    fn sub_sums(self, a: __m512i, b: __m512i, shift: u32) -> __m512i {
        // SAFETY: the instructions are there.
        unsafe { _mm512_sub_epi32(a, _mm512_sll_epi32(b, _mm_cvtsi32_si128(shift as i32))) }
    }
    #[inline(always)]
    fn scales(self, from: [u8; 16]) -> __m512i {
        // SAFETY: the instructions are there, and the array has 16 bytes.
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().cast())) }
    }
    #[inline(always)]
    fn add_scaled(self, to: __m512i, sums: __m512i, scales: __m512i, part: usize) -> __m512i {
        // SAFETY: the instructions are there.
        unsafe {
            let quarter = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
            let index = _mm512_add_epi32(quarter, _mm512_set1_epi32(4 * part as i32));
            let scales = _mm512_permutexvar_epi32(index, scales);
            _mm512_add_epi32(to, _mm512_mullo_epi32(sums, scales))
        }
    }
    #[inline(always)]
    fn dot_groups(self, scales: [u8; 16], sums: &[u8; 32]) -> __m512i {
        // SAFETY: the instructions are there, and the arrays have 16 and 32 bytes.
        unsafe {
            let scales = _mm256_cvtepi8_epi16(_mm_loadu_si128(scales.as_ptr().cast()));
            let sums = _mm256_loadu_si256(sums.as_ptr().cast());
            _mm512_zextsi256_si512(_mm256_madd_epi16(scales, sums))
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
    fn mul_add_floats(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the instructions are there.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn add_floats(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the instructions are there.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn splat_floats(self, x: f32) -> __m512 {
        // SAFETY: the instructions are there.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn quarters(self, numbers: [f32; 4]) -> __m512 {
        // SAFETY: the instructions are there, and the array has 16 bytes.
        unsafe {
            let quarter = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
            _mm512_permutexvar_ps(quarter, _mm512_castps128_ps512(_mm_loadu_ps(numbers.as_ptr())))
        }
    }
    #[inline(always)]
    fn total(self, v: __m512) -> f32 {
        // SAFETY: the instructions are there.
        unsafe { _mm512_reduce_add_ps(v) }
    }
    #[inline(always)]
    fn load_f32s(self, from: &[u8; 64]) -> __m512 {
        // SAFETY: the instructions are there, and the array has 64 bytes.
        unsafe { _mm512_loadu_ps(from.as_ptr().cast()) }
    }
    #[inline(always)]
    fn load_f16s(self, from: &[u8; 32]) -> __m512 {
        // SAFETY: the instructions are there, and the array has 32 bytes.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }
    #[inline(always)]
    fn load_bf16s(self, from: &[u8; 32]) -> __m512 {
        // SAFETY: the instructions are there, and the array has 32 bytes.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        // SAFETY: the instructions are there.
        unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
    }
    #[inline(always)]
    fn heads(self, a: &[u8; 8], b: &[u8; 8]) -> __m128 {
        // SAFETY: the instructions are there, and the arrays have 8 bytes.
        unsafe {
            let (a, b) = (_mm_loadl_epi64(a.as_ptr().cast()), _mm_loadl_epi64(b.as_ptr().cast()));
            _mm_mul_ps(_mm_cvtph_ps(a), _mm_cvtph_ps(b))
        }
    }
    #[inline(always)]
    fn head(self, x: f32) -> __m128 {
        // SAFETY: the instructions are there.
        unsafe { _mm_set_ss(x) }
    }
    #[inline(always)]
    fn no_pair(self) -> __m128 {
        // SAFETY: the instructions are there.
        unsafe { _mm_setzero_ps() }
    }
    #[inline(always)]
    fn add_pairs(self, a: __m128, b: __m128) -> __m128 {
        // SAFETY: the instructions are there.
        unsafe { _mm_add_ps(a, b) }
    }
    #[inline(always)]
    fn spread(self, a: __m128, b: __m128) -> __m512 {
        // SAFETY: the instructions are there.
        unsafe { _mm512_mask_broadcastss_ps(_mm512_broadcastss_ps(a), 0xFF00, b) }
    }
    #[inline(always)]
    fn second(self, pair: __m128) -> f32 {
        // SAFETY: the instructions are there.
        unsafe { _mm_cvtss_f32(_mm_movehdup_ps(pair)) }
    }
}
