//! The gated delta rule and the triangular solver that goes with it.

use oxcart_tensor::ops::GatedDeltaNet;
use oxcart_tensor::{Op, TensorRef};

use super::recurrent::scan::{At, Extents, Recurrence, scan};
use super::{lanes, math};
use crate::job::{Fault, Job, Kernel, as_floats};
use crate::simd::{Level, MAX_LANES, Simd, for_each_level};
use crate::view::Src;

/// Rows of a state that are computed together.
const BLOCK: usize = 32;

/// Columns of a triangular system that are solved together.
const COLUMNS: usize = 64;

/// The kernel for an op of this family.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    match node.op() {
        Op::SolveTri(_) => {
            let [columns, rows, planes, volumes] = node.ne().extents();
            let run = for_each_level!(solve: fn(job: Job<'_>) -> Result<(), Fault>).at(level);
            let kernel = Kernel::elementwise(run, node.layout());
            let units = columns.div_ceil(COLUMNS).saturating_mul(planes).saturating_mul(volumes);
            let width = kernel.width.saturating_mul(rows).min(units);
            Some(kernel.width(width).own(rows.saturating_mul(COLUMNS * size_of::<f32>())))
        }
        Op::GatedDeltaNet(op) => {
            let extents = extents(node.source(2)?.ne().extents(), *op);
            let run = for_each_level!(delta_rule: fn(job: Job<'_>) -> Result<(), Fault>).at(level);
            Some(extents.kernel(run, gates_len(extents.width) * size_of::<f32>()))
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
            for (factor, known) in factors[..i].iter().zip(solved.iter()) {
                for (sum, x) in sums.iter_mut().zip(known) {
                    *sum += factor * x;
                }
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
    let block = BLOCK.min(size);
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
    scan(s, (job.dst, job.share), extents, (states, |sequence| sequence), state, recurrence)
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
                Some(decay) => lanes::update(s, row, [k], |sum, state, [k]| {
                    let new = s.mul(state, decay);
                    (s.mul_add(new, k, sum), new)
                }),
                None => lanes::update(s, row, [k, decays], |sum, state, [k, decay]| {
                    let new = s.mul(state, decay);
                    (s.mul_add(new, k, sum), new)
                }),
            };
            let delta = s.splat((v - held) * beta);
            let answer = lanes::update(s, row, [k, q], |sum, state, [k, q]| {
                let new = s.mul_add(delta, k, state);
                (s.mul_add(new, q, sum), new)
            });
            *out = answer * self.scale;
        }
    }
}
