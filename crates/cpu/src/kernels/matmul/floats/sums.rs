//! Products of rows of numbers, added up in sixteen partial sums per result.
//!
//! Invariant: element `i` of a row is multiplied with element `i` of a column and added to partial sum `i % 16`, in ascending
//! order, with one rounding. A row that ends before its sixteen are full goes on with zeros. The partial sums are added in one
//! tree ([`Lanes::total`]). So a result does not depend on the instruction set, on the rows and columns beside it, or on where
//! a row is cut, as long as that is at a multiple of sixteen.
#![allow(
    clippy::needless_range_loop,
    reason = "rows and columns of tiles are what the reader follows, and loops over them are unrolled"
)]

use half::{bf16, f16};
use oxcart_tensor::DType;
use zerocopy::IntoBytes;

use crate::kernels::dot::float::{Floats, padded, whole};
use crate::kernels::dot::lanes::Lanes;
use crate::simd::{Level, for_each_level, prefetch_at};

/// Partial sums of a result.
pub(super) const SUMS: usize = 16;

/// The most rows times columns of a tile.
pub(super) const MAX_TILE: usize = 24;

/// The most columns of a tile.
pub(super) const MAX_TILE_COLUMNS: usize = 6;

/// The most columns of a tile on an instruction set.
pub(super) const fn tile_columns(level: Level) -> usize {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512(_) => 6,
        Level::Scalar => 4,
        _ => 3,
    }
}

/// Rows of a tile, so that there are registers for the sums: if there are so many columns in all, in tiles of equal width.
pub(super) const fn tile_rows(level: Level, columns: usize) -> usize {
    match (level, columns) {
        #[cfg(target_arch = "x86_64")]
        (Level::Avx512(_), ..=3) => 8,
        #[cfg(target_arch = "x86_64")]
        (Level::Avx512(_), _) => 4,
        (Level::Scalar, _) => 1,
        (_, ..=1) => 4,
        (_, 2) => 3,
        _ => 2,
    }
}

/// Adds the products of some rows of weights with as many numbers of some columns to partial sums, which lie by column, then by
/// row. There are as many rows as [`tile_rows`] says. Sums start at zero where these numbers are the first.
pub(super) type AddProducts = fn(&[&[u8]], &[&[f32]], &mut [f32], bool);

/// How rows of a type are multiplied on an instruction set.
pub(super) fn add_products(dtype: DType, level: Level) -> Option<AddProducts> {
    Some(match dtype {
        DType::F32 => add_at::<f32>(level),
        DType::F16 => add_at::<f16>(level),
        DType::BF16 => add_at::<bf16>(level),
        _ => return None,
    })
}

fn add_at<W: Floats>(level: Level) -> AddProducts {
    for_each_level!(
        add[W: Floats]: fn(rows: &[&[u8]], columns: &[&[f32]], sums: &mut [f32], is_first: bool)
    )
    .at(level)
}

#[inline(always)]
fn add<S: Lanes, W: Floats>(s: S, rows: &[&[u8]], columns: &[&[f32]], sums: &mut [f32], is_first: bool) {
    /// Tiles of these rows and columns.
    macro_rules! tiles {
        ($($rows:literal x $columns:literal),+) => {
            match (rows.len(), columns.len()) {
                $(($rows, $columns) => tile::<S, W, $rows, $columns>(s, rows, columns, sums, is_first),)+
                (rows, columns) => unreachable!("no tiles of {rows} rows and {columns} columns on {}", S::LEVEL),
            }
        };
    }
    if S::IS_SCALAR {
        tiles!(1 x 1, 1 x 2, 1 x 3, 1 x 4)
    } else if S::IS_AVX512 {
        tiles!(8 x 1, 8 x 2, 8 x 3, 4 x 3, 4 x 4, 4 x 5, 4 x 6)
    } else {
        tiles!(4 x 1, 3 x 2, 2 x 2, 2 x 3)
    }
}

/// How many bytes of a row memory is asked for before they are needed.
const AHEAD: usize = 1024;

#[inline(always)]
fn tile<S: Lanes, W: Floats, const R: usize, const C: usize>(
    s: S,
    rows: &[&[u8]],
    columns: &[&[f32]],
    sums: &mut [f32],
    is_first: bool,
) {
    let (sums, _) = sums[..C * R * SUMS].as_chunks_mut::<SUMS>();
    let (mut w, mut w_rest): ([&[W::Sixteen]; R], [&[u8]; R]) = ([&[]; R], [&[]; R]);
    let (mut y, mut y_rest): ([&[[u8; 64]]; C], [&[u8]; C]) = ([&[]; C], [&[]; C]);
    for c in 0..C {
        (y[c], y_rest[c]) = whole::<f32>(columns[c].as_bytes());
    }
    let count = y[0].len();
    for c in 0..C {
        y[c] = &y[c][..count];
    }
    for r in 0..R {
        (w[r], w_rest[r]) = whole::<W>(rows[r]);
        w[r] = &w[r][..count];
    }
    let mut totals = [[s.no_floats(); R]; C];
    for c in 0..if is_first { 0 } else { C } {
        for r in 0..R {
            totals[c][r] = s.load_f32s(zerocopy::transmute_ref!(&sums[c * R + r]));
        }
    }
    for i in 0..count {
        let mut lanes = [s.no_floats(); R];
        for r in 0..R {
            prefetch_at(w[r].as_ptr().cast(), i * size_of::<W::Sixteen>() + AHEAD);
            lanes[r] = W::load(s, &w[r][i]);
        }
        for c in 0..C {
            let y = s.load_f32s(&y[c][i]);
            for r in 0..R {
                totals[c][r] = s.fused(lanes[r], y, totals[c][r]);
            }
        }
    }
    if !y_rest[0].is_empty() {
        for r in 0..R {
            let lanes = W::load(s, &padded::<W>(w_rest[r]));
            for c in 0..C {
                let y = s.load_f32s(&padded::<f32>(y_rest[c]));
                totals[c][r] = s.fused(lanes, y, totals[c][r]);
            }
        }
    }
    for c in 0..C {
        for r in 0..R {
            s.store_f32s(totals[c][r], &mut sums[c * R + r]);
        }
    }
}

/// What partial sums add up to, in their order.
pub(super) type Totals = fn(&[f32], &mut [f32]);

/// How partial sums are added up on an instruction set.
pub(super) fn totals(level: Level) -> Totals {
    for_each_level!(add_up: fn(sums: &[f32], totals: &mut [f32])).at(level)
}

#[inline(always)]
fn add_up<S: Lanes>(s: S, sums: &[f32], totals: &mut [f32]) {
    let (sums, _) = sums.as_chunks::<SUMS>();
    let (sums, totals) = (&sums[..totals.len()], totals);
    let (wide, wide_rest) = sums.as_chunks::<16>();
    let (to, to_rest) = totals.as_chunks_mut::<16>();
    for (sums, totals) in wide.iter().zip(to) {
        let mut vectors = [s.no_floats(); 16];
        for i in 0..16 {
            vectors[i] = s.load_f32s(zerocopy::transmute_ref!(&sums[i]));
        }
        *totals = s.totals(vectors);
    }
    for (sums, total) in wide_rest.iter().zip(to_rest) {
        *total = s.total(s.load_f32s(zerocopy::transmute_ref!(sums)));
    }
}

/// Numbers of a type as `f32`.
pub(super) type Widen = fn(&[u8], &mut [f32]);

/// How numbers of a type are widened on an instruction set.
pub(super) fn widen(dtype: DType, level: Level) -> Option<Widen> {
    Some(match dtype {
        DType::F32 => widen_at::<f32>(level),
        DType::F16 => widen_at::<f16>(level),
        DType::BF16 => widen_at::<bf16>(level),
        _ => return None,
    })
}

fn widen_at<W: Floats>(level: Level) -> Widen {
    for_each_level!(widen_row[W: Floats]: fn(from: &[u8], to: &mut [f32])).at(level)
}

#[inline(always)]
fn widen_row<S: Lanes, W: Floats>(s: S, from: &[u8], to: &mut [f32]) {
    let (from, from_rest) = whole::<W>(from);
    let (to, to_rest) = to.as_chunks_mut::<16>();
    for (from, to) in from.iter().zip(to) {
        s.store_f32s(W::load(s, from), to);
    }
    let mut last = [0.0; 16];
    s.store_f32s(W::load(s, &padded::<W>(from_rest)), &mut last);
    to_rest.copy_from_slice(&last[..to_rest.len()]);
}
