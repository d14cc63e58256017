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

/// The dot products of some rows of numbers with one more.
#[inline(always)]
pub(super) fn float<S: Lanes, F: Floats, const N: usize>(s: S, rows: [&[u8]; N], acts: &[u8]) -> [f32; N] {
    let (acts, acts_rest) = whole::<F>(acts);
    let (mut runs, mut rests): ([&[F::Sixteen]; N], [&[u8]; N]) = ([&[]; N], [&[]; N]);
    for n in 0..N {
        let (whole, rest) = whole::<F>(rows[n]);
        (runs[n], rests[n]) = (&whole[..acts.len()], rest);
    }
    let mut sums = [[s.no_floats(); CHAINS]; N];
    let whole_rounds = acts.len() / CHAINS * CHAINS;
    for round in (0..whole_rounds).step_by(CHAINS) {
        for chain in 0..CHAINS {
            for n in 0..N {
                add::<S, F>(s, &runs[n][round + chain], &acts[round + chain], &mut sums[n][chain]);
            }
        }
    }
    for at in whole_rounds..acts.len() {
        for n in 0..N {
            add::<S, F>(s, &runs[n][at], &acts[at], &mut sums[n][0]);
        }
    }
    if !acts_rest.is_empty() {
        let acts = padded::<F>(acts_rest);
        for n in 0..N {
            add::<S, F>(s, &padded::<F>(rests[n]), &acts, &mut sums[n][1]);
        }
    }
    let mut totals = [0.0; N];
    for n in 0..N {
        totals[n] = total(s, sums[n]);
    }
    totals
}

#[inline(always)]
fn add<S: Lanes, F: Floats>(s: S, row: &F::Sixteen, acts: &F::Sixteen, to: &mut S::Floats) {
    *to = s.mul_add_floats(F::load(s, row), F::load(s, acts), *to);
}

#[inline(always)]
fn total<S: Lanes>(s: S, [a, b, c, d]: [S::Floats; CHAINS]) -> f32 {
    s.total(s.add_floats(s.add_floats(a, c), s.add_floats(b, d)))
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
