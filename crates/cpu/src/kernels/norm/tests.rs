//! Rows against their definition in double precision, wherever they lie.

use oxcart_tensor::{DType, Layout};

use super::*;
use crate::kernels::testing::{Level, Tensor, Trial, nmse, numbers};

const LENGTHS: [usize; 7] = [1, 5, 16, 31, 128, 129, 1025];

fn sample(seed: u64, ne: [usize; 4]) -> Tensor {
    let values: Vec<_> = numbers(seed, ne.iter().product()).iter().map(|x| 3.0 * x + 0.5).collect();
    Tensor::of(DType::F32, ne, &values)
}

/// Rows of `f64`, each mapped to rows.
fn exact(given: &Tensor, row: usize, f: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    given.exact().chunks(row).flat_map(f).collect()
}

fn centred(x: &[f64], eps: f64) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let var = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    x.iter().map(|x| (x - mean) / (var + eps).sqrt()).collect()
}

fn scaled(x: &[f64], divisor: impl Fn(f64) -> f64) -> Vec<f64> {
    let squares = x.iter().map(|x| x * x).sum::<f64>();
    x.iter().map(|x| x / divisor(squares)).collect()
}

#[test]
fn rows_of_every_length_in_place_or_not() {
    let eps = f64::from(1e-3_f32);
    for level in Level::available() {
        for len in LENGTHS {
            let a = sample(1, [len, 11, 3, 2]);
            let sources = [Some(&a)];
            let check = |found: Vec<f32>, wanted: Vec<f64>, what| {
                let error = nmse(&found, &wanted);
                assert!(error < 1e-12, "{level} {what} {len}: {error}");
            };
            check(
                Trial::with(Norm { eps: 1e-3 }, &sources).over(&[0]).on(level).values(),
                exact(&a, len, |x| centred(x, eps)),
                "norm",
            );
            let rms = |x: &[f64]| scaled(x, |squares| (squares / len as f64 + eps).sqrt());
            check(
                Trial::with(RmsNorm { eps: 1e-3 }, &sources).over(&[0]).on(level).values(),
                exact(&a, len, rms),
                "rms",
            );
            let l2 = |x: &[f64]| scaled(x, |squares| squares.sqrt().max(eps));
            check(
                Trial::with(L2Norm { eps: 1e-3 }, &sources).over(&[0]).on(level).values(),
                exact(&a, len, l2),
                "l2",
            );
        }
    }
}

#[test]
fn elements_may_lie_apart() {
    let packed = sample(2, [37, 4, 3, 1]);
    // The same numbers, rows running along the slowest axis of the memory.
    let layout = Layout::strided(DType::F32, [37, 4, 3, 1], [48, 12, 4, 4 * 37 * 12]).unwrap();
    let spread = Tensor::with_layout(layout, packed.values());
    for level in Level::available() {
        let both = |op: Op| {
            assert_eq!(
                Trial::of(op, &[&spread]).over(&[0]).on(level).values(),
                Trial::of(op, &[&packed]).over(&[0]).on(level).values()
            );
        };
        both(Norm { eps: 1e-5 }.into());
        both(L2Norm { eps: 1e-5 }.into());
    }
}

#[test]
fn groups_of_any_size() {
    for level in Level::available() {
        // The last group is smaller; there are more groups than channels.
        for (channels, groups) in [(12, 4), (7, 3), (3, 5)] {
            let a = sample(3, [5, 4, channels, 2]);
            let found = Trial::of(GroupNorm { groups, eps: 1e-5 }, &[&a]).over(&[0]).on(level).values();
            let per_group = channels.div_ceil(groups) * 20;
            let wanted = exact(&a, channels * 20, |image| {
                image.chunks(per_group).flat_map(|group| centred(group, f64::from(1e-5_f32))).collect()
            });
            assert!(nmse(&found, &wanted) < 1e-12, "{level} {channels} {groups}");
        }
    }
}

#[test]
fn gradients_over_either_source() {
    for level in Level::available() {
        for len in LENGTHS {
            let (g, x) = (sample(4, [len, 33, 1, 1]), sample(5, [len, 33, 1, 1]));
            let found = Trial::of(RmsNormBack { eps: 1e-3 }, &[&g, &x]).over(&[0, 1]).on(level).values();
            let (n, eps) = (len as f64, f64::from(1e-3_f32));
            let mut wanted = Vec::new();
            for (g, x) in g.values().chunks(len).zip(x.values().chunks(len)) {
                let pairs = || g.iter().zip(x).map(|(&g, &x)| (f64::from(g), f64::from(x)));
                let (squares, products) = pairs().fold((0.0, 0.0), |(s, p), (g, x)| (s + x * x, p + x * g));
                let scale = 1.0 / (squares / n + eps).sqrt();
                wanted.extend(pairs().map(|(g, x)| (g - x * products / (squares + n * eps)) * scale));
            }
            // One element has almost no gradient: what is left is rounding.
            assert!(len == 1 || nmse(&found, &wanted) < 1e-11, "{level} {len}");
        }
    }
}
