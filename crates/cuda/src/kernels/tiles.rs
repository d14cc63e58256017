//! Products of many columns: the twins of `tiles.cuh`, `sixteen.cu` and `gemm.cu`.
//!
//! Columns become 16-bit numbers first: brain floats for blocks, which no activation is too large for, and the type of the
//! weights for weights that are 16-bit numbers themselves.

use oxcart_tensor::{DType, TensorRef};
use zerocopy::{Immutable, IntoBytes};

use super::{bands, matvec};
use crate::driver::{Address, CardInfo, TileMap};
use crate::images::Family;
use crate::plan::{Builder, Done, Refused, Tensor};

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct TilesParams {
    weights: u64,
    row_bytes: i64,
    m: i64,
    k: i64,
    x: u64,
    x_step: i64,
    columns: i64,
    y: u64,
    y_step: i64,
    order: u64,
    starts: u64,
    tiles: u64,
    experts: i64,
    expert_bytes: i64,
    used: i64,
    x_per_token: i64,
    bias: u64,
    residual: u64,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct ExpandParams {
    weights: u64,
    row_bytes: i64,
    units: i64,
    count: i64,
    to: u64,
    to_step: i64,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct SixteenParams {
    x: u64,
    x_nb: [i64; 2],
    per_token: i64,
    k: i64,
    padded: i64,
    columns: i64,
    to: u64,
    norm: u64,
    eps: f32,
    norms: i32,
    brain: i32,
    dtype: i32,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct OrderParams {
    ids: u64,
    ids_nb: [i64; 2],
    used: i64,
    tokens: i64,
    experts: i64,
    tile: i64,
    order: u64,
    starts: u64,
    tiles: u64,
    faults: u64,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct GemmParams {
    x: [u8; 128],
    w: [u8; 128],
    up: [u8; 128],
    y: u64,
    y_step: i64,
    columns: i64,
    rows: i64,
    k: i64,
    bias: u64,
    residual: u64,
    unused: i64,
}

/// The most blocks along the second and third dimension of a grid.
const MOST_BLOCKS: usize = 65535;

/// Columns from which on Hopper's own kernels pay.
const LEAST_GEMM_COLUMNS: usize = 32;

/// Bytes of expanded weights that are made and used at a time.
const EXPANDED: usize = 128 << 20;

/// What is done around a product, in the same launch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Around {
    /// One number per row; 0 for none.
    pub(super) bias: u64,
    /// Laid out as the result; 0 for none.
    pub(super) residual: u64,
    /// Normalizes columns first: the address of weights (0 for none) and epsilon.
    pub(super) norm: Option<(u64, f32)>,
}

/// A product of many columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) dtype: DType,
    pub(super) weights: Tensor,
    pub(super) x: Tensor,
    pub(super) y: Tensor,
    pub(super) around: Around,
    /// Whether no kernel writes the weights, so that they may be read early.
    pub(super) early: bool,
}

/// Whether kernels know weights of this type.
fn is_known(info: &CardInfo, dtype: DType) -> bool {
    match dtype {
        DType::F16 => true,
        DType::BF16 => info.capability >= (8, 0),
        dtype => dtype.is_quantized() && dtype.decodes(),
    }
}

/// Whether columns become brain floats.
fn is_brain(info: &CardInfo, dtype: DType) -> bool {
    dtype == DType::BF16 || (dtype.is_quantized() && info.capability >= (8, 0))
}

/// Whether rows can be read in pieces of 16 bytes.
fn rows_suit(dtype: DType, weights: &Tensor) -> bool {
    let aligned = weights.nb[1] % 16 == 0 && weights.nb[2] % 16 == 0 && weights.data.is_multiple_of(16);
    dtype.is_quantized() || (aligned && weights.ne[0] % 8 == 0)
}

/// Whether a product is one of a matrix and columns, of types and in places that are known here.
pub(super) fn is_flat(info: &CardInfo, node: TensorRef<'_>, product: &Product) -> bool {
    let Product { dtype, weights, x, .. } = product;
    let flat = |tensor: &Tensor| tensor.ne[2] == 1 && tensor.ne[3] == 1;
    is_known(info, *dtype)
        && rows_suit(*dtype, weights)
        && flat(weights)
        && flat(x)
        && weights.ne[0] > 0
        && node.layout().is_contiguous()
}

/// Whether a product can be computed here.
pub(super) fn suits(info: &CardInfo, node: TensorRef<'_>, product: &Product) -> bool {
    is_flat(info, node, product) && node.ne()[1] > matvec::MOST_COLUMNS
}

/// Makes columns 16-bit numbers in scratch memory; where they are, and bytes from one to the next.
fn sixteen(dtype: DType, x: &Tensor, k: usize, around: &Around, b: &mut Builder<'_>) -> (Address, usize) {
    let (columns, padded) = ((x.ne[1] * x.ne[2]) as usize, k.next_multiple_of(32));
    let to = b.scratch(columns * padded * 2);
    let (norm, eps) = around.norm.unwrap_or((0, 0.0));
    let params = SixteenParams {
        x: x.data,
        x_nb: [x.nb[1], x.nb[2]],
        per_token: x.ne[1],
        k: k as i64,
        padded: padded as i64,
        columns: columns as i64,
        to: to.0,
        norm,
        eps,
        norms: around.norm.is_some().into(),
        brain: is_brain(b.info(), dtype).into(),
        dtype: x.dtype,
    };
    b.launch(Family::Sixteen, "columns_to_sixteen", ([columns as u32, 1, 1], 256, 0), &params);
    (to, padded * 2)
}

/// Adds the launches of a product.
pub(super) fn launch(product: &Product, b: &mut Builder<'_>) -> Done {
    launch_all(std::slice::from_ref(product), b)
}

/// Adds the launches of products that read the same columns, of one type of weights.
pub(super) fn launch_all(products: &[Product], b: &mut Builder<'_>) -> Done {
    let first = products.first().ok_or(Refused::Unsupported)?;
    if bands::suits(b.info(), products, bands::MOST_COLUMNS) {
        return bands::launch(products, b);
    }
    let (k, columns) = (first.weights.ne[0] as usize, first.x.ne[1] as usize);
    let hopper = by_gemm(b.info(), columns, k);
    let (x16, x_step) = sixteen(first.dtype, &first.x, k, &first.around, b);
    let room =
        if hopper { b.scratch(products.iter().map(expanded_bytes).max().unwrap_or(0)) } else { Address(0) };
    for product in products {
        if hopper {
            gemm(product, (x16, x_step), room, b)?;
        } else {
            by_tiles(product, (x16, x_step), b)?;
        }
    }
    Ok(())
}

/// Whether a product is one for Hopper's own kernels.
fn by_gemm(info: &CardInfo, columns: usize, k: usize) -> bool {
    info.capability == (9, 0) && columns >= LEAST_GEMM_COLUMNS && k.is_multiple_of(64)
}

/// Whether a product that gates another by SiLU, that other, and the one that takes what they come to can be computed without
/// anything in between.
pub(super) fn suits_gated(info: &CardInfo, [gate, up, down]: [&Product; 3]) -> bool {
    let ([k, wide, ..], columns) = (gate.weights.ne, gate.x.ne[1] as usize);
    let is_alone = |product: &Product| product.around.bias == 0 && product.around.residual == 0;
    !bands::suits(info, &[*gate, *up], bands::MOST_COLUMNS)
        && by_gemm(info, columns, k as usize)
        && by_gemm(info, columns, wide as usize)
        && gate.dtype == up.dtype
        && gate.weights.ne == up.weights.ne
        && down.weights.ne[0] == wide
        && is_brain(info, gate.dtype) == is_brain(info, down.dtype)
        && is_alone(gate)
        && is_alone(up)
}

/// Adds the launches of such products.
pub(super) fn launch_gated([gate, up, down]: [&Product; 3], b: &mut Builder<'_>) -> Done {
    let [k, wide, ..] = gate.weights.ne.map(|n| n as usize);
    let columns = gate.x.ne[1] as usize;
    let x16 = sixteen(gate.dtype, &gate.x, k, &gate.around, b);
    let inner = b.scratch(columns * wide * 2);
    let room = b.scratch((expanded_bytes(gate) + expanded_bytes(up)).max(expanded_bytes(down)));
    for (first, rows) in runs(gate) {
        let w = sixteen_bit_rows(gate, (first, rows), room, b);
        let other = sixteen_bit_rows(up, (first, rows), room.plus(expanded_bytes(gate)), b);
        let params = GemmParams {
            x: b.tile_map(&tile_map(k, (x16.0, x16.1 as u64), columns, 128))?,
            w: b.tile_map(&tile_map(k, w, rows, 128))?,
            up: b.tile_map(&tile_map(k, other, rows, 128))?,
            y: inner.0 + 2 * first as u64,
            y_step: wide as i64,
            columns: columns as i64,
            rows: rows as i64,
            k: k as i64,
            bias: 0,
            residual: 0,
            unused: 0,
        };
        let tiles = columns.div_ceil(128) * rows.div_ceil(128);
        launch_gemm(is_brain(b.info(), gate.dtype), "gated", (tiles, 256), &params, b);
    }
    gemm(down, (inner, 2 * wide), room, b)
}

fn by_tiles(product: &Product, (x16, x_step): (Address, usize), b: &mut Builder<'_>) -> Done {
    let &Product { dtype, weights, x, y, around, .. } = product;
    let [k, m, ..] = weights.ne.map(|n| n as usize);
    let columns = x.ne[1] as usize;
    let wide = if columns > 32 { 64 } else { 32 };
    let rows = if wide == 64 { 64 } else { 32 };
    let params = TilesParams {
        weights: weights.data,
        row_bytes: weights.nb[1],
        m: m as i64,
        k: k as i64,
        x: x16.0,
        x_step: x_step as i64,
        columns: columns as i64,
        y: y.data,
        y_step: y.nb[1] / 4,
        order: 0,
        starts: 0,
        tiles: 0,
        experts: 0,
        expert_bytes: 0,
        used: 1,
        x_per_token: 1,
        bias: around.bias,
        residual: around.residual,
    };
    let grid = [columns.div_ceil(wide), m.div_ceil(rows), 1];
    let shared = shared_bytes(dtype, rows, wide);
    if grid[1] > MOST_BLOCKS || shared > b.info().shared_memory as usize {
        return Err(Refused::Unsupported);
    }
    let name = format!("tiles_{}_{wide}", dtype.name());
    b.launch(Family::Tiles(dtype), name, (grid.map(|n| n as u32), 128, shared as u32), &params);
    Ok(())
}

/// Shared memory of a block of `tiles`.
fn shared_bytes(dtype: DType, rows: usize, columns: usize) -> usize {
    let depth = if dtype.block_len() == 256 { 8 } else { 4 };
    let (right, left) = (2 * depth * columns * 64, depth * rows * 64);
    if !dtype.is_quantized() {
        return right + 2 * left;
    }
    let bytes = dtype.row_bytes(depth * 32).unwrap_or(0);
    right + 2 * rows * (bytes + 16).next_multiple_of(16) + left
}

/// Rows of weights that are 16-bit numbers at a time, of blocks: as many as scratch memory has room for.
fn most_rows(product: &Product) -> usize {
    let [k, m, ..] = product.weights.ne.map(|n| n as usize);
    if product.dtype.is_quantized() {
        (EXPANDED / (2 * k) / 256 * 256).clamp(256, m.next_multiple_of(256))
    } else {
        m
    }
}

/// Scratch memory for the weights of a product as 16-bit numbers.
fn expanded_bytes(product: &Product) -> usize {
    let [k, m, ..] = product.weights.ne.map(|n| n as usize);
    if product.dtype.is_quantized() { most_rows(product).min(m) * k * 2 } else { 0 }
}

/// Runs of rows: the first of each, and how many there are.
fn runs(product: &Product) -> impl Iterator<Item = (usize, usize)> + use<> {
    let (m, most) = (product.weights.ne[1] as usize, most_rows(product));
    (0..m).step_by(most).map(move |first| (first, most.min(m - first)))
}

/// A run of rows as 16-bit numbers, in `room` if they are not: where they are, and bytes from one to the next.
fn sixteen_bit_rows(
    product: &Product,
    (first, rows): (usize, usize),
    room: Address,
    b: &mut Builder<'_>,
) -> (Address, u64) {
    let (dtype, weights) = (product.dtype, product.weights);
    let start = weights.data + (first * weights.nb[1] as usize) as u64;
    if !dtype.is_quantized() {
        return (Address(start), weights.nb[1] as u64);
    }
    let k = weights.ne[0] as usize;
    let units = k / 32;
    let params = ExpandParams {
        weights: start,
        row_bytes: weights.nb[1],
        units: units as i64,
        count: (units * rows) as i64,
        to: room.0,
        to_step: 2 * k as i64,
    };
    let name = format!("expand_{}", dtype.name());
    b.launch_each(Family::Tiles(dtype), name, units * rows, 256, &params);
    (room, 2 * k as u64)
}

/// Lines of 16-bit numbers as the copy engine finds them, so many at a time.
fn tile_map(k: usize, (data, pitch): (Address, u64), lines: usize, at_a_time: usize) -> TileMap {
    TileMap { data, extents: [k as u64, lines as u64], pitch, tile: [64, at_a_time as u32] }
}

/// Adds a launch of blocks that share tiles of so many rows.
fn launch_gemm(
    brain: bool,
    kind: &str,
    (tiles, wide): (usize, usize),
    params: &GemmParams,
    b: &mut Builder<'_>,
) {
    let stages = if wide == 256 { 4 } else { 6 };
    let shared = stages * (128 + wide) * 128 + 1024 + 2 * stages * 8;
    let name = format!("gemm_{}_{kind}", if brain { "brain" } else { "half" });
    let grid = [tiles.min(b.info().multiprocessors as usize) as u32, 1, 1];
    b.launch(Family::Gemm, name, (grid, 384, shared as u32), params);
}

/// A product on Hopper: weights as 16-bit numbers, in runs of rows that scratch memory has room for.
fn gemm(product: &Product, (x16, x_step): (Address, usize), room: Address, b: &mut Builder<'_>) -> Done {
    let &Product { dtype, weights, x, y, around, .. } = product;
    let (k, columns) = (weights.ne[0] as usize, x.ne[1] as usize);
    let multiprocessors = b.info().multiprocessors as usize;
    for (first, rows) in runs(product) {
        let w = sixteen_bit_rows(product, (first, rows), room, b);
        // Tiles of 256 rows where there are enough of them for all multiprocessors, or they fill them better.
        let tiles = |wide: usize| columns.div_ceil(128) * rows.div_ceil(wide);
        let waves = |wide: usize| tiles(wide).div_ceil(multiprocessors) * wide;
        let wide = if waves(256) <= waves(128) { 256 } else { 128 };
        let params = GemmParams {
            x: b.tile_map(&tile_map(k, (x16, x_step as u64), columns, 128))?,
            w: b.tile_map(&tile_map(k, w, rows, wide))?,
            up: [0; 128],
            y: y.data + 4 * first as u64,
            y_step: y.nb[1] / 4,
            columns: columns as i64,
            rows: rows as i64,
            k: k as i64,
            bias: if around.bias == 0 { 0 } else { around.bias + 4 * first as u64 },
            residual: if around.residual == 0 { 0 } else { around.residual + 4 * first as u64 },
            unused: 0,
        };
        launch_gemm(is_brain(b.info(), dtype), &wide.to_string(), (tiles(wide), wide), &params, b);
    }
    Ok(())
}

/// Whether products with experts can be computed here.
pub(super) fn suits_experts(info: &CardInfo, node: TensorRef<'_>, a: &Tensor) -> bool {
    let Some(weights) = node.source(0) else { return false };
    is_known(info, weights.dtype())
        && rows_suit(weights.dtype(), a)
        && a.ne[0] > 0
        && node.layout().is_contiguous()
}

/// Products with experts: columns are sorted by expert, on the card, and each expert's are tiles of their own.
pub(super) fn launch_experts(dtype: DType, [a, x, ids, y]: [Tensor; 4], b: &mut Builder<'_>) -> Done {
    let [k, m, experts, _] = a.ne.map(|n| n as usize);
    let (used, tokens) = (y.ne[1] as usize, y.ne[2] as usize);
    let columns = used * tokens;
    let (x16, x_step) = sixteen(dtype, &x, k, &Around::default(), b);
    let (order, starts, begins) =
        (b.scratch(4 * columns), b.scratch(4 * (experts + 1)), b.scratch(4 * (experts + 1)));
    let wide = if columns / experts.max(1) > 32 && !b.exact() { 64 } else { 32 };
    let rows = if wide == 64 { 64 } else { 32 };
    let sorting = OrderParams {
        ids: ids.data,
        ids_nb: [ids.nb[0], ids.nb[1]],
        used: used as i64,
        tokens: tokens as i64,
        experts: experts as i64,
        tile: wide as i64,
        order: order.0,
        starts: starts.0,
        tiles: begins.0,
        faults: b.faults(),
    };
    b.launch(Family::Sixteen, "order_by_expert", ([1, 1, 1], 1024, 0), &sorting);
    // In a survey addresses are zero, but experts are experts.
    let params = TilesParams {
        weights: a.data,
        row_bytes: a.nb[1],
        m: m as i64,
        k: k as i64,
        x: x16.0,
        x_step: x_step as i64,
        columns: columns as i64,
        y: y.data,
        y_step: y.nb[1] / 4,
        order: order.0.max(1),
        starts: starts.0,
        tiles: begins.0,
        experts: experts as i64,
        expert_bytes: a.nb[2],
        used: used as i64,
        x_per_token: x.ne[1],
        bias: 0,
        residual: 0,
    };
    // Every expert may have one tile that is not full.
    let most_tiles = columns / wide + experts.min(columns) + 1;
    let grid = [most_tiles, m.div_ceil(rows), 1];
    let shared = shared_bytes(dtype, rows, wide);
    if grid[1] > MOST_BLOCKS || shared > b.info().shared_memory as usize {
        return Err(Refused::Unsupported);
    }
    let name = format!("tiles_{}_{wide}", dtype.name());
    b.launch(Family::Tiles(dtype), name, (grid.map(|n| n as u32), 128, shared as u32), &params);
    Ok(())
}
