//! Attention in one go: the twins of `attention.cuh`.

use oxcart_tensor::ops::PagedAttn;
use oxcart_tensor::{DType, Op, TensorRef};
use zerocopy::{Immutable, IntoBytes};

use super::rope::RopeParams;
use super::soft_max::slopes;
use crate::images::{Family, Numbers};
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
    window: i32,
    chunk: i32,
    unused: i32,
    table: u64,
    table_step: i64,
    pages: i64,
    sequences: i64,
    cells: i64,
    owners: u64,
    owners_step: i64,
    faults: u64,
}

/// Attention of one token that first takes its own queries, key and value; `FreshParams` of `attention_decode.cu`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct FreshParams {
    of: AttentionParams,
    rope: RopeParams,
}

/// Warps of a block, queries of a warp, and keys that a warp takes at a time.
const WARPS: usize = 4;
const QUERIES: usize = 16;
const KEYS: usize = 16;

/// Keys that a block of many queries takes at a time.
const PROMPT_KEYS: usize = 64;

/// Queries that share keys, at most, where few tokens have kernels of their own, and tiles of keys under way there.
const DECODE_QUERIES: usize = 8;
const DECODE_STAGES: usize = 3;

/// The most channels that the slow way has room for.
const WIDEST: usize = 576;

/// The most blocks along the second and third dimension of a grid.
const MOST_BLOCKS: usize = 65535;

/// In which numbers keys and values of these types are multiplied; `None` if only the slow way can.
fn numbers(k: DType, v: DType, is_new: bool) -> Option<Numbers> {
    use DType::{BF16, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
    let cached = |dtype| matches!(dtype, F16 | Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0);
    match (k, v) {
        (F16, F16) => Some(Numbers::Half),
        (BF16, BF16) => is_new.then_some(Numbers::Brain),
        (k, v) if cached(k) && cached(v) => Some(Numbers::Any),
        _ => None,
    }
}

/// Channels that kernels are made for, of keys and of values: the first pair that has room.
fn widths(d: usize, dv: usize) -> Option<(usize, usize)> {
    let fits = |&(most_d, most_dv): &(usize, usize)| d <= most_d && dv <= most_dv;
    let even = d.is_multiple_of(8) && dv.is_multiple_of(8);
    [(64, 64), (128, 128), (192, 128), (256, 256)].into_iter().find(fits).filter(|_| even)
}

/// What both ops have in common.
struct Shape {
    d: usize,
    dv: usize,
    tokens: usize,
    heads: usize,
    key_heads: usize,
    batch: usize,
    /// The most keys a query can see.
    keys: usize,
    types: (DType, DType),
    /// Whether keys and values are shared by the same heads, and by no batch.
    even: bool,
}

pub(super) fn add(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let [Some(q), Some(k), Some(v)] = [0, 1, 2].map(|slot| node.source(slot)) else {
        return Err(Refused::Unsupported);
    };
    let tensors = [b.source(node, 0)?, b.source(node, 1)?, b.source(node, 2)?];
    match *node.op() {
        Op::FlashAttnExt(op) => {
            let ([d, tokens, heads, batch], [_, keys, key_heads, key_batch]) =
                (q.ne().extents(), k.ne().extents());
            let [dv, _, value_heads, value_batch] = v.ne().extents();
            let even = key_heads == value_heads && key_batch == batch && value_batch == batch;
            let types = (k.dtype(), v.dtype());
            let shape = Shape { d, dv, tokens, heads, key_heads, batch, keys, types, even };
            let mut params = common(node, tensors, &shape, (op.scale, op.softcap, op.max_bias), b)?;
            params.mask = if node.source(3).is_some() { b.source(node, 3)? } else { Tensor::NONE };
            params.sinks = if node.source(4).is_some() { b.source(node, 4)?.data } else { 0 };
            launch(params, &shape, "attention", b)
        }
        Op::PagedAttn(op) => paged(node, op, tensors, b),
        _ => Err(Refused::Unsupported),
    }
}

fn paged(node: TensorRef<'_>, op: PagedAttn, tensors: [Tensor; 3], b: &mut Builder<'_>) -> Done {
    let (params, shape) = paged_params(node, op, tensors, b)?;
    launch(params, &shape, "paged", b)
}

/// Adds the launch of attention for one token that also rotates its queries and its key and puts key and value into their caches;
/// says whether there is a kernel for it. That the memory allows for it is the caller's to see.
pub(super) fn add_fresh(
    node: TensorRef<'_>,
    rope: impl FnOnce(&mut Builder<'_>) -> Result<RopeParams, Refused>,
    b: &mut Builder<'_>,
) -> Result<bool, Refused> {
    let Op::PagedAttn(op) = *node.op() else { return Ok(false) };
    let [Some(q), Some(k), Some(v)] = [0, 1, 2].map(|slot| node.source(slot)) else { return Ok(false) };
    let tensors = [b.tensor(q)?, b.tensor(k)?, b.tensor(v)?];
    let (mut params, shape) = paged_params(node, op, tensors, b)?;
    let group = shape.heads / shape.key_heads.max(1);
    let numbers = numbers(shape.types.0, shape.types.1, b.info().capability >= (8, 0));
    let Some(numbers) = numbers.filter(|&numbers| numbers != Numbers::Any) else { return Ok(false) };
    let aligned = |tensor: &Tensor| tensor.nb[1] % 16 == 0 && tensor.data.is_multiple_of(16);
    if shape.tokens != 1
        || shape.d != shape.dv
        || !matches!(shape.d, 64 | 128)
        || group > DECODE_QUERIES
        || !aligned(&params.k)
        || !aligned(&params.v)
    {
        return Ok(false);
    }
    let (grid, shared) = share_keys(&mut params, &shape, shape.d, b)?;
    // Turns, queries, a row of each cache, and what queries, key and value are before their turn.
    let brought = (DECODE_QUERIES + 2) * shape.d * 4;
    let beside = shape.d / 2 * 8 + DECODE_QUERIES * shape.d * 4 + 2 * shape.d * 2 + brought;
    let shared = shared + beside;
    let name = format!("decode_fresh_{}_{}", shape.d, numbers.name());
    let params = FreshParams { of: params, rope: rope(b)? };
    launch_blocks(Family::AttentionDecode(numbers), name, grid, (32 * WARPS, shared), &params, b)?;
    Ok(true)
}

fn paged_params(
    node: TensorRef<'_>,
    op: PagedAttn,
    [mut q, mut k, mut v]: [Tensor; 3],
    b: &mut Builder<'_>,
) -> Result<(AttentionParams, Shape), Refused> {
    let (Some(keys), Some(values)) = (node.source(1), node.source(2)) else {
        return Err(Refused::Unsupported);
    };
    let (table, owners) = (b.source(node, 3)?, b.source(node, 4)?);
    let types = (keys.dtype(), values.dtype());
    // Tokens before heads, and rows of cells head by head, as kernels see them.
    (q.ne, q.nb) = ([q.ne[0], q.ne[2], q.ne[1], 1], [q.nb[0], q.nb[2], q.nb[1], q.nb[3]]);
    let by_head = |rows: &mut Tensor, dtype: DType| {
        let channels = rows.ne[0] / op.key_heads as i64;
        let head = dtype.row_bytes(channels as usize).unwrap_or(0);
        rows.ne = [channels, rows.ne[1], op.key_heads as i64, 1];
        rows.nb = [rows.nb[0], rows.nb[1], head as i64, 0];
    };
    by_head(&mut k, types.0);
    by_head(&mut v, types.1);
    let [pages, sequences] = [table.ne[0], table.ne[1]];
    let shape = Shape {
        d: q.ne[0] as usize,
        dv: v.ne[0] as usize,
        tokens: q.ne[1] as usize,
        heads: q.ne[2] as usize,
        key_heads: op.key_heads,
        batch: 1,
        keys: pages as usize * PagedAttn::PAGE,
        types,
        even: true,
    };
    let mut params = common(node, [q, k, v], &shape, (op.scale, op.softcap, op.max_bias), b)?;
    params.sinks = if node.source(5).is_some() { b.source(node, 5)?.data } else { 0 };
    params.window = i32::try_from(op.window).map_err(|_| Refused::Unsupported)?;
    params.chunk = i32::try_from(op.chunk).map_err(|_| Refused::Unsupported)?;
    // In a survey addresses are zero, but a table is a table.
    params.table = table.data.max(1);
    params.table_step = table.nb[1];
    (params.pages, params.sequences, params.cells) = (pages, sequences, k.ne[1]);
    (params.owners, params.owners_step) = (owners.data, owners.nb[1]);
    params.faults = b.faults();
    Ok((params, shape))
}

fn common(
    node: TensorRef<'_>,
    [q, k, v]: [Tensor; 3],
    shape: &Shape,
    (scale, softcap, max_bias): (f32, f32, f32),
    b: &mut Builder<'_>,
) -> Result<AttentionParams, Refused> {
    let (m0, m1, heads_log2) = slopes(max_bias, shape.heads);
    let group = shape.heads / shape.key_heads.max(1);
    Ok(AttentionParams {
        q,
        k,
        v,
        mask: Tensor::NONE,
        y: b.tensor(node)?,
        sinks: 0,
        keys: shape.keys as i64,
        group: group as i64,
        rows: (shape.tokens * group) as i64,
        splits: 1,
        parts: 0,
        counters: 0,
        scale,
        softcap,
        max_bias,
        m0,
        m1,
        heads_log2,
        by_rows: 0,
        window: 0,
        chunk: 0,
        unused: 0,
        table: 0,
        table_step: 0,
        pages: 0,
        sequences: 0,
        cells: 0,
        owners: 0,
        owners_step: 0,
        faults: 0,
    })
}

/// Adds the launch, of the fast way if there is one for such shapes and types.
fn launch(mut params: AttentionParams, shape: &Shape, prefix: &str, b: &mut Builder<'_>) -> Done {
    let &Shape { d, dv, tokens, heads, key_heads, batch, keys, types, even } = shape;
    // Rows are read in pieces of eight numbers.
    let aligned = |dtype: DType, tensor: &Tensor| {
        let steps = || tensor.nb[1..].iter().all(|nb| nb % 16 == 0);
        dtype.is_quantized() || (steps() && tensor.data.is_multiple_of(16))
    };
    let suits = even && aligned(types.0, &params.k) && aligned(types.1, &params.v) && keys > 0;
    let numbers = numbers(types.0, types.1, b.info().capability >= (8, 0));
    let Some((numbers, (wide_d, wide_dv))) = numbers.zip(widths(d, dv)).filter(|_| suits) else {
        if d > WIDEST || dv > WIDEST || heads > MOST_BLOCKS || batch > MOST_BLOCKS {
            return Err(Refused::Unsupported);
        }
        let room = d.max(dv);
        let shared = (d + WARPS * room).max(8 + WARPS * dv) * 4;
        let grid = [tokens as u32, heads as u32, batch as u32];
        b.launch(Family::AttentionPlain, "attention_plain", (grid, 128, shared as u32), &params);
        return Ok(());
    };
    let rows = tokens * heads / key_heads.max(1);
    let (tiles, multiprocessors) = (rows.div_ceil(QUERIES), b.info().multiprocessors as usize);
    // With enough queries for all multiprocessors, warps have their own; so do they where a block has no room to share keys.
    let meeting = WARPS * QUERIES * (wide_dv + 2) * 4;
    let by_rows = b.exact()
        || rows.div_ceil(QUERIES * WARPS) * key_heads * batch >= multiprocessors
        || meeting > b.info().shared_memory as usize;
    let group = heads / key_heads.max(1);
    if wide_d == wide_dv && wide_d <= 128 && numbers != Numbers::Any && (by_rows || group <= DECODE_QUERIES) {
        return if by_rows {
            prompt(&params, shape, (numbers, wide_d), prefix, b)
        } else {
            decode(params, shape, (numbers, wide_d), prefix, b)
        };
    }
    let (grid, shared) = if by_rows {
        params.by_rows = 1;
        ([1, rows.div_ceil(QUERIES * WARPS) * key_heads, batch], 0)
    } else {
        let units = tiles * key_heads * batch;
        // Two blocks for each multiprocessor, each with keys for all its warps.
        let most = keys.div_ceil(KEYS * WARPS).max(1);
        let splits = (2 * multiprocessors).div_ceil(units).clamp(1, most);
        params.splits = splits as i64;
        if splits > 1 {
            params.parts = b.scratch(units * splits * QUERIES * (wide_dv + 2) * 4).0;
            params.counters = b.counters(units).ok_or(Refused::Unsupported)?.0;
        }
        ([splits, tiles * key_heads, batch], meeting)
    };
    if grid[1] > MOST_BLOCKS || grid[2] > MOST_BLOCKS {
        return Err(Refused::Unsupported);
    }
    let name = format!("{prefix}_{wide_d}_{wide_dv}_{}", numbers.name());
    let family = Family::Attention(numbers);
    b.launch(family, name, (grid.map(|n| n as u32), (32 * WARPS) as u32, shared as u32), &params);
    Ok(())
}

/// How blocks of many queries are made: threads, queries, shared memory.
fn prompt_block(is_hopper: bool, wide: usize) -> (usize, usize, usize) {
    // Keys and values of a tile.
    let tile = 2 * PROMPT_KEYS * wide * 2;
    if is_hopper {
        // Groups of four warps with 64 queries, as many as registers have room for, and three tiles, which begin at whole groups of lines.
        let groups = if wide == 64 { 2 } else { 3 };
        return (128 * groups, 64 * groups, 3 * tile + 1024);
    }
    let sets = if wide == 64 { 2 } else { 1 };
    (32 * WARPS, QUERIES * sets * WARPS, 2 * tile)
}

/// Many queries: those of a block go over keys together.
fn prompt(
    params: &AttentionParams,
    shape: &Shape,
    (numbers, wide): (Numbers, usize),
    prefix: &str,
    b: &mut Builder<'_>,
) -> Done {
    let (threads, rows, shared) = prompt_block(b.info().capability == (9, 0), wide);
    let grid = [(params.rows as usize).div_ceil(rows), shape.key_heads, shape.batch];
    let paged = if prefix == "paged" { "paged_" } else { "" };
    let name = format!("prompt_{paged}{wide}_{}", numbers.name());
    launch_blocks(Family::AttentionPrompt(numbers), name, grid, (threads, shared), params, b)
}

/// Few tokens: blocks share the keys of each.
fn decode(
    mut params: AttentionParams,
    shape: &Shape,
    (numbers, wide): (Numbers, usize),
    prefix: &str,
    b: &mut Builder<'_>,
) -> Done {
    let (grid, shared) = share_keys(&mut params, shape, wide, b)?;
    let paged = if prefix == "paged" { "paged_" } else { "" };
    let name = format!("decode_{paged}{wide}_{}", numbers.name());
    launch_blocks(Family::AttentionDecode(numbers), name, grid, (32 * WARPS, shared), &params, b)
}

/// How blocks share the keys of few tokens: the grid, and the shared memory of a block.
fn share_keys(
    params: &mut AttentionParams,
    shape: &Shape,
    wide: usize,
    b: &mut Builder<'_>,
) -> Result<([usize; 3], usize), Refused> {
    let units = shape.tokens * shape.key_heads * shape.batch;
    // A block for each multiprocessor, each with two tiles of keys for all its warps.
    let most = shape.keys.div_ceil(2 * KEYS * WARPS).max(1);
    let splits = (b.info().multiprocessors as usize / units.max(1)).clamp(1, most);
    params.splits = splits as i64;
    if splits > 1 {
        params.parts = b.scratch(units * splits * DECODE_QUERIES * (wide + 2) * 4).0;
        params.counters = b.counters(units).ok_or(Refused::Unsupported)?.0;
    }
    let grid = [splits, shape.tokens * shape.key_heads, shape.batch];
    let shared = (DECODE_STAGES * WARPS * KEYS * wide * 4).max(WARPS * DECODE_QUERIES * (wide + 2) * 4);
    Ok((grid, shared))
}

fn launch_blocks<P: IntoBytes + Immutable>(
    family: Family,
    name: String,
    grid: [usize; 3],
    (threads, shared): (usize, usize),
    params: &P,
    b: &mut Builder<'_>,
) -> Done {
    if grid[1] > MOST_BLOCKS || grid[2] > MOST_BLOCKS || shared > b.info().shared_memory as usize {
        return Err(Refused::Unsupported);
    }
    b.launch(family, name, (grid.map(|n| n as u32), threads as u32, shared as u32), params);
    Ok(())
}
