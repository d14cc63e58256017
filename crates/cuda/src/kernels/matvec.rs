//! Products of a matrix with one or a few columns: the twins of `matvec.cu`.

use oxcart_tensor::{DType, TensorRef};
use zerocopy::{Immutable, IntoBytes};

use crate::driver::CardInfo;
use crate::images::Family;
use crate::plan::{Builder, Done, Refused, Tensor};

/// One of up to three matrices that share a column; `MatvecPart`.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Part {
    pub(super) weights: u64,
    pub(super) y: u64,
    pub(super) bias: u64,
    pub(super) residual: u64,
    pub(super) rows: i64,
    y_stride: i64,
}

impl Part {
    const NONE: Part = Part { weights: 0, y: 0, bias: 0, residual: 0, rows: 0, y_stride: 0 };

    pub(super) fn new(weights: &Tensor, y: &Tensor, bias: u64, residual: u64) -> Part {
        Part { weights: weights.data, y: y.data, bias, residual, rows: weights.ne[1], y_stride: y.nb[1] / 4 }
    }
}

/// `MatvecParams`.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct MatvecParams {
    pub(super) part: [Part; 3],
    sets: i64,
    row_bytes: i64,
    k: i64,
    pub(super) x: u64,
    x_stride: i64,
    pub(super) norm: u64,
    ids: u64,
    ids_nb: [i64; 2],
    expert_bytes: i64,
    experts: i64,
    used: i64,
    x_per_token: i64,
    x_token_stride: i64,
    faults: u64,
    chunk: i32,
    slots: i32,
    slot_bytes: i32,
    second_at: i32,
    columns: i32,
    prepared: i32,
    pub(super) gated: i32,
    pub(super) glu: i32,
    pub(super) early: i32,
    pub(super) norms: i32,
    pub(super) eps: f32,
    pub(super) alpha: f32,
    pub(super) limit: f32,
    unused: i32,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct ColumnsParams {
    of: MatvecParams,
    to: u64,
    per: i32,
    unused: i32,
}

/// Columns up to which a product is one of this kind.
pub(super) const MOST_COLUMNS: usize = 8;

/// Tokens and experts up to which each expert's product is one of this kind.
const MOST_EXPERT_COLUMNS: usize = 32;

/// Warps of a block, and rows that a warp takes at a time.
const WARPS: usize = 8;
const ROWS: usize = 2;

/// Shared memory before columns.
const BARRIERS: usize = 512;

/// Bytes under way per warp that suffice.
const SLOT: usize = 4608;

/// How many columns kernels for a type take.
fn widths(info: &CardInfo, dtype: DType) -> &'static [usize] {
    use DType::{
        BF16, F16, F32, IQ4_NL, IQ4_XS, MXFP4, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0,
    };
    match dtype {
        // Older cards have fewer kernels.
        _ if info.capability < (8, 0) => &[1, 4],
        F32 | F16 | BF16 | Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | IQ4_NL
        | IQ4_XS | MXFP4 => &[1, 2, 4, 8],
        _ => &[1, 4],
    }
}

/// Elements of a row of a piece of 16 bytes; 0 for blocks.
fn plain_per_piece(dtype: DType) -> usize {
    if dtype.is_quantized() { 0 } else { 16 / dtype.block_bytes() }
}

/// Bytes of a column in shared memory.
fn column_bytes(dtype: DType, k: usize) -> usize {
    if dtype.is_quantized() { 80 * k.div_ceil(64) } else { 4 * k }
}

/// How a product is cut into what is under way at a time.
struct Cut {
    chunk: usize,
    slots: usize,
    slot_bytes: usize,
    second_at: usize,
    shared: usize,
}

fn cut(info: &CardInfo, dtype: DType, k: usize, columns: usize) -> Option<Cut> {
    // Whole blocks of every type, and whole pieces of columns.
    const STEP: usize = 256;
    let per_step = dtype.row_bytes(STEP)?;
    let steps = (SLOT / ROWS / per_step).max(1);
    let chunk = (steps * STEP).min(k.next_multiple_of(64));
    let bytes = dtype.row_bytes(chunk.min(k))?;
    // Room for whole pieces of 16 bytes on both sides.
    let second_at = (bytes + 32).next_multiple_of(16);
    let slot_bytes = (ROWS * second_at).next_multiple_of(128);
    let before = BARRIERS + (columns * column_bytes(dtype, k)).next_multiple_of(128);
    let room = (info.shared_memory as usize).checked_sub(before)?;
    let slots = (room / (WARPS * slot_bytes)).min(3);
    (slots >= 2).then(|| Cut {
        chunk,
        slots,
        slot_bytes,
        second_at,
        shared: before + WARPS * slots * slot_bytes,
    })
}

/// Whether rows of weights can be streamed. Where memory begins counts too; in a survey it begins where it suits.
fn rows_suit(dtype: DType, weights: &Tensor, x: &Tensor, x_dtype: DType) -> bool {
    let is_known = dtype.is_quantized() || matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    // Pairs of small blocks start at words, large blocks where they are, plain numbers at pieces of 16 bytes.
    let step = match dtype {
        DType::MXFP4 => 1,
        dtype if !dtype.is_quantized() => 16,
        dtype if dtype.block_len() > 64 => 2,
        _ => 4,
    };
    let (row, start) = (weights.nb[1] as u64, weights.data);
    is_known
        && dtype.decodes()
        && weights.ne[0] % 64 == 0
        && weights.ne[0] > 0
        && row.is_multiple_of(step)
        && start.is_multiple_of(step)
        && x_dtype == DType::F32
        && x.data.is_multiple_of(16)
        && x.nb[1] % 16 == 0
}

/// Whether a product is one of a matrix with few columns that can be streamed.
pub(super) fn suits(node: TensorRef<'_>, a: &Tensor, x: &Tensor) -> bool {
    let (Some(weights), Some(columns)) = (node.source(0), node.source(1)) else { return false };
    let flat = |tensor: &Tensor| tensor.ne[2] == 1 && tensor.ne[3] == 1;
    rows_suit(weights.dtype(), a, x, columns.dtype()) && flat(a) && flat(x) && node.ne()[1] <= MOST_COLUMNS
}

/// Whether products with experts are of this kind.
pub(super) fn suits_experts(node: TensorRef<'_>, a: &Tensor, x: &Tensor) -> bool {
    let (Some(weights), Some(columns)) = (node.source(0), node.source(1)) else { return false };
    rows_suit(weights.dtype(), a, x, columns.dtype())
        && x.nb[2] % 16 == 0
        && node.ne()[1] * node.ne()[2] <= MOST_EXPERT_COLUMNS
        && node.layout().is_contiguous()
}

/// Parameters of a product, without what is done around it.
pub(super) fn params(weights: Tensor, x: Tensor, y: Tensor) -> MatvecParams {
    let mut part = [Part::NONE; 3];
    part[0] = Part::new(&weights, &y, 0, 0);
    MatvecParams {
        part,
        sets: 0,
        row_bytes: weights.nb[1],
        k: weights.ne[0],
        x: x.data,
        x_stride: x.nb[1],
        norm: 0,
        ids: 0,
        ids_nb: [0; 2],
        expert_bytes: 0,
        experts: 0,
        used: 1,
        x_per_token: 1,
        x_token_stride: 0,
        faults: 0,
        chunk: 0,
        slots: 0,
        slot_bytes: 0,
        second_at: 0,
        columns: x.ne[1] as i32,
        prepared: 0,
        gated: 0,
        glu: 0,
        early: 0,
        norms: 0,
        eps: 0.0,
        alpha: 0.0,
        limit: 0.0,
        unused: 0,
    }
}

/// Adds the launches of a product whose parameters are complete but for how it is cut.
pub(super) fn launch(mut params: MatvecParams, dtype: DType, b: &mut Builder<'_>) -> Done {
    let (k, columns) = (params.k as usize, params.columns as usize);
    let experts = params.ids != 0;
    let widths = widths(b.info(), dtype);
    let wide_enough = widths.iter().copied().find(|&width| columns <= width);
    let width = if experts { 1 } else { wide_enough.unwrap_or(widths[widths.len() - 1]) };
    let cut = cut(b.info(), dtype, k, width).ok_or(Refused::Unsupported)?;
    params.chunk = cut.chunk as i32;
    params.slots = cut.slots as i32;
    params.slot_bytes = cut.slot_bytes as i32;
    params.second_at = cut.second_at as i32;
    let sets = |part: &Part| (part.rows + 1) / ROWS as i64;
    params.sets = if params.gated != 0 { params.part[0].rows } else { params.part.iter().map(sets).sum() };
    if width > 1 {
        let bytes = column_bytes(dtype, k);
        let image = b.scratch(columns.next_multiple_of(width) * bytes);
        let per = plain_per_piece(dtype) as i32;
        b.launch(
            Family::Columns,
            "prepare_columns",
            ([columns as u32, 1, 1], 256, 0),
            &ColumnsParams { of: params, to: image.0, per, unused: 0 },
        );
        params.x = image.0;
        params.prepared = 1;
    }
    let blocks = (params.sets as usize).div_ceil(WARPS).clamp(1, b.info().multiprocessors as usize);
    let groups = if experts { columns } else { columns.div_ceil(width) };
    let name = format!("matvec_{}_{width}", dtype.name());
    let grid = [blocks as u32, groups as u32, 1];
    b.launch(Family::Matvec(dtype), name, (grid, (32 * WARPS) as u32, cut.shared as u32), &params);
    Ok(())
}

/// Products with experts.
pub(super) fn add_experts(node: TensorRef<'_>, [a, x, ids, y]: [Tensor; 4], b: &mut Builder<'_>) -> Done {
    let weights = node.source(0).ok_or(Refused::Unsupported)?;
    let mut all = params(a, x, y);
    // In a survey addresses are zero, but experts are experts.
    all.ids = ids.data.max(1);
    all.ids_nb = [ids.nb[0], ids.nb[1]];
    all.expert_bytes = a.nb[2];
    all.experts = a.ne[2];
    all.used = y.ne[1];
    all.x_per_token = x.ne[1];
    all.x_token_stride = x.nb[2];
    all.columns = (y.ne[1] * y.ne[2]) as i32;
    all.faults = b.faults();
    launch(all, weights.dtype(), b)
}
