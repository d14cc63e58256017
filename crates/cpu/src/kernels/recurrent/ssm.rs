//! Mamba's selective scan, with one decay per head (version 2) or per element of the state (version 1).

use oxcart_tensor::TensorRef;
use oxcart_tensor::ops::{Grouping, SsmScan};

use super::scan::{At, Extents, Recurrence, scan};
use crate::job::{Fault, Job, Kernel, as_floats};
use crate::kernels::lanes::{self, Change};
use crate::kernels::math;
use crate::simd::{Level, Simd, for_each_level};
use crate::view::Src;

/// Rows of a state that are computed together: enough to use what a token loads, few enough to share among threads.
const BLOCK: usize = 16;

pub(super) fn choose(node: TensorRef<'_>, op: SsmScan, level: Level) -> Option<Kernel> {
    let (states, x) = (node.source(0)?.ne().extents(), node.source(1)?.ne().extents());
    let run = for_each_level!(selective_scan: fn(job: Job<'_>) -> Result<(), Fault>).at(level);
    extents(states, x, op).kernel(run, 0)
}

fn extents(states: [usize; 4], x: [usize; 4], op: SsmScan) -> Extents {
    let [width, rows, heads, _] = states;
    let [.., tokens, sequences] = x;
    let block = Extents::block(BLOCK, rows, width);
    Extents { width, rows, heads, tokens, sequences, snapshots: op.snapshots, block }
}

#[inline(always)]
fn selective_scan<S: Simd>(s: S, job: Job<'_>) -> Result<(), Fault> {
    let [states, x, dt, a, b, c, ids] = std::array::from_fn(|slot| job.src(slot));
    let ids = ids.packed::<i32>().slice();
    for &id in ids {
        Fault::check("state", i64::from(id), states.ne()[3])?;
    }
    let op: SsmScan = job.op();
    let extents = extents(states.ne(), x.ne(), op);
    let (dt, decays) = (dt.packed::<f32>().slice(), a.packed::<f32>().slice());
    let recurrence = Selective { extents, x, dt, decays, b, c, grouping: op.grouping };
    let first = |sequence: usize| ids[sequence] as usize;
    let states = states.packed().slice();
    scan(s, (job.dst, job.share, job.stop), extents, (states, first), as_floats(job.own), recurrence)
}

struct Selective<'t> {
    extents: Extents,
    x: Src<'t>,
    dt: &'t [f32],
    /// One or `width` per head.
    decays: &'t [f32],
    b: Src<'t>,
    c: Src<'t>,
    grouping: Grouping,
}

impl Recurrence for Selective<'_> {
    #[inline(always)]
    fn token<S: Simd>(&mut self, s: S, at: &At, state: &mut [f32], out: &mut [f32]) {
        let Extents { width, heads, tokens, .. } = self.extents;
        let per_head = self.decays.len() / heads;
        let decays = &self.decays[at.head * per_head..][..per_head];
        let delta = softplus(self.dt[(at.sequence * tokens + at.token) * heads + at.head]);
        let x = self.x.row::<f32>([at.head, at.token, at.sequence]).slice();
        let group = [self.grouping.group(at.head, heads, self.b.ne()[1]), at.token, at.sequence];
        let (b, c) = (self.b.row(group).slice(), self.c.row(group).slice());
        let common = match decays {
            &[decay] => Some(s.splat((delta * decay).exp())),
            _ => None,
        };
        let delta_lanes = s.splat(delta);
        for (i, (out, &x)) in out.iter_mut().zip(&x[at.rows.clone()]).enumerate() {
            let row = &mut state[i * width..(i + 1) * width];
            let x = s.splat(x * delta);
            *out = match common {
                Some(decay) => lanes::update(s, row, [b, c], Decay { decay, x }),
                None => lanes::update(s, row, [b, c, decays], DecayEach { delta: delta_lanes, x }),
            };
        }
    }
}

/// All elements of a row decay alike. Others: b, c.
#[derive(Clone, Copy)]
struct Decay<V> {
    decay: V,
    x: V,
}

impl<S: Simd> Change<S, 2> for Decay<S::F32> {
    #[inline(always)]
    fn apply(self, s: S, sum: S::F32, state: S::F32, [b, c]: [S::F32; 2]) -> (S::F32, S::F32) {
        let new = s.mul_add(state, self.decay, s.mul(b, self.x));
        (s.mul_add(new, c, sum), new)
    }
}

/// Each element has a decay of its own. Others: b, c, decays.
#[derive(Clone, Copy)]
struct DecayEach<V> {
    delta: V,
    x: V,
}

impl<S: Simd> Change<S, 3> for DecayEach<S::F32> {
    #[inline(always)]
    fn apply(self, s: S, sum: S::F32, state: S::F32, [b, c, decay]: [S::F32; 3]) -> (S::F32, S::F32) {
        let decay = math::exp(s, s.mul(self.delta, decay));
        Decay { decay, x: self.x }.apply(s, sum, state, [b, c])
    }
}

fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { (1.0 + x.exp()).ln() }
}
