//! Products of some columns: every type of weights, columns that fill groups and that do not, bands that blocks share.

use oxcart_tensor::quant::quantize_row;
use oxcart_tensor::{DType, Graph, TensorId};

use super::twins::{Leaf, Noise, check, compute, floats};

/// Weights of any type that numbers can be turned into; `None` for the others.
fn weights(dtype: DType, k: usize, m: usize, seed: u64) -> Option<Leaf> {
    let mut numbers = Noise(seed).numbers(k * m);
    numbers.iter_mut().for_each(|x| *x *= 1.7 / (k as f32).sqrt());
    let mut bytes = vec![0; dtype.row_bytes(k)? * m];
    let rows = numbers.chunks(k).zip(bytes.chunks_mut(dtype.row_bytes(k)?));
    let importance = vec![1.0; k];
    for (numbers, row) in rows {
        quantize_row(dtype, numbers, Some(&importance), row).ok()?;
    }
    Some(Leaf { dtype, ne: [k, m].into(), bytes, usage_weights: true })
}

/// Two products that read the same columns.
fn build(graph: &mut Graph, ids: &[TensorId]) -> Vec<TensorId> {
    vec![graph.mul_mat(ids[0], ids[2]).unwrap(), graph.mul_mat(ids[1], ids[2]).unwrap()]
}

#[test]
fn some_columns_of_every_type() {
    let mut tried = 0;
    for (index, dtype) in DType::all().enumerate() {
        let is_known = matches!(dtype, DType::F16 | DType::BF16) || (dtype.is_quantized() && dtype.decodes());
        // Whole steps of a row and a rest, whole bands of rows and a rest.
        let (k, m, columns) =
            ([512, 768, 256][index % 3], [70, 128, 33][index % 3], [9, 31, 64, 16, 33][index % 5]);
        let (Some(a), Some(b)) = (weights(dtype, k, m, 1), weights(dtype, k, 64, 2)) else { continue };
        if !is_known {
            continue;
        }
        let leaves = [a, b, Leaf::noise(DType::F32, [k, columns], 3)];
        // The CPU rounds columns to bytes; here they keep eleven bits.
        let ran = check(&format!("{dtype} {k} {m} {columns}"), &leaves, &build, 1e-4);
        assert!(ran.is_empty() || ran.iter().any(|name| name.starts_with("bands_")), "{dtype}: {ran:?}");
        tried += 1;
    }
    assert!(tried > 15, "{tried} types");
}

#[test]
fn rows_that_begin_anywhere_and_end_within_a_step() {
    for (dtype, k) in
        [(DType::Q8_0, 96), (DType::Q4_0, 288), (DType::Q5_1, 32), (DType::F16, 160), (DType::MXFP4, 352)]
    {
        let (Some(a), Some(b)) = (weights(dtype, k, 65, 1), weights(dtype, k, 7, 2)) else { continue };
        let leaves = [a, b, Leaf::noise(DType::F32, [k, 20], 3)];
        check(&format!("{dtype} {k}"), &leaves, &build, 1e-4);
    }
}

#[test]
fn a_column_does_not_depend_on_those_beside_it() {
    let Some((_, device)) = super::super::device() else { return };
    let card = oxcart_backend::Device::open(device, &oxcart_backend::StreamOptions::default()).unwrap();
    let (k, m) = (1024, 100);
    for dtype in [DType::Q4_K, DType::F16] {
        let column = Leaf::noise(DType::F32, [k], 5).bytes;
        let of = |columns: usize, place: usize| {
            let mut x = Leaf::noise(DType::F32, [k, columns], columns as u64);
            x.bytes[place * 4 * k..(place + 1) * 4 * k].copy_from_slice(&column);
            let leaves = [weights(dtype, k, m, 1).unwrap(), weights(dtype, k, 64, 2).unwrap(), x];
            let (dtype, bytes) = compute(&*card, &leaves, &build, 1).remove(0);
            floats(dtype, &bytes)[place * m..(place + 1) * m].to_vec()
        };
        let alone = of(9, 0);
        for (columns, place) in [(9, 8), (17, 3), (64, 63), (40, 20)] {
            assert_eq!(alone, of(columns, place), "{dtype}, column {place} of {columns}");
        }
    }
}
