//! What dot products need of an instruction set: 64 bytes at a time, and the sixteen sums and numbers they become.
//!
//! 64 bytes are codes: four neighbouring elements of each of sixteen rows, or sixteen of each of four. A product of two such
//! vectors has sixteen lanes, each the sum of four products. Instruction sets with shorter vectors use several registers; kernels
//! are written once.
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

    /// Whether a type's different parts of 64 elements are worth code of their own.
    const WRITTEN_OUT: bool = false;
    /// Up to how many columns are multiplied along rows of weights, and sums then put side by side; for more, codes are put side by
    /// side before, once for all columns.
    const ALONG_ROWS: usize = 2;

    /// 64 bytes to memory.
    fn store_bytes(self, bytes: Self::Bytes, to: &mut [u8; 64]);
    /// Quarter `q` of vector `i` becomes quarter `i` of vector `q`.
    fn swap_quarters(self, vectors: [Self::Bytes; 4]) -> [Self::Bytes; 4];
    /// Within each quarter, word `i` of vector `f` becomes word `f` of vector `i`.
    fn swap_words(self, vectors: [Self::Bytes; 4]) -> [Self::Bytes; 4];
    /// Signed bytes as 16 bits: the first two of each word, then the other two.
    fn widen(self, bytes: Self::Bytes) -> [Self::Bytes; 2];
    /// Four times 16 bytes.
    fn quarters_of(self, from: [&[u8; 16]; 4]) -> Self::Bytes;
    /// Four times 32 bytes: the first sixteen of each, then the other sixteen.
    #[inline(always)]
    fn quarter_pairs_of(self, from: [&[u8; 32]; 4]) -> [Self::Bytes; 2] {
        let ([a, e], [b, f]) = (halves(from[0]), halves(from[1]));
        let ([c, g], [d, h]) = (halves(from[2]), halves(from[3]));
        [self.quarters_of([a, b, c, d]), self.quarters_of([e, f, g, h])]
    }
    /// Eight times eight bytes, each as a little-endian number.
    fn octets(self, from: [u64; 8]) -> Self::Bytes;
    /// `bytes >> shift & mask`.
    fn field(self, bytes: Self::Bytes, shift: u32, mask: u8) -> Self::Bytes;
    /// Lane by lane `a + (b << shift)`, where no bit may leave its byte.
    fn join(self, a: Self::Bytes, b: Self::Bytes, shift: u32) -> Self::Bytes;
    /// Lane by lane `a + ((bytes >> shift & mask) << to)`, where bits meet no others and none may leave its byte.
    #[inline(always)]
    fn join_field(self, a: Self::Bytes, bytes: Self::Bytes, shift: u32, mask: u8, to: u32) -> Self::Bytes {
        self.join(a, self.field(bytes, shift, mask), to)
    }
    /// `table[index]`, for indices below 16.
    fn lookup(self, table: &[i8; 16], index: Self::Bytes) -> Self::Bytes;
    /// Adds `value` to each byte whose bit is set.
    fn add_where(self, bits: u64, value: u8, bytes: Self::Bytes) -> Self::Bytes;
    /// Negates each byte whose bit is set.
    fn negate_where(self, bits: u64, bytes: Self::Bytes) -> Self::Bytes;
    /// All bytes the same.
    fn all(self, byte: u8) -> Self::Bytes;
    /// All words the same.
    fn all_words(self, word: [u8; 4]) -> Self::Bytes;

    /// The same sixteen bytes in each quarter.
    fn all_quarters(self, quarter: &[u8; 16]) -> Self::Bytes;

    /// Adds the products `codes * acts` to `sums`, for unsigned codes below 128.
    fn dot_codes(self, sums: Self::Sums, codes: Self::Bytes, acts: Self::Bytes) -> Self::Sums;
    /// Adds the products `levels * acts` to `sums`, both signed, where no level is -128.
    fn dot_levels(self, sums: Self::Sums, levels: Self::Bytes, acts: Self::Bytes) -> Self::Sums;
    /// The products `codes * acts` of two pairs of vectors, added up, for unsigned codes below 64.
    #[inline(always)]
    fn dot_small(self, codes: [Self::Bytes; 2], acts: [Self::Bytes; 2]) -> Self::Sums {
        self.dot_codes(self.dot_codes(self.splat_sums(0), codes[0], acts[0]), codes[1], acts[1])
    }
    /// Adds the products `a * b` to `sums`, both signed, where no `b` is -128.
    fn dot_signed(self, sums: Self::Sums, a: Self::Bytes, b: Self::Bytes) -> Self::Sums;

    /// Whether [`Lanes::dot_codes`] takes any unsigned codes, not only those below 128.
    const ANY_CODES: bool = false;

    /// All lanes the same.
    fn splat_sums(self, x: i32) -> Self::Sums;
    fn add_sums(self, a: Self::Sums, b: Self::Sums) -> Self::Sums;
    /// Word `f` of each quarter becomes the sum of the four words that vector `f` has in this quarter.
    fn fold_words(self, vectors: [Self::Sums; 4]) -> Self::Sums;
    /// Sixteen integers to memory.
    fn store_sums(self, sums: Self::Sums, to: &mut [i32; 16]);
    /// Sixteen integers.
    fn load_sums(self, from: &[i32; 16]) -> Self::Sums;

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

    /// Sixteen `f16` from as many places, widened.
    #[inline(always)]
    fn side_by_side_f16s(self, bits: [u16; 16]) -> Self::Floats {
        self.load_f16s(zerocopy::transmute_ref!(&bits))
    }
    /// One `f16`, widened.
    fn half(self, bits: u16) -> f32;
}

/// Both halves of 32 bytes.
#[inline(always)]
fn halves(bytes: &[u8; 32]) -> [&[u8; 16]; 2] {
    let (halves, _) = bytes.as_chunks::<16>();
    [&halves[0], &halves[1]]
}
