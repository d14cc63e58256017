//! Weights whose partner is Q8_0 or Q8_1: one scale for 16 or more elements, and products of scales that are added up
//! as numbers.

use oxcart_tensor::quant::{
    BlockIq4Nl, BlockMxfp4, BlockNvfp4, BlockQ1_0, BlockQ2_0, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1,
    BlockQ8_0, BlockQ8_1, FP4_DOUBLED, IQ4_LEVELS, half_e8m0, half_ue4m3,
};
use zerocopy::little_endian::U32;
use zerocopy::{FromZeros, IntoBytes};

use super::lanes::Lanes;
use super::swar::{ONES, spread_crumbs};
use super::{Plain, blocks, chunk_of, totals};

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

/// The dot products of some rows of small blocks with one more.
#[inline(always)]
pub(super) fn small<S: Lanes, W: Small, const N: usize>(s: S, rows: [&[u8]; N], acts: &[u8]) -> [f32; N] {
    let (acts, last_acts) = blocks::<W::Partner>(acts).as_chunks::<2>();
    // Loops, because a closure that `map` is given is called: it lacks the instructions that it would be inlined with.
    let (mut pairs, mut last): ([&[[W; 2]]; N], [&[W]; N]) = ([&[]; N], [&[]; N]);
    for n in 0..N {
        let (whole, rest) = blocks::<W>(rows[n]).as_chunks::<2>();
        (pairs[n], last[n]) = (&whole[..acts.len()], rest);
    }
    let mut so_far = [(s.no_floats(), s.no_heads()); N];
    for (i, acts) in acts.iter().enumerate() {
        for n in 0..N {
            so_far[n] = add_two(s, &pairs[n][i], acts, so_far[n]);
        }
    }
    let mut totals = [0.0; N];
    for n in 0..N {
        totals[n] = finish::<S, W>(s, last[n], last_acts, so_far[n]);
    }
    totals
}

/// Adds the last block, if their number is odd, and all that was kept apart.
#[inline(always)]
fn finish<S: Lanes, W: Small>(
    s: S,
    last: &[W],
    last_acts: &[W::Partner],
    mut so_far: (S::Floats, S::Heads),
) -> f32 {
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
pub(super) trait Long: Plain {
    const STEPS: usize = 1;

    /// Sums of the products of 64 elements.
    fn dot<S: Lanes>(&self, s: S, step: usize, acts: S::Bytes) -> S::Sums;
    /// What they are to be multiplied with.
    fn scales<S: Lanes>(&self, s: S, acts: [f32; 2]) -> S::Floats;
}

/// The dot products of some rows of long blocks with one more.
#[inline(always)]
pub(super) fn long<S: Lanes, W: Long, const N: usize>(s: S, rows: [&[u8]; N], acts: &[u8]) -> [f32; N] {
    let (acts, _) = blocks::<BlockQ8_0>(acts).as_chunks::<2>();
    let mut weights: [&[W]; N] = [&[]; N];
    for n in 0..N {
        weights[n] = &blocks(rows[n])[..acts.len() / W::STEPS];
    }
    let mut sums = [s.no_floats(); N];
    for (i, acts) in acts.chunks_exact(W::STEPS).enumerate() {
        for (step, acts) in acts.iter().enumerate() {
            for n in 0..N {
                sums[n] = add_step(s, &weights[n][i], step, acts, sums[n]);
            }
        }
    }
    totals(s, sums)
}

/// Adds the products of 64 elements.
#[inline(always)]
fn add_step<S: Lanes, W: Long>(
    s: S,
    weights: &W,
    step: usize,
    [a0, a1]: &[BlockQ8_0; 2],
    to: S::Floats,
) -> S::Floats {
    let sums = weights.dot(s, step, s.halves(a0.codes(), a1.codes()));
    let scales = weights.scales(s, [scale(s, a0), scale(s, a1)]);
    s.mul_add_floats(s.to_floats(sums), scales, to)
}

/// One scale for both halves.
#[inline(always)]
fn one_scale<S: Lanes>(s: S, scale: f32, acts: [f32; 2]) -> S::Floats {
    s.spread(s.two_heads(acts.map(|act| scale * act)))
}

impl Long for BlockQ1_0 {
    const STEPS: usize = 2;

    #[inline(always)]
    fn dot<S: Lanes>(&self, s: S, step: usize, acts: S::Bytes) -> S::Sums {
        let signs = u64::from_le_bytes(*chunk_of(&self.bits, 8 * step));
        s.dot_centred(s.add_where(signs, 2, s.all(0)), 1, acts)
    }

    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S, acts: [f32; 2]) -> S::Floats {
        one_scale(s, scale(s, self), acts)
    }
}

impl Long for BlockQ2_0 {
    #[inline(always)]
    fn dot<S: Lanes>(&self, s: S, _step: usize, acts: S::Bytes) -> S::Sums {
        let mut octets = [0; 8];
        for (octet, crumbs) in octets.iter_mut().zip(self.crumbs.as_chunks::<2>().0) {
            *octet = spread_crumbs(u16::from_le_bytes(*crumbs));
        }
        s.dot_centred(s.octets(octets), 1, acts)
    }

    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S, acts: [f32; 2]) -> S::Floats {
        one_scale(s, scale(s, self), acts)
    }
}

impl Long for BlockNvfp4 {
    #[inline(always)]
    fn dot<S: Lanes>(&self, s: S, _step: usize, acts: S::Bytes) -> S::Sums {
        let mut octets = [0; 8];
        for (pair, bytes) in octets.as_chunks_mut::<2>().0.iter_mut().zip(self.nibbles.as_chunks::<8>().0) {
            let nibbles = u64::from_le_bytes(*bytes);
            *pair = [nibbles & (15 * ONES), nibbles >> 4 & (15 * ONES)];
        }
        s.dot_centred(s.lookup(&FP4_CODES, s.octets(octets)), FP4_MIDDLE, acts)
    }

    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S, acts: [f32; 2]) -> S::Floats {
        let [a, b, c, d] = self.scales;
        s.quarters([
            half_ue4m3(a) * acts[0],
            half_ue4m3(b) * acts[0],
            half_ue4m3(c) * acts[1],
            half_ue4m3(d) * acts[1],
        ])
    }
}
