use oxcart_tensor::{DType, Layout};

use super::*;
use crate::kernels::trial::{Given, nmse, noise, settle};

const LENGTHS: [usize; 7] = [1, 5, 16, 31, 128, 129, 1025];

fn sample(seed: u64, ne: [usize; 4]) -> Given {
    let values: Vec<_> = noise(seed, ne.iter().product()).iter().map(|x| 3.0 * x + 0.5).collect();
    Given::new(DType::F32, ne, &values)
}

/// Rows of `f64`, each mapped to rows.
fn exact(given: &Given, row: usize, f: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let values: Vec<_> = given.values().iter().map(|&x| f64::from(x)).collect();
    values.chunks(row).flat_map(f).collect()
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
                settle(Norm { eps: 1e-3 }, &sources, &[0], level),
                exact(&a, len, |x| centred(x, eps)),
                "norm",
            );
            let rms = |x: &[f64]| scaled(x, |squares| (squares / len as f64 + eps).sqrt());
            check(settle(RmsNorm { eps: 1e-3 }, &sources, &[0], level), exact(&a, len, rms), "rms");
            let l2 = |x: &[f64]| scaled(x, |squares| squares.sqrt().max(eps));
            check(settle(L2Norm { eps: 1e-3 }, &sources, &[0], level), exact(&a, len, l2), "l2");
        }
    }
}

#[test]
fn elements_may_lie_apart() {
    let packed = sample(2, [37, 4, 3, 1]);
    // The same numbers, rows running along the slowest axis of the memory.
    let layout = Layout::strided(DType::F32, [37, 4, 3, 1], [48, 12, 4, 4 * 37 * 12]).unwrap();
    let mut bytes = vec![0; packed.bytes.len()];
    for (i, from) in packed.bytes.chunks(4).enumerate() {
        let (x, y, z) = (i % 37, i / 37 % 4, i / 148);
        bytes[x * 48 + y * 12 + z * 4..][..4].copy_from_slice(from);
    }
    let spread = Given { layout: packed.layout, bytes }.seen_as(layout);
    assert_eq!(spread.values(), packed.values());
    for level in Level::available() {
        let both = |op: Op| {
            assert_eq!(settle(op, &[Some(&spread)], &[0], level), settle(op, &[Some(&packed)], &[0], level));
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
            let found = settle(GroupNorm { groups, eps: 1e-5 }, &[Some(&a)], &[0], level);
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
            let found = settle(RmsNormBack { eps: 1e-3 }, &[Some(&g), Some(&x)], &[0, 1], level);
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

/// The fused kernel by hand, as a planner will run it: a weight per channel, or one row per row.
#[test]
fn fused_product_rounds_like_the_pair() {
    use std::sync::atomic::AtomicUsize;

    use crate::job::{MAX_SOURCES, Shared};

    for level in Level::available() {
        for (len, weight_rows) in [(1, 1), (130, 1), (300, 3)] {
            let (a, w) = (sample(6, [len, 3, 2, 1]), sample(7, [len, weight_rows, 1, 1]));
            let normed = settle(RmsNorm { eps: 1e-6 }, &[Some(&a)], &[], level);
            let weights = w.values();
            let wanted: Vec<_> = normed
                .iter()
                .enumerate()
                .map(|(i, x)| x * weights[i % len + i / len % 3 % weight_rows * len])
                .collect();
            let (x, mut y) = (a.values(), vec![0f32; a.values().len()]);
            let counter = AtomicUsize::new(0);
            for thread in 0..2 {
                let mut sources = [None; MAX_SOURCES];
                // SAFETY: the memory is as large as the layouts, aligned, not written by others; no scratch is used.
                let job = unsafe {
                    sources[0] = Some(Src::new(x.as_ptr().cast(), &a.layout, false));
                    sources[1] = Some(Src::new(weights.as_ptr().cast(), &w.layout, false));
                    Job {
                        op: RmsNorm { eps: 1e-6 }.into(),
                        dst: Dst::new(y.as_mut_ptr().cast(), &a.layout, false),
                        sources,
                        written: [const { None }; MAX_SOURCES],
                        phase: 0,
                        share: Share::new(thread, 2),
                        own: &mut [],
                        shared: Shared::new(std::ptr::NonNull::dangling().as_ptr(), 0),
                        counter: &counter,
                    }
                };
                fused_rms_norm_mul(level)(job).unwrap();
            }
            assert_eq!(y, wanted, "{level} {len}");
        }
    }
}
