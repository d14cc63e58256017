//! Rotary positions: the twins of `rope.cu`.

use oxcart_tensor::ops::{Rope, RopeBack, RopeMode};
use oxcart_tensor::{Op, TensorRef};
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
    count: i64,
}

impl RopeJob {
    const NONE: RopeJob =
        RopeJob { a: Tensor::NONE, y: Tensor::NONE, rows: 0, rows_type: 0, rotates: 0, count: 0 };
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

pub(super) fn add(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let (rope, backwards) = match *node.op() {
        Op::Rope(rope) => (rope, false),
        Op::RopeBack(RopeBack(rope)) => (rope, true),
        _ => return Err(Refused::Unsupported),
    };
    let (a, y, positions) = (b.source(node, 0)?, b.tensor(node)?, b.source(node, 1)?);
    let factors = if node.source(2).is_some() { b.source(node, 2)?.data } else { 0 };
    let threads = node.layout().elements() / node.ne()[0].max(1) * (node.ne()[0] - pairs(&rope));
    let mut params = law(&rope, backwards);
    params.job[0] = RopeJob { a, y, rows: 0, rows_type: 0, rotates: 1, count: threads as i64 };
    params.positions = positions.data;
    params.factors = factors;
    params.tokens = node.ne()[2] as i64;
    params.faults = b.faults();
    b.launch_each(Family::Rope, "rope", threads, 256, &params);
    Ok(())
}
