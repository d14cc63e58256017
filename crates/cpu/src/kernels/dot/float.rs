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

/// The dot products of two rows of numbers with a third; without `TWO`, the second row does not count.
#[inline(always)]
pub(super) fn float<S: Lanes, F: Floats, const TWO: bool>(s: S, rows: [&[u8]; 2], acts: &[u8]) -> [f32; 2] {
    let (acts, acts_rest) = whole::<F>(acts);
    let [(first, first_rest), (second, second_rest)] = rows.map(whole::<F>);
    let (first, second) = (&first[..acts.len()], &second[..acts.len()]);
    let mut sums = [[s.no_floats(); CHAINS]; 2];
    let whole_rounds = acts.len() / CHAINS * CHAINS;
    for round in (0..whole_rounds).step_by(CHAINS) {
        for chain in 0..CHAINS {
            let (at, [one, two]) = (round + chain, &mut sums);
            add::<S, F>(s, &first[at], &acts[at], &mut one[chain]);
            if TWO {
                add::<S, F>(s, &second[at], &acts[at], &mut two[chain]);
            }
        }
    }
    let [one, two] = &mut sums;
    for at in whole_rounds..acts.len() {
        add::<S, F>(s, &first[at], &acts[at], &mut one[0]);
        if TWO {
            add::<S, F>(s, &second[at], &acts[at], &mut two[0]);
        }
    }
    if !acts_rest.is_empty() {
        let acts = padded::<F>(acts_rest);
        add::<S, F>(s, &padded::<F>(first_rest), &acts, &mut one[1]);
        if TWO {
            add::<S, F>(s, &padded::<F>(second_rest), &acts, &mut two[1]);
        }
    }
    [total(s, *one), total(s, *two)]
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
