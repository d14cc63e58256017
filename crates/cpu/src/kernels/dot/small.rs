//! Weights whose partner is Q8_0 or Q8_1: one scale for 16 or more elements, and products of scales that are added up
//! as numbers.

use oxcart_tensor::quant::{
    BlockIq4Nl, BlockMxfp4, BlockNvfp4, BlockQ1_0, BlockQ2_0, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1,
    BlockQ8_0, BlockQ8_1, FP4_DOUBLED, IQ4_LEVELS, half_e8m0, half_ue4m3,
};
use zerocopy::little_endian::U32;
use zerocopy::{FromZeros, IntoBytes};

use super::lanes::Lanes;
use super::{Plain, blocks, chunk_of};

/// The partner of 32 weights.
pub(super) trait Activations: Plain {
    fn codes(&self) -> &[u8; 32];
}

impl Activations for BlockQ8_0 {
    #[inline(always)]
    fn codes(&self) -> &[u8; 32] {
        zerocopy::transmute_ref!(&self.codes)
    }
}

impl Activations for BlockQ8_1 {
    #[inline(always)]
    fn codes(&self) -> &[u8; 32] {
        zerocopy::transmute_ref!(&self.codes)
    }
}

/// Where two blocks begin, in the form that [`Lanes::heads`] wants.
#[inline(always)]
fn heads<B: Plain>(blocks: &[B; 2]) -> [&[u8; 16]; 2] {
    let bytes = blocks.as_bytes();
    [chunk_of(bytes, 0), chunk_of(bytes, size_of::<B>() - 4)]
}

/// A block of 32 weights.
pub(super) trait Small: Plain {
    type Partner: Activations;
    /// Whether the blocks of both sides begin with a second number, whose products are to be added.
    const OFFSET: bool = false;

    /// Sums of the products of two blocks each.
    fn dot<S: Lanes>(s: S, a: &Self, b: &Self, acts: S::Bytes) -> S::Sums;

    /// What the sums are to be multiplied with, and the product of offsets.
    #[inline(always)]
    fn heads<S: Lanes>(s: S, weights: &[Self; 2], acts: &[Self::Partner; 2]) -> S::Heads {
        s.heads(heads(weights), heads(acts))
    }

    /// The sum of what came out of `dot`, in the end.
    #[inline(always)]
    fn total<S: Lanes>(s: S, sum: S::Floats) -> f32 {
        s.total(sum)
    }
}

/// The dot product of rows of small blocks.
#[inline(always)]
pub(super) fn small<S: Lanes, W: Small>(s: S, weights: &[u8], acts: &[u8]) -> f32 {
    let (weights, last) = blocks::<W>(weights).as_chunks::<2>();
    let (acts, last_acts) = blocks::<W::Partner>(acts).as_chunks::<2>();
    let mut so_far = (s.no_floats(), s.no_heads());
    for (weights, acts) in weights.iter().zip(acts) {
        so_far = add_two(s, weights, acts, so_far);
    }
    if let ([w], [a]) = (last, last_acts) {
        so_far = add_two(s, &[*w, W::new_zeroed()], &[*a, W::Partner::new_zeroed()], so_far);
    }
    let sum = W::total(s, so_far.0);
    if W::OFFSET { sum + s.total_seconds(so_far.1) } else { sum }
}

/// Adds the products of two blocks each to sums, and those of their offsets.
#[inline(always)]
fn add_two<S: Lanes, W: Small>(
    s: S,
    weights: &[W; 2],
    acts: &[W::Partner; 2],
    (sum, offsets): (S::Floats, S::Heads),
) -> (S::Floats, S::Heads) {
    let sums = W::dot(s, &weights[0], &weights[1], s.halves(acts[0].codes(), acts[1].codes()));
    let heads = W::heads(s, weights, acts);
    let sum = s.mul_add_floats(s.to_floats(sums), s.spread(heads), sum);
    (sum, if W::OFFSET { s.add_heads(offsets, heads) } else { offsets })
}

impl Small for BlockQ8_0 {
    type Partner = BlockQ8_0;

    #[inline(always)]
    fn dot<S: Lanes>(s: S, a: &Self, b: &Self, acts: S::Bytes) -> S::Sums {
        s.dot_signed(s.halves(a.codes(), b.codes()), acts)
    }
}

impl Small for BlockQ4_0 {
    type Partner = BlockQ8_0;

    #[inline(always)]
    fn dot<S: Lanes>(s: S, a: &Self, b: &Self, acts: S::Bytes) -> S::Sums {
        s.dot_nibbles(&a.nibbles, &b.nibbles, 8, acts)
    }

    #[inline(always)]
    fn total<S: Lanes>(s: S, sum: S::Floats) -> f32 {
        s.total_of_nibbles(sum)
    }
}

impl Small for BlockQ4_1 {
    type Partner = BlockQ8_1;
    const OFFSET: bool = true;

    #[inline(always)]
    fn dot<S: Lanes>(s: S, a: &Self, b: &Self, acts: S::Bytes) -> S::Sums {
        s.dot_nibbles(&a.nibbles, &b.nibbles, 0, acts)
    }

    #[inline(always)]
    fn total<S: Lanes>(s: S, sum: S::Floats) -> f32 {
        s.total_of_nibbles(sum)
    }
}

/// Codes of five bits.
#[inline(always)]
fn five<S: Lanes>(s: S, (a, a_high): (&[u8; 16], U32), (b, b_high): (&[u8; 16], U32)) -> S::Bytes {
    let high = u64::from(a_high.get()) | u64::from(b_high.get()) << 32;
    s.add_where(high, 16, s.nibbles(a, b))
}

impl Small for BlockQ5_0 {
    type Partner = BlockQ8_0;

    #[inline(always)]
    fn dot<S: Lanes>(s: S, a: &Self, b: &Self, acts: S::Bytes) -> S::Sums {
        s.dot_centred(five(s, (&a.nibbles, a.high), (&b.nibbles, b.high)), 16, acts)
    }
}

impl Small for BlockQ5_1 {
    type Partner = BlockQ8_1;
    const OFFSET: bool = true;

    #[inline(always)]
    fn dot<S: Lanes>(s: S, a: &Self, b: &Self, acts: S::Bytes) -> S::Sums {
        s.dot_codes(five(s, (&a.nibbles, a.high), (&b.nibbles, b.high)), acts)
    }
}

impl Small for BlockIq4Nl {
    type Partner = BlockQ8_0;

    #[inline(always)]
    fn dot<S: Lanes>(s: S, a: &Self, b: &Self, acts: S::Bytes) -> S::Sums {
        s.dot_levels(s.lookup(&IQ4_LEVELS, s.nibbles(&a.nibbles, &b.nibbles)), acts)
    }
}

/// The largest of [`FP4_DOUBLED`].
const FP4_MIDDLE: u8 = 12;

/// [`FP4_DOUBLED`], moved up so that nothing is negative.
const FP4_CODES: [i8; 16] = {
    let mut codes = FP4_DOUBLED;
    let mut i = 0;
    while i < 16 {
        codes[i] += FP4_MIDDLE as i8;
        i += 1;
    }
    codes
};

impl Small for BlockMxfp4 {
    type Partner = BlockQ8_0;

    #[inline(always)]
    fn dot<S: Lanes>(s: S, a: &Self, b: &Self, acts: S::Bytes) -> S::Sums {
        s.dot_centred(s.lookup(&FP4_CODES, s.nibbles(&a.nibbles, &b.nibbles)), FP4_MIDDLE, acts)
    }

    #[inline(always)]
    fn heads<S: Lanes>(s: S, weights: &[Self; 2], acts: &[BlockQ8_0; 2]) -> S::Heads {
        let scale = |i: usize| half_e8m0(weights[i].exponent) * scale(s, &acts[i]);
        s.two_heads([scale(0), scale(1)])
    }
}

/// The scale of a block that begins with one.
#[inline(always)]
fn scale<S: Lanes, B: Plain>(s: S, block: &B) -> f32 {
    s.half(u16::from_le_bytes(*chunk_of(block.as_bytes(), 0)))
}

/// A block of `64 * STEPS` weights.
pub(super) trait Long<const STEPS: usize>: Plain {
    /// Sums of the products of 64 elements.
    fn dot<S: Lanes>(&self, s: S, step: usize, acts: S::Bytes) -> S::Sums;
    /// What they are to be multiplied with.
    fn scales<S: Lanes>(&self, s: S, step: usize, acts: [f32; 2]) -> S::Floats;
}

#[inline(always)]
fn long<S: Lanes, W: Long<STEPS>, const STEPS: usize>(s: S, weights: &[u8], acts: &[u8]) -> f32 {
    let acts = blocks::<[[BlockQ8_0; 2]; STEPS]>(acts);
    let mut sum = s.no_floats();
    for (w, acts) in blocks::<W>(weights).iter().zip(acts) {
        for (step, [a0, a1]) in acts.iter().enumerate() {
            let sums = w.dot(s, step, s.halves(a0.codes(), a1.codes()));
            let scales = w.scales(s, step, [scale(s, a0), scale(s, a1)]);
            sum = s.mul_add_floats(s.to_floats(sums), scales, sum);
        }
    }
    s.total(sum)
}

/// The dot product of rows of blocks with 64 elements.
#[inline(always)]
pub(super) fn long1<S: Lanes, W: Long<1>>(s: S, weights: &[u8], acts: &[u8]) -> f32 {
    long::<S, W, 1>(s, weights, acts)
}

/// The dot product of rows of blocks with 128 elements.
#[inline(always)]
pub(super) fn long2<S: Lanes, W: Long<2>>(s: S, weights: &[u8], acts: &[u8]) -> f32 {
    long::<S, W, 2>(s, weights, acts)
}

/// One scale for both halves.
#[inline(always)]
fn one_scale<S: Lanes>(s: S, scale: f32, acts: [f32; 2]) -> S::Floats {
    s.spread(s.two_heads(acts.map(|act| scale * act)))
}

impl Long<2> for BlockQ1_0 {
    #[inline(always)]
    fn dot<S: Lanes>(&self, s: S, step: usize, acts: S::Bytes) -> S::Sums {
        let signs = u64::from_le_bytes(*chunk_of(&self.bits, 8 * step));
        s.dot_centred(s.add_where(signs, 2, s.all(0)), 1, acts)
    }

    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S, _step: usize, acts: [f32; 2]) -> S::Floats {
        one_scale(s, scale(s, self), acts)
    }
}

/// Eight 2-bit fields, each moved to a byte of its own.
#[inline(always)]
fn spread_crumbs(crumbs: u16) -> u64 {
    let fours = u64::from(crumbs & 0xFF) | u64::from(crumbs >> 8) << 32;
    let twos = (fours | fours << 12) & 0x000F_000F_000F_000F;
    (twos | twos << 6) & 0x0303_0303_0303_0303
}

impl Long<1> for BlockQ2_0 {
    #[inline(always)]
    fn dot<S: Lanes>(&self, s: S, _step: usize, acts: S::Bytes) -> S::Sums {
        let mut octets = [0; 8];
        for (octet, crumbs) in octets.iter_mut().zip(self.crumbs.as_chunks::<2>().0) {
            *octet = spread_crumbs(u16::from_le_bytes(*crumbs));
        }
        s.dot_centred(s.octets(octets), 1, acts)
    }

    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S, _step: usize, acts: [f32; 2]) -> S::Floats {
        one_scale(s, scale(s, self), acts)
    }
}

impl Long<1> for BlockNvfp4 {
    #[inline(always)]
    fn dot<S: Lanes>(&self, s: S, _step: usize, acts: S::Bytes) -> S::Sums {
        const LOW: u64 = 0x0F0F_0F0F_0F0F_0F0F;
        let mut octets = [0; 8];
        for (pair, bytes) in octets.as_chunks_mut::<2>().0.iter_mut().zip(self.nibbles.as_chunks::<8>().0) {
            let nibbles = u64::from_le_bytes(*bytes);
            *pair = [nibbles & LOW, nibbles >> 4 & LOW];
        }
        s.dot_centred(s.lookup(&FP4_CODES, s.octets(octets)), FP4_MIDDLE, acts)
    }

    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S, _step: usize, acts: [f32; 2]) -> S::Floats {
        let [a, b, c, d] = self.scales;
        s.quarters([
            half_ue4m3(a) * acts[0],
            half_ue4m3(b) * acts[0],
            half_ue4m3(c) * acts[1],
            half_ue4m3(d) * acts[1],
        ])
    }
}
