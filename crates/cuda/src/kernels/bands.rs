//! Products of some columns: the twins of `bands.cuh`.
//!
//! Invariant: into how many pieces a product is cut depends on the matrix and the card, not on the columns, so that a column's
//! result does not depend on those beside it.

use oxcart_tensor::DType;
use zerocopy::{Immutable, IntoBytes};

use super::matvec::Part;
use super::tiles::Product;
use crate::driver::{Address, CardInfo};
use crate::images::Family;
use crate::plan::{Builder, Done, Refused};

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct BandsParams {
    part: [Part; 3],
    row_bytes: i64,
    x: u64,
    x_group: i64,
    x_scales: u64,
    k: i32,
    columns: i32,
    tiles: i32,
    steps: i32,
    row_step: i32,
    stage_bytes: i32,
    stages: i32,
    early: i32,
    aligned: i32,
    unused: i32,
    sums: u64,
    counters: u64,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct BandColumnsParams {
    x: u64,
    x_stride: i64,
    norm: u64,
    to: u64,
    group_bytes: i64,
    scales: u64,
    k: i32,
    columns: i32,
    group: i32,
    brain: i32,
    norms: i32,
    eps: f32,
}

/// Columns up to which a product is one of this kind.
pub(super) const MOST_COLUMNS: usize = 64;

/// Columns of one launch, at most.
const MOST_AT_ONCE: usize = 256;

/// Columns that there are kernels for. Older cards have fewer kernels.
fn groups(info: &CardInfo) -> &'static [usize] {
    if info.capability < (8, 0) { &[32] } else { &[16, 32, 64] }
}

/// Rows of a band, and threads of a block.
const BAND: usize = 64;
const THREADS: u32 = 256;

/// Blocks that a multiprocessor should have, and what shared memory two of them have each where it is plenty.
const RESIDENT: usize = 2;
const MOST_SHARED: usize = 112 << 10;

/// Steps of a row that are on their way or at hand, at most.
const MOST_STAGES: usize = 3;

/// How a product is cut into what is under way at a time.
struct Cut {
    group: usize,
    row_step: usize,
    stage_bytes: usize,
    stages: usize,
    shared: usize,
}

/// Bytes of a unit of 32 elements of so many columns.
const fn unit_bytes(columns: usize) -> usize {
    64 * columns
}

/// Elements of a step.
fn step(dtype: DType) -> usize {
    if dtype.is_quantized() { 256 } else { 128 }
}

/// Whether every step of every row begins at a multiple of 16 bytes.
fn is_aligned(products: &[Product]) -> bool {
    let bits = |product: &Product| {
        let step = product.dtype.row_bytes(step(product.dtype)).unwrap_or(1);
        product.weights.data | product.weights.nb[1] as u64 | step as u64
    };
    products.iter().all(|product| bits(product).is_multiple_of(16))
}

/// The widest groups that columns fill and shared memory has room for.
fn cut(info: &CardInfo, dtype: DType, columns: usize, is_aligned: bool) -> Option<Cut> {
    let step = step(dtype);
    // A row, and what comes before it within 16 bytes, so that neither rows that are read together nor their pieces meet in a bank.
    let row_step = match dtype.row_bytes(step)? {
        bytes if dtype.is_quantized() => ((bytes + if is_aligned { 0 } else { 15 }).div_ceil(16) | 1) * 16,
        bytes => bytes + 64,
    };
    let limit = (info.shared_memory as usize).min(MOST_SHARED);
    let groups = groups(info);
    let widest = groups[groups.len() - 1];
    let wanted = groups.iter().copied().find(|&group| columns <= group).unwrap_or(widest);
    groups.iter().copied().rev().filter(|&group| group <= wanted).find_map(|group| {
        let stage_bytes = BAND * row_step + step / 32 * unit_bytes(group);
        let meeting = 4 * BAND * group;
        let stages = (limit.checked_sub(meeting)? / stage_bytes).min(MOST_STAGES);
        let shared = meeting + stages * stage_bytes;
        (stages >= 2).then_some(Cut { group, row_step, stage_bytes, stages, shared })
    })
}

/// Whether products that read the same columns, at most so many, can be computed here.
pub(super) fn suits(info: &CardInfo, products: &[Product], most: usize) -> bool {
    let suits = |product: &Product| {
        let Product { dtype, weights, x, .. } = product;
        let is_plain = matches!(dtype, DType::F16 | DType::BF16);
        // Plain rows are read in pieces of 16 bytes; blocks begin where their type may begin.
        let step = if is_plain { 16 } else { 1 };
        (is_plain || dtype.is_quantized())
            && weights.ne[0] % 32 == 0
            && x.ne[1] as usize <= most
            && x.dtype == DType::F32 as i32
            && x.nb[1] % 16 == 0
            && x.data.is_multiple_of(16)
            && (weights.nb[1] as u64 | weights.data).is_multiple_of(step)
            && weights.ne.iter().all(|&n| i32::try_from(n).is_ok())
    };
    let Some(first) = products.first() else { return false };
    products.len() <= 3
        && products.iter().all(suits)
        && cut(info, first.dtype, first.x.ne[1] as usize, is_aligned(products)).is_some()
}

/// Adds the launches of a product of any number of columns.
pub(super) fn launch_all(product: &Product, b: &mut Builder<'_>) -> Done {
    let columns = product.x.ne[1] as usize;
    let room = room(std::slice::from_ref(product), columns.min(MOST_AT_ONCE), b)?;
    for first in (0..columns).step_by(MOST_AT_ONCE) {
        let mut some = *product;
        some.x.ne[1] = MOST_AT_ONCE.min(columns - first) as i64;
        some.x.data += first as u64 * product.x.nb[1] as u64;
        some.y.data += first as u64 * product.y.nb[1] as u64;
        emit(&[some], room, b)?;
    }
    Ok(())
}

/// Adds the launches of products that read the same columns and are of one type.
pub(super) fn launch(products: &[Product], b: &mut Builder<'_>) -> Done {
    let columns = products.first().map_or(0, |first| first.x.ne[1] as usize);
    let room = room(products, columns, b)?;
    emit(products, room, b)
}

/// Scratch memory of a launch: columns as the kernel wants them, their scales, and sums of bands that blocks share.
#[derive(Clone, Copy)]
struct Room {
    columns: Address,
    scales: Address,
    sums: Address,
}

fn room(products: &[Product], columns: usize, b: &mut Builder<'_>) -> Result<Room, Refused> {
    let first = products.first().ok_or(Refused::Unsupported)?;
    let cut = cut(b.info(), first.dtype, columns, is_aligned(products)).ok_or(Refused::Unsupported)?;
    let (groups, k) = (columns.div_ceil(cut.group), first.weights.ne[0] as usize);
    let most_blocks = RESIDENT * b.info().multiprocessors as usize;
    Ok(Room {
        columns: b.scratch(groups * (k / 32) * unit_bytes(cut.group)),
        scales: b.scratch(4 * groups * cut.group),
        sums: b.scratch(groups * most_blocks * 2 * BAND * cut.group * 4),
    })
}

fn emit(products: &[Product], room: Room, b: &mut Builder<'_>) -> Done {
    let first = products.first().ok_or(Refused::Unsupported)?;
    let (dtype, k, columns) = (first.dtype, first.weights.ne[0] as usize, first.x.ne[1] as usize);
    let is_aligned = is_aligned(products);
    let cut = cut(b.info(), dtype, columns, is_aligned).ok_or(Refused::Unsupported)?;
    let groups = columns.div_ceil(cut.group);
    let group_bytes = k / 32 * unit_bytes(cut.group);
    let (norm, eps) = first.around.norm.unwrap_or((0, 0.0));
    let ready = BandColumnsParams {
        x: first.x.data,
        x_stride: first.x.nb[1],
        norm,
        to: room.columns.0,
        group_bytes: group_bytes as i64,
        scales: room.scales.0,
        k: k as i32,
        columns: columns as i32,
        group: cut.group as i32,
        brain: (dtype == DType::BF16).into(),
        norms: first.around.norm.is_some().into(),
        eps,
    };
    b.launch(Family::Columns, "band_columns", ([(groups * cut.group) as u32, 1, 1], 512, 0), &ready);
    let mut part = [Part::NONE; 3];
    for (part, product) in part.iter_mut().zip(products) {
        *part = Part::new(&product.weights, &product.y, product.around.bias, product.around.residual);
        part.tiles = (part.rows as usize).div_ceil(BAND) as i32;
    }
    let tiles = part.iter().map(|part| part.tiles as usize).sum::<usize>();
    let steps = k.div_ceil(step(dtype));
    let blocks = (RESIDENT * b.info().multiprocessors as usize).min(tiles * steps);
    let params = BandsParams {
        part,
        row_bytes: first.weights.nb[1],
        x: room.columns.0,
        x_group: group_bytes as i64,
        x_scales: room.scales.0,
        k: k as i32,
        columns: columns as i32,
        tiles: tiles as i32,
        steps: steps as i32,
        row_step: cut.row_step as i32,
        stage_bytes: cut.stage_bytes as i32,
        stages: cut.stages as i32,
        early: products.iter().all(|product| product.early).into(),
        aligned: is_aligned.into(),
        unused: 0,
        sums: room.sums.0,
        counters: b.counters(groups * tiles).ok_or(Refused::Unsupported)?.0,
    };
    let name = format!("bands_{}_{}", dtype.name(), cut.group);
    let grid = [blocks as u32, groups as u32, 1];
    b.launch(Family::Bands(dtype), name, (grid, THREADS, cut.shared as u32), &params);
    Ok(())
}
