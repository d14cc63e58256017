use half::{bf16, f16};
use oxcart_tensor::ops::{Acc, Add, Div, Mul, Region, Set, Sub};
use oxcart_tensor::{DType, Graph, Layout, TensorId};

use super::*;
use crate::kernels::testing::{Input, Place, decode, encode, noise, run, run_every_way};

/// The definition of an op.
type Definition = fn(f32, f32) -> f32;

fn ops() -> [(Op, Definition); 4] {
    [
        (Add.into(), |a, b| a + b),
        (Sub.into(), |a, b| a - b),
        (Mul.into(), |a, b| a * b),
        (Div.into(), |a, b| a / b),
    ]
}

fn round(dtype: DType, x: f32) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(x).to_f32(),
        DType::BF16 => bf16::from_f32(x).to_f32(),
        _ => x,
    }
}

/// What a tensor holds, in logical order.
fn elements(input: &Input) -> Vec<f32> {
    let (layout, dtype) = (&input.layout, input.layout.dtype());
    let (ne, nb) = (layout.ne().extents(), layout.nb());
    let offset = |i: usize| {
        let at = [i % ne[0], i / ne[0] % ne[1], i / (ne[0] * ne[1]) % ne[2], i / (ne[0] * ne[1] * ne[2])];
        at.iter().zip(nb).map(|(i, nb)| i * nb).sum::<usize>()
    };
    (0..layout.elements())
        .map(|i| decode(dtype, &input.bytes[offset(i)..offset(i) + dtype.block_bytes()])[0])
        .collect()
}

/// Checks an op against its definition, whatever the layouts.
fn check(op: Op, f: Definition, a: &Input, b: &Input, y: DType) {
    let shared: Vec<usize> = [a, b]
        .iter()
        .enumerate()
        .filter(|(_, input)| input.layout == Layout::packed(y, a.layout.ne()).unwrap())
        .map(|(slot, _)| slot)
        .collect();
    let inputs = [a.clone(), b.clone()];
    let build = |graph: &mut Graph, leaves: &[TensorId]| {
        graph.apply_as(op, &[Some(leaves[0]), Some(leaves[1])], y).unwrap()
    };
    let found = decode(y, &run_every_way(&inputs, &shared, build));
    let (x, z) = (elements(a), elements(b));
    let (whole, part) = (a.layout.ne().extents(), b.layout.ne().extents());
    for (i, &found) in found.iter().enumerate() {
        let at = [i % whole[0], i / whole[0] % whole[1], i / (whole[0] * whole[1]) % whole[2]];
        let at = [
            at[0] % part[0],
            at[1] % part[1],
            at[2] % part[2],
            i / (whole[0] * whole[1] * whole[2]) % part[3],
        ];
        let j = at[0] + part[0] * (at[1] + part[1] * (at[2] + part[2] * at[3]));
        let wanted = round(y, f(x[i], z[j]));
        assert!(
            found == wanted || found.is_nan() && wanted.is_nan(),
            "{} {}: {found} {wanted}",
            a.layout,
            b.layout
        );
    }
}

#[test]
fn the_second_source_repeats_in_every_subset_of_dimensions() {
    let whole = [12, 6, 4, 2];
    let a = Input::f32(whole, &noise(576, 1));
    for subset in 0..3usize.pow(4) {
        let divisor = |dim: usize| match subset / 3usize.pow(dim as u32) % 3 {
            0 => 1,
            1 => whole[dim],
            _ => 2,
        };
        let part = [0, 1, 2, 3].map(|dim| whole[dim] / divisor(dim));
        let b = Input::f32(part, &noise(part.iter().product(), 2));
        let (op, f) = ops()[subset % 4];
        check(op, f, &a, &b, DType::F32);
    }
}

#[test]
fn every_combination_of_types_has_every_op() {
    use DType::{BF16, F16, F32};
    let combinations = [
        (F32, F32, F32),
        (F16, F16, F16),
        (F16, F32, F16),
        (F16, F32, F32),
        (BF16, BF16, BF16),
        (BF16, F32, BF16),
        (BF16, F32, F32),
    ];
    for (a, b, y) in combinations {
        for (op, f) in ops() {
            for part in [[130, 3], [130, 1]] {
                let a = Input::of(a, [130, 3], &noise(390, 3));
                let b = Input::of(b, part, &noise(part[0] * part[1], 4));
                check(op, f, &a, &b, y);
            }
        }
    }
}

#[test]
fn threads_and_shared_memory_change_nothing() {
    for len in [1, 127, 128, 129, 1000] {
        let rows = 26_000 / len + 1;
        for (dtype, (op, f)) in [DType::F32, DType::F16, DType::BF16].into_iter().zip(ops()) {
            let a = Input::of(dtype, [len, rows], &noise(len * rows, 5));
            for part in [[len, rows], [len, 1], [1, rows], [1, 1]] {
                let b = Input::of(dtype, part, &noise(part[0] * part[1], 6));
                check(op, f, &a, &b, dtype);
            }
        }
    }
}

#[test]
fn one_tensor_may_be_both_sources_and_the_result() {
    let x = noise(30_000, 7);
    let square = |graph: &mut Graph, leaves: &[TensorId]| graph.mul(leaves[0], leaves[0]).unwrap();
    let found = decode(DType::F32, &run_every_way(&[Input::f32([100, 300], &x)], &[0], square));
    assert!(found.iter().zip(&x).all(|(y, x)| *y == x * x));
}

#[test]
fn the_second_source_may_have_any_strides() {
    let a = Input::f32([150, 200], &noise(30_000, 1));
    let b = Input::f32(60_000, &noise(60_000, 2));
    let layouts = [
        ([150, 200], [8, 1200, 0, 0]), // every second element
        ([150, 200], [800, 4, 0, 0]),  // transposed
        ([150, 200], [4, 0, 0, 0]),    // one row, by stride
        ([150, 200], [0, 4, 0, 0]),    // one number per row, by stride
        ([75, 200], [8, 600, 0, 0]),   // strided and repeated along a row
        ([75, 1], [4, 4, 0, 0]),       // part of a row, repeated
        ([1, 200], [4, 8, 0, 0]),      // every second number
        ([150, 50], [4, 1000, 0, 0]),  // padded rows, repeated
    ];
    for ((ne, nb), (op, f)) in layouts.into_iter().zip(ops().into_iter().cycle()) {
        check(op, f, &a, &b.clone().strided(ne, nb), DType::F32);
        let wide = Input::of(DType::F16, [150, 200], &noise(30_000, 3));
        check(op, f, &wide, &b.clone().strided(ne, nb), DType::F16);
    }
}

#[test]
fn padded_rows_are_changed_in_place() {
    let x = noise(200 * 150, 1);
    let a = Input::f32(x.len(), &x).strided([129, 200], [4, 600, 120_000, 120_000]);
    let b = Input::f32([129, 1], &noise(129, 2));
    let build = |graph: &mut Graph, leaves: &[TensorId]| {
        graph.apply_in_place(Add, &[Some(leaves[0]), Some(leaves[1])]).unwrap()
    };
    let found = decode(DType::F32, &run_every_way(&[a, b.clone()], &[], build));
    let b = elements(&b);
    for (i, y) in found.into_iter().enumerate() {
        assert_eq!(y, x[i] + if i % 150 < 129 { b[i % 150] } else { 0.0 });
    }
}

#[test]
fn one_number_is_added_to_all() {
    let x = noise(30_000, 1);
    let build = |graph: &mut Graph, leaves: &[TensorId]| graph.add1(leaves[0], leaves[1]).unwrap();
    for (dtype, other) in [(DType::F32, DType::F32), (DType::F16, DType::F32), (DType::BF16, DType::BF16)] {
        let inputs = [Input::of(dtype, [100, 300], &x), Input::of(other, 1, &[0.25])];
        let found = decode(dtype, &run_every_way(&inputs, &[0], build));
        assert!(found.iter().zip(&x).all(|(y, x)| *y == round(dtype, round(dtype, *x) + 0.25)), "{dtype}");
    }
    let inputs = [Input::f32(1, &[2.0]), Input::f32(1, &[0.25])];
    assert_eq!(decode(DType::F32, &run_every_way(&inputs, &[0, 1], build)), [2.25]);
    let inputs = [Input::of(DType::Q8_0, [96, 300], &x[..28_800]), Input::f32(1, &[0.25])];
    let found = decode(DType::Q8_0, &run_every_way(&inputs, &[0], build));
    assert!(found.iter().zip(&x).all(|(y, x)| (y - x - 0.25).abs() < 0.05));
}

#[test]
fn quantized_tensors_take_sums() {
    let (ne, x, z) = ([512, 60], noise(30_720, 1), noise(30_720, 2));
    let b = Input::f32(ne, &z);
    for dtype in [DType::Q4_0, DType::Q8_0, DType::Q6_K, DType::MXFP4] {
        let a = Input::of(dtype, ne, &x);
        let exact: Vec<f32> = decode(dtype, &a.bytes).iter().zip(&z).map(|(x, z)| x + z).collect();
        for to in [dtype, DType::F32, DType::F16, DType::Q5_1] {
            let mut shared = if to == DType::F32 { vec![1] } else { vec![] };
            shared.extend((to == dtype).then_some(0));
            let found = run_every_way(&[a.clone(), b.clone()], &shared, |graph, leaves| {
                graph.add_cast(leaves[0], leaves[1], to).unwrap()
            });
            let wanted: Vec<u8> = exact.chunks(512).flat_map(|row| encode(to, row)).collect();
            assert!(found == wanted, "{dtype} to {to}");
        }
    }
}

#[test]
fn sums_that_no_block_can_hold_are_errors() {
    let a = Input::of(DType::Q8_0, [32, 2], &[1.0; 64]);
    let mut b = [0.0; 64];
    b[40] = f32::NAN;
    for level in Level::available() {
        let refused = run(level, 2, &[a.clone(), Input::f32([32, 2], &b)], Place::Fresh, |graph, leaves| {
            graph.add(leaves[0], leaves[1]).unwrap()
        });
        assert!(refused.unwrap_err().to_string().contains("finite"));
    }
}

fn add_id(graph: &mut Graph, leaves: &[TensorId]) -> TensorId {
    graph.add_id(leaves[0], leaves[1], leaves[2]).unwrap()
}

#[test]
fn chosen_rows_are_added() {
    for len in [1, 127, 128, 129, 1000] {
        let (used, tokens, rows) = (3, 9_000 / len + 1, 17);
        let (x, z) = (noise(len * used * tokens, 1), noise(len * rows, 2));
        // A window of a wider table of ids.
        let ids: Vec<i32> = (0..5 * tokens as i32).map(|i| i * 7 % rows as i32).collect();
        let window = Input::i32([5, tokens], &ids).strided([used, tokens], [4, 20, 0, 0]);
        let inputs = [Input::f32([len, used, tokens], &x), Input::f32([len, rows], &z), window];
        let found = decode(DType::F32, &run_every_way(&inputs, &[0], add_id));
        for (i, y) in found.into_iter().enumerate() {
            let (column, slot, token) = (i % len, i / len % used, i / (len * used));
            assert_eq!(y, x[i] + z[ids[5 * token + slot] as usize * len + column]);
        }
    }
}

#[test]
fn chosen_rows_may_be_the_memory_of_the_result() {
    let rows = 300;
    let ids: Vec<i32> = (0..rows).rev().collect();
    let inputs = [
        Input::f32([100, 300], &noise(30_000, 1)),
        Input::f32([100, 300], &noise(30_000, 2)),
        Input::i32([300, 1], &ids),
    ];
    run_every_way(&inputs, &[0, 1], add_id);
}

#[test]
fn bad_ids_are_errors() {
    for bad in [-1, 4, i32::MIN, i32::MAX] {
        let inputs =
            [Input::f32([8, 2], &[1.0; 16]), Input::f32([8, 4], &[2.0; 32]), Input::i32([2, 1], &[3, bad])];
        for level in Level::available() {
            let refused = run(level, 3, &inputs, Place::Fresh, add_id).unwrap_err().to_string();
            assert!(refused.contains(&format!("row id {bad} is not below 4")), "{refused}");
        }
    }
}

#[test]
fn windows_are_written_and_added() {
    let (x, z) = (noise(40_000, 1), noise(9_000, 2));
    // Rows of 30 numbers, scattered: whole planes first, then rows.
    let region = Region { strides: [40_000, 400, 0], offset: 44 };
    let place = |i: usize| 11 + i % 30 + i / 30 % 4 * 10_000 + i / 120 * 100;
    let inputs = [Input::f32([100, 400], &x), Input::f32([30, 4, 75], &z)];
    let (set, acc) = (Op::from(Set(region)), Op::from(Acc(region)));
    for op in [set, acc] {
        let fresh = run_every_way(&inputs, &[], |graph, leaves| {
            graph.apply(op, &[Some(leaves[0]), Some(leaves[1])]).unwrap()
        });
        let in_place = run_every_way(&inputs, &[], |graph, leaves| {
            graph.apply_in_place(op, &[Some(leaves[0]), Some(leaves[1])]).unwrap()
        });
        assert!(fresh == in_place);
        let mut wanted = x.clone();
        for (i, z) in z.iter().enumerate() {
            wanted[place(i)] = if op == set { *z } else { wanted[place(i)] + z };
        }
        assert_eq!(decode(DType::F32, &fresh), wanted);
    }
    let ids: Vec<i32> = (0..40_000).collect();
    let inputs = [Input::i32(40_000, &ids), Input::i32(9_000, &ids[..9_000])];
    let found = run_every_way(&inputs, &[], |graph, leaves| {
        graph.set(leaves[0], leaves[1], Region { strides: [0; 3], offset: 4_000 }).unwrap()
    });
    let found: Vec<i32> =
        found.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    assert!(
        found
            .iter()
            .enumerate()
            .all(|(i, &y)| y as usize == if (1_000..10_000).contains(&i) { i - 1_000 } else { i })
    );
}

#[test]
fn a_tensor_may_be_added_to_itself_in_another_order() {
    let x = noise(200 * 170, 1);
    // One plane of single numbers, so that rows and planes may change places.
    let region = Region { strides: [170 * 4, 4, 0], offset: 0 };
    let found = run_every_way(&[Input::f32([1, 200, 170], &x)], &[], |graph, leaves| {
        graph.apply_in_place(Acc(region), &[Some(leaves[0]), Some(leaves[0])]).unwrap()
    });
    for (i, y) in decode(DType::F32, &found).into_iter().enumerate() {
        assert_eq!(y, x[i] + x[i / 170 + i % 170 * 200]);
    }
}
