//! Whole products through plans: every weight type, odd shapes, broadcasting, permuted sources, chosen matrices.

mod alone;

use std::sync::Arc;

use half::{bf16, f16};
use oxcart_backend::{Buffers, Device, Error, Stream, StreamOptions, Work, allocate};
use oxcart_tensor::graph::Storage;
use oxcart_tensor::ops::{Hint, MulMat};
use oxcart_tensor::quant::{dequantize_row, encode_row_at_run_time, quantize_row};
use oxcart_tensor::{DType, Graph, Layout, TensorId};

use crate::kernels::testing::{CpuDevice, Level};

/// Pseudo-random numbers from -1 to 1.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn number(&mut self) -> f32 {
        self.bits() as f32 / (1u64 << 30) as f32 - 1.0
    }

    fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }
}

/// A tensor and its bytes.
#[derive(Clone)]
struct Tensor {
    layout: Layout,
    bytes: Vec<u8>,
}

impl Tensor {
    /// Packed, quantized as well as the type allows.
    fn new(dtype: DType, ne: [usize; 4], values: &[f32]) -> Tensor {
        let layout = Layout::packed(dtype, ne).unwrap();
        let mut bytes = vec![0; layout.byte_len()];
        let row_bytes = dtype.row_bytes(ne[0]).unwrap();
        for (row, to) in values.chunks_exact(ne[0].max(1)).zip(bytes.chunks_exact_mut(row_bytes.max(1))) {
            if encode_row_at_run_time(dtype, row, to).is_err() {
                quantize_row(dtype, row, Some(&vec![1.0; ne[0]]), to).unwrap();
            }
        }
        Tensor { layout, bytes }
    }

    fn ints(ne: [usize; 4], values: &[i32]) -> Tensor {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor { layout: Layout::packed(DType::I32, ne).unwrap(), bytes }
    }

    /// The row at dimensions 1 to 3, expanded.
    fn row(&self, at: [usize; 3]) -> Vec<f32> {
        let nb = self.layout.nb();
        let start = at[0] * nb[1] + at[1] * nb[2] + at[2] * nb[3];
        let len = self.layout.ne()[0];
        let mut row = vec![0.0; len];
        let bytes = self.layout.dtype().row_bytes(len).unwrap();
        dequantize_row(self.layout.dtype(), &self.bytes[start..start + bytes], &mut row).unwrap();
        row
    }
}

type Make = fn(&mut Graph, &[TensorId]) -> Result<TensorId, oxcart_tensor::Error>;

/// Computes a node from leaves.
fn compute(level: Level, threads: usize, sources: &[&Tensor], make: Make) -> Result<Vec<f32>, Error> {
    let stream = CpuDevice::that_cuts_finely(level).open(&StreamOptions::threads(threads)).unwrap();
    run(&*stream, sources, make)
}

fn run(stream: &dyn Stream, sources: &[&Tensor], make: Make) -> Result<Vec<f32>, Error> {
    let mut graph = Graph::new();
    let leaves: Vec<_> = sources.iter().map(|s| graph.leaf_with_layout(s.layout).unwrap()).collect();
    let node = make(&mut graph, &leaves).unwrap();
    graph.expand(node).unwrap();
    let result_len = graph.tensor(node).unwrap().byte_len();
    let mut buffers = Buffers::new();
    let mut place = |id, bytes: &[u8]| {
        let buffer = allocate(&stream.device().buffer_type(), bytes.len()).unwrap();
        buffer.write(0, bytes).unwrap();
        let storage = Storage { buffer: buffers.add(Arc::clone(&buffer)), offset: 0 };
        graph.bind(id, storage, bytes.len()).unwrap();
        buffer
    };
    for (id, source) in leaves.iter().zip(sources) {
        place(*id, &source.bytes);
    }
    let result = place(node, &vec![0xA5; result_len]);
    let nodes = graph.range(0..graph.nodes().len()).unwrap();
    stream.compute_and_wait(Work { nodes, buffers: &buffers })?;
    let mut bytes = vec![0; result.len()];
    result.read(0, &mut bytes).unwrap();
    Ok(bytes.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect())
}

fn mul_mat(graph: &mut Graph, s: &[TensorId]) -> Result<TensorId, oxcart_tensor::Error> {
    graph.mul_mat(s[0], s[1])
}

/// The row as the product sees it: rounded to the partner type of the weights.
fn rounded(row: &[f32], weights: DType) -> Vec<f32> {
    let partner = weights.dot_partner().unwrap();
    let mut bytes = vec![0; partner.row_bytes(row.len()).unwrap()];
    encode_row_at_run_time(partner, row, &mut bytes).unwrap();
    let mut back = vec![0.0; row.len()];
    dequantize_row(partner, &bytes, &mut back).unwrap();
    back
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// Σ(found − exact)² / Σexact².
fn error(found: &[f32], exact: &[f64]) -> f64 {
    assert_eq!(found.len(), exact.len());
    let difference: f64 = found.iter().zip(exact).map(|(f, e)| (f64::from(*f) - e).powi(2)).sum();
    difference / exact.iter().map(|e| e * e).sum::<f64>().max(1e-30)
}

/// What is left when activations were rounded as the reference's portable code does: kernels may break ties otherwise,
/// and Q8_1 rounds its sums.
fn bound(weights: DType) -> f64 {
    if weights.is_quantized() { 3e-5 } else { 1e-10 }
}

/// The product, in double precision with rounded activations.
fn exact(a: &Tensor, b: &Tensor) -> Vec<f64> {
    let (na, nb) = (a.layout.ne(), b.layout.ne());
    let mut y = Vec::new();
    for q in 0..nb[3] {
        for p in 0..nb[2] {
            let plane = [p / (nb[2] / na[2]), q / (nb[3] / na[3])];
            for j in 0..nb[1] {
                let column = b.row([j, p, q]);
                let column = match b.layout.dtype() {
                    DType::F32 => rounded(&column, a.layout.dtype()),
                    _ => column,
                };
                y.extend((0..na[1]).map(|i| dot(&a.row([i, plane[0], plane[1]]), &column)));
            }
        }
    }
    y
}

fn weight_types() -> impl Iterator<Item = DType> {
    DType::all().filter(|dtype| dtype.dot_partner().is_some())
}

#[test]
fn every_type_and_odd_shapes() {
    let mut random = Random(1);
    for dtype in weight_types() {
        // Searching good codes for some types takes long, so all shapes are cut from the same weights.
        let (k_max, m_max) = (768, 37);
        let all = Tensor::new(dtype, [k_max, m_max, 1, 1], &random.numbers(k_max * m_max));
        for k in [dtype.block_len(), if dtype.is_quantized() { k_max } else { 255 }] {
            for m in [1, 7, 37] {
                let row = dtype.row_bytes(k).unwrap();
                let rows = all.bytes.chunks_exact(dtype.row_bytes(k_max).unwrap());
                let bytes = rows.take(m).flat_map(|bytes| bytes[..row].to_vec()).collect();
                let a = Tensor { layout: Layout::packed(dtype, [k, m, 1, 1]).unwrap(), bytes };
                for n in [1, 2, 5, 33] {
                    let b = Tensor::new(DType::F32, [k, n, 1, 1], &random.numbers(k * n));
                    let exact = exact(&a, &b);
                    for level in Level::available() {
                        let found = compute(level, 1, &[&a, &b], mul_mat).unwrap();
                        // A single result may be near zero, so count as if they were all of average size.
                        let average = k as f64 / 9.0;
                        let size = exact.iter().map(|e| e * e).sum::<f64>() / (average * exact.len() as f64);
                        let error = error(&found, &exact) * size.min(1.0);
                        assert!(error < bound(dtype), "{level} {dtype} k={k} m={m} n={n}: {error}");
                    }
                }
            }
        }
    }
}

#[test]
fn long_rows_and_many_tiles_with_any_number_of_threads() {
    let mut random = Random(2);
    for dtype in [DType::F32, DType::F16, DType::Q4_0, DType::Q8_0, DType::Q4_1, DType::NVFP4, DType::Q6_K] {
        for n in [1, 3, 4, 50] {
            let (k, m) = (2304, 161);
            let a = Tensor::new(dtype, [k, m, 1, 1], &random.numbers(k * m));
            let b = Tensor::new(DType::F32, [k, n, 1, 1], &random.numbers(k * n));
            let exact = exact(&a, &b);
            for level in Level::available() {
                let one = compute(level, 1, &[&a, &b], mul_mat).unwrap();
                let error = error(&one, &exact);
                assert!(error < bound(dtype), "{level} {dtype} n={n}: {error}");
                for threads in [2, 3] {
                    let more = compute(level, threads, &[&a, &b], mul_mat).unwrap();
                    assert!(one == more, "{level} {dtype} n={n}: {threads} threads give another result");
                }
            }
        }
    }
}

#[test]
fn activations_may_have_the_partner_type_already() {
    let mut random = Random(3);
    for dtype in weight_types().filter(|dtype| dtype.encodes_at_run_time()) {
        let partner = dtype.dot_partner().unwrap();
        let a = Tensor::new(dtype, [256, 9, 1, 1], &random.numbers(256 * 9));
        for n in [1, 21] {
            let b = Tensor::new(partner, [256, n, 1, 1], &random.numbers(256 * n));
            let exact = exact(&a, &b);
            for level in Level::available() {
                let error = error(&compute(level, 2, &[&a, &b], mul_mat).unwrap(), &exact);
                assert!(error < bound(dtype), "{level} {dtype} n={n}: {error}");
            }
        }
    }
}

#[test]
fn bf16_activations_are_widened_for_f32_weights() {
    let mut random = Random(4);
    let a = Tensor::new(DType::F32, [67, 9, 1, 1], &random.numbers(67 * 9));
    for n in [2, 17] {
        let b = Tensor::new(DType::BF16, [67, n, 1, 1], &random.numbers(67 * n));
        let exact = exact(&a, &b);
        for level in Level::available() {
            assert!(error(&compute(level, 2, &[&a, &b], mul_mat).unwrap(), &exact) < 1e-10, "{level}");
        }
    }
}

#[test]
fn planes_are_broadcast() {
    let mut random = Random(5);
    for dtype in [DType::F32, DType::BF16, DType::Q8_0, DType::Q4_1] {
        let a = Tensor::new(dtype, [64, 19, 2, 3], &random.numbers(64 * 19 * 6));
        for n in [1, 3] {
            let b = Tensor::new(DType::F32, [64, n, 6, 6], &random.numbers(64 * n * 36));
            let exact = exact(&a, &b);
            for level in Level::available() {
                let error = error(&compute(level, 3, &[&a, &b], mul_mat).unwrap(), &exact);
                assert!(error < bound(dtype), "{level} {dtype} n={n}: {error}");
            }
        }
    }
}

#[test]
fn dimensions_may_be_permuted() {
    // Rows of [k, x, y, z] seen in another order: strides of dimensions 1 to 3 change places.
    fn permuted(tensor: &Tensor, order: [usize; 3]) -> Tensor {
        let (ne, nb) = (tensor.layout.ne().extents(), tensor.layout.nb());
        let pick = |from: [usize; 4]| [from[0], from[order[0]], from[order[1]], from[order[2]]];
        let layout = Layout::strided(tensor.layout.dtype(), pick(ne), pick(nb)).unwrap();
        Tensor { layout, bytes: tensor.bytes.clone() }
    }
    let mut random = Random(6);
    for dtype in [DType::F32, DType::F16, DType::Q4_0] {
        let a = Tensor::new(dtype, [96, 4, 5, 6], &random.numbers(96 * 120));
        let b = Tensor::new(DType::F32, [96, 4, 5, 6], &random.numbers(96 * 120));
        for order in [[2, 1, 3], [1, 3, 2], [3, 2, 1]] {
            let (a, b) = (permuted(&a, order), permuted(&b, order));
            let exact = exact(&a, &b);
            for level in Level::available() {
                let error = error(&compute(level, 2, &[&a, &b], mul_mat).unwrap(), &exact);
                assert!(error < bound(dtype), "{level} {dtype} {order:?}: {error}");
            }
        }
    }
}

#[test]
fn f16_weights_round_activations_and_overflow_them() {
    let mut values = vec![0.0; 64];
    values[0] = 1.0;
    let a = Tensor::new(DType::F16, [64, 1, 1, 1], &values);
    for n in [1, 20] {
        let column = |x: f32| Tensor::new(DType::F32, [64, n, 1, 1], &vec![x; 64 * n]);
        for level in Level::available() {
            let y = |x| compute(level, 1, &[&a, &column(x)], mul_mat).unwrap()[0];
            assert_eq!(y(1.0 + 1.0 / 4096.0), 1.0);
            assert!(y(1e5).is_infinite() || y(1e5).is_nan(), "{level}");
        }
    }
}

#[test]
fn sums_of_nothing_are_zero() {
    for dtype in [DType::F32, DType::Q4_0] {
        // Packed rows of nothing are refused, because they seem transposed.
        let strides = [1, 4, 160, 160].map(|blocks| blocks * dtype.block_bytes());
        let a =
            Tensor { layout: Layout::strided(dtype, [0, 40, 1, 1], strides).unwrap(), bytes: vec![0; 64] };
        for n in [1, 20] {
            let mut b = Tensor::new(DType::F32, [0, n, 1, 1], &[]);
            b.bytes = vec![0; 64];
            for level in Level::available() {
                assert_eq!(
                    compute(level, 2, &[&a, &b], mul_mat).unwrap(),
                    vec![0.0; 40 * n],
                    "{level} {dtype}"
                );
            }
        }
    }
}

#[test]
fn hadamard_matrices_are_not_read() {
    fn hadamard(graph: &mut Graph, s: &[TensorId]) -> Result<TensorId, oxcart_tensor::Error> {
        graph.apply(MulMat { hint: Hint::Hadamard, ..MulMat::default() }, &[Some(s[0]), Some(s[1])])
    }
    let mut random = Random(7);
    for k in [1, 2, 8, 64, 512] {
        let sign = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
        let matrix: Vec<f32> = (0..k * k).map(|e| sign(e / k, e % k) / (k as f32).sqrt()).collect();
        let a = Tensor::new(DType::F32, [k, k, 1, 1], &matrix);
        for dtype in [DType::F32, DType::F16] {
            let b = Tensor::new(dtype, [k, 5, 2, 1], &random.numbers(k * 10));
            let exact: Vec<f64> = exact(&a, &b);
            for level in Level::available() {
                let found = compute(level, 2, &[&a, &b], hadamard).unwrap();
                assert!(error(&found, &exact) < 1e-10, "{level} {dtype} {k}");
            }
        }
    }
}

fn mul_mat_id(graph: &mut Graph, s: &[TensorId]) -> Result<TensorId, oxcart_tensor::Error> {
    graph.mul_mat_id(s[0], s[1], s[2])
}

#[test]
fn matrices_are_chosen_by_ids() {
    let mut random = Random(8);
    for dtype in [DType::F32, DType::F16, DType::Q4_0, DType::Q5_1, DType::Q4_K, DType::IQ3_S] {
        let (k, m, experts, used) = (256, 45, 6, 4);
        let a = Tensor::new(dtype, [k, m, experts, 1], &random.numbers(k * m * experts));
        for (tokens, rows) in [(1, 1), (3, 4), (40, 2)] {
            let b = Tensor::new(DType::F32, [k, rows, tokens, 1], &random.numbers(k * rows * tokens));
            // Expert 5 gets nothing, expert 0 most, and some tokens choose one twice.
            let ids: Vec<i32> = (0..used * tokens).map(|_| (random.bits() % 9 % 5) as i32).collect();
            let ids_tensor = Tensor::ints([used, tokens, 1, 1], &ids);
            let exact: Vec<f64> = (0..used * tokens)
                .flat_map(|slot| {
                    let column = rounded(&b.row([slot % used % rows, slot / used, 0]), dtype);
                    let matrix = ids[slot] as usize;
                    (0..m).map(|i| dot(&a.row([i, matrix, 0]), &column)).collect::<Vec<_>>()
                })
                .collect();
            for level in Level::available() {
                let one = compute(level, 1, &[&a, &b, &ids_tensor], mul_mat_id).unwrap();
                let error = error(&one, &exact);
                assert!(error < bound(dtype), "{level} {dtype} tokens={tokens}: {error}");
                for threads in [2, 3] {
                    let more = compute(level, threads, &[&a, &b, &ids_tensor], mul_mat_id).unwrap();
                    assert!(one == more, "{level} {dtype} tokens={tokens}: {threads} threads");
                }
            }
        }
    }
}

#[test]
fn ids_of_no_matrix_are_an_error() {
    let mut random = Random(9);
    let a = Tensor::new(DType::F32, [32, 64, 3, 1], &random.numbers(32 * 64 * 3));
    let b = Tensor::new(DType::F32, [32, 1, 40, 1], &random.numbers(32 * 40));
    for bad in [3, -1, i32::MAX, i32::MIN] {
        let mut ids = vec![1; 2 * 40];
        ids[57] = bad;
        let ids = Tensor::ints([2, 40, 1, 1], &ids);
        for threads in [1, 2] {
            let stream =
                CpuDevice::that_cuts_finely(Level::Scalar).open(&StreamOptions::threads(threads)).unwrap();
            assert!(run(&*stream, &[&a, &b, &ids], mul_mat_id).is_err(), "{bad}");
            // The next run is not affected.
            let good = Tensor::ints([2, 40, 1, 1], &[2; 80]);
            assert!(run(&*stream, &[&a, &b, &good], mul_mat_id).is_ok());
        }
    }
}

#[test]
fn outer_products_are_summed() {
    fn out_prod(graph: &mut Graph, s: &[TensorId]) -> Result<TensorId, oxcart_tensor::Error> {
        graph.out_prod(s[0], s[1])
    }
    let mut random = Random(10);
    for (dtype, m, planes_a) in [
        (DType::F32, 7, [2, 1]),
        (DType::F32, 1031, [4, 3]),
        (DType::F16, 45, [4, 3]),
        (DType::Q4_K, 768, [4, 3]),
    ] {
        let (n, k) = (19, 13);
        let [a2, a3] = planes_a;
        let a = Tensor::new(dtype, [m, k, a2, a3], &random.numbers(m * k * a2 * a3));
        let b = Tensor::new(DType::F32, [n, k, 4, 3], &random.numbers(n * k * 12));
        let mut exact = Vec::new();
        for q in 0..3 {
            for p in 0..4 {
                let rows = |tensor: &Tensor, at: [usize; 2]| -> Vec<Vec<f32>> {
                    (0..k).map(|i| tensor.row([i, at[0], at[1]])).collect()
                };
                let (a, b) = (rows(&a, [p / (4 / a2), q / (3 / a3)]), rows(&b, [p, q]));
                let sum =
                    |i: usize, j: usize| (0..k).map(|e| f64::from(a[e][i]) * f64::from(b[e][j])).sum::<f64>();
                exact.extend((0..n * m).map(|at| sum(at % m, at / m)));
            }
        }
        for level in Level::available() {
            let one = compute(level, 1, &[&a, &b], out_prod).unwrap();
            assert!(error(&one, &exact) < 1e-10, "{level} {dtype} {m}");
            assert!(one == compute(level, 3, &[&a, &b], out_prod).unwrap(), "{level} {dtype} {m}");
        }
    }
}

#[test]
fn rounding_matches_the_types() {
    // What `rounded` relies on.
    assert_eq!(rounded(&[1.0 + 1.0 / 4096.0], DType::F16), [f16::from_f32(1.0).to_f32()]);
    assert_eq!(rounded(&[1.0 + 1.0 / 512.0], DType::BF16), [bf16::from_f32(1.0).to_f32()]);
}
