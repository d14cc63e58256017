//! Every instruction set against sums written out, on random and on the most extreme codes.

use zerocopy::IntoBytes;

use super::*;
use crate::kernels::matmul::format::{Format, Groups, items_mut};
use crate::kernels::matmul::tests::Random;

/// Codes of rows or columns in the order of a panel.
fn lay_out(codes: &[Vec<i8>], shape: CodeShape, plus: u8, out: &mut [u8]) {
    let (count, k) = (codes.len(), codes[0].len());
    for (r, codes) in codes.iter().enumerate() {
        for e in 0..k {
            let at = (e / shape.step * count + r) * shape.step + e % shape.step;
            if shape.bytes {
                out[at] = (codes[e] as u8).wrapping_add(plus);
            } else {
                items_mut::<i16>(out)[at] = i16::from(codes[e]);
            }
        }
    }
}

fn check(
    level: Level,
    (least, most): (i8, i8),
    (group, run): (usize, usize),
    mut code: impl FnMut(usize) -> i8,
) {
    let (shape, mins) = (code_shape(level, least, most), least < 0);
    let groups = Groups { group, run, mins, offset: i32::from(shape.offset) };
    let format = Format {
        rows: shape.rows,
        cols: shape.cols,
        code: if shape.bytes { 1 } else { 2 },
        step: shape.step,
        reach: shape.reach,
        groups: Some(groups),
    };
    let k = 2 * run.max(64);
    let mut random = Random(group as u64);
    let mut number = || (random.bits() % 200) as f32 / 100.0 - 1.0;
    let mut codes = |count: usize, side: usize| -> Vec<Vec<i8>> {
        (0..count).map(|r| (0..k).map(|e| code(side + r * k + e)).collect()).collect()
    };
    let mut w = codes(shape.rows, 0);
    w.iter_mut().flatten().for_each(|code| *code = (*code).clamp(least, most));
    let y = codes(shape.cols, 1);

    // Scratch memory is made of numbers, so that it is aligned.
    let mut weights = vec![0f32; format.weight_bytes(k) / 4];
    let mut columns = vec![0f32; format.column_bytes(k) / 4];
    let (weights, columns) = (weights.as_mut_bytes(), columns.as_mut_bytes());
    let to = format.weights_mut(weights, k);
    lay_out(&w, shape, shape.offset, to.codes);
    to.scales.iter_mut().chain(to.mins).for_each(|scale| *scale = number());
    let to = format.columns_mut(columns, k);
    lay_out(&y, shape, 0, to.codes);
    to.scales.iter_mut().chain(to.sums).for_each(|scale| *scale = number());
    for (at, correction) in to.corrections.iter_mut().enumerate() {
        let (g, j) = (at / shape.cols, at % shape.cols);
        *correction = -groups.offset
            * y[j][g * group..(g + 1) * group].iter().map(|&code| i32::from(code)).sum::<i32>();
    }

    let mut tile = vec![0.0; shape.rows * shape.cols];
    let (weights, columns) = (format.weights(weights, k), format.columns(columns, k, 0..k));
    multiply_codes(group, run, shape.bytes, level)(weights, columns, &mut tile);
    for (at, &found) in tile.iter().enumerate() {
        let (j, r) = (at / shape.rows, at % shape.rows);
        let (mut exact, mut size) = (0f64, 1f64);
        for g in 0..k / group {
            let dot: i32 =
                (g * group..(g + 1) * group).map(|e| i32::from(w[r][e]) * i32::from(y[j][e])).sum();
            let scale = f64::from(weights.scales[g * shape.rows + r])
                * f64::from(columns.scales[g * group / run * shape.cols + j]);
            let min = match mins {
                true => {
                    f64::from(weights.mins[g * shape.rows + r]) * f64::from(columns.sums[g * shape.cols + j])
                }
                false => 0.0,
            };
            exact += f64::from(dot) * scale + min;
            size += (f64::from(dot) * scale).abs() + min.abs();
        }
        assert!(
            (f64::from(found) - exact).abs() < 1e-5 * size,
            "{level} groups of {group} in {run}, row {r}, column {j}: {found}, not {exact}"
        );
    }
}

#[test]
fn tiles_are_sums_of_products() {
    for level in Level::available() {
        for scaling in [(32, 32), (16, 32), (32, 256), (16, 256)] {
            for codes in [(-128, 127), (0, 15), (-8, 7), (0, 31), (-32, 31), (-62, 62), (0, 127)] {
                let mut random = Random(99);
                check(level, codes, scaling, |_| random.bits() as i8);
                check(level, codes, scaling, |_| -128);
                check(level, codes, scaling, |_| 127);
                check(level, codes, scaling, |at| if at % 3 == 0 { -128 } else { 127 });
            }
        }
    }
}
