use oxcart_tensor::Graph;

use super::*;
use crate::kernels::testing::{Input, decode, noise, run_every_way};

#[test]
fn ranges_count_up() {
    let found = run_every_way(&[], &[], |graph, _| graph.arange(-1.0, 29_999.5, 0.75).unwrap());
    let found = decode(DType::F32, &found);
    assert_eq!(found.len(), 40_001);
    assert!(found.iter().enumerate().all(|(i, &x)| x == -1.0 + 0.75 * i as f32));
}

#[test]
fn constants_fill_every_element() {
    for len in [1, 127, 128, 129, 30_000] {
        for dtype in [DType::F32, DType::F16] {
            let a = Input::of(dtype, len, &noise(len, 1));
            let fill = |graph: &mut Graph, leaves: &[_]| graph.fill(leaves[0], 0.1).unwrap();
            let found = decode(dtype, &run_every_way(&[a], &[0], fill));
            let wanted = if dtype == DType::F32 { 0.1 } else { to_f16(0.1).to_f32() };
            assert_eq!(found, vec![wanted; len]);
        }
    }
}

#[test]
fn triangles_keep_their_side_of_the_diagonal() {
    let a = noise(130 * 130 * 3, 2);
    for keep in [Triangle::UpperWithDiagonal, Triangle::Upper, Triangle::LowerWithDiagonal, Triangle::Lower] {
        let found = run_every_way(&[Input::f32([130, 130, 3], &a)], &[], |graph, leaves| {
            graph.tri(leaves[0], keep).unwrap()
        });
        for (i, y) in decode(DType::F32, &found).into_iter().enumerate() {
            let (column, row) = (i % 130, i / 130 % 130);
            let kept = match keep {
                Triangle::UpperWithDiagonal => column >= row,
                Triangle::Upper => column > row,
                Triangle::LowerWithDiagonal => column <= row,
                Triangle::Lower => column < row,
            };
            assert_eq!(y, if kept { a[i] } else { 0.0 });
        }
    }
}

#[test]
fn diagonals_stand_alone() {
    let a = noise(129 * 2, 2);
    let diag = |graph: &mut Graph, leaves: &[_]| graph.diag(leaves[0]).unwrap();
    let found = run_every_way(&[Input::f32([129, 1, 2], &a)], &[], diag);
    for (i, y) in decode(DType::F32, &found).into_iter().enumerate() {
        let (column, row, matrix) = (i % 129, i / 129 % 129, i / (129 * 129));
        assert_eq!(y, if column == row { a[matrix * 129 + row] } else { 0.0 });
    }
}

#[test]
fn masks_hide_later_columns() {
    let a = noise(300 * 100, 3);
    for n_past in [0, 5, 1000] {
        let build = |graph: &mut Graph, leaves: &[_]| graph.diag_mask_inf(leaves[0], n_past).unwrap();
        let found = run_every_way(&[Input::f32([300, 100], &a)], &[0], build);
        for (i, y) in decode(DType::F32, &found).into_iter().enumerate() {
            assert_eq!(y, if i % 300 > n_past + i / 300 { f32::NEG_INFINITY } else { a[i] });
        }
        let view = Input::f32([300, 100], &a).strided([150, 100], [4, 1200, 120_000, 120_000]);
        let build = |graph: &mut Graph, leaves: &[_]| {
            graph.apply_in_place(DiagMaskZero { n_past }, &[Some(leaves[0])]).unwrap()
        };
        for (i, y) in decode(DType::F32, &run_every_way(&[view], &[], build)).into_iter().enumerate() {
            let hidden = i % 300 < 150 && i % 300 > n_past + i / 300;
            assert_eq!(y, if hidden { 0.0 } else { a[i] });
        }
    }
}

#[test]
fn embeddings_are_cosines_then_sines() {
    let steps: Vec<f32> = (0..200u8).map(f32::from).collect();
    for dim in [1, 2, 7, 160] {
        let found = run_every_way(&[Input::f32(200, &steps)], &[], |graph, leaves| {
            graph.timestep_embedding(leaves[0], dim, 10_000).unwrap()
        });
        for (i, y) in decode(DType::F32, &found).into_iter().enumerate() {
            let (j, step, half) = (i % dim, i / dim, dim / 2);
            let angle = |j: usize| step as f64 * (-(10_000f64.ln()) * j as f64 / half as f64).exp();
            let exact = match j {
                j if j < half => angle(j).cos(),
                j if j < 2 * half => angle(j - half).sin(),
                _ => 0.0,
            };
            assert!((f64::from(y) - exact).abs() < 1e-4, "{y} instead of {exact}");
        }
    }
}
