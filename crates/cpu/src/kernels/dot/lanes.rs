//! What dot products need of an instruction set: 64 bytes at a time, and the sixteen sums and numbers they become.
//!
//! 64 bytes are the codes of 64 neighbouring elements, in order. A product of two such vectors has sixteen lanes: lane
//! `i` is about elements `4 * i` to `4 * i + 3`. So a group of 16 elements is a quarter of the lanes, one of 32 a half.
//! Instruction sets with shorter vectors use several registers; kernels are written once.
//!
//! Invariant: integers are exact, or wrap where 32 bits are too few; therefore all instruction sets agree on them. They agree
//! on numbers too.

use crate::simd::Simd;

/// The operations of dot products.
pub(crate) trait Lanes: Simd {
    /// 64 bytes; signed or unsigned, as the operation says.
    type Bytes: Copy;
    /// Sixteen 32-bit integers.
    type Sums: Copy;
    /// Sixteen numbers.
    type Floats: Copy;

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

    /// Sums of `codes * acts`, for unsigned codes below 128.
    fn dot_codes(self, codes: Self::Bytes, acts: Self::Bytes) -> Self::Sums;
    /// Sums of `levels * acts`, both signed, where no level is -128.
    fn dot_levels(self, levels: Self::Bytes, acts: Self::Bytes) -> Self::Sums;
    /// Sums of `a * b`, both signed.
    fn dot_signed(self, a: Self::Bytes, b: Self::Bytes) -> Self::Sums;

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

    /// Zeros.
    fn no_floats(self) -> Self::Floats;
    fn to_floats(self, sums: Self::Sums) -> Self::Floats;
    /// `a * b + c`, rounded once.
    fn fused(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// All lanes the same.
    fn splat_floats(self, x: f32) -> Self::Floats;
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
}
