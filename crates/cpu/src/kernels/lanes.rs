//! Loops over slices of `f32`, vector by vector, with sums.
//!
//! Invariant: the order of additions depends on the length alone, so equal slices give equal sums on every thread.

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

/// What happens to an element of a state, given the elements of `N` other slices at the same place.
///
/// A trait, because a closure may not be compiled for the instruction set of the function it is in.
pub(super) trait Change<S: Simd, const N: usize>: Copy {
    /// The sum with what this element adds to it, and the new element.
    fn apply(self, s: S, sum: S::F32, state: S::F32, with: [S::F32; N]) -> (S::F32, S::F32);
}

/// Changes each element of `state`, and gives the sum of what the changes added to it.
#[inline(always)]
pub(super) fn update<S: Simd, const N: usize>(
    s: S,
    state: &mut [f32],
    with: [&[f32]; N],
    change: impl Change<S, N>,
) -> f32 {
    assert!(with.iter().all(|with| with.len() == state.len()));
    let step = SUMS * S::LANES;
    let mut sums = [s.splat(0.0); SUMS];
    let mut at = 0;
    while state.len() - at >= step {
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = update_lanes(s, *sum, state, with, at + i * S::LANES, change);
        }
        at += step;
    }
    while state.len() - at >= S::LANES {
        sums[0] = update_lanes(s, sums[0], state, with, at, change);
        at += S::LANES;
    }
    let mut rest = 0.0;
    if at < state.len() {
        // Lanes past the end may hold anything afterwards, even NaN, so they are dropped one by one.
        let len = state.len() - at;
        let mut lanes = [[0.0; MAX_LANES]; N];
        for (lanes, with) in lanes.iter_mut().zip(with) {
            lanes[..len].copy_from_slice(&with[at..]);
        }
        let mut padded = [0.0; MAX_LANES];
        padded[..len].copy_from_slice(&state[at..]);
        let added =
            update_lanes(s, s.splat(0.0), &mut padded, lanes.each_ref().map(|lanes| &lanes[..]), 0, change);
        state[at..].copy_from_slice(&padded[..len]);
        s.store(added, &mut padded);
        rest = padded[..len].iter().sum();
    }
    total(s, sums) + rest
}

/// One vector of [`update`].
#[inline(always)]
fn update_lanes<S: Simd, const N: usize>(
    s: S,
    sum: S::F32,
    state: &mut [f32],
    with: [&[f32]; N],
    at: usize,
    change: impl Change<S, N>,
) -> S::F32 {
    let mut others = [s.splat(0.0); N];
    for (other, with) in others.iter_mut().zip(with) {
        *other = s.load(&with[at..at + S::LANES]);
    }
    let state = &mut state[at..at + S::LANES];
    let (sum, new) = change.apply(s, sum, s.load(state), others);
    s.store(new, state);
    sum
}

#[inline(always)]
fn total<S: Simd>(s: S, sums: [S::F32; SUMS]) -> f32 {
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Compiled, Level, for_each_level};

    /// Adds to the state and, times infinity, to the sum; a padded lane would add NaN.
    #[derive(Clone, Copy)]
    struct AddInfinitely;

    impl<S: Simd> Change<S, 1> for AddInfinitely {
        #[inline(always)]
        fn apply(self, s: S, sum: S::F32, state: S::F32, [with]: [S::F32; 1]) -> (S::F32, S::F32) {
            let new = s.add(state, with);
            (s.add(sum, s.mul(new, s.splat(f32::INFINITY))), new)
        }
    }

    #[inline(always)]
    fn scaled_dot<S: Simd>(s: S, state: &mut [f32], with: &[f32]) -> [f32; 2] {
        let plain = dot(s, state, with);
        let sum = update(s, state, [with], AddInfinitely);
        [plain, sum]
    }

    type ScaledDot = fn(&mut [f32], &[f32]) -> [f32; 2];

    const SCALED_DOT: Compiled<ScaledDot> =
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
