//! Every instruction set against sums written out, on random and on the most extreme codes: the same bits, whatever the number
//! of columns.

use zerocopy::IntoBytes;

use super::*;
use crate::kernels::matmul::format::{Format, items_mut};
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
    cols: usize,
    mut code: impl FnMut(usize) -> i8,
) {
    let (shape, mins) = (code_shape(level, least, most, group), least < 0);
    if cols > shape.cols {
        return;
    }
    let format = Format {
        rows: shape.rows,
        cols,
        code: if shape.bytes { 1 } else { 2 },
        step: shape.step,
        reach: shape.reach,
        group,
        run,
        mins,
        offset: i32::from(shape.offset),
    };
    let k = 2 * run.max(64);
    let mut random = Random(group as u64);
    let mut number = || (random.bits() % 200) as f32 / 100.0 - 1.0;
    let mut codes = |count: usize, side: usize| -> Vec<Vec<i8>> {
        (0..count).map(|r| (0..k).map(|e| code(side + r * k + e)).collect()).collect()
    };
    let mut w = codes(shape.rows, 0);
    w.iter_mut().flatten().for_each(|code| *code = (*code).clamp(least, most));
    let y = codes(cols, 1);

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
        let (g, j) = (at / cols, at % cols);
        *correction = -format.offset
            * y[j][g * group..(g + 1) * group].iter().map(|&code| i32::from(code)).sum::<i32>();
    }

    let before: Vec<f32> = (0..shape.rows * cols).map(|_| number()).collect();
    let mut tile = before.clone();
    let (weights, columns) = (format.weights(weights, k), format.columns(columns, k, 0..k));
    multiply_codes(group, run, shape.bytes, level)(weights, columns, &mut tile);
    for (at, &found) in tile.iter().enumerate() {
        let (j, r) = (at / shape.rows, at % shape.rows);
        let mut wanted = before[at];
        for first in (0..k).step_by(run) {
            let mut part = 0f32;
            let groups = first / group..(first + run) / group;
            for g in groups.clone() {
                let dot: i32 =
                    (g * group..(g + 1) * group).map(|e| i32::from(w[r][e]) * i32::from(y[j][e])).sum();
                part = (dot as f32).mul_add(weights.scales[g * shape.rows + r], part);
            }
            wanted = part.mul_add(columns.scales[first / run * cols + j], wanted);
            for g in groups.filter(|_| mins) {
                wanted = weights.mins[g * shape.rows + r].mul_add(columns.sums[g * cols + j], wanted);
            }
        }
        assert!(
            found.to_bits() == wanted.to_bits(),
            "{level} groups of {group} in {run}, row {r}, column {j} of {cols}: {found}, not {wanted}"
        );
    }
}

#[test]
fn tiles_are_sums_of_products_in_one_order() {
    for level in Level::available() {
        for scaling in [(32, 32), (16, 32), (32, 256), (16, 256)] {
            for codes in [(-128, 127), (0, 15), (-8, 7), (0, 31), (-32, 31), (-62, 62), (0, 127)] {
                for cols in 1..=MAX_COLUMNS {
                    let mut random = Random(99);
                    check(level, codes, scaling, cols, |_| random.bits() as i8);
                    check(level, codes, scaling, cols, |_| -128);
                    check(level, codes, scaling, cols, |_| 127);
                    check(level, codes, scaling, cols, |at| if at % 3 == 0 { -128 } else { 127 });
                }
            }
        }
    }
}
