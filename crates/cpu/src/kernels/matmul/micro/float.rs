//! Floats, on every instruction set: lanes are rows of weights, each column is one number in all lanes.

use super::super::format::{Columns, Weights, items};
use crate::simd::{Level, Simd};

/// Rows and columns of a tile on an instruction set: as many as there are registers for the sums.
pub(in super::super) const fn float_shape(level: Level) -> (usize, usize) {
    match level {
        Level::Scalar => (8, 4),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(_) => (16, 6),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512(_) => (32, 12),
        #[cfg(target_arch = "aarch64")]
        Level::Neon => (8, 8),
    }
}

/// Multiplies two panels of `f32`.
#[inline(always)]
pub(in super::super) fn multiply_floats<S: Simd>(
    s: S,
    weights: Weights<'_>,
    columns: Columns<'_>,
    tile: &mut [f32],
) {
    match S::LEVEL {
        Level::Scalar => multiply::<S, 8, 4>(s, weights, columns, tile),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(_) => multiply::<S, 2, 6>(s, weights, columns, tile),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512(_) => multiply::<S, 2, 12>(s, weights, columns, tile),
        #[cfg(target_arch = "aarch64")]
        Level::Neon => multiply::<S, 2, 8>(s, weights, columns, tile),
    }
}

#[inline(always)]
fn multiply<S: Simd, const VECS: usize, const COLS: usize>(
    s: S,
    weights: Weights<'_>,
    columns: Columns<'_>,
    tile: &mut [f32],
) {
    let rows = VECS * S::LANES;
    let (w, y): (&[f32], &[f32]) = (items(weights.codes), items(columns.codes));
    let mut sums = [[s.splat(0.0); VECS]; COLS];
    for (w, y) in w.chunks_exact(rows).zip(y.chunks_exact(COLS)) {
        let mut lanes = [s.splat(0.0); VECS];
        for (v, lanes) in lanes.iter_mut().enumerate() {
            *lanes = s.load(&w[v * S::LANES..]);
        }
        for j in 0..COLS {
            let y = s.splat(y[j]);
            for v in 0..VECS {
                sums[j][v] = s.mul_add(lanes[v], y, sums[j][v]);
            }
        }
    }
    let tile = &mut tile[..rows * COLS];
    for j in 0..COLS {
        for v in 0..VECS {
            s.store(sums[j][v], &mut tile[j * rows + v * S::LANES..]);
        }
    }
}
