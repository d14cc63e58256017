//! Weights that are plain numbers.

use zerocopy::{FromZeros, IntoBytes};

use super::lanes::Lanes;
use super::{Plain, blocks};

/// A kind of number, sixteen of which are loaded at a time.
pub(crate) trait Floats: 'static {
    /// Bytes of sixteen numbers.
    type Sixteen: Plain;
    fn load<S: Lanes>(s: S, from: &Self::Sixteen) -> S::Floats;
}

/// Accumulators, enough to keep multipliers busy while an addition is under way.
const CHAINS: usize = 4;

/// The dot product of two rows of numbers.
#[inline(always)]
pub(super) fn float<S: Lanes, F: Floats>(s: S, row: &[u8], acts: &[u8]) -> f32 {
    let ((row, row_rest), (acts, acts_rest)) = (whole::<F>(row), whole::<F>(acts));
    let row = &row[..acts.len()];
    let mut sums = [s.no_floats(); CHAINS];
    let whole_rounds = acts.len() / CHAINS * CHAINS;
    for round in (0..whole_rounds).step_by(CHAINS) {
        for chain in 0..CHAINS {
            add::<S, F>(s, &row[round + chain], &acts[round + chain], &mut sums[chain]);
        }
    }
    for at in whole_rounds..acts.len() {
        add::<S, F>(s, &row[at], &acts[at], &mut sums[0]);
    }
    if !acts_rest.is_empty() {
        add::<S, F>(s, &padded::<F>(row_rest), &padded::<F>(acts_rest), &mut sums[1]);
    }
    total(s, sums)
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
pub(crate) fn whole<F: Floats>(bytes: &[u8]) -> (&[F::Sixteen], &[u8]) {
    let runs = bytes.len() / size_of::<F::Sixteen>();
    let (runs, rest) = bytes.split_at(runs * size_of::<F::Sixteen>());
    (blocks(runs), rest)
}

/// Fewer than sixteen numbers, and zeros.
#[inline(always)]
pub(crate) fn padded<F: Floats>(rest: &[u8]) -> F::Sixteen {
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
