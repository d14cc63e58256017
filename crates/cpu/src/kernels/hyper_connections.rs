//! Hyper-connections: several residual streams mixed around each block.

use oxcart_tensor::ops::{Dsv4HcComb, Dsv4HcPre};
use oxcart_tensor::{Op, TensorRef};

use super::chunk::{CHUNK, Chunk};
use super::math;
use crate::job::{Fault, Job, Kernel};
use crate::simd::{Level, Simd, for_each_level};

/// Streams that the mixing matrix is for.
const STREAMS: usize = 4;

/// Where the mixing matrix starts among the mixes of a token; before it come the weights into and out of the block.
const MATRIX: usize = 2 * STREAMS;

/// The kernel for an op of this family.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let run = match node.op() {
        Op::Dsv4HcComb(_) => for_each_level!(comb: fn(job: Job<'_>) -> Result<(), Fault>).at(level),
        Op::Dsv4HcPre(_) => for_each_level!(pre: fn(job: Job<'_>) -> Result<(), Fault>).at(level),
        Op::Dsv4HcPost(_) => for_each_level!(post: fn(job: Job<'_>) -> Result<(), Fault>).at(level),
        _ => return None,
    };
    Some(Kernel::units(run, usize::MAX, usize::try_from(node.work()).unwrap_or(usize::MAX)))
}

/// The mixing matrix of each token, rows `src` of columns `dst`, made doubly stochastic.
#[inline(always)]
fn comb<S: Simd>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let Dsv4HcComb { eps, iterations } = job.op();
    let (mixes, base) = (job.src(0), job.src(2).line::<f32>([0, 0, 0]));
    let scale = job.src(1).line::<f32>([0, 0, 0]).get(2);
    let stop = job.stop;
    for token in job.share.of(mixes.ne()[1]) {
        let mixes = mixes.line::<f32>([token, 0, 0]);
        let mut matrix: [[f32; STREAMS]; STREAMS] = std::array::from_fn(|src| {
            std::array::from_fn(|dst| {
                let i = MATRIX + STREAMS * src + dst;
                mixes.get(i) * scale + base.get(i)
            })
        });
        for row in &mut matrix {
            let largest = row.iter().fold(f32::NEG_INFINITY, |most, &x| if x > most { x } else { most });
            row.iter_mut().for_each(|x| *x = (*x - largest).exp());
            let factor = 1.0 / row.iter().sum::<f32>();
            row.iter_mut().for_each(|x| *x = *x * factor + eps);
        }
        normalize_columns(&mut matrix, eps);
        if stop.after(2 * STREAMS * STREAMS) {
            return Ok(());
        }
        for _ in 1..iterations {
            for row in &mut matrix {
                let factor = 1.0 / (eps + row.iter().sum::<f32>());
                row.iter_mut().for_each(|x| *x *= factor);
            }
            normalize_columns(&mut matrix, eps);
            if stop.after(2 * STREAMS * STREAMS) {
                return Ok(());
            }
        }
        for (src, row) in matrix.iter().enumerate() {
            // SAFETY: each token is one thread's.
            unsafe { job.dst.row::<f32>([src, token, 0]) }.write(0, row);
        }
    }
    Ok(())
}

#[inline(always)]
fn normalize_columns(matrix: &mut [[f32; STREAMS]; STREAMS], eps: f32) {
    for dst in 0..STREAMS {
        let factor = 1.0 / (eps + matrix.iter().map(|row| row[dst]).sum::<f32>());
        matrix.iter_mut().for_each(|row| row[dst] *= factor);
    }
}

/// `scale * Σ_h x[·, h, t] * weight`, the weight being one per stream or, through a sigmoid, one per element.
#[inline(always)]
fn pre<S: Simd>(s: S, job: Job<'_>) -> Result<(), Fault> {
    let Dsv4HcPre { scale, gated } = job.op();
    let (x, weights) = (job.src(0), job.src(1));
    let (mut values, mut gates, stop) = (Chunk::new(), Chunk::new(), job.stop);
    for ([token, ..], start, mut piece) in job.dst.pieces::<f32>(job.share, CHUNK) {
        let mut sums = Chunk::new();
        for stream in 0..x.ne()[1] {
            values.load_from::<f32>(&x, [stream, token, 0], start, piece.len());
            if gated {
                gates.load_from::<f32>(&weights, [stream, token, 0], start, piece.len());
                sigmoid(s, &mut gates);
            } else {
                gates.0.fill(weights.get([stream, token, 0, 0]));
            }
            for ((sum, x), gate) in sums.0.iter_mut().zip(&values.0).zip(&gates.0) {
                *sum += x * gate;
            }
            if stop.after(piece.len()) {
                return Ok(());
            }
        }
        sums.0.iter_mut().for_each(|sum| *sum *= scale);
        sums.store(&mut piece);
    }
    Ok(())
}

#[inline(always)]
fn sigmoid<S: Simd>(s: S, chunk: &mut Chunk) {
    for lanes in chunk.0.chunks_exact_mut(S::LANES) {
        let e = math::exp(s, s.sub(s.splat(0.0), s.load(lanes)));
        s.store(s.div(s.splat(1.0), s.add(s.splat(1.0), e)), lanes);
    }
}

/// `x * post[d, t] + Σ_s residual[·, s, t] * comb[d, s, t]` for each stream `d`; without a matrix each stream keeps its
/// own residual.
#[inline(always)]
fn post<S: Simd>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let (x, residual, post, comb) = (job.src(0), job.src(1), job.src(2), job.may(3));
    let (mut values, stop) = (Chunk::new(), job.stop);
    for ([stream, token, _], start, mut piece) in job.dst.pieces::<f32>(job.share, CHUNK) {
        let mut sums = Chunk::new();
        sums.load_from::<f32>(&x, [token, 0, 0], start, piece.len());
        let factor = post.get::<f32>([stream, token, 0, 0]);
        sums.0.iter_mut().for_each(|sum| *sum *= factor);
        let froms = if comb.is_some() { 0..residual.ne()[1] } else { stream..stream + 1 };
        for from in froms {
            let factor = comb.map_or(1.0, |comb| comb.get([stream, from, token, 0]));
            values.load_from::<f32>(&residual, [from, token, 0], start, piece.len());
            for (sum, x) in sums.0.iter_mut().zip(&values.0) {
                *sum += x * factor;
            }
            if stop.after(piece.len()) {
                return Ok(());
            }
        }
        sums.store(&mut piece);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{Tensor, run};
    use oxcart_tensor::DType;
    use oxcart_tensor::ops::Dsv4HcPost;

    /// Packed, and with dimension 1 fastest.
    const ORDERS: [[usize; 4]; 2] = [[0, 1, 2, 3], [1, 0, 2, 3]];

    #[test]
    fn the_matrix_ends_up_doubly_stochastic() {
        for order in ORDERS {
            let mixes = Tensor::permuted(DType::F32, [24, 200, 1, 1], order, 1);
            let (scale, base) =
                (Tensor::noise(DType::F32, [3, 1, 1, 1], 2), Tensor::noise(DType::F32, [24, 1, 1, 1], 3));
            for y in run(Dsv4HcComb { eps: 1e-6, iterations: 20 }, &[&mixes, &scale, &base]) {
                for token in 0..200 {
                    for i in 0..4 {
                        let row: f64 = (0..4).map(|j| y.at([j, i, token, 0])).sum();
                        let column: f64 = (0..4).map(|j| y.at([i, j, token, 0])).sum();
                        assert!((row - 1.0).abs() < 1e-4 && (column - 1.0).abs() < 1e-4, "{row} {column}");
                    }
                }
            }
            // One round is a softmax, normalized the other way.
            for y in run(Dsv4HcComb { eps: 0.0, iterations: 1 }, &[&mixes, &scale, &base]) {
                y.assert_near(1e-5, |[dst, src, token, _]| {
                    let value = |dst: usize, src: usize| {
                        let i = 8 + dst + 4 * src;
                        (mixes.at([i, token, 0, 0]) * scale.at([2, 0, 0, 0]) + base.at([i, 0, 0, 0])).exp()
                    };
                    let soft = |dst, src| value(dst, src) / (0..4).map(|dst| value(dst, src)).sum::<f64>();
                    soft(dst, src) / (0..4).map(|src| soft(dst, src)).sum::<f64>()
                });
            }
        }
    }

    #[test]
    fn streams_enter_a_block_weighted() {
        for order in ORDERS {
            let (width, streams, tokens, scale) = (300, 3, 64, 0.5);
            let x = Tensor::permuted(DType::F32, [width, streams, tokens, 1], order, 1);
            let weights = Tensor::permuted(DType::F32, [streams, tokens, 1, 1], order, 2);
            for y in run(Dsv4HcPre { scale, gated: false }, &[&x, &weights]) {
                y.assert_near(1e-5, |[i, t, ..]| {
                    (0..streams).map(|h| 0.5 * x.at([i, h, t, 0]) * weights.at([h, t, 0, 0])).sum()
                });
            }
            let gates = Tensor::permuted(DType::F32, [width, streams, tokens, 1], order, 3);
            for y in run(Dsv4HcPre { scale, gated: true }, &[&x, &gates]) {
                y.assert_near(1e-5, |[i, t, ..]| {
                    let gate = |h| 1.0 / (1.0 + (-gates.at([i, h, t, 0])).exp());
                    (0..streams).map(|h| 0.5 * x.at([i, h, t, 0]) * gate(h)).sum()
                });
            }
        }
    }

    #[test]
    fn a_block_is_spread_over_streams() {
        for order in ORDERS {
            let (width, streams, tokens) = (300, 3, 64);
            let x = Tensor::permuted(DType::F32, [width, tokens, 1, 1], order, 1);
            let residual = Tensor::permuted(DType::F32, [width, streams, tokens, 1], order, 2);
            let post = Tensor::permuted(DType::F32, [streams, tokens, 1, 1], order, 3);
            let comb = Tensor::permuted(DType::F32, [streams, streams, tokens, 1], order, 4);
            for y in run(Dsv4HcPost, &[&x, &residual, &post, &comb]) {
                y.assert_near(1e-5, |[i, d, t, _]| {
                    let mixed = (0..streams).map(|s| residual.at([i, s, t, 0]) * comb.at([d, s, t, 0]));
                    x.at([i, t, 0, 0]) * post.at([d, t, 0, 0]) + mixed.sum::<f64>()
                });
            }
            for y in run(Dsv4HcPost, &[&x, &residual, &post]) {
                y.assert_near(1e-5, |[i, d, t, _]| {
                    x.at([i, t, 0, 0]) * post.at([d, t, 0, 0]) + residual.at([i, d, t, 0])
                });
            }
        }
    }
}
