//! Loops over slices of `f32`, vector by vector, with sums.
//!
//! Invariant: the order of additions depends on the length alone, so equal slices give equal sums whoever adds them.

use crate::simd::{MAX_LANES, Simd};

/// Vectors that are summed side by side, because an addition takes longer than what comes before it.
const SUMS: usize = 4;

/// The sum of products of two slices of equal length.
#[inline(always)]
pub(super) fn dot<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let step = SUMS * S::LANES;
    let mut sums = [s.splat(0.0); SUMS];
    let (mut wide_a, mut wide_b) = (a.chunks_exact(step), b.chunks_exact(step));
    for (a, b) in (&mut wide_a).zip(&mut wide_b) {
        for (i, sum) in sums.iter_mut().enumerate() {
            let at = i * S::LANES;
            *sum = s.mul_add(s.load(&a[at..at + S::LANES]), s.load(&b[at..at + S::LANES]), *sum);
        }
    }
    let mut a = wide_a.remainder().chunks_exact(S::LANES);
    let mut b = wide_b.remainder().chunks_exact(S::LANES);
    for (a, b) in (&mut a).zip(&mut b) {
        sums[0] = s.mul_add(s.load(a), s.load(b), sums[0]);
    }
    let rest: f32 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a * b).sum();
    total(s, sums) + rest
}

/// Replaces each element of `state` by what `f` makes of it and of the elements of `with` at the same place, and gives
/// the sum of what `f` added to the sums it was handed: `f(sum, state, with) = (sum, state)`.
#[inline(always)]
pub(super) fn update<S: Simd, const N: usize>(
    s: S,
    state: &mut [f32],
    with: [&[f32]; N],
    f: impl Fn(S::F32, S::F32, [S::F32; N]) -> (S::F32, S::F32),
) -> f32 {
    assert!(with.iter().all(|with| with.len() == state.len()));
    let step = SUMS * S::LANES;
    let mut sums = [s.splat(0.0); SUMS];
    let mut at = 0;
    while state.len() - at >= step {
        for (i, sum) in sums.iter_mut().enumerate() {
            let here = at + i * S::LANES..at + (i + 1) * S::LANES;
            let others = with.map(|with| s.load(&with[here.clone()]));
            let (added, new) = f(*sum, s.load(&state[here.clone()]), others);
            *sum = added;
            s.store(new, &mut state[here]);
        }
        at += step;
    }
    while state.len() - at >= S::LANES {
        let here = at..at + S::LANES;
        let others = with.map(|with| s.load(&with[here.clone()]));
        let (added, new) = f(sums[0], s.load(&state[here.clone()]), others);
        sums[0] = added;
        s.store(new, &mut state[here]);
        at += S::LANES;
    }
    let mut rest = 0.0;
    if at < state.len() {
        // Lanes past the end may hold anything afterwards, even NaN, so they are dropped one by one.
        let len = state.len() - at;
        let padded = |from: &[f32]| {
            let mut lanes = [0.0; MAX_LANES];
            lanes[..len].copy_from_slice(&from[at..]);
            s.load(&lanes)
        };
        let (added, new) = f(s.splat(0.0), padded(state), with.map(padded));
        let mut lanes = [0.0; MAX_LANES];
        s.store(new, &mut lanes);
        state[at..].copy_from_slice(&lanes[..len]);
        s.store(added, &mut lanes);
        rest = lanes[..len].iter().sum();
    }
    total(s, sums) + rest
}

#[inline(always)]
fn total<S: Simd>(s: S, sums: [S::F32; SUMS]) -> f32 {
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Compiled, Level, for_each_level};

    #[inline(always)]
    fn scaled_dot<S: Simd>(s: S, state: &mut [f32], with: &[f32]) -> [f32; 2] {
        let plain = dot(s, state, with);
        let factor = s.splat(f32::INFINITY);
        let sum = update(s, state, [with], |sum, state, [with]| {
            let new = s.add(state, with);
            // An infinite factor would turn a padded lane into NaN.
            (s.add(sum, s.mul(new, factor)), new)
        });
        [plain, sum]
    }

    const SCALED_DOT: Compiled<fn(&mut [f32], &[f32]) -> [f32; 2]> =
        for_each_level!(scaled_dot: fn(state: &mut [f32], with: &[f32]) -> [f32; 2]);

    #[test]
    fn every_length_is_summed_whole() {
        for level in Level::available() {
            for len in 0..150 {
                let mut state: Vec<_> = (0..len).map(|i| (i % 7 + 1) as f32).collect();
                let with: Vec<_> = (0..len).map(|i| (i % 5) as f32).collect();
                let wanted: Vec<_> = state.iter().zip(&with).map(|(a, b)| a + b).collect();
                let exact: f32 = state.iter().zip(&with).map(|(a, b)| a * b).sum();
                let [plain, sum] = SCALED_DOT.at(level)(&mut state, &with);
                assert_eq!(plain, exact, "{level} {len}");
                assert_eq!(state, wanted, "{level} {len}");
                assert_eq!(sum, if len == 0 { 0.0 } else { f32::INFINITY }, "{level} {len}");
            }
        }
    }
}
