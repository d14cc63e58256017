//! Rotary positions: the twins of `rope.cu`.

use oxcart_tensor::ops::{Rope, RopeBack, RopeMode};
use oxcart_tensor::{DType, Op, TensorRef};
use zerocopy::{Immutable, IntoBytes};

use crate::images::Family;
use crate::plan::{Builder, Done, Refused, Tensor};

#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct RopeJob {
    a: Tensor,
    y: Tensor,
    rows: u64,
    rows_type: i32,
    rotates: i32,
    per_token: i64,
}

impl RopeJob {
    const NONE: RopeJob =
        RopeJob { a: Tensor::NONE, y: Tensor::NONE, rows: 0, rows_type: 0, rotates: 0, per_token: 0 };

    /// A tensor that is rotated by a node's law, or passed on as it is; to rows of `y`, where their numbers are given.
    pub(super) fn new(
        a: Tensor,
        y: Tensor,
        rows: Option<(u64, DType)>,
        rotates: bool,
        node: Option<TensorRef<'_>>,
    ) -> RopeJob {
        let turning = match node.map(|node| *node.op()) {
            Some(Op::Rope(rope) | Op::RopeBack(RopeBack(rope))) if rotates => pairs(&rope) as i64,
            _ => 0,
        };
        let per_token = (a.ne[0] - turning) * a.ne[1];
        let (rows, rows_type) = rows.map_or((0, 0), |(rows, dtype)| (rows, dtype as i32));
        RopeJob { a, y, rows, rows_type, rotates: rotates.into(), per_token }
    }
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct RopeParams {
    job: [RopeJob; 3],
    positions: u64,
    factors: u64,
    tokens: i64,
    faults: u64,
    mode: i32,
    n_dims: i32,
    first_channel: i32,
    sections: [i32; 4],
    step: f32,
    freq_scale: f32,
    ext_factor: f32,
    fade_first: f32,
    fade_last: f32,
    size: f32,
    signed_size: f32,
}

const THREADS: usize = 256;

/// The most blocks along the third dimension of a grid.
const MOST_BLOCKS: usize = 65535;

/// Pairs of channels that rotate.
fn pairs(rope: &Rope) -> usize {
    match rope.mode {
        RopeMode::Vision => rope.n_dims,
        _ => rope.n_dims / 2,
    }
}

/// How angles follow from positions; the arithmetic of the CPU device, to the last bit.
fn law(rope: &Rope, backwards: bool) -> RopeParams {
    let dims = rope.n_dims as f32;
    let turning = |rotations: f32| {
        let wanted = rope.n_ctx_orig as f32 / (rotations * 2.0 * std::f32::consts::PI);
        dims * wanted.ln() / (2.0 * rope.freq_base.ln())
    };
    let stretched = 1.0 + 0.1 * (1.0 / rope.freq_scale).ln();
    let size = rope.attn_factor * if rope.ext_factor == 0.0 { 1.0 } else { stretched };
    RopeParams {
        job: [RopeJob::NONE; 3],
        positions: 0,
        factors: 0,
        tokens: 0,
        faults: 0,
        mode: match rope.mode {
            RopeMode::Normal => 0,
            RopeMode::Neox => 1,
            RopeMode::Mrope => 2,
            RopeMode::Vision => 3,
            RopeMode::Imrope => 4,
        },
        n_dims: rope.n_dims as i32,
        first_channel: rope.first_channel as i32,
        sections: rope.sections.map(|n| n as i32),
        step: rope.freq_base.powf(-2.0 / dims),
        freq_scale: rope.freq_scale,
        ext_factor: rope.ext_factor,
        fade_first: turning(rope.beta_fast).floor().max(0.0),
        fade_last: turning(rope.beta_slow).ceil().min(dims - 1.0),
        size,
        signed_size: if backwards { -size } else { size },
    }
}

/// Parameters for several tensors, of which those that rotate do so by the law of a node.
pub(super) fn params(
    node: Option<TensorRef<'_>>,
    jobs: &[RopeJob],
    b: &mut Builder<'_>,
) -> Result<RopeParams, Refused> {
    let still = Rope::new(2, RopeMode::Normal, 10_000.0);
    let (rope, backwards) = match node.map(|node| *node.op()) {
        Some(Op::Rope(rope)) => (rope, false),
        Some(Op::RopeBack(RopeBack(rope))) => (rope, true),
        _ => (still, false),
    };
    let mut params = law(&rope, backwards);
    if let Some(node) = node {
        params.positions = b.source(node, 1)?.data;
        params.factors = if node.source(2).is_some() { b.source(node, 2)?.data } else { 0 };
        params.tokens = node.ne()[2] as i64;
    }
    params.faults = b.faults();
    for (place, job) in params.job.iter_mut().zip(jobs) {
        *place = *job;
    }
    Ok(params)
}

/// Adds a launch of several tensors.
pub(super) fn launch(node: Option<TensorRef<'_>>, jobs: &[RopeJob], b: &mut Builder<'_>) -> Done {
    let params = params(node, jobs, b)?;
    let most = |of: fn(&RopeJob) -> i64| jobs.iter().map(|job| of(job) as usize).max().unwrap_or(0);
    let (tokens, channels) = (most(|job| job.a.ne[2] * job.a.ne[3]), most(|job| job.per_token));
    // The turns of a token are computed by each block that has channels of it; only few tokens have several.
    let enough = (2 * b.info().multiprocessors as usize).div_ceil(tokens.max(1));
    let blocks = channels.div_ceil(THREADS).clamp(1, enough);
    // Where tokens are enough for all multiprocessors, a block has all tensors of a token.
    let apart = if enough > 1 { jobs.len() } else { 1 };
    let grid = [blocks, apart, tokens.clamp(1, MOST_BLOCKS)];
    b.launch(Family::Rope, "rope", (grid.map(|n| n as u32), THREADS as u32, 0), &params);
    Ok(())
}

pub(super) fn add(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let (a, y) = (b.source(node, 0)?, b.tensor(node)?);
    launch(Some(node), &[RopeJob::new(a, y, None, true, Some(node))], b)
}
