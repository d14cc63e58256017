//! LIGHTNING_INDEXER: scores of keys for sparse attention.
//!
//! A tile of keys lies transposed, a vector holding one channel of several keys; heads are added one after another.

use half::f16;
use oxcart_tensor::TensorRef;

use super::expand::{self, Head};
use super::lens::{HeadAt, KEYS, MOST_CHANNELS};
use super::product::{KEYS_AT_ONCE, products};
use super::{multiply_adds, room, take};
use crate::job::{Fault, Job, Kernel, as_floats};
use crate::simd::{Level, Simd, for_each_level};

/// Tokens that share an expanded tile of keys.
const TOKENS: usize = 16;

pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let [d, heads, ..] = node.source(0)?.ne().extents();
    let [kv, tokens, _, streams] = node.ne().extents();
    let run = for_each_level!(index: fn(job: Job<'_>) -> Result<(), Fault>).at(level);
    let items = kv.div_ceil(KEYS) * tokens.div_ceil(TOKENS) * streams;
    let work = node.layout().elements().saturating_mul(d * heads);
    let floats: usize = areas(d, heads).map(room).iter().sum();
    let kernel = Kernel::claimed(run, items, multiply_adds(work)).own(floats * size_of::<f32>());
    (d <= MOST_CHANNELS / KEYS_AT_ONCE).then_some(kernel)
}

/// Floats of scratch: keys, keys transposed, queries, products. Products are made of whole blocks of heads.
const fn areas(d: usize, heads: usize) -> [usize; 4] {
    let heads = heads.next_multiple_of(KEYS_AT_ONCE);
    [KEYS * d, KEYS * d, heads * d, heads * KEYS]
}

#[inline(always)]
fn index<S: Simd>(s: S, job: Job<'_>) -> Result<(), Fault> {
    let [q, k, weights, mask] = [0, 1, 2, 3].map(|slot| job.src(slot));
    let ([d, heads, ..], [kv, tokens, _, streams]) = (q.ne(), job.dst.ne());
    let (tiles, blocks) = (kv.div_ceil(KEYS), tokens.div_ceil(TOKENS));
    let (stop, claims) = (job.stop, job.claims(tiles * blocks * streams));
    let mut rest = as_floats(job.own);
    let [keys, transposed, queries, scores] = areas(d, heads).map(|len| take(&mut rest, len));
    queries.fill(0.0);
    for item in claims {
        let (first, block, stream) = (item % tiles * KEYS, item / tiles % blocks, item / (tiles * blocks));
        let count = KEYS.min(kv - first);
        transposed.fill(0.0);
        for key in 0..count {
            if stop.after(d) {
                return Ok(());
            }
            let head = Head::new(&k, HeadAt { plane: [first + key, stream], channel: 0 }, d);
            expand::rows(s, &head, 0..1, &mut keys[key * d..][..d], d);
            for (to, &x) in transposed.chunks_exact_mut(KEYS).zip(&keys[key * d..][..d]) {
                to[key] = x;
            }
        }
        for token in (block * TOKENS..tokens).take(TOKENS) {
            for head in 0..heads {
                if stop.after(d) {
                    return Ok(());
                }
                queries[head * d..][..d].copy_from_slice(q.row::<f32>([head, token, stream]).slice());
            }
            for (block, scores) in scores.chunks_mut(KEYS_AT_ONCE * KEYS).enumerate() {
                if stop.after(KEYS_AT_ONCE.min(heads - block * KEYS_AT_ONCE) * d * count) {
                    return Ok(());
                }
                products(s, &queries[block * KEYS_AT_ONCE * d..], d, transposed, KEYS, scores);
            }
            let weights = weights.row::<f32>([token, 0, stream]).slice();
            let mut sums = [0.0; KEYS];
            for (scores, &weight) in scores.chunks_exact(KEYS).zip(weights) {
                for (sum, &score) in sums.iter_mut().zip(scores) {
                    *sum += if score > 0.0 { score * weight } else { 0.0 };
                }
            }
            let mask = mask.row::<f16>([token, 0, stream % mask.ne()[3]]).slice();
            let mut biases = [0.0; KEYS];
            oxcart_tensor::quant::from_f16_slice(&mask[first..][..count], &mut biases[..count]);
            sums.iter_mut().zip(&biases).for_each(|(sum, bias)| *sum += bias);
            // SAFETY: each item is claimed by one thread, and items have no part of a row in common.
            let row = unsafe { job.dst.row::<f32>([token, 0, stream]) };
            row.part(first..first + count).write(0, &sums[..count]);
        }
    }
    Ok(())
}
