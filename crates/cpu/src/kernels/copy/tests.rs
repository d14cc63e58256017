//! Copies against the plainest possible copy: unit by unit in logical order.

use oxcart_tensor::ops::{Cast, Cont, Cpy, Dup};
use oxcart_tensor::{DType, Layout};

use crate::kernels::testing::{Tensor, Trial, compute, encode};

/// Layouts of some shape that packed, padded, turned and broadcast tensors have.
fn layouts(dtype: DType, ne: [usize; 4]) -> Vec<Layout> {
    let (len, unit) = (dtype.block_len(), dtype.block_bytes());
    let mut layouts = vec![Layout::packed(dtype, ne).unwrap()];
    let row = ne[0] / len * unit;
    let padded = [unit, row + 2 * unit, (row + 2 * unit) * ne[1], (row + 2 * unit) * (ne[1] * ne[2] + 1)];
    layouts.push(Layout::strided(dtype, ne, padded).unwrap());
    // Laid out in another order of dimensions, seen in this one.
    let orders = [[0, 2, 1, 3], [0, 3, 2, 1], [1, 0, 2, 3], [2, 0, 1, 3], [3, 1, 2, 0], [1, 2, 3, 0]];
    for order in orders.into_iter().filter(|order| len == 1 || order[0] == 0) {
        let turned = Layout::packed(dtype, order.map(|axis| ne[axis])).unwrap();
        layouts.push(turned.permuted(order).unwrap());
    }
    layouts
}

fn shapes(dtype: DType) -> Vec<[usize; 4]> {
    let len = dtype.block_len();
    vec![[5 * len, 7, 3, 2], [6 * len, 35, 1, 1], [len, 210, 1, 1], [42 * len, 5, 1, 1], [35 * len, 2, 1, 3]]
}

fn copied(source: &Tensor, target: &Tensor) -> Tensor {
    let result = compute(Cpy, &[source, target]);
    assert!(result.has_gaps_of(target), "gaps were written");
    result
}

#[test]
fn bytes_move_in_logical_order_between_any_layouts_and_shapes() {
    for dtype in [DType::I8, DType::F16, DType::F32, DType::I64, DType::Q4_0, DType::Q6_K] {
        let shapes = shapes(dtype);
        for (number, &from) in shapes.iter().enumerate() {
            // Its own shape and the next, so that every shape is there twice on either side.
            let to_shapes = [from, shapes[(number + 1) % shapes.len()]];
            for from in layouts(dtype, from) {
                let source = Tensor::pattern(from);
                for to in to_shapes.into_iter().flat_map(|to| layouts(dtype, to)) {
                    let result = copied(&source, &Tensor::pattern(to));
                    assert_eq!(result.units(), source.units(), "{from} to {to}");
                }
            }
        }
    }
}

#[test]
fn large_transpositions_are_tiled_right() {
    for dtype in [DType::I8, DType::BF16, DType::I32, DType::F64] {
        for ne in [[67, 131, 2, 1], [33, 1, 2, 65], [128, 64, 1, 1]] {
            for from in layouts(dtype, ne) {
                let source = Tensor::pattern(from);
                for to in layouts(dtype, ne) {
                    let result = copied(&source, &Tensor::pattern(to));
                    assert_eq!(result.units(), source.units(), "{from} to {to}");
                }
            }
        }
    }
}

#[test]
fn a_repeated_source_is_read_over_and_over() {
    let source = Tensor::pattern(Layout::strided(DType::F32, [5, 300, 2, 1], [0, 4, 0, 0]).unwrap());
    let result = compute(Dup, &[&source]);
    assert_eq!(result.units(), source.units());
    let result = compute(Cast { dtype: DType::F16 }, &[&source]);
    assert_eq!(result.values(), source.values());
}

#[test]
fn dup_and_cont_pack() {
    for dtype in [DType::F32, DType::Q8_0] {
        for layout in layouts(dtype, shapes(dtype)[0]) {
            let source = Tensor::pattern(layout);
            for result in [
                compute(Dup, &[&source]),
                compute(Cont { ne: layout.ne() }, &[&source]),
                compute(Cont { ne: [dtype.block_len() * 30, 7].into() }, &[&source]),
            ] {
                assert!(result.layout.is_contiguous());
                assert_eq!(result.units(), source.units());
            }
        }
    }
}

#[test]
fn a_tensor_copied_onto_itself_stays() {
    let source = Tensor::pattern(layouts(DType::F32, [5, 7, 3, 2])[2]);
    let result = Trial::of(Dup, &[&source]).over(&[0]).same();
    assert_eq!(result.units(), source.units());
}

#[test]
fn numbers_convert_between_any_layouts_and_shapes() {
    use DType::{BF16, F16, F32, I32};
    let pairs =
        [(F32, F16), (F32, BF16), (F16, F32), (F16, BF16), (BF16, F32), (BF16, F16), (F32, I32), (I32, F32)];
    for (from_type, to_type) in pairs {
        for from in shapes(from_type).into_iter().flat_map(|ne| layouts(from_type, ne)) {
            let source = Tensor::pattern(from);
            let expected = encode(to_type, &source.values());
            for to in [[15, 7, 2, 1], [2, 35, 3, 1], from.ne().extents()]
                .into_iter()
                .flat_map(|ne| layouts(to_type, ne))
            {
                let result = copied(&source, &Tensor::pattern(to));
                assert_eq!(result.units().concat(), expected, "{from} to {to}");
            }
        }
    }
}

#[test]
fn integers_truncate_and_saturate() {
    let source = Tensor::packed(DType::F32, 7, &[1.9, -1.9, 3e9, -3e9, f32::NAN, f32::INFINITY, -0.0]);
    let result = compute(Cast { dtype: DType::I32 }, &[&source]);
    assert_eq!(result.i32s(), [1, -1, i32::MAX, i32::MIN, 0, i32::MAX, 0]);
}

#[test]
fn every_block_type_is_made_from_every_float() {
    for to_type in DType::all().filter(|dtype| dtype.is_quantized() && dtype.encodes_at_run_time()) {
        let len = to_type.block_len();
        for from_type in [DType::F32, DType::F16, DType::BF16] {
            let sources = layouts(from_type, [3 * len, 2, 2, 1]).into_iter();
            // Packed, padded, permuted.
            for from in sources.filter(Layout::has_contiguous_rows).take(3) {
                let source = Tensor::pattern(from);
                for to in [[len, 2, 3, 2], [12 * len, 1, 1, 1]] {
                    let to = Layout::packed(to_type, to).unwrap();
                    let result = copied(&source, &Tensor::pattern(to));
                    assert_eq!(result.bytes, encode(to_type, &source.values()), "{from} to {to}");
                }
            }
        }
    }
}

#[test]
fn every_block_type_expands() {
    for from_type in DType::all().filter(|dtype| dtype.is_quantized() && dtype.decodes()) {
        let len = from_type.block_len();
        for from in layouts(from_type, [3 * len, 5, 2, 1]) {
            // Bytes of a pattern can be scales of NaN, so compare bits.
            let source = Tensor::pattern(from);
            let expected: Vec<_> = source.values().iter().map(|x| x.to_bits()).collect();
            let strided = [4, 4 * (2 * len + 3), 4 * (2 * len + 3) * 3, 4 * (2 * len + 3) * 3 * 5];
            for to in [
                Layout::packed(DType::F32, [3 * len, 5, 2]).unwrap(),
                Layout::packed(DType::F32, [15, 2 * len, 1]).unwrap(),
                Layout::strided(DType::F32, [2 * len, 3, 5], strided).unwrap(),
            ] {
                let result = copied(&source, &Tensor::pattern(to));
                assert_eq!(result.units_as(u32::from_le_bytes), expected, "{from} to {to}");
            }
        }
    }
}

#[test]
fn what_blocks_cannot_hold_is_an_error() {
    let mut values = vec![1.0; 640];
    values[300] = f32::NAN;
    let source = Tensor::packed(DType::F32, [320, 2], &values);
    let fault = Trial::of(Cast { dtype: DType::Q8_0 }, &[&source]).refused();
    assert!(fault.ends_with("value 300 of the row is not finite"), "{fault}");
}

#[test]
fn seventy_thousand_rows() {
    let source = Tensor::pattern(Layout::packed(DType::F16, [3, 70_000]).unwrap());
    let turned = source.clone().seen_as(source.layout.transposed().unwrap());
    let result = compute(Dup, &[&turned]);
    assert_eq!(result.units(), turned.units());
    let result = compute(Cast { dtype: DType::F32 }, &[&turned]);
    assert_eq!(result.values(), turned.values());
}
