//! FLASH_ATTN_BACK: gradients of attention over `f32`, with respect to queries, keys and values.
//!
//! The result is one vector of three tensors like `q`, `k` and `v`. A thread does all queries of a head of keys, so no
//! other adds to that head's gradients. Query heads `h`, `h + n`, `h + 2n` and so on share head `h` of `n` heads of keys.

use oxcart_tensor::TensorRef;
use oxcart_tensor::ops::FlashAttnBack;

use super::super::sum::Sum;
use super::{room, take};
use crate::job::{Fault, Job, Kernel, LONGEST_WHOLE, as_floats};
use crate::simd::{Level, Simd, for_each_level};
use crate::view::Dst;

pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let [d, keys, heads, batch] = node.source(1)?.ne().extents();
    let run = for_each_level!(back: fn(job: Job<'_>) -> Result<(), Fault>).at(level);
    let kernel = Kernel::new(run).width(heads * batch).own(2 * room(keys) * size_of::<f32>());
    // Rows of keys and of values are taken whole.
    (d.max(keys) <= LONGEST_WHOLE).then_some(kernel)
}

#[inline(always)]
fn back<S: Simd>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let FlashAttnBack { masked } = job.op();
    let [q, k, v, gradient] = [0, 1, 2, 3].map(|slot| job.src(slot));
    let ([d, tokens, heads, batch], [_, keys, key_heads, _]) = (q.ne(), k.ne());
    let scale = 1.0 / (d as f32).sqrt();
    // Each tensor starts at a multiple of four floats.
    let k_start = q.layout().elements().next_multiple_of(4);
    let v_start = k_start + k.layout().elements().next_multiple_of(4);
    let mut rest = as_floats(job.own);
    let (weights, slopes) = (take(&mut rest, keys), take(&mut rest, keys));
    if job.share.of(1).contains(&0) {
        // SAFETY: these are the floats between the tensors, which no other thread writes.
        unsafe {
            clear_gaps(&job.dst, [q.layout().elements(), k_start, k_start + k.layout().elements(), v_start])
        };
    }
    for unit in job.share.of(key_heads * batch) {
        let (key_head, image) = (unit % key_heads, unit / key_heads);
        let plane = d * keys;
        // SAFETY: shares do not meet, and heads of keys have no part of the result in common.
        let [mut dk, mut dv] = [k_start, v_start].map(|start| unsafe {
            job.dst.row::<f32>([0; 3]).part(start + unit * plane..start + (unit + 1) * plane)
        });
        let (dk, dv, stop) = (dk.slice(), dv.slice(), job.stop);
        for part in stop.stretches(plane) {
            dk[part.clone()].fill(0.0);
            dv[part].fill(0.0);
        }
        for head in (key_head..heads).step_by(key_heads) {
            for token in 0..tokens {
                if stop.after(d) {
                    return Ok(());
                }
                let at = (image * heads + head) * tokens + token;
                // SAFETY: as above, for the queries of this head.
                let mut dq = unsafe { job.dst.row::<f32>([0; 3]).part(at * d..(at + 1) * d) };
                let dq = dq.slice();
                dq.fill(0.0);
                let seen = match masked {
                    true => (keys + token + 1).saturating_sub(tokens).min(keys),
                    false => keys,
                };
                let query = q.row::<f32>([token, head, image]).slice();
                let dy = gradient.row::<f32>([token, head, image]).slice();
                let (weights, slopes) = (&mut weights[..seen], &mut slopes[..seen]);
                for (key, weight) in weights.iter_mut().enumerate() {
                    if stop.after(d) {
                        return Ok(());
                    }
                    *weight = dot(query, k.row::<f32>([key, key_head, image]).slice()) * scale;
                }
                soft_max(weights);
                slopes.fill(0.0);
                for (channel, &dy) in dy.iter().enumerate() {
                    if stop.after(2 * seen) {
                        return Ok(());
                    }
                    let values = v.row::<f32>([channel, key_head, image]).slice();
                    add(slopes, dy, values);
                    add(&mut dv[channel * keys..][..seen], dy, weights);
                }
                let mean = dot(weights, slopes);
                for (key, (weight, slope)) in weights.iter().zip(&*slopes).enumerate() {
                    if stop.after(2 * d) {
                        return Ok(());
                    }
                    let slope = weight * (slope - mean) * scale;
                    add(dq, slope, k.row::<f32>([key, key_head, image]).slice());
                    add(&mut dk[key * d..][..d], slope, query);
                }
            }
        }
    }
    Ok(())
}

/// Zeros between the three tensors.
///
/// # Safety
///
/// No other thread reads or writes there in this phase, and this thread has no handle of it.
unsafe fn clear_gaps(dst: &Dst<'_>, [q_end, k_start, k_end, v_start]: [usize; 4]) {
    let end = dst.ne()[0];
    let v_end = v_start + (k_end - k_start);
    for gap in [q_end..k_start, k_end..v_start, v_end..end] {
        for i in gap {
            // SAFETY: as the caller says.
            unsafe { dst.set([i, 0, 0, 0], 0f32) };
        }
    }
}

#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sum = Sum::new();
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    sum.add(len, |i| a[i] * b[i]);
    sum.total() as f32
}

#[inline(always)]
fn add(to: &mut [f32], factor: f32, from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}

#[inline(always)]
fn soft_max(scores: &mut [f32]) {
    let max = scores.iter().fold(f32::NEG_INFINITY, |max, &x| if x > max { x } else { max });
    let mut sum = 0.0;
    for x in &mut *scores {
        *x = (*x - max).exp();
        sum += f64::from(*x);
    }
    let factor = (1.0 / sum) as f32;
    scores.iter_mut().for_each(|x| *x *= factor);
}
