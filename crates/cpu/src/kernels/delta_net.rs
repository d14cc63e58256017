//! The gated delta rule and the triangular solver that goes with it.

use oxcart_tensor::ops::GatedDeltaNet;
use oxcart_tensor::{Op, TensorRef};

use super::lanes::{self, Change};
use super::math;
use super::recurrent::scan::{At, Extents, Recurrence, scan};
use crate::job::{Fault, Job, Kernel, as_floats};
use crate::simd::{Level, MAX_LANES, Simd, for_each_level};
use crate::view::Src;

/// Rows of a state that are computed together.
const BLOCK: usize = 32;

/// Columns of a triangular system that are solved together.
const COLUMNS: usize = 64;

/// The kernel for an op of this family.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    if node.layout().is_empty() {
        return Some(Kernel::NOTHING);
    }
    match node.op() {
        Op::SolveTri(_) => {
            let [columns, rows, planes, volumes] = node.ne().extents();
            let run = for_each_level!(solve: fn(job: Job<'_>) -> Result<(), Fault>).at(level);
            let units = columns.div_ceil(COLUMNS).saturating_mul(planes).saturating_mul(volumes);
            let work = node.layout().elements().saturating_mul(rows);
            Some(Kernel::units(run, units, work).own(rows.saturating_mul(COLUMNS * size_of::<f32>())))
        }
        Op::GatedDeltaNet(op) => {
            let extents = extents(node.source(2)?.ne().extents(), *op);
            let run = for_each_level!(delta_rule: fn(job: Job<'_>) -> Result<(), Fault>).at(level);
            extents.kernel(run, gates_len(extents.width) * size_of::<f32>())
        }
        _ => None,
    }
}

/// `X[j, i] = (B[j, i] - Σ_{t<i} A[t, i] X[j, t]) / A[i, i]`, a block of columns at a time.
#[inline(always)]
fn solve<S: Simd>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let (a, b) = (job.src(0), job.src(1));
    let [columns, rows, planes, volumes] = b.ne();
    let blocks = columns.div_ceil(COLUMNS);
    let (solved, _) = as_floats(job.own).as_chunks_mut::<COLUMNS>();
    for unit in job.share.of(blocks * planes * volumes) {
        let (start, plane) = (unit % blocks * COLUMNS, unit / blocks);
        let (plane, volume) = (plane % planes, plane / planes);
        let here = start..(start + COLUMNS).min(columns);
        for i in 0..rows {
            let factors = a.row::<f32>([i, plane, volume]).slice();
            let mut sums = [0f32; COLUMNS];
            for part in job.stop.stretches_of(i, here.len()) {
                for (factor, known) in factors[part.clone()].iter().zip(&solved[part]) {
                    for (sum, x) in sums.iter_mut().zip(known) {
                        *sum += factor * x;
                    }
                }
            }
            if job.stop.after(here.len()) {
                return Ok(());
            }
            let target = b.row::<f32>([i, plane, volume]).part(here.clone()).slice();
            // Columns past the end stay whatever they are and are never looked at.
            for ((x, sum), b) in solved[i].iter_mut().zip(sums).zip(target) {
                *x = (b - sum) / factors[i];
            }
            // SAFETY: only the columns of this unit are touched; no other unit has them.
            let row = unsafe { job.dst.row::<f32>([i, plane, volume]) };
            row.part(here.clone()).write(0, &solved[i][..here.len()]);
        }
    }
    Ok(())
}

fn extents([size, heads, tokens, batch]: [usize; 4], op: GatedDeltaNet) -> Extents {
    let block = Extents::block(BLOCK, size, size);
    Extents { width: size, rows: size, heads, tokens, sequences: batch, snapshots: op.snapshots, block }
}

/// Room for the exponentials of a head's gates, in whole vectors.
fn gates_len(width: usize) -> usize {
    width.next_multiple_of(MAX_LANES)
}

#[inline(always)]
fn delta_rule<S: Simd>(s: S, job: Job<'_>) -> Result<(), Fault> {
    let [q, k, v, gates, beta, states] = std::array::from_fn(|slot| job.src(slot));
    let extents = extents(v.ne(), job.op());
    let (state, decays) = as_floats(job.own).split_at_mut(extents.scratch() / size_of::<f32>());
    let recurrence = DeltaRule {
        extents,
        q,
        k,
        v,
        gates,
        beta: beta.packed().slice(),
        decays: &mut decays[..gates_len(extents.width)],
        scale: 1.0 / (extents.width as f32).sqrt(),
    };
    let states = states.packed().slice();
    scan(s, (job.dst, job.share, job.stop), extents, (states, |sequence| sequence), state, recurrence)
}

/// Rows of the state belong to values: each forgets, is corrected towards the value it should give for the key, and
/// answers the query.
struct DeltaRule<'t, 'o> {
    extents: Extents,
    q: Src<'t>,
    k: Src<'t>,
    v: Src<'t>,
    /// One or `width` per head.
    gates: Src<'t>,
    beta: &'t [f32],
    decays: &'o mut [f32],
    scale: f32,
}

impl Recurrence for DeltaRule<'_, '_> {
    const UNITS: usize = 2;

    #[inline(always)]
    fn token<S: Simd>(&mut self, s: S, at: &At, state: &mut [f32], out: &mut [f32]) {
        let Extents { width, heads, tokens, sequences, .. } = self.extents;
        let [_, key_heads, _, key_batch] = self.q.ne();
        let key = [at.head % key_heads, at.token, at.sequence / (sequences / key_batch)];
        let (q, k) = (self.q.row(key).slice(), self.k.row(key).slice());
        let v = self.v.row::<f32>([at.head, at.token, at.sequence]).slice();
        let gates = self.gates.row::<f32>([at.head, at.token, at.sequence]).slice();
        let beta = self.beta[(at.sequence * tokens + at.token) * heads + at.head];
        let common = match gates {
            &[gate] => Some(s.splat(gate.exp())),
            _ => {
                self.decays[..width].copy_from_slice(gates);
                for lanes in self.decays.chunks_exact_mut(S::LANES) {
                    s.store(math::exp(s, s.load(lanes)), lanes);
                }
                None
            }
        };
        let decays = &self.decays[..width];
        for (i, (out, v)) in out.iter_mut().zip(&v[at.rows.clone()]).enumerate() {
            let row = &mut state[i * width..(i + 1) * width];
            let held = match common {
                Some(decay) => lanes::update(s, row, [k], Forget { decay }),
                None => lanes::update(s, row, [k, decays], ForgetEach),
            };
            let delta = s.splat((v - held) * beta);
            let answer = lanes::update(s, row, [k, q], Learn { delta });
            *out = answer * self.scale;
        }
    }
}

/// All elements of a row decay alike; the sum is what the row holds of the key.
#[derive(Clone, Copy)]
struct Forget<V> {
    decay: V,
}

impl<S: Simd> Change<S, 1> for Forget<S::F32> {
    #[inline(always)]
    fn apply(self, s: S, sum: S::F32, state: S::F32, [k]: [S::F32; 1]) -> (S::F32, S::F32) {
        let new = s.mul(state, self.decay);
        (s.mul_add(new, k, sum), new)
    }
}

/// As [`Forget`], each element having a decay of its own.
#[derive(Clone, Copy)]
struct ForgetEach;

impl<S: Simd> Change<S, 2> for ForgetEach {
    #[inline(always)]
    fn apply(self, s: S, sum: S::F32, state: S::F32, [k, decay]: [S::F32; 2]) -> (S::F32, S::F32) {
        Forget { decay }.apply(s, sum, state, [k])
    }
}

/// Moves the row towards the key; the sum is what it holds of the query.
#[derive(Clone, Copy)]
struct Learn<V> {
    delta: V,
}

impl<S: Simd> Change<S, 2> for Learn<S::F32> {
    #[inline(always)]
    fn apply(self, s: S, sum: S::F32, state: S::F32, [k, q]: [S::F32; 2]) -> (S::F32, S::F32) {
        let new = s.mul_add(self.delta, k, state);
        (s.mul_add(new, q, sum), new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{Tensor, noise, run};
    use oxcart_tensor::DType::F32;
    use oxcart_tensor::ops::SolveTri;

    #[test]
    fn triangles_are_solved() {
        for (n, columns, batch) in [(33, 70, [3, 2]), (1, 1, [1, 1]), (64, 200, [2, 1]), (5, 3, [1, 4])] {
            // Noise above the diagonal must not matter; a strong diagonal keeps errors small.
            let is_diagonal = |i: usize| (i % (n * n)).is_multiple_of(n + 1);
            let value = |(i, x)| if is_diagonal(i) { 2.0 + x } else { x / 4.0 };
            let a = Tensor::of(F32, [n, n, batch[0], batch[1]], noise(1).enumerate().map(value));
            let a_at = |t: usize, i: usize, p: [usize; 2]| a.at([t, i, p[0], p[1]]);
            let b = Tensor::noise(F32, [columns, n, batch[0], batch[1]], 2);
            for x in run(SolveTri, &[&a, &b]) {
                for i2 in 0..batch[0] {
                    for i3 in 0..batch[1] {
                        for j in 0..columns {
                            for i in 0..n {
                                let sum: f64 =
                                    (0..=i).map(|t| a_at(t, i, [i2, i3]) * x.at([j, t, i2, i3])).sum();
                                let size: f64 = (0..=i)
                                    .map(|t| (a_at(t, i, [i2, i3]) * x.at([j, t, i2, i3])).abs())
                                    .sum();
                                let wanted = b.at([j, i, i2, i3]);
                                assert!((sum - wanted).abs() <= 1e-5 * (1.0 + size), "{sum} {wanted}");
                            }
                        }
                    }
                }
            }
        }
    }

    /// What the delta rule should give: outputs and states after each token, in double precision.
    fn exact(sources: [&Tensor; 6]) -> (Vec<f64>, Vec<Vec<f64>>) {
        let [q, k, v, g, beta, state] = sources;
        let [size, heads, tokens, batch] = v.ne();
        let [_, key_heads, _, key_batch] = q.ne();
        let mut outputs = vec![0.0; size * heads * tokens * batch];
        let mut history = vec![vec![0.0; size * size * heads * batch]; tokens];
        for (b, h) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
            let key = |t: &Tensor, i, token| t.at([i, h % key_heads, token, b / (batch / key_batch)]);
            for j in 0..size {
                let mut row: Vec<f64> = (0..size).map(|i| state.at([i, j, h, b])).collect();
                for token in 0..tokens {
                    for (i, x) in row.iter_mut().enumerate() {
                        *x *= g.at([i % g.ne()[0], h, token, b]).exp();
                    }
                    let held: f64 = row.iter().enumerate().map(|(i, x)| x * key(k, i, token)).sum();
                    let delta = (v.at([j, h, token, b]) - held) * beta.at([0, h, token, b]);
                    row.iter_mut().enumerate().for_each(|(i, x)| *x += delta * key(k, i, token));
                    let answer: f64 = row.iter().enumerate().map(|(i, x)| x * key(q, i, token)).sum();
                    outputs[((b * tokens + token) * heads + h) * size + j] = answer / (size as f64).sqrt();
                    let at = ((b * heads + h) * size + j) * size;
                    history[token][at..at + size].copy_from_slice(&row);
                }
            }
        }
        (outputs, history)
    }

    #[test]
    fn the_delta_rule_holds_for_any_number_of_snapshots() {
        for (size, heads, tokens, batch) in
            [(33, [2, 4], 5, [1, 2]), (64, [1, 3], 3, [2, 2]), (7, [3, 3], 1, [1, 1])]
        {
            for gates in [1, size] {
                for snapshots in [1, 2, tokens, tokens + 3] {
                    // Heads and tokens permuted, as models store them.
                    let order = [0, 2, 1, 3];
                    let q = Tensor::permuted(F32, [size, heads[0], tokens, batch[0]], order, 1);
                    let k = Tensor::permuted(F32, [size, heads[0], tokens, batch[0]], order, 2);
                    let v = Tensor::permuted(F32, [size, heads[1], tokens, batch[1]], order, 3);
                    let g = Tensor::noise(F32, [gates, heads[1], tokens, batch[1]], 4);
                    let beta = Tensor::noise(F32, [1, heads[1], tokens, batch[1]], 5);
                    let k = Tensor::with_layout(k.layout, noise(6).map(|x| x / 4.0));
                    let state = Tensor::noise(F32, [size, size, heads[1], batch[1]], 7);
                    let sources = [&q, &k, &v, &g, &beta, &state];
                    let (outputs, history) = exact(sources);
                    for y in run(GatedDeltaNet { snapshots }, &sources) {
                        crate::kernels::recurrent::scan::tests::compare(&y, &outputs, &history, snapshots);
                    }
                }
            }
        }
    }

    #[test]
    fn nothing_happens_without_tokens_or_heads() {
        for (size, heads, tokens) in [(4, 2, 0), (4, 0, 3), (0, 2, 3)] {
            let rows = Tensor::noise(F32, [size, heads.max(1), tokens, 1], 1);
            let v = Tensor::noise(F32, [size, heads, tokens, 1], 2);
            let one = Tensor::noise(F32, [1, heads, tokens, 1], 3);
            let state = Tensor::noise(F32, [size, size, heads, 1], 4);
            for y in run(GatedDeltaNet { snapshots: 2 }, &[&rows, &rows, &v, &one, &one, &state]) {
                assert!((0..y.layout.elements()).all(|i| y.is_untouched(i)));
            }
        }
    }
}
