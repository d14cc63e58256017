//! Attention in one go: the twins of `attention.cu`.

use oxcart_tensor::{DType, Op, TensorRef};
use zerocopy::{Immutable, IntoBytes};

use super::soft_max::slopes;
use crate::images::Family;
use crate::plan::{Builder, Done, Refused, Tensor};

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct AttentionParams {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    y: Tensor,
    sinks: u64,
    keys: i64,
    group: i64,
    rows: i64,
    splits: i64,
    parts: u64,
    counters: u64,
    scale: f32,
    softcap: f32,
    max_bias: f32,
    m0: f32,
    m1: f32,
    heads_log2: i32,
    by_rows: i32,
    unused: i32,
}

const FAMILY: Family = Family::Attention;

/// Warps of a block, queries of a warp, and keys that a warp takes at a time.
const WARPS: usize = 4;
const QUERIES: usize = 16;
const KEYS: usize = 16;

/// The most channels that the slow way has room for.
const WIDEST: usize = 576;

/// The most blocks along the second and third dimension of a grid.
const MOST_BLOCKS: usize = 65535;

/// Which kernels take this type of keys and values.
fn kind(k: DType, v: DType, is_new: bool) -> Option<&'static str> {
    use DType::{BF16, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
    let cached = |dtype| matches!(dtype, F16 | Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0);
    match (k, v) {
        (F16, F16) => Some("half"),
        (BF16, BF16) => is_new.then_some("brain"),
        (k, v) if cached(k) && cached(v) => Some("any"),
        _ => None,
    }
}

/// Channels that kernels are made for, of keys and of values: the first pair that has room.
fn widths(d: usize, dv: usize) -> Option<(usize, usize)> {
    let fits = |&(most_d, most_dv): &(usize, usize)| d <= most_d && dv <= most_dv;
    let even = d.is_multiple_of(8) && dv.is_multiple_of(8);
    [(64, 64), (128, 128), (192, 128), (256, 256)].into_iter().find(fits).filter(|_| even)
}

pub(super) fn add(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let Op::FlashAttnExt(op) = *node.op() else { return Err(Refused::Unsupported) };
    let [Some(q), Some(k), Some(v)] = [0, 1, 2].map(|slot| node.source(slot)) else {
        return Err(Refused::Unsupported);
    };
    let ([d, tokens, heads, batch], [_, keys, key_heads, key_batch]) = (q.ne().extents(), k.ne().extents());
    let [dv, _, value_heads, value_batch] = v.ne().extents();
    let (m0, m1, heads_log2) = slopes(op.max_bias, heads);
    let mask = if node.source(3).is_some() { b.source(node, 3)? } else { Tensor::NONE };
    let sinks = if node.source(4).is_some() { b.source(node, 4)?.data } else { 0 };
    let group = heads / key_heads.max(1);
    let mut params = AttentionParams {
        q: b.source(node, 0)?,
        k: b.source(node, 1)?,
        v: b.source(node, 2)?,
        mask,
        y: b.tensor(node)?,
        sinks,
        keys: keys as i64,
        group: group as i64,
        rows: (tokens * group) as i64,
        splits: 1,
        parts: 0,
        counters: 0,
        scale: op.scale,
        softcap: op.softcap,
        max_bias: op.max_bias,
        m0,
        m1,
        heads_log2,
        by_rows: 0,
        unused: 0,
    };
    let kind = kind(k.dtype(), v.dtype(), b.info().capability >= (8, 0));
    // Rows are read in pieces of eight numbers.
    let aligned = |tensor: TensorRef<'_>, found: &Tensor| {
        let steps = tensor.layout().nb();
        let all = || steps[1..].iter().all(|nb| nb.is_multiple_of(16)) && found.data.is_multiple_of(16);
        tensor.dtype().is_quantized() || all()
    };
    let suits = key_heads == value_heads
        && key_batch == batch
        && value_batch == batch
        && aligned(k, &params.k)
        && aligned(v, &params.v);
    let fast = kind.zip(widths(d, dv)).filter(|_| suits && keys > 0);
    let Some((kind, (wide_d, wide_dv))) = fast else {
        if d > WIDEST || dv > WIDEST || heads > MOST_BLOCKS || batch > MOST_BLOCKS || op.max_bias.is_nan() {
            return Err(Refused::Unsupported);
        }
        let room = d.max(dv);
        let shared = (d + WARPS * room).max(8 + WARPS * dv) * 4;
        b.launch(
            FAMILY,
            "attention_plain",
            ([tokens as u32, heads as u32, batch as u32], 128, shared as u32),
            &params,
        );
        return Ok(());
    };
    let rows = tokens * group;
    let tiles = rows.div_ceil(QUERIES);
    let multiprocessors = b.info().multiprocessors as usize;
    // With enough queries for all multiprocessors, warps have their own.
    let by_rows = rows.div_ceil(QUERIES * WARPS) * key_heads * batch >= multiprocessors;
    let (grid, shared) = if by_rows {
        params.by_rows = 1;
        ([1, rows.div_ceil(QUERIES * WARPS) * key_heads, batch], 0)
    } else {
        let units = tiles * key_heads * batch;
        // Two blocks for each multiprocessor, each with keys for all its warps.
        let most = keys.div_ceil(KEYS * WARPS);
        let splits = (2 * multiprocessors).div_ceil(units).clamp(1, most.max(1));
        params.splits = splits as i64;
        if splits > 1 {
            params.parts = b.scratch(units * splits * QUERIES * (wide_dv + 2) * 4).0;
            params.counters = b.counters(units).ok_or(Refused::Unsupported)?.0;
        }
        ([splits, tiles * key_heads, batch], WARPS * QUERIES * (wide_dv + 2) * 4)
    };
    if grid[1] > MOST_BLOCKS || grid[2] > MOST_BLOCKS {
        return Err(Refused::Unsupported);
    }
    let name = format!("attention_{wide_d}_{wide_dv}_{kind}");
    b.launch(FAMILY, name, (grid.map(|n| n as u32), (32 * WARPS) as u32, shared as u32), &params);
    Ok(())
}
