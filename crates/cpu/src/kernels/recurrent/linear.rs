//! Linear recurrences over square states: RWKV versions 6 and 7 and gated linear attention.

use oxcart_tensor::ops::GatedLinearAttn;
use oxcart_tensor::{Op, TensorRef};

use super::scan::{At, Extents, Recurrence, scan};
use crate::job::{Fault, Job, Kernel, as_floats};
use crate::kernels::lanes::{self, Change};
use crate::simd::{Level, Simd, for_each_level};

/// Rows of a version 7 state that are computed together.
const BLOCK: usize = 32;

pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let per_token = node.source(0)?.ne().extents();
    let state = node.sources().flatten().last()?.ne().extents();
    let (rows_alone, run) = match node.op() {
        Op::RwkvWkv6(_) => (false, for_each_level!(wkv6: fn(job: Job<'_>) -> Result<(), Fault>).at(level)),
        Op::GatedLinearAttn(_) => {
            (false, for_each_level!(gated: fn(job: Job<'_>) -> Result<(), Fault>).at(level))
        }
        Op::RwkvWkv7(_) => (true, for_each_level!(wkv7: fn(job: Job<'_>) -> Result<(), Fault>).at(level)),
        _ => return None,
    };
    extents(per_token, state, rows_alone).kernel(run, 0)
}

/// `rows_alone`: whether rows of the state need each other.
fn extents([size, heads, tokens, _]: [usize; 4], state: [usize; 4], rows_alone: bool) -> Extents {
    let sequences = state[1];
    let block = if rows_alone { Extents::block(BLOCK, size, size) } else { size };
    let tokens = tokens / sequences;
    Extents { width: size, rows: size, heads, tokens, sequences, snapshots: 1, block }
}

/// Per-token sources `[size, heads, tokens]`, packed.
struct Tokens<'t, const N: usize> {
    extents: Extents,
    sources: [&'t [f32]; N],
}

impl<'t, const N: usize> Tokens<'t, N> {
    #[inline(always)]
    fn new(job: &Job<'t>, slots: [usize; N], extents: Extents) -> Tokens<'t, N> {
        Tokens { extents, sources: slots.map(|slot| job.src(slot).packed().slice()) }
    }

    /// The elements of one head at one token.
    #[inline(always)]
    fn at(&self, at: &At) -> [&'t [f32]; N] {
        let Extents { rows, heads, tokens, .. } = self.extents;
        let start = ((at.sequence * tokens + at.token) * heads + at.head) * rows;
        self.sources.map(|source| &source[start..start + rows])
    }
}

/// The scan itself, given what a token does.
#[inline(always)]
fn over<S: Simd>(
    s: S,
    job: Job<'_>,
    state: usize,
    extents: Extents,
    recurrence: impl Recurrence,
) -> Result<(), Fault> {
    let states = job.src(state).packed().slice();
    let state = as_floats(job.own);
    scan(s, (job.dst, job.share, job.stop), extents, (states, |sequence| sequence), state, recurrence)
}

#[inline(always)]
fn wkv6<S: Simd>(s: S, job: Job<'_>) -> Result<(), Fault> {
    let extents = extents(job.src(0).ne(), job.src(5).ne(), false);
    let recurrence =
        Wkv6 { tokens: Tokens::new(&job, [0, 1, 2, 4], extents), first: job.src(3).packed().slice() };
    over(s, job, 5, extents, recurrence)
}

/// The output sees the old state, plus the token itself weighted by `first`.
struct Wkv6<'t> {
    /// Keys, values, receptances, decays.
    tokens: Tokens<'t, 4>,
    first: &'t [f32],
}

impl Recurrence for Wkv6<'_> {
    #[inline(always)]
    fn token<S: Simd>(&mut self, _s: S, at: &At, state: &mut [f32], out: &mut [f32]) {
        let [k, v, r, decay] = self.tokens.at(at);
        let size = k.len();
        let first = &self.first[at.head * size..(at.head + 1) * size];
        out.fill(0.0);
        for i in 0..size {
            let (k, r, decay, first) = (k[i], r[i], decay[i], first[i]);
            let row = &mut state[i * size..(i + 1) * size];
            for ((state, out), v) in row.iter_mut().zip(out.iter_mut()).zip(v) {
                let kv = k * v;
                *out += r * (first * kv + *state);
                *state = *state * decay + kv;
            }
        }
    }
}

#[inline(always)]
fn gated<S: Simd>(s: S, job: Job<'_>) -> Result<(), Fault> {
    let extents = extents(job.src(0).ne(), job.src(4).ne(), false);
    let GatedLinearAttn { scale } = job.op();
    let recurrence = Gated { tokens: Tokens::new(&job, [0, 1, 2, 3], extents), scale };
    over(s, job, 4, extents, recurrence)
}

/// The output sees the new state.
struct Gated<'t> {
    /// Keys, values, queries, gates.
    tokens: Tokens<'t, 4>,
    scale: f32,
}

impl Recurrence for Gated<'_> {
    #[inline(always)]
    fn token<S: Simd>(&mut self, _s: S, at: &At, state: &mut [f32], out: &mut [f32]) {
        let [k, v, q, gate] = self.tokens.at(at);
        let size = k.len();
        out.fill(0.0);
        for i in 0..size {
            let (k, q, gate) = (k[i], q[i] * self.scale, gate[i]);
            let row = &mut state[i * size..(i + 1) * size];
            for ((state, out), v) in row.iter_mut().zip(out.iter_mut()).zip(v) {
                *state = *state * gate + k * v;
                *out += q * *state;
            }
        }
    }
}

#[inline(always)]
fn wkv7<S: Simd>(s: S, job: Job<'_>) -> Result<(), Fault> {
    let extents = extents(job.src(0).ne(), job.src(6).ne(), true);
    let recurrence = Wkv7 { tokens: Tokens::new(&job, [0, 1, 2, 3, 4, 5], extents) };
    over(s, job, 6, extents, recurrence)
}

/// Rows of the state belong to values; each is corrected by what it holds of `a`.
struct Wkv7<'t> {
    /// Receptances, decays, keys, values, a, b.
    tokens: Tokens<'t, 6>,
}

impl Recurrence for Wkv7<'_> {
    const UNITS: usize = 2;

    #[inline(always)]
    fn token<S: Simd>(&mut self, s: S, at: &At, state: &mut [f32], out: &mut [f32]) {
        let [r, decay, k, v, a, b] = self.tokens.at(at);
        let size = k.len();
        for (i, (out, &v)) in out.iter_mut().zip(&v[at.rows.clone()]).enumerate() {
            let row = &mut state[i * size..(i + 1) * size];
            let held = s.splat(lanes::dot(s, a, row));
            let v = s.splat(v);
            *out = lanes::update(s, row, [decay, k, b, r], Correct { v, held });
        }
    }
}

/// Others: decays, keys, b, receptances.
#[derive(Clone, Copy)]
struct Correct<V> {
    v: V,
    held: V,
}

impl<S: Simd> Change<S, 4> for Correct<S::F32> {
    #[inline(always)]
    fn apply(self, s: S, sum: S::F32, state: S::F32, [decay, k, b, r]: [S::F32; 4]) -> (S::F32, S::F32) {
        let new = s.mul_add(state, decay, s.mul_add(self.v, k, s.mul(self.held, b)));
        (s.mul_add(new, r, sum), new)
    }
}
