//! Against recurrences in double precision.

use oxcart_tensor::ops::{GatedLinearAttn, Grouping, RwkvWkv6, RwkvWkv7, SsmConv, SsmScan};
use oxcart_tensor::{DType, Layout};

use super::scan::tests::compare;
use crate::kernels::testing::{Tensor, Trial, noise, run};

const F32: DType = DType::F32;

#[test]
fn short_convolutions() {
    for (taps, tokens, channels, sequences) in
        [(4, 70, 130, 2), (3, 1, 33, 3), (1, 5, 7, 1), (4, 0, 3, 1), (4, 5, 0, 1)]
    {
        let row = taps - 1 + tokens;
        // Sequences may lie apart.
        let nb = [4, 4 * row, 4 * row * channels + 12, 4 * (row * channels + 3) * sequences];
        let layout = Layout::strided(F32, [row, channels, sequences, 1], nb).unwrap();
        let a = Tensor::with_layout(layout, noise(1));
        let kernel = Tensor::noise(F32, [taps, channels, 1, 1], 2);
        for y in run(SsmConv, &[&a, &kernel]) {
            assert_eq!(y.ne(), [channels, tokens, sequences, 1]);
            y.assert_near(1e-6, |[c, t, q, _]| {
                (0..taps).map(|j| a.at([t + j, c, q, 0]) * kernel.at([j, c, 0, 0])).sum()
            });
        }
    }
}

/// `[states, x, dt, a, b, c]` with x, b and c in one buffer's strides, or packed.
struct Scan {
    state: usize,
    dim: usize,
    heads: usize,
    groups: usize,
    tokens: usize,
    sequences: usize,
}

impl Scan {
    fn sources(&self, decays: usize) -> [Tensor; 6] {
        let &Scan { state, dim, heads, groups, tokens, sequences } = self;
        // Rows of tokens hold more than what is looked at here.
        let strided = |rows: [usize; 2], seed| {
            let row = 4 * (rows[0] * rows[1] + 5);
            let nb = [4, 4 * rows[0], row, row * tokens + 8];
            let layout = Layout::strided(F32, [rows[0], rows[1], tokens, sequences], nb).unwrap();
            Tensor::with_layout(layout, noise(seed))
        };
        [
            Tensor::noise(F32, [state, dim, heads, sequences + 2], 1),
            strided([dim, heads], 2),
            // Some beyond where the softplus is cut off.
            Tensor::f32(
                [heads, tokens, sequences],
                noise(3).map(|x| if x > 0.9 { 25.0 * x } else { 4.0 * x }),
            ),
            Tensor::f32([decays, heads], noise(4).map(|x| -x.abs())),
            strided([state, groups], 5),
            strided([state, groups], 6),
        ]
    }

    fn exact(&self, sources: &[Tensor; 6], ids: &[usize], grouping: Grouping) -> (Vec<f64>, Vec<Vec<f64>>) {
        let [states, x, dt, a, b, c] = sources;
        let &Scan { state, dim, heads, groups, tokens, sequences } = self;
        let mut outputs = vec![0.0; dim * heads * tokens * sequences];
        let mut history = vec![vec![0.0; state * dim * heads * sequences]; tokens];
        for (q, h) in (0..sequences).flat_map(|q| (0..heads).map(move |h| (q, h))) {
            let g = match grouping {
                Grouping::Neighbours => h / (heads / groups),
                Grouping::InTurn => h % groups,
            };
            for d in 0..dim {
                let mut row: Vec<f64> = (0..state).map(|n| states.at([n, d, h, ids[q]])).collect();
                for t in 0..tokens {
                    let delta = dt.at([h, t, q, 0]).exp().ln_1p();
                    let mut sum = 0.0;
                    for (n, s) in row.iter_mut().enumerate() {
                        let decay = (delta * a.at([n % a.ne()[0], h, 0, 0])).exp();
                        *s = *s * decay + b.at([n, g, t, q]) * x.at([d, h, t, q]) * delta;
                        sum += *s * c.at([n, g, t, q]);
                    }
                    outputs[((q * tokens + t) * heads + h) * dim + d] = sum;
                    let at = ((q * heads + h) * dim + d) * state;
                    history[t][at..at + state].copy_from_slice(&row);
                }
            }
        }
        (outputs, history)
    }
}

const LAST: SsmScan = SsmScan { snapshots: 1, grouping: Grouping::Neighbours };

#[test]
fn selective_scans_with_snapshots() {
    for scan in [
        Scan { state: 16, dim: 1, heads: 40, groups: 1, tokens: 9, sequences: 3 },
        Scan { state: 37, dim: 19, heads: 4, groups: 2, tokens: 5, sequences: 2 },
        Scan { state: 128, dim: 33, heads: 3, groups: 3, tokens: 4, sequences: 1 },
        Scan { state: 1, dim: 2, heads: 2, groups: 1, tokens: 1, sequences: 2 },
    ] {
        let ids: Vec<_> = (0..scan.sequences).map(|q| (q * 2 + 1) % (scan.sequences + 2)).collect();
        let id_tensor = Tensor::of(DType::I32, scan.sequences, ids.iter().map(|&id| id as f32));
        for (decays, grouping) in
            [(1, Grouping::Neighbours), (scan.state, Grouping::Neighbours), (1, Grouping::InTurn)]
        {
            let sources = scan.sources(decays);
            let (outputs, history) = scan.exact(&sources, &ids, grouping);
            let [states, x, dt, a, b, c] = &sources;
            let several = [1, 2, scan.tokens, scan.tokens + 2];
            for &snapshots in if decays == 1 { &several[..] } else { &several[..1] } {
                for y in run(SsmScan { snapshots, grouping }, &[states, x, dt, a, b, c, &id_tensor]) {
                    compare(&y, &outputs, &history, snapshots);
                }
            }
        }
    }
}

#[test]
fn states_that_do_not_exist_are_refused() {
    let scan = Scan { state: 16, dim: 32, heads: 8, groups: 1, tokens: 9, sequences: 2 };
    let [states, x, dt, a, b, c] = &scan.sources(1);
    for bad in [-1, 4, 1_000_000_000] {
        let ids = Tensor::i32(2, &[0, bad]);
        let error = Trial::of(LAST, &[states, x, dt, a, b, c, &ids]).refused();
        assert!(error.contains("is not below 4"), "{error}");
    }
}

#[test]
fn a_scan_over_no_tokens_writes_nothing() {
    let scan = Scan { state: 4, dim: 3, heads: 2, groups: 1, tokens: 0, sequences: 1 };
    let [states, x, dt, a, b, c] = &scan.sources(1);
    let ids = Tensor::i32(1, &[0]);
    for y in run(LAST, &[states, x, dt, a, b, c, &ids]) {
        assert!((0..y.layout.elements()).all(|i| y.is_untouched(i)));
    }
}

/// Sizes of linear recurrences: head size, heads, tokens, sequences. Sizes are not multiples of any vector.
const LINEAR: [[usize; 4]; 4] = [[64, 4, 6, 2], [37, 3, 3, 1], [1, 2, 4, 4], [33, 2, 4, 2]];

/// Runs a recurrence over square states in double precision: `step` gets keys' row index, the row and the token's
/// values, in source order, and the outputs of the head.
fn linear_exact(
    [size, heads, tokens, sequences]: [usize; 4],
    state: &Tensor,
    step: impl Fn(usize, usize, &mut [f64], &mut [f64]),
) -> (Vec<f64>, Vec<Vec<f64>>) {
    let initial = state.exact();
    let mut outputs = vec![0.0; size * heads * tokens];
    let mut last = vec![0.0; initial.len()];
    let each = tokens / sequences;
    for unit in 0..heads * sequences {
        let (q, h) = (unit / heads, unit % heads);
        let at = (q * heads + h) * size * size;
        let mut state = initial[at..at + size * size].to_vec();
        for token in q * each..(q + 1) * each {
            let out = (token * heads + h) * size;
            step(h, token, &mut state, &mut outputs[out..out + size]);
        }
        last[at..at + size * size].copy_from_slice(&state);
    }
    (outputs, vec![last])
}

fn linear_sources<const N: usize>([size, heads, tokens, sequences]: [usize; 4]) -> ([Tensor; N], Tensor) {
    let per_token = std::array::from_fn(|i| {
        // Small enough for states not to explode.
        Tensor::f32([size, heads, tokens], noise(i as u64 + 1).map(|x| x / 2.0))
    });
    (per_token, Tensor::noise(F32, [size * size * heads, sequences, 1, 1], 99))
}

#[test]
fn version_6() {
    for sizes @ [size, heads, ..] in LINEAR {
        let ([k, v, r, td], state) = linear_sources::<4>(sizes);
        let tf = Tensor::noise(F32, [size, heads, 1, 1], 50);
        let (outputs, last) = linear_exact(sizes, &state, |h, t, state, out| {
            for i in 0..size {
                for j in 0..size {
                    let kv = k.at([i, h, t, 0]) * v.at([j, h, t, 0]);
                    let st = &mut state[i * size + j];
                    out[j] += r.at([i, h, t, 0]) * (tf.at([i, h, 0, 0]) * kv + *st);
                    *st = *st * td.at([i, h, t, 0]) + kv;
                }
            }
        });
        for y in run(RwkvWkv6, &[&k, &v, &r, &tf, &td, &state]) {
            compare(&y, &outputs, &last, 1);
        }
    }
}

#[test]
fn gated_attention() {
    for sizes @ [size, ..] in LINEAR {
        let ([k, v, q, g], state) = linear_sources::<4>(sizes);
        let (outputs, last) = linear_exact(sizes, &state, |h, t, state, out| {
            for i in 0..size {
                for j in 0..size {
                    let st = &mut state[i * size + j];
                    *st = *st * g.at([i, h, t, 0]) + k.at([i, h, t, 0]) * v.at([j, h, t, 0]);
                    out[j] += q.at([i, h, t, 0]) * 0.25 * *st;
                }
            }
        });
        for y in run(GatedLinearAttn { scale: 0.25 }, &[&k, &v, &q, &g, &state]) {
            compare(&y, &outputs, &last, 1);
        }
    }
}

#[test]
fn version_7() {
    for sizes @ [size, ..] in LINEAR {
        let ([r, w, k, v, a, b], state) = linear_sources::<6>(sizes);
        let (outputs, last) = linear_exact(sizes, &state, |h, t, state, out| {
            for i in 0..size {
                let row = &mut state[i * size..(i + 1) * size];
                let held: f64 = row.iter().enumerate().map(|(j, st)| a.at([j, h, t, 0]) * st).sum();
                for (j, st) in row.iter_mut().enumerate() {
                    *st = *st * w.at([j, h, t, 0])
                        + v.at([i, h, t, 0]) * k.at([j, h, t, 0])
                        + held * b.at([j, h, t, 0]);
                    out[i] += *st * r.at([j, h, t, 0]);
                }
            }
        });
        for y in run(RwkvWkv7, &[&r, &w, &k, &v, &a, &b, &state]) {
            compare(&y, &outputs, &last, 1);
        }
    }
}
