//! Weights that are plain numbers.

use zerocopy::{FromZeros, IntoBytes};

use super::lanes::Lanes;
use super::{Plain, blocks};

/// A kind of number, sixteen of which are loaded at a time.
pub(super) trait Floats {
    /// Bytes of sixteen numbers.
    type Sixteen: Plain;
    fn load<S: Lanes>(s: S, from: &Self::Sixteen) -> S::Floats;
}

/// Accumulators, enough to keep multipliers busy while an addition is under way.
const CHAINS: usize = 4;

/// The dot product of rows of numbers.
#[inline(always)]
pub(super) fn float<S: Lanes, F: Floats>(s: S, a: &[u8], b: &[u8]) -> f32 {
    let (a, a_rest) = whole::<F>(a);
    let (b, b_rest) = whole::<F>(b);
    let mut sums = [s.no_floats(); CHAINS];
    let (a_rounds, a_last) = a.as_chunks::<CHAINS>();
    let (b_rounds, b_last) = b.as_chunks::<CHAINS>();
    for (a, b) in a_rounds.iter().zip(b_rounds) {
        for chain in 0..CHAINS {
            sums[chain] = s.mul_add_floats(F::load(s, &a[chain]), F::load(s, &b[chain]), sums[chain]);
        }
    }
    for (a, b) in a_last.iter().zip(b_last) {
        sums[0] = s.mul_add_floats(F::load(s, a), F::load(s, b), sums[0]);
    }
    if !a_rest.is_empty() {
        let (a, b) = (padded::<F>(a_rest), padded::<F>(b_rest));
        sums[1] = s.mul_add_floats(F::load(s, &a), F::load(s, &b), sums[1]);
    }
    s.total(s.add_floats(s.add_floats(sums[0], sums[2]), s.add_floats(sums[1], sums[3])))
}

/// Runs of sixteen numbers, and what is left.
#[inline(always)]
fn whole<F: Floats>(bytes: &[u8]) -> (&[F::Sixteen], &[u8]) {
    let runs = bytes.len() / size_of::<F::Sixteen>();
    let (runs, rest) = bytes.split_at(runs * size_of::<F::Sixteen>());
    (blocks(runs), rest)
}

/// Fewer than sixteen numbers, and zeros.
#[inline(always)]
fn padded<F: Floats>(rest: &[u8]) -> F::Sixteen {
    let mut sixteen = F::Sixteen::new_zeroed();
    sixteen.as_mut_bytes()[..rest.len()].copy_from_slice(rest);
    sixteen
}

impl Floats for f32 {
    type Sixteen = [u8; 64];
    #[inline(always)]
    fn load<S: Lanes>(s: S, from: &[u8; 64]) -> S::Floats {
        s.load_f32s(from)
    }
}

impl Floats for half::f16 {
    type Sixteen = [u8; 32];
    #[inline(always)]
    fn load<S: Lanes>(s: S, from: &[u8; 32]) -> S::Floats {
        s.load_f16s(from)
    }
}

impl Floats for half::bf16 {
    type Sixteen = [u8; 32];
    #[inline(always)]
    fn load<S: Lanes>(s: S, from: &[u8; 32]) -> S::Floats {
        s.load_bf16s(from)
    }
}
