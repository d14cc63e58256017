//! Weights whose partner is Q8_0 or Q8_1: one scale for 16 or more elements, and products of scales that are added up
//! as numbers.

use oxcart_tensor::quant::{
    BlockIq4Nl, BlockMxfp4, BlockNvfp4, BlockQ1_0, BlockQ2_0, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1,
    BlockQ8_0, BlockQ8_1, half_e8m0, half_ue4m3,
};
use zerocopy::{FromZeros, IntoBytes};

use super::codes::Codes;
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

/// Sums of the products of 64 codes, which are not -128, with as many activations.
#[inline(always)]
fn dot_codes<S: Lanes, W: Codes>(s: S, weights: &[W], part: usize, acts: S::Bytes) -> S::Sums {
    let codes = W::codes(s, weights, part);
    match W::MIDDLE {
        _ if W::SIGNED => s.dot_levels(codes, acts),
        0 => s.dot_codes(codes, acts),
        middle => s.dot_centred(codes, middle, acts),
    }
}

/// A block of 32 weights.
pub(super) trait Small: Codes {
    type Partner: Activations;
    /// Whether the blocks of both sides begin with a second number, whose products are to be added.
    const OFFSET: bool = false;

    /// Sums of the products of two blocks each.
    #[inline(always)]
    fn dot<S: Lanes>(s: S, weights: &[Self; 2], acts: S::Bytes) -> S::Sums {
        dot_codes(s, weights, 0, acts)
    }

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

/// The dot product of a row of small blocks with its partner.
#[inline(always)]
pub(super) fn small<S: Lanes, W: Small>(s: S, row: &[u8], acts: &[u8]) -> f32 {
    let (acts, last_acts) = blocks::<W::Partner>(acts).as_chunks::<2>();
    let (pairs, last) = blocks::<W>(row).as_chunks::<2>();
    let mut so_far = (s.no_floats(), s.no_heads());
    for (pair, acts) in pairs.iter().zip(acts) {
        so_far = add_two(s, pair, acts, so_far);
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
    let sums = W::dot(s, weights, s.halves(acts[0].codes(), acts[1].codes()));
    let heads = W::heads(s, weights, acts);
    let sum = s.mul_add_floats(s.to_floats(sums), s.spread(heads), sum);
    (sum, if W::OFFSET { s.add_heads(offsets, heads) } else { offsets })
}

impl Small for BlockQ8_0 {
    type Partner = BlockQ8_0;

    #[inline(always)]
    fn dot<S: Lanes>(s: S, weights: &[Self; 2], acts: S::Bytes) -> S::Sums {
        // The one type with codes of -128.
        s.dot_signed(<Self as Codes>::codes(s, weights, 0), acts)
    }
}

impl Small for BlockQ4_0 {
    type Partner = BlockQ8_0;

    #[inline(always)]
    fn dot<S: Lanes>(s: S, [a, b]: &[Self; 2], acts: S::Bytes) -> S::Sums {
        s.dot_nibbles(&a.nibbles, &b.nibbles, Self::MIDDLE, acts)
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
    fn dot<S: Lanes>(s: S, [a, b]: &[Self; 2], acts: S::Bytes) -> S::Sums {
        s.dot_nibbles(&a.nibbles, &b.nibbles, Self::MIDDLE, acts)
    }

    #[inline(always)]
    fn total<S: Lanes>(s: S, sum: S::Floats) -> f32 {
        s.total_of_nibbles(sum)
    }
}

impl Small for BlockQ5_0 {
    type Partner = BlockQ8_0;
}

impl Small for BlockQ5_1 {
    type Partner = BlockQ8_1;
    const OFFSET: bool = true;
}

impl Small for BlockIq4Nl {
    type Partner = BlockQ8_0;
}

impl Small for BlockMxfp4 {
    type Partner = BlockQ8_0;

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

/// A block of a multiple of 64 weights.
pub(super) trait Long: Codes {
    /// What the sums of 64 elements are to be multiplied with.
    fn scales<S: Lanes>(&self, s: S, acts: [f32; 2]) -> S::Floats;
}

/// The dot product of a row of long blocks with its partner.
#[inline(always)]
pub(super) fn long<S: Lanes, W: Long>(s: S, row: &[u8], acts: &[u8]) -> f32 {
    let (acts, _) = blocks::<BlockQ8_0>(acts).as_chunks::<2>();
    let mut sum = s.no_floats();
    for (weights, acts) in blocks::<W>(row).iter().zip(acts.chunks_exact(W::LEN / 64)) {
        for (part, [a0, a1]) in acts.iter().enumerate() {
            let codes = s.halves(a0.codes(), a1.codes());
            let sums = dot_codes(s, std::slice::from_ref(weights), part, codes);
            let scales = weights.scales(s, [scale(s, a0), scale(s, a1)]);
            sum = s.mul_add_floats(s.to_floats(sums), scales, sum);
        }
    }
    s.total(sum)
}

/// One scale for both halves.
#[inline(always)]
fn one_scale<S: Lanes>(s: S, scale: f32, acts: [f32; 2]) -> S::Floats {
    s.spread(s.two_heads(acts.map(|act| scale * act)))
}

impl Long for BlockQ1_0 {
    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S, acts: [f32; 2]) -> S::Floats {
        one_scale(s, scale(s, self), acts)
    }
}

impl Long for BlockQ2_0 {
    #[inline(always)]
    fn scales<S: Lanes>(&self, s: S, acts: [f32; 2]) -> S::Floats {
        one_scale(s, scale(s, self), acts)
    }
}

impl Long for BlockNvfp4 {
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
