//! Attention and its relatives against sums over all keys in double precision.

use oxcart_backend::Device;
use oxcart_tensor::ops::{FlashAttnBack, FlashAttnExt, LightningIndexer, Precision};
use oxcart_tensor::{DType, Graph, Layout};

use super::super::soft_max::Slopes;
use crate::kernels::testing::{CpuDevice, Level, Tensor, Trial, nmse, numbers};

/// One attention: shapes, types and what is special about it.
#[derive(Clone, Copy, Debug)]
struct Setup {
    d: usize,
    dv: usize,
    tokens: usize,
    heads: usize,
    key_heads: usize,
    value_heads: usize,
    batch: usize,
    kv: usize,
    types: (DType, DType),
    /// Extents 2 and 3 of a mask, if there is one.
    mask: Option<[usize; 2]>,
    sinks: bool,
    max_bias: f32,
    softcap: f32,
}

const PLAIN: Setup = Setup {
    d: 32,
    dv: 32,
    tokens: 1,
    heads: 4,
    key_heads: 2,
    value_heads: 2,
    batch: 1,
    kv: 113,
    types: (DType::F32, DType::F32),
    mask: None,
    sinks: false,
    max_bias: 0.0,
    softcap: 0.0,
};

struct Sources {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Option<Tensor>,
    sinks: Option<Tensor>,
}

impl Setup {
    fn op(&self) -> FlashAttnExt {
        FlashAttnExt {
            scale: 1.0 / (self.d.max(1) as f32).sqrt(),
            max_bias: self.max_bias,
            softcap: self.softcap,
            precision: Precision::Any,
            n_kv_max: 0,
        }
    }

    fn sources(&self) -> Sources {
        let Setup { d, dv, tokens, heads, key_heads, value_heads, batch, kv, types, .. } = *self;
        let fill = |seed, dtype, ne: [usize; 4], size: f32| {
            let values: Vec<_> = numbers(seed, ne.iter().product()).iter().map(|x| x * size).collect();
            Tensor::of(dtype, ne, &values)
        };
        let mask = self.mask.map(|[mask_heads, mask_batch]| {
            let mut values = numbers(4, kv * tokens * mask_heads * mask_batch);
            for (row, values) in values.chunks_mut(kv).enumerate() {
                for (key, x) in values.iter_mut().enumerate() {
                    // Later keys hidden, a hole of several tiles, and some single keys; zero in many places.
                    let hidden =
                        key > kv - tokens.min(kv) + row % tokens || key % 7 == 3 || (200..450).contains(&key);
                    *x = if hidden { f32::NEG_INFINITY } else { x.max(0.0) };
                }
            }
            Tensor::of(DType::F16, [kv, tokens, mask_heads, mask_batch], &values)
        });
        Sources {
            q: fill(1, DType::F32, [d, tokens, heads, batch], 4.0),
            k: fill(2, types.0, [d, kv, key_heads, batch], 2.0),
            v: fill(3, types.1, [dv, kv, value_heads, batch], 1.0),
            mask,
            sinks: self.sinks.then(|| fill(5, DType::F32, [heads, 1, 1, 1], 5.0)),
        }
    }

    fn exact(&self, sources: &Sources) -> Vec<f64> {
        let [q, k, v] = [&sources.q, &sources.k, &sources.v].map(Tensor::exact);
        let mask = sources.mask.as_ref().map(Tensor::exact);
        let sinks = sources.sinks.as_ref().map(Tensor::exact);
        let Setup { d, dv, tokens, heads, key_heads, value_heads, batch, kv, softcap, .. } = *self;
        let slopes = Slopes::new(self.max_bias, heads);
        let mut all = Vec::new();
        for b in 0..batch {
            for token in 0..tokens {
                for head in 0..heads {
                    let q = &q[((b * heads + head) * tokens + token) * d..][..d];
                    let key_head = b * key_heads + head / (heads / key_heads);
                    let value_head = b * value_heads + head / (heads / value_heads);
                    let mut scores = Vec::new();
                    for key in 0..kv {
                        let k = &k[(key_head * kv + key) * d..][..d];
                        let mut score: f64 =
                            q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() * f64::from(self.op().scale);
                        if softcap != 0.0 {
                            score = f64::from(softcap) * (score / f64::from(softcap)).tanh();
                        }
                        if let (Some(mask), Some([mask_heads, mask_batch])) = (&mask, self.mask) {
                            let at = (b % mask_batch * mask_heads + head % mask_heads) * tokens + token;
                            score += f64::from(slopes.of(head)) * mask[at * kv + key];
                        }
                        scores.push(score);
                    }
                    let sink = sinks.as_ref().map(|sinks| sinks[head]);
                    let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                    let sum: f64 = scores.iter().copied().chain(sink).map(|x| (x - max).exp()).sum();
                    let mut row = vec![0.0; dv];
                    for (key, score) in scores.iter().enumerate().filter(|(_, score)| score.is_finite()) {
                        let v = &v[(value_head * kv + key) * dv..][..dv];
                        row.iter_mut().zip(v).for_each(|(y, v)| *y += (score - max).exp() / sum * v);
                    }
                    all.extend(row);
                }
            }
        }
        all
    }

    fn found(&self, sources: &Sources, level: Level) -> Vec<f32> {
        let slots = [
            Some(&sources.q),
            Some(&sources.k),
            Some(&sources.v),
            sources.mask.as_ref(),
            sources.sinks.as_ref(),
        ];
        Trial::with(self.op(), &slots).on(level).values()
    }

    fn check(&self, most: f64) {
        let sources = self.sources();
        let exact = self.exact(&sources);
        for level in Level::available() {
            let error = nmse(&self.found(&sources, level), &exact);
            assert!(error < most, "{level}: {error:.2e}: {self:?}");
        }
    }
}

#[test]
fn any_number_of_keys_and_tokens() {
    for kv in [1, 15, 64, 113, 1025] {
        for tokens in [1, 2, 3, 5, 33, 70] {
            for mask in [None, Some([1, 1])] {
                Setup { kv, tokens, mask, ..PLAIN }.check(1e-11);
            }
        }
    }
}

#[test]
fn heads_share_keys_and_values() {
    for (heads, key_heads, value_heads) in
        [(1, 1, 1), (12, 1, 1), (24, 2, 2), (5, 5, 5), (8, 4, 2), (12, 3, 2), (40, 2, 2)]
    {
        for (tokens, kv) in [(1, 700), (3, 70), (20, 70)] {
            Setup { heads, key_heads, value_heads, tokens, kv, ..PLAIN }.check(1e-11);
        }
    }
}

#[test]
fn heads_of_any_size() {
    for (d, dv) in [(1, 1), (2, 3), (40, 40), (72, 64), (80, 80), (33, 47), (192, 128), (576, 512)] {
        for tokens in [1, 16] {
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                // Rounding of keys and values is exact here; that of queries does not happen.
                Setup { d, dv, tokens, kv: 77, types: (dtype, dtype), mask: Some([1, 1]), ..PLAIN }
                    .check(1e-11);
            }
        }
    }
}

#[test]
fn masks_sinks_slopes_and_caps() {
    for tokens in [1, 4, 20] {
        for batch in [1, 3] {
            for mask in [[1, 1], [2, 1], [6, batch]] {
                for (sinks, max_bias, softcap) in [
                    (false, 0.0, 0.0),
                    (true, 0.0, 0.0),
                    (false, 8.0, 0.0),
                    (false, 0.0, 10.0),
                    (true, 8.0, 3.0),
                ] {
                    let mask = Some(mask);
                    Setup { heads: 6, tokens, batch, kv: 600, mask, sinks, max_bias, softcap, ..PLAIN }
                        .check(1e-11);
                }
            }
        }
    }
}

/// Every type of keys with every kind of values. Queries rounded to eight bits are what the limit is about.
#[test]
fn every_type_of_keys_and_values() {
    let quantized = || DType::all().filter(|dtype| dtype.is_quantized());
    let values = [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::IQ4_NL, DType::Q6_K];
    for keys in quantized().chain([DType::F32, DType::F16, DType::BF16]) {
        if keys.dot_partner().is_none() {
            continue;
        }
        for (i, dtype) in values.into_iter().enumerate() {
            let tokens = if i % 2 == 0 { 1 } else { 9 };
            let (d, dv, kv) = (256, 256, 70);
            Setup { d, dv, kv, tokens, heads: 2, types: (keys, dtype), ..PLAIN }.check(3e-4);
        }
    }
    for values in quantized().filter(|dtype| dtype.decodes()) {
        for tokens in [1, 9] {
            Setup { dv: 256, tokens, types: (DType::F32, values), ..PLAIN }.check(1e-11);
        }
    }
}

#[test]
fn rows_may_lie_anywhere() {
    // Tokens before heads, as a cache has them, and a mask with more rows and columns than needed.
    for tokens in [1, 12] {
        let setup = Setup { tokens, kv: 130, types: (DType::F16, DType::F16), mask: Some([1, 1]), ..PLAIN };
        let mut sources = setup.sources();
        let exact = setup.exact(&sources);
        let swap = |given: &Tensor| {
            let [d, rows, heads, _] = given.layout.ne().extents();
            let size = given.layout.row_bytes();
            let nb = [given.layout.nb()[0], size * heads, size, size * heads * rows];
            let layout = Layout::strided(given.layout.dtype(), [d, rows, heads, 1], nb).unwrap();
            Tensor::with_layout(layout, given.values())
        };
        sources.q = swap(&sources.q);
        sources.k = swap(&sources.k);
        sources.v = swap(&sources.v);
        let mask = sources.mask.take().unwrap();
        let mut wider = vec![7.0; 150 * (tokens + 3)];
        for (row, values) in mask.values().chunks(130).enumerate() {
            wider[row * 150..][..130].copy_from_slice(values);
        }
        sources.mask = Some(Tensor::of(DType::F16, [150, tokens + 3, 1, 1], &wider));
        for level in Level::available() {
            assert!(nmse(&setup.found(&sources, level), &exact) < 1e-11);
        }
    }
}

#[test]
fn without_any_key_the_result_is_zero() {
    for tokens in [1, 9] {
        for (sinks, kv) in [(false, 90), (true, 90), (false, 900), (true, 900)] {
            let setup = Setup { tokens, kv, sinks, mask: Some([1, 1]), ..PLAIN };
            let mut sources = setup.sources();
            let hidden = vec![f32::NEG_INFINITY; kv * tokens];
            sources.mask = Some(Tensor::of(DType::F16, [kv, tokens, 1, 1], &hidden));
            for level in Level::available() {
                assert!(setup.found(&sources, level).iter().all(|&x| x == 0.0));
            }
        }
    }
}

#[test]
fn what_is_hidden_may_be_anything() {
    for tokens in [1, 3, 20] {
        let setup = Setup { tokens, kv: 300, mask: Some([1, 1]), types: (DType::F32, DType::F32), ..PLAIN };
        let mut sources = setup.sources();
        let exact = setup.exact(&sources);
        let hidden = |key: usize| key % 7 == 3 || (200..300).contains(&key);
        for (given, bad) in [(&mut sources.k, f32::NAN), (&mut sources.v, f32::INFINITY)] {
            let mut values = given.values();
            for (row, values) in values.chunks_mut(32).enumerate() {
                if hidden(row % 300) {
                    values.fill(bad);
                }
            }
            *given = Tensor::of(DType::F32, given.layout.ne().extents(), &values);
        }
        for level in Level::available() {
            assert!(nmse(&setup.found(&sources, level), &exact) < 1e-11, "{level}");
        }
    }
}

#[test]
fn nan_in_a_query_is_not_lost() {
    for (tokens, kv) in [(1, 100), (9, 100), (1, 900), (9, 900)] {
        let setup = Setup { tokens, kv, ..PLAIN };
        let mut sources = setup.sources();
        let mut values = sources.q.values();
        values[5] = f32::NAN;
        sources.q = Tensor::of(DType::F32, sources.q.layout.ne().extents(), &values);
        for level in Level::available() {
            let found = setup.found(&sources, level);
            assert!(found[..32].iter().all(|x| x.is_nan()), "{level}");
            assert!(found[32..64].iter().all(|x| x.is_finite()), "{level}");
        }
    }
}

#[test]
fn extents_may_be_zero() {
    for tokens in [1, 9] {
        for dtype in [DType::F32, DType::Q8_0, DType::Q4_1] {
            // Heads without channels see all keys alike; without keys there is nothing to see.
            Setup { d: 0, tokens, types: (dtype, DType::F32), ..PLAIN }.check(1e-11);
            let setup = Setup { kv: 0, tokens, types: (dtype, dtype), ..PLAIN };
            for level in Level::available() {
                assert!(setup.found(&setup.sources(), level).iter().all(|&x| x == 0.0));
            }
        }
    }
    for (tokens, heads, batch) in [(0, 4, 1), (3, 0, 1), (3, 4, 0)] {
        let setup = Setup { tokens, heads, batch, ..PLAIN };
        let mut graph = Graph::new();
        let sources = setup.sources();
        let [q, k, v] =
            [&sources.q, &sources.k, &sources.v].map(|x| graph.leaf_with_layout(x.layout).unwrap());
        if let Ok(node) = graph.flash_attn_ext([q, k, v], None, None, setup.op()) {
            assert!(CpuDevice::with_level(Level::Scalar).supports_op(graph.tensor(node).unwrap()));
        }
    }
}

#[test]
fn sparse_scores() {
    for (d, heads, tokens, kv, streams) in [(32_usize, 3, 1, 1, 1), (64, 8, 1, 200, 2), (40, 5, 35, 70, 2)] {
        for dtype in [DType::F32, DType::F16, DType::Q8_0] {
            if !d.is_multiple_of(dtype.block_len()) {
                continue;
            }
            let q =
                Tensor::of(DType::F32, [d, heads, tokens, streams], numbers(1, d * heads * tokens * streams));
            let k = Tensor::of(dtype, [d, 1, kv, streams], numbers(2, d * kv * streams));
            let w = Tensor::of(DType::F32, [heads, tokens, 1, streams], numbers(3, heads * tokens * streams));
            let mask = Tensor::of(DType::F16, [kv, tokens, 1, 1], numbers(4, kv * tokens));
            let [qs, ks, ws, masks] = [&q, &k, &w, &mask].map(Tensor::exact);
            let mut exact = Vec::new();
            for stream in 0..streams {
                for token in 0..tokens {
                    for key in 0..kv {
                        let k = &ks[(stream * kv + key) * d..][..d];
                        let mut sum = masks[token * kv + key];
                        for head in 0..heads {
                            let at = (stream * tokens + token) * heads + head;
                            let dot: f64 = qs[at * d..][..d].iter().zip(k).map(|(q, k)| q * k).sum();
                            sum += dot.max(0.0) * ws[at];
                        }
                        exact.push(sum);
                    }
                }
            }
            for level in Level::available() {
                let sources = [Some(&q), Some(&k), Some(&w), Some(&mask)];
                assert!(
                    nmse(&Trial::with(LightningIndexer, &sources).on(level).values(), &exact) < 1e-11,
                    "{level} {dtype}"
                );
            }
        }
    }
}

/// Against differences of the attention itself.
#[test]
fn gradients_are_slopes() {
    let (d, tokens, heads, keys, key_heads, batch) = (3, 2, 4, 5, 2, 2);
    let sizes = [d * tokens * heads * batch, d * keys * key_heads * batch, d * keys * key_heads * batch];
    let [q, k, v] = [0, 1, 2].map(|i| numbers(i as u64 + 1, sizes[i]));
    let g = numbers(9, sizes[0]);
    for masked in [false, true] {
        // The sum of all results, each times its gradient.
        let loss = |[q, k, v]: [&[f64]; 3]| {
            let mut total = 0.0;
            for row in 0..tokens * heads * batch {
                let (token, head, b) = (row % tokens, row / tokens % heads, row / (tokens * heads));
                let plane = b * key_heads + head % key_heads;
                let seen = if masked { keys - tokens + token + 1 } else { keys };
                let dot = |key: usize| {
                    let k = &k[(plane * keys + key) * d..][..d];
                    q[row * d..][..d].iter().zip(k).map(|(q, k)| q * k).sum::<f64>() / (d as f64).sqrt()
                };
                let sum: f64 = (0..seen).map(|key| dot(key).exp()).sum();
                for channel in 0..d {
                    let y: f64 = (0..seen)
                        .map(|key| dot(key).exp() / sum * v[(plane * d + channel) * keys + key])
                        .sum();
                    total += y * f64::from(g[row * d + channel]);
                }
            }
            total
        };
        let wide = [&q, &k, &v].map(|x| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
        let mut exact = Vec::new();
        for which in 0..3 {
            for i in 0..sizes[which] {
                let at = |step: f64| {
                    let mut moved = wide.clone();
                    moved[which][i] += step;
                    loss([&moved[0], &moved[1], &moved[2]])
                };
                exact.push((at(1e-5) - at(-1e-5)) / 2e-5);
            }
            exact.resize(exact.len().next_multiple_of(4), 0.0);
        }
        let ne = [[d, tokens, heads, batch], [d, keys, key_heads, batch], [keys, d, key_heads, batch]];
        let given = |i: usize, x: &[f32]| Tensor::of(DType::F32, ne[i], x);
        let sources = [given(0, &q), given(1, &k), given(2, &v), given(0, &g)];
        for level in Level::available() {
            let slots = sources.each_ref().map(Some);
            let error = nmse(&Trial::with(FlashAttnBack { masked }, &slots).on(level).values(), &exact);
            assert!(error < 1e-10, "{level}: {error:.2e}");
        }
    }
}
