//! [`Lanes`](super::lanes::Lanes) for 64-bit x86, in two registers of 32 bytes.
//!
//! AVX-512 has registers of 64 bytes, but blocks come in 16 and 32 bytes, and putting them together takes longer than a
//! wide register saves. What it adds are dot products in one instruction, and masks.

mod avx2;
mod avx512;

use std::arch::x86_64::*;

/// The numbers that two blocks begin with, see [`Lanes::heads`](super::lanes::Lanes::heads).
#[inline(always)]
fn four_halves([a, b]: [&[u8; 16]; 2]) -> __m128 {
    // SAFETY: called by the functions of the tokens alone, and the arrays have 16 bytes.
    unsafe {
        let (a, b) = (_mm_loadu_si128(a.as_ptr().cast()), _mm_loadu_si128(b.as_ptr().cast()));
        _mm_cvtph_ps(_mm_blend_epi32::<2>(a, b))
    }
}

#[inline(always)]
fn load(from: &[u8; 32]) -> __m256i {
    // SAFETY: called by the functions of the tokens alone, and the array has 32 bytes.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

#[inline(always)]
fn twice(from: &[u8; 16]) -> __m256i {
    // SAFETY: called by the functions of the tokens alone, and the array has 16 bytes.
    unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(from.as_ptr().cast())) }
}

/// The scales of half a part: one for the words in each half of the register.
#[inline(always)]
fn scale_words(scales: [__m256i; 2], part: usize, half: usize) -> __m256i {
    let first = (4 * (part % 2) + 2 * half) as i16;
    let (low, high) = (0x0100 + 0x0202 * first, 0x0100 + 0x0202 * (first + 1));
    // SAFETY: called by the functions of the tokens alone.
    unsafe {
        let which = _mm256_set_m128i(_mm_set1_epi16(high), _mm_set1_epi16(low));
        _mm256_shuffle_epi8(scales[part / 2], which)
    }
}

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

pub(self) use each;

/// What both instruction sets have.
macro_rules! common_lanes {
    () => {
        type Bytes = [__m256i; 2];
        type Sums = [__m256i; 2];
        type Floats = [__m256; 2];
        type Words = [__m256i; 2];
        type Groups = __m128i;
        type Scales = [__m256i; 2];
        type Heads = __m128;

        #[inline(always)]
        fn bytes(self, from: &[u8; 64]) -> [__m256i; 2] {
            // SAFETY: the instructions are there, and both halves of the array have 32 bytes.
            unsafe { each!(|i| _mm256_loadu_si256(from.as_ptr().add(32 * i).cast())) }
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
            unsafe {
                each!(|i| _mm256_add_epi8(a[i], _mm256_sll_epi16(b[i], _mm_cvtsi32_si128(shift as i32))))
            }
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
        fn code_words(self, codes: [__m256i; 2], acts: [__m256i; 2]) -> [__m256i; 2] {
            // SAFETY: the instructions are there.
            unsafe { each!(|i| _mm256_maddubs_epi16(codes[i], acts[i])) }
        }
        #[inline(always)]
        fn level_words(self, levels: [__m256i; 2], acts: [__m256i; 2]) -> [__m256i; 2] {
            // The instruction wants one side unsigned: activations give their signs to the levels, which all have an opposite.
            // SAFETY: the instructions are there.
            unsafe {
                each!(|i| _mm256_maddubs_epi16(
                    _mm256_abs_epi8(acts[i]),
                    _mm256_sign_epi8(levels[i], acts[i])
                ))
            }
        }
        #[inline(always)]
        fn groups(self, from: &[u8; 16]) -> __m128i {
            // SAFETY: the instructions are there, and the array has 16 bytes.
            unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
        }
        #[inline(always)]
        fn interleaved(self, even: u64, odd: u64) -> __m128i {
            // SAFETY: the instructions are there.
            unsafe { _mm_unpacklo_epi8(_mm_cvtsi64_si128(even as i64), _mm_cvtsi64_si128(odd as i64)) }
        }
        #[inline(always)]
        fn group_field(self, groups: __m128i, shift: u32, mask: u8) -> __m128i {
            // SAFETY: the instructions are there.
            unsafe {
                let shifted = _mm_srl_epi16(groups, _mm_cvtsi32_si128(shift as i32));
                _mm_and_si128(shifted, _mm_set1_epi8(mask as i8))
            }
        }
        #[inline(always)]
        fn scales(self, groups: __m128i) -> [__m256i; 2] {
            // Eight scales fit half a register; shuffles need them in both halves.
            // SAFETY: the instructions are there.
            unsafe {
                let words = _mm256_cvtepi8_epi16(groups);
                [_mm256_permute4x64_epi64::<0x44>(words), _mm256_permute4x64_epi64::<0xEE>(words)]
            }
        }
        #[inline(always)]
        fn no_sums(self) -> [__m256i; 2] {
            // SAFETY: the instructions are there.
            unsafe { [_mm256_setzero_si256(); 2] }
        }
        #[inline(always)]
        fn sub_sums(self, a: [__m256i; 2], b: [__m256i; 2], shift: u32) -> [__m256i; 2] {
            // SAFETY: the instructions are there.
            unsafe {
                each!(|i| _mm256_sub_epi32(a[i], _mm256_sll_epi32(b[i], _mm_cvtsi32_si128(shift as i32))))
            }
        }
        #[inline(always)]
        fn dot_groups(self, groups: __m128i, sums: &[u8; 32]) -> [__m256i; 2] {
            // SAFETY: the instructions are there.
            unsafe { [_mm256_madd_epi16(_mm256_cvtepi8_epi16(groups), load(sums)), _mm256_setzero_si256()] }
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
        fn mul_add_floats(self, a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
            // SAFETY: the instructions are there.
            unsafe { each!(|i| _mm256_fmadd_ps(a[i], b[i], c[i])) }
        }
        #[inline(always)]
        fn add_floats(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            // SAFETY: the instructions are there.
            unsafe { each!(|i| _mm256_add_ps(a[i], b[i])) }
        }
        #[inline(always)]
        fn splat_floats(self, x: f32) -> [__m256; 2] {
            // SAFETY: the instructions are there.
            unsafe { [_mm256_set1_ps(x); 2] }
        }
        #[inline(always)]
        fn quarters(self, numbers: [f32; 4]) -> [__m256; 2] {
            let [a, b, c, d] = numbers;
            // SAFETY: the instructions are there.
            unsafe {
                [
                    _mm256_set_m128(_mm_set1_ps(b), _mm_set1_ps(a)),
                    _mm256_set_m128(_mm_set1_ps(d), _mm_set1_ps(c)),
                ]
            }
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
        fn half(self, bits: u16) -> f32 {
            // SAFETY: the instructions are there.
            unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
        }
        #[inline(always)]
        fn heads(self, a: [&[u8; 16]; 2], b: [&[u8; 16]; 2]) -> __m128 {
            // SAFETY: the instructions are there.
            unsafe { _mm_mul_ps(four_halves(a), four_halves(b)) }
        }
        #[inline(always)]
        fn two_heads(self, numbers: [f32; 2]) -> __m128 {
            // SAFETY: the instructions are there.
            unsafe { _mm_set_ps(0.0, numbers[1], 0.0, numbers[0]) }
        }
        #[inline(always)]
        fn no_heads(self) -> __m128 {
            // SAFETY: the instructions are there.
            unsafe { _mm_setzero_ps() }
        }
        #[inline(always)]
        fn add_heads(self, a: __m128, b: __m128) -> __m128 {
            // SAFETY: the instructions are there.
            unsafe { _mm_add_ps(a, b) }
        }
        #[inline(always)]
        fn spread(self, heads: __m128) -> [__m256; 2] {
            // SAFETY: the instructions are there.
            unsafe {
                {
                    let second =
                        _mm256_permutevar8x32_ps(_mm256_castps128_ps256(heads), _mm256_set1_epi32(2));
                    [_mm256_broadcastss_ps(heads), second]
                }
            }
        }
        #[inline(always)]
        fn total_seconds(self, heads: __m128) -> f32 {
            // SAFETY: the instructions are there.
            unsafe {
                let seconds = _mm_movehdup_ps(heads);
                _mm_cvtss_f32(_mm_add_ss(seconds, _mm_movehl_ps(seconds, seconds)))
            }
        }
    };
}
pub(self) use common_lanes;
