//! Products of a matrix with one or a few columns: the twins of `matvec.cu`.

use oxcart_tensor::{DType, TensorRef};
use zerocopy::{Immutable, IntoBytes};

use crate::driver::CardInfo;
use crate::images::Family;
use crate::plan::{Builder, Done, Refused, Tensor};

/// One of up to three matrices that share columns; `Part` of `part.cuh`.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Part {
    pub(super) weights: u64,
    pub(super) y: u64,
    pub(super) bias: u64,
    pub(super) residual: u64,
    pub(super) rows: i32,
    pub(super) tiles: i32,
    y_stride: i64,
}

impl Part {
    pub(super) const NONE: Part =
        Part { weights: 0, y: 0, bias: 0, residual: 0, rows: 0, tiles: 0, y_stride: 0 };

    pub(super) fn new(weights: &Tensor, y: &Tensor, bias: u64, residual: u64) -> Part {
        let (rows, y_stride) = (weights.ne[1] as i32, y.nb[1] / 4);
        Part { weights: weights.data, y: y.data, bias, residual, rows, tiles: 0, y_stride }
    }
}

/// `MatvecParams`.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct MatvecParams {
    pub(super) part: [Part; 3],
    row_bytes: i64,
    tiles: i32,
    k: i32,
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
    row_step: i32,
    tile_rows: i32,
    columns: i32,
    prepared: i32,
    pub(super) gated: i32,
    pub(super) glu: i32,
    pub(super) early: i32,
    pub(super) norms: i32,
    aligned: i32,
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
pub(super) const MOST_EXPERT_COLUMNS: usize = 32;

/// Warps of a block that multiply, and rows that each takes at a time.
const WARPS: usize = 8;
const ROWS: usize = 2;

/// Shared memory before columns.
const BARRIERS: usize = 128;

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
    /// Elements of a row.
    chunk: usize,
    slots: usize,
    slot_bytes: usize,
    row_step: usize,
    /// Shared memory of a block, and how many blocks a multiprocessor has.
    shared: usize,
    resident: usize,
}

/// Whether a copy engine brings rows, so that a block has a warp for it and slots of its own.
fn has_engine(info: &CardInfo) -> bool {
    info.capability == (9, 0)
}

fn cut(info: &CardInfo, dtype: DType, k: usize, columns: usize) -> Option<Cut> {
    // Whole blocks of every type, and whole pieces of columns.
    const STEP: usize = 256;
    // As measured on an H200: steps of about 2048 elements, as many bytes as fit with two blocks on a multiprocessor where
    // taking apart is most of the work, and one block with more of them where reading is. A single column of bytes takes fewer and
    // longer steps.
    const MOST_STEPS: usize = 8;
    const ENGINE_ROW: usize = 2240;
    const LONG_STEPS: usize = 14;
    const LONG_SLOT: usize = 48 << 10;
    const PLAIN_ROW: usize = 2304;
    const SMALL_SLOT: usize = 20 << 10;
    const TWO_BLOCKS: usize = 75_000;
    let (engine, per_step) = (has_engine(info), dtype.row_bytes(STEP)?);
    let before = BARRIERS + (columns * column_bytes(dtype, k)).next_multiple_of(128);
    let room = (info.shared_memory as usize).checked_sub(before)?;
    let is_long = engine && columns == 1 && dtype == DType::Q8_0;
    let most = match engine {
        true if is_long => LONG_STEPS,
        true => (ENGINE_ROW / per_step).min(MOST_STEPS),
        false => PLAIN_ROW / per_step,
    };
    for steps in (1..=most.max(1)).rev() {
        let chunk = (steps * STEP).min(k.next_multiple_of(64));
        let bytes = dtype.row_bytes(chunk.min(k))?;
        // Room for whole pieces of 16 bytes on both sides.
        let row_step = (bytes + 32).next_multiple_of(16);
        let rows = if engine { WARPS * ROWS } else { ROWS };
        let slot_bytes = (rows * row_step).next_multiple_of(128);
        let of_block = if engine { slot_bytes } else { WARPS * slot_bytes };
        let (wanted, resident) = match engine {
            true if of_block <= SMALL_SLOT && before + 2 * of_block <= TWO_BLOCKS => (3, 2),
            true if of_block > LONG_SLOT => (3, 1),
            true if !dtype.is_quantized() && columns == 1 => (4, 1),
            true => (5, 1),
            false => (3, 1),
        };
        let room = if resident == 2 { TWO_BLOCKS - before } else { room };
        let slots = (room / of_block).min(wanted);
        if slots >= 2 {
            return Some(Cut {
                chunk,
                slots,
                slot_bytes,
                row_step,
                shared: before + slots * of_block,
                resident,
            });
        }
    }
    None
}

/// Rows that a block takes at a time: fewer where there would not be enough for all multiprocessors.
fn tile_rows(info: &CardInfo, rows: usize) -> usize {
    if rows.div_ceil(WARPS * ROWS) >= info.multiprocessors as usize { WARPS * ROWS } else { WARPS }
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
        && weights.ne.iter().all(|&n| i32::try_from(n).is_ok())
        && row.is_multiple_of(step)
        && start.is_multiple_of(step)
        && x_dtype == DType::F32
        && x.data.is_multiple_of(16)
        && x.nb[1] % 16 == 0
}

/// Whether a product is one of a matrix with few columns that can be streamed.
pub(super) fn suits(node: TensorRef<'_>, a: &Tensor, x: &Tensor, most: usize) -> bool {
    let (Some(weights), Some(columns)) = (node.source(0), node.source(1)) else { return false };
    let flat = |tensor: &Tensor| tensor.ne[2] == 1 && tensor.ne[3] == 1;
    rows_suit(weights.dtype(), a, x, columns.dtype()) && flat(a) && flat(x) && node.ne()[1] <= most
}

/// Whether products with experts are of this kind.
pub(super) fn suits_experts(node: TensorRef<'_>, a: &Tensor, x: &Tensor, most: usize) -> bool {
    let (Some(weights), Some(columns)) = (node.source(0), node.source(1)) else { return false };
    rows_suit(weights.dtype(), a, x, columns.dtype())
        && x.nb[2] % 16 == 0
        && node.ne()[1] * node.ne()[2] <= most
        && node.layout().is_contiguous()
}

/// Parameters of a product, without what is done around it.
pub(super) fn params(weights: Tensor, x: Tensor, y: Tensor) -> MatvecParams {
    let mut part = [Part::NONE; 3];
    part[0] = Part::new(&weights, &y, 0, 0);
    MatvecParams {
        part,
        row_bytes: weights.nb[1],
        tiles: 0,
        k: weights.ne[0] as i32,
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
        row_step: 0,
        tile_rows: 0,
        columns: x.ne[1] as i32,
        prepared: 0,
        gated: 0,
        glu: 0,
        early: 0,
        norms: 0,
        aligned: 0,
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
    let one_by_one = experts || b.exact();
    let width = if one_by_one { 1 } else { wide_enough.unwrap_or(widths[widths.len() - 1]) };
    let cut = cut(b.info(), dtype, k, width).ok_or(Refused::Unsupported)?;
    params.chunk = cut.chunk as i32;
    params.slots = cut.slots as i32;
    params.slot_bytes = cut.slot_bytes as i32;
    params.row_step = cut.row_step as i32;
    let is_gated = params.gated != 0;
    let rows = params.part.iter().map(|part| part.rows as usize).sum::<usize>();
    let tile_rows = tile_rows(b.info(), rows);
    params.tile_rows = tile_rows as i32;
    let of_part = if is_gated { tile_rows / 2 } else { tile_rows };
    for part in &mut params.part {
        part.tiles = (part.rows as usize).div_ceil(of_part) as i32;
    }
    let counted = if is_gated { 1 } else { params.part.len() };
    params.tiles = params.part[..counted].iter().map(|part| part.tiles).sum();
    let chunk_bytes = dtype.row_bytes(cut.chunk.min(k)).unwrap_or(1) as u64;
    let starts = params.part.iter().fold(0, |bits, part| bits | part.weights);
    let bits = starts | params.row_bytes as u64 | params.expert_bytes as u64 | chunk_bytes;
    params.aligned = bits.is_multiple_of(16).into();
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
    let blocks = (params.tiles as usize).clamp(1, cut.resident * b.info().multiprocessors as usize);
    let groups = columns.div_ceil(width);
    let name = format!("matvec_{}_{width}", dtype.name());
    let grid = [blocks as u32, groups as u32, 1];
    let threads = 32 * (WARPS + usize::from(has_engine(b.info())));
    b.launch(Family::Matvec(dtype), name, (grid, threads as u32, cut.shared as u32), &params);
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
