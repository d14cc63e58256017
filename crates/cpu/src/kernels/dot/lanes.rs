//! What dot products need of an instruction set: 64 bytes at a time, and the sixteen sums and numbers they become.
//!
//! 64 bytes are the codes of 64 neighbouring elements, in order. A product of two such vectors has sixteen lanes: lane
//! `i` is about elements `4 * i` to `4 * i + 3`. So a group of 16 elements is a quarter of the lanes, one of 32 a half.
//! Instruction sets with shorter vectors use several registers; kernels are written once.
//!
//! Invariant: integers are exact, or wrap where 32 bits are too few; therefore all instruction sets agree on them. They agree
//! on numbers too, but for [`Lanes::mul_add_floats`], which rounds twice where a processor is not known to do better.

use crate::simd::Simd;

/// The operations of dot products.
pub(crate) trait Lanes: Simd {
    /// 64 bytes; signed or unsigned, as the operation says.
    type Bytes: Copy;
    /// Sixteen 32-bit integers.
    type Sums: Copy;
    /// Sixteen numbers.
    type Floats: Copy;
    /// 32 16-bit integers; lane `i` is about elements `2 * i` and `2 * i + 1`.
    type Words: Copy;
    /// Sixteen bytes, one for each group of 16 elements among 256.
    type Groups: Copy;
    /// [`Lanes::Groups`], signed and made ready for [`Lanes::add_scaled`].
    type Scales: Copy;
    /// Two numbers for each of two blocks.
    type Heads: Copy;

    /// 64 bytes from memory.
    fn bytes(self, from: &[u8; 64]) -> Self::Bytes;
    /// 64 bytes to memory.
    fn store_bytes(self, bytes: Self::Bytes, to: &mut [u8; 64]);
    /// Word `i` of vector `r` becomes word `r` of vector `i`.
    fn transpose(self, vectors: [Self::Bytes; 16]) -> [Self::Bytes; 16];
    /// Four times 16 bytes.
    fn quarters_of(self, from: [&[u8; 16]; 4]) -> Self::Bytes;
    /// Two times 32 bytes.
    fn halves(self, a: &[u8; 32], b: &[u8; 32]) -> Self::Bytes;
    /// Eight times eight bytes, each as a little-endian number.
    fn octets(self, from: [u64; 8]) -> Self::Bytes;
    /// The low nibbles of `a`, its high nibbles, then those of `b`.
    fn nibbles(self, a: &[u8; 16], b: &[u8; 16]) -> Self::Bytes;
    /// `bytes >> low & mask`, then `bytes >> high & mask`.
    fn planes(self, bytes: &[u8; 32], low: u32, high: u32, mask: u8) -> Self::Bytes;
    /// `bytes >> shift & mask`.
    fn field(self, bytes: Self::Bytes, shift: u32, mask: u8) -> Self::Bytes;
    /// Lane by lane `a + (b << shift)`, where no bit may leave its byte.
    fn join(self, a: Self::Bytes, b: Self::Bytes, shift: u32) -> Self::Bytes;
    /// `table[index]`, for indices below 16.
    fn lookup(self, table: &[i8; 16], index: Self::Bytes) -> Self::Bytes;
    /// Adds `value` to each byte whose bit is set.
    fn add_where(self, bits: u64, value: u8, bytes: Self::Bytes) -> Self::Bytes;
    /// Negates each byte whose bit is set.
    fn negate_where(self, bits: u64, bytes: Self::Bytes) -> Self::Bytes;
    /// All bytes the same.
    fn all(self, byte: u8) -> Self::Bytes;

    /// Pairwise sums of `codes * acts`, for unsigned codes below 128.
    fn code_words(self, codes: Self::Bytes, acts: Self::Bytes) -> Self::Words;
    /// Pairwise sums of `levels * acts`, both signed, where no level is -128.
    fn level_words(self, levels: Self::Bytes, acts: Self::Bytes) -> Self::Words;

    /// Sums of `codes * acts`, for unsigned codes below 128.
    fn dot_codes(self, codes: Self::Bytes, acts: Self::Bytes) -> Self::Sums;
    /// Sums of `(codes - middle) * acts`, for unsigned codes and a middle below 128.
    fn dot_centred(self, codes: Self::Bytes, middle: u8, acts: Self::Bytes) -> Self::Sums;
    /// Sums of `(codes - middle) * acts`, where the codes are [`Lanes::nibbles`]. Those of high nibbles may come out sixteen
    /// times as large; [`Lanes::total_of_nibbles`] knows.
    #[inline(always)]
    fn dot_nibbles(self, a: &[u8; 16], b: &[u8; 16], middle: u8, acts: Self::Bytes) -> Self::Sums {
        self.dot_centred(self.nibbles(a, b), middle, acts)
    }
    /// Sums of `levels * acts`, both signed, where no level is -128.
    fn dot_levels(self, levels: Self::Bytes, acts: Self::Bytes) -> Self::Sums;
    /// Sums of `a * b`, both signed.
    fn dot_signed(self, a: Self::Bytes, b: Self::Bytes) -> Self::Sums;

    /// Sixteen bytes from memory.
    fn groups(self, from: &[u8; 16]) -> Self::Groups;
    /// The first byte of `even`, the first of `odd`, the second of `even`, and so on; both as little-endian numbers.
    fn interleaved(self, even: u64, odd: u64) -> Self::Groups;
    /// `groups >> shift & mask`.
    fn group_field(self, groups: Self::Groups, shift: u32, mask: u8) -> Self::Groups;
    fn scales(self, groups: Self::Groups) -> Self::Scales;

    /// Whether [`Lanes::dot_codes`] takes any unsigned codes, not only those below 128.
    const ANY_CODES: bool = false;

    /// Zeros.
    fn no_sums(self) -> Self::Sums;
    /// All lanes the same.
    fn splat_sums(self, x: i32) -> Self::Sums;
    fn add_sums(self, a: Self::Sums, b: Self::Sums) -> Self::Sums;
    /// The sums of each quarter of four vectors: those of quarter `q` of vector `i` in lane `4 * q + i`.
    fn fours(self, vectors: [Self::Sums; 4]) -> Self::Sums;
    /// Quarter `q` of vector `f` becomes quarter `f` of vector `q`.
    fn swap_quarters(self, vectors: [Self::Sums; 4]) -> [Self::Sums; 4];
    /// `a - (b << shift)`.
    fn sub_sums(self, a: Self::Sums, b: Self::Sums, shift: u32) -> Self::Sums;
    /// Adds the words of 64 elements to `to`.
    fn add_words(self, to: Self::Sums, words: Self::Words) -> Self::Sums;
    /// Adds the words of 64 elements, times the scales of their four groups: those from `4 * part` on.
    fn add_scaled(self, to: Self::Sums, words: Self::Words, scales: Self::Scales, part: usize) -> Self::Sums;
    /// Products of sixteen signed bytes with sixteen little-endian 16-bit integers, added up into any lanes.
    fn dot_groups(self, groups: Self::Groups, sums: &[u8; 32]) -> Self::Sums;

    /// Zeros.
    fn no_floats(self) -> Self::Floats;
    fn to_floats(self, sums: Self::Sums) -> Self::Floats;
    /// `a * b + c`, rounded once where the processor can.
    fn mul_add_floats(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    fn fused(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    fn add_floats(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// All lanes the same.
    fn splat_floats(self, x: f32) -> Self::Floats;
    /// Each number for a quarter of the lanes.
    fn quarters(self, numbers: [f32; 4]) -> Self::Floats;
    /// The sum of all lanes: each with the one eight further on, those with the one four further on, then two, then one.
    fn total(self, v: Self::Floats) -> f32;
    /// [`Lanes::total`] of sixteen vectors.
    #[inline(always)]
    fn totals(self, vectors: [Self::Floats; 16]) -> [f32; 16] {
        let mut totals = [0.0; 16];
        for i in 0..16 {
            totals[i] = self.total(vectors[i]);
        }
        totals
    }
    /// The sum of all lanes that were made by [`Lanes::dot_nibbles`].
    #[inline(always)]
    fn total_of_nibbles(self, v: Self::Floats) -> f32 {
        self.total(v)
    }
    /// Sixteen `f32` to memory.
    fn store_f32s(self, floats: Self::Floats, to: &mut [f32; 16]);
    /// Sixteen `f32`.
    fn load_f32s(self, from: &[u8; 64]) -> Self::Floats;
    /// Sixteen `f16`, widened.
    fn load_f16s(self, from: &[u8; 32]) -> Self::Floats;
    /// Sixteen `bf16`, widened.
    fn load_bf16s(self, from: &[u8; 32]) -> Self::Floats;

    /// One `f16`, widened.
    fn half(self, bits: u16) -> f32;
    /// Products of the two `f16` that two blocks each begin with. Of each side, the first 16 bytes hold what the first
    /// block begins with, in front; the other 16 what the second one begins with, behind four bytes of something else.
    fn heads(self, a: [&[u8; 16]; 2], b: [&[u8; 16]; 2]) -> Self::Heads;
    /// One number for each of two blocks, and other ones that do not matter.
    fn two_heads(self, numbers: [f32; 2]) -> Self::Heads;
    /// Zeros.
    fn no_heads(self) -> Self::Heads;
    fn add_heads(self, a: Self::Heads, b: Self::Heads) -> Self::Heads;
    /// The first number of each block for a half of the lanes.
    fn spread(self, heads: Self::Heads) -> Self::Floats;
    /// The sum of the second number of each block.
    fn total_seconds(self, heads: Self::Heads) -> f32;
}
