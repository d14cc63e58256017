//! Words of several rows side by side: what packing does most of the time.
//!
//! Invariant: on every instruction set, word `i` of row `r` goes to `out[i * stride + r]`.

#[cfg(target_arch = "x86_64")]
use crate::simd::Level;
use crate::simd::Simd;

/// Rows that are transposed together.
pub(super) const ROWS: usize = 16;
/// Words of a row that are transposed together.
pub(super) const WORDS: usize = 16;

/// Writes the first `words` words of 16 rows side by side, lines `stride` words apart. Rows are `from_stride` words
/// apart and have at least 16 words each. `plus` is added to each byte.
#[inline(always)]
pub(super) fn transpose<S: Simd>(
    _s: S,
    from: &[u32],
    from_stride: usize,
    words: usize,
    plus: u8,
    out: &mut [u32],
    stride: usize,
) {
    assert!(words <= WORDS && from.len() >= (ROWS - 1) * from_stride + WORDS);
    assert!(words == 0 || out.len() >= (words - 1) * stride + ROWS);
    match S::LEVEL {
        // SAFETY: the token says that the processor has the instructions; lengths were checked above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512(_) => unsafe {
            x86::transpose_512(from.as_ptr(), from_stride, words, plus, out.as_mut_ptr(), stride);
        },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(_) => unsafe {
            x86::transpose_256(from.as_ptr(), from_stride, words, plus, out.as_mut_ptr(), stride);
        },
        _ => {
            for i in 0..words {
                let out = &mut out[i * stride..][..ROWS];
                for r in 0..ROWS {
                    out[r] = add_bytes(from[r * from_stride + i], plus);
                }
            }
        }
    }
}

fn add_bytes(word: u32, plus: u8) -> u32 {
    u32::from_le_bytes(word.to_le_bytes().map(|byte| byte.wrapping_add(plus)))
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::ROWS;

    /// # Safety
    ///
    /// `from` has 16 words at each of 16 multiples of `from_stride`, `out` has room for 16 words at each of `words`
    /// multiples of `stride`, and `words` is at most 16.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    pub(super) unsafe fn transpose_512(
        from: *const u32,
        from_stride: usize,
        words: usize,
        plus: u8,
        out: *mut u32,
        stride: usize,
    ) {
        let plus = _mm512_set1_epi8(plus as i8);
        let mut v = [_mm512_setzero_si512(); ROWS];
        for r in 0..ROWS {
            // SAFETY: as the caller says.
            v[r] = _mm512_add_epi8(unsafe { _mm512_loadu_si512(from.add(r * from_stride).cast()) }, plus);
        }
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
        for i in 0..words.min(ROWS) {
            // SAFETY: as the caller says.
            unsafe { _mm512_storeu_si512(out.add(i * stride).cast(), w[i]) };
        }
    }

    /// # Safety
    ///
    /// `from` has 16 words at each of 16 multiples of `from_stride`, `out` has room for 16 words at each of `words`
    /// multiples of `stride`, and `words` is at most 16.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(super) unsafe fn transpose_256(
        from: *const u32,
        from_stride: usize,
        words: usize,
        plus: u8,
        out: *mut u32,
        stride: usize,
    ) {
        let plus = _mm256_set1_epi8(plus as i8);
        for (row, word) in [(0, 0), (8, 0), (0, 8), (8, 8)] {
            if word >= words {
                break;
            }
            let mut v = [_mm256_setzero_si256(); 8];
            for r in 0..8 {
                // SAFETY: as the caller says.
                let words = unsafe { _mm256_loadu_si256(from.add((row + r) * from_stride + word).cast()) };
                v[r] = _mm256_add_epi8(words, plus);
            }
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
            for i in 0..(words - word).min(8) {
                // SAFETY: as the caller says.
                unsafe { _mm256_storeu_si256(out.add((word + i) * stride + row).cast(), w[i]) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Level, for_each_level};

    #[test]
    fn words_go_where_the_head_of_this_file_says() {
        let from: Vec<u32> = (0..ROWS * 20).map(|i| i as u32).collect();
        for level in Level::available() {
            for words in [0, 1, 7, 8, 13, 16] {
                let mut out = vec![u32::MAX; 16 * 24];
                for_each_level!(transpose: fn(
                    from: &[u32],
                    from_stride: usize,
                    words: usize,
                    plus: u8,
                    out: &mut [u32],
                    stride: usize,
                ))
                .at(level)(&from, 20, words, 200, &mut out, 24);
                for (at, &word) in out.iter().enumerate() {
                    let (i, r) = (at / 24, at % 24);
                    let inside = i < words && r < ROWS;
                    let wanted = if inside { add_bytes((20 * r + i) as u32, 200) } else { u32::MAX };
                    assert_eq!(word, wanted, "{level}: word {i} of row {r}");
                }
            }
        }
    }
}
