//! Four registers of 16 bytes: NEON.

use std::arch::aarch64::*;

use half::f16;

use super::lanes::Lanes;
use crate::simd::Neon;

/// All four parts of an array.
macro_rules! each {
    (|$i:ident| $part:expr) => {{
        let part = |$i: usize| $part;
        [part(0), part(1), part(2), part(3)]
    }};
}

type Bytes = [uint8x16_t; 4];
type Sums = [int32x4_t; 4];
type Floats = [float32x4_t; 4];

#[inline(always)]
fn load(from: &[u8], start: usize) -> uint8x16_t {
    let from = &from[start..start + 16];
    // SAFETY: the slice has 16 bytes.
    unsafe { vld1q_u8(from.as_ptr()) }
}

#[inline(always)]
fn shift_right(bytes: uint8x16_t, shift: u32, mask: u8) -> uint8x16_t {
    // SAFETY: NEON is there. A negative shift goes right.
    unsafe { vandq_u8(vshlq_u8(bytes, vdupq_n_s8(-(shift as i8))), vdupq_n_u8(mask)) }
}

/// Masks of bytes from bits.
#[inline(always)]
fn where_set(bits: u64, part: usize) -> uint8x16_t {
    let bits = (bits >> (16 * part)) as u16;
    // SAFETY: NEON is there.
    unsafe {
        let bytes = vcombine_u8(vdup_n_u8(bits as u8), vdup_n_u8((bits >> 8) as u8));
        vtstq_u8(bytes, vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201)))
    }
}

/// Word `i` of register `f` becomes word `f` of register `i`.
#[inline(always)]
fn four_words(from: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
    // SAFETY: NEON is there.
    unsafe {
        let word = |f: usize| vreinterpretq_u32_u8(from[f]);
        let (even, odd) = (vtrnq_u32(word(0), word(1)), vtrnq_u32(word(2), word(3)));
        let low = |a, b| vreinterpretq_u8_u32(vcombine_u32(vget_low_u32(a), vget_low_u32(b)));
        let high = |a, b| vreinterpretq_u8_u32(vcombine_u32(vget_high_u32(a), vget_high_u32(b)));
        [low(even.0, odd.0), low(even.1, odd.1), high(even.0, odd.0), high(even.1, odd.1)]
    }
}

impl Lanes for Neon {
    type Bytes = Bytes;
    type Sums = Sums;
    type Floats = Floats;

    #[inline(always)]
    fn store_bytes(self, bytes: Bytes, to: &mut [u8; 64]) {
        let (parts, _) = to.as_chunks_mut::<16>();
        for (part, bytes) in parts.iter_mut().zip(bytes) {
            // SAFETY: NEON is there, and the part has 16 bytes.
            unsafe { vst1q_u8(part.as_mut_ptr(), bytes) };
        }
    }
    #[inline(always)]
    fn swap_words(self, [a, b, c, d]: [Bytes; 4]) -> [Bytes; 4] {
        let parts = each!(|q| four_words([a[q], b[q], c[q], d[q]]));
        each!(|i| [parts[0][i], parts[1][i], parts[2][i], parts[3][i]])
    }
    #[inline(always)]
    fn widen(self, bytes: Bytes) -> [Bytes; 2] {
        let wide = |q: usize| {
            // SAFETY: NEON is there.
            unsafe {
                let bytes = vreinterpretq_s8_u8(bytes[q]);
                let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
                let (low, high) = (vreinterpretq_u32_s16(low), vreinterpretq_u32_s16(high));
                [vreinterpretq_u8_u32(vuzp1q_u32(low, high)), vreinterpretq_u8_u32(vuzp2q_u32(low, high))]
            }
        };
        let parts = each!(|q| wide(q));
        [each!(|q| parts[q][0]), each!(|q| parts[q][1])]
    }
    #[inline(always)]
    fn quarters_of(self, from: [&[u8; 16]; 4]) -> Bytes {
        each!(|i| load(from[i], 0))
    }
    #[inline(always)]
    fn octets(self, from: [u64; 8]) -> Bytes {
        // SAFETY: NEON is there.
        each!(|i| unsafe { vcombine_u8(vcreate_u8(from[2 * i]), vcreate_u8(from[2 * i + 1])) })
    }
    #[inline(always)]
    fn field(self, bytes: Bytes, shift: u32, mask: u8) -> Bytes {
        each!(|i| shift_right(bytes[i], shift, mask))
    }
    #[inline(always)]
    fn join(self, a: Bytes, b: Bytes, shift: u32) -> Bytes {
        // SAFETY: NEON is there.
        each!(|i| unsafe { vaddq_u8(a[i], vshlq_u8(b[i], vdupq_n_s8(shift as i8))) })
    }
    #[inline(always)]
    fn lookup(self, table: &[i8; 16], index: Bytes) -> Bytes {
        // SAFETY: NEON is there, and the array has 16 bytes.
        each!(|i| unsafe { vqtbl1q_u8(vreinterpretq_u8_s8(vld1q_s8(table.as_ptr())), index[i]) })
    }
    #[inline(always)]
    fn add_where(self, bits: u64, value: u8, bytes: Bytes) -> Bytes {
        // SAFETY: NEON is there.
        each!(|i| unsafe { vaddq_u8(bytes[i], vandq_u8(where_set(bits, i), vdupq_n_u8(value))) })
    }
    #[inline(always)]
    fn negate_where(self, bits: u64, bytes: Bytes) -> Bytes {
        // SAFETY: NEON is there.
        each!(|i| unsafe {
            let mask = where_set(bits, i);
            vsubq_u8(veorq_u8(bytes[i], mask), mask)
        })
    }
    #[inline(always)]
    fn all(self, byte: u8) -> Bytes {
        // SAFETY: NEON is there.
        unsafe { [vdupq_n_u8(byte); 4] }
    }
    #[inline(always)]
    fn all_words(self, word: [u8; 4]) -> Bytes {
        // SAFETY: NEON is there.
        unsafe { [vreinterpretq_u8_u32(vdupq_n_u32(u32::from_le_bytes(word))); 4] }
    }

    #[inline(always)]
    fn dot_codes(self, sums: Sums, codes: Bytes, acts: Bytes) -> Sums {
        self.dot_signed(sums, codes, acts)
    }
    #[inline(always)]
    fn dot_levels(self, sums: Sums, levels: Bytes, acts: Bytes) -> Sums {
        self.dot_signed(sums, levels, acts)
    }
    #[inline(always)]
    fn dot_signed(self, sums: Sums, a: Bytes, b: Bytes) -> Sums {
        // SAFETY: NEON is there.
        each!(|i| unsafe {
            let (a, b) = (vreinterpretq_s8_u8(a[i]), vreinterpretq_s8_u8(b[i]));
            // Two products of -128 with itself fit 32 bits, not 16.
            let low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
            vaddq_s32(sums[i], vpaddq_s32(low, vpaddlq_s16(vmull_high_s8(a, b))))
        })
    }

    #[inline(always)]
    fn all_quarters(self, quarter: &[u8; 16]) -> Bytes {
        [load(quarter, 0); 4]
    }
    #[inline(always)]
    fn splat_sums(self, x: i32) -> Sums {
        // SAFETY: NEON is there.
        [unsafe { vdupq_n_s32(x) }; 4]
    }
    #[inline(always)]
    fn swap_quarters(self, [a, b, c, d]: [Bytes; 4]) -> [Bytes; 4] {
        each!(|q| [a[q], b[q], c[q], d[q]])
    }
    #[inline(always)]
    fn add_sums(self, a: Sums, b: Sums) -> Sums {
        // SAFETY: NEON is there.
        each!(|i| unsafe { vaddq_s32(a[i], b[i]) })
    }

    #[inline(always)]
    fn no_floats(self) -> Floats {
        self.splat_floats(0.0)
    }
    #[inline(always)]
    fn fold_words(self, [a, b, c, d]: [Sums; 4]) -> Sums {
        // SAFETY: NEON is there.
        each!(|q| unsafe { vpaddq_s32(vpaddq_s32(a[q], b[q]), vpaddq_s32(c[q], d[q])) })
    }
    #[inline(always)]
    fn store_sums(self, sums: Sums, to: &mut [i32; 16]) {
        let (parts, _) = to.as_chunks_mut::<4>();
        for (part, sums) in parts.iter_mut().zip(sums) {
            // SAFETY: NEON is there, and the part has four integers.
            unsafe { vst1q_s32(part.as_mut_ptr(), sums) };
        }
    }
    #[inline(always)]
    fn load_sums(self, from: &[i32; 16]) -> Sums {
        let (parts, _) = from.as_chunks::<4>();
        // SAFETY: NEON is there, and the part has four integers.
        each!(|i| unsafe { vld1q_s32(parts[i].as_ptr()) })
    }
    #[inline(always)]
    fn to_floats(self, sums: Sums) -> Floats {
        // SAFETY: NEON is there.
        each!(|i| unsafe { vcvtq_f32_s32(sums[i]) })
    }
    #[inline(always)]
    fn fused(self, a: Floats, b: Floats, c: Floats) -> Floats {
        // SAFETY: NEON is there.
        each!(|i| unsafe { vfmaq_f32(c[i], a[i], b[i]) })
    }
    #[inline(always)]
    fn splat_floats(self, x: f32) -> Floats {
        // SAFETY: NEON is there.
        unsafe { [vdupq_n_f32(x); 4] }
    }
    #[inline(always)]
    fn total(self, v: Floats) -> f32 {
        // SAFETY: NEON is there.
        unsafe {
            let four = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
            vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)))
        }
    }
    #[inline(always)]
    fn store_f32s(self, floats: Floats, to: &mut [f32; 16]) {
        let (parts, _) = to.as_chunks_mut::<4>();
        for (part, floats) in parts.iter_mut().zip(floats) {
            // SAFETY: NEON is there, and the part has four numbers.
            unsafe { vst1q_f32(part.as_mut_ptr(), floats) };
        }
    }
    #[inline(always)]
    fn load_f32s(self, from: &[u8; 64]) -> Floats {
        // SAFETY: NEON is there.
        each!(|i| unsafe { vreinterpretq_f32_u8(load(from, 16 * i)) })
    }
    #[inline(always)]
    fn load_f16s(self, from: &[u8; 32]) -> Floats {
        // The vector conversion needs a type that stable Rust does not have; the library uses the scalar one.
        let (words, _) = from.as_chunks();
        each!(|i| {
            let number = |j: usize| self.half(u16::from_le_bytes(words[4 * i + j]));
            let four = [number(0), number(1), number(2), number(3)];
            // SAFETY: NEON is there, and the array has four numbers.
            unsafe { vld1q_f32(four.as_ptr()) }
        })
    }
    #[inline(always)]
    fn load_bf16s(self, from: &[u8; 32]) -> Floats {
        // SAFETY: NEON is there.
        unsafe {
            let (low, high) = (vreinterpretq_u16_u8(load(from, 0)), vreinterpretq_u16_u8(load(from, 16)));
            [
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(low))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(low)),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(high))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(high)),
            ]
        }
    }

    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        f16::from_bits(bits).to_f32()
    }
}
