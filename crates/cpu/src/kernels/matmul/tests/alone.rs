//! A column is computed as if it were alone: whatever is multiplied beside it, on however many threads, with whatever instructions,
//! its results are the same to the last bit.

use super::*;

/// Columns of the widest product; the numbers in between meet every width of a panel, and both sides of every limit beyond which
/// products are cut in another way.
const WIDTHS: [usize; 14] = [2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 32, 48, 49, 75];
const COLUMNS: usize = 75;

/// Activations of all sizes: most are small, some columns are large, tiny or zero.
fn columns(random: &mut Random, k: usize, count: usize) -> Vec<f32> {
    (0..count)
        .flat_map(|column| {
            let size = [1.0, 1e-6, 3e4, 0.0, 0.37, 1e-30, 1.0, 7.0][column % 8];
            random.numbers(k).into_iter().map(|x| x * size).collect::<Vec<_>>()
        })
        .collect()
}

/// Some columns of many, as a matrix.
fn matrix(columns: &[f32], k: usize, which: impl Iterator<Item = usize>) -> Tensor {
    let values: Vec<f32> = which.flat_map(|column| columns[column * k..][..k].to_vec()).collect();
    Tensor::new(DType::F32, [k, values.len() / k, 1, 1], &values)
}

fn bits(results: &[f32]) -> Vec<u32> {
    results.iter().map(|result| result.to_bits()).collect()
}

/// The product of each column alone, on one thread, without instructions of any processor.
fn each_alone(a: &Tensor, columns: &[f32], k: usize) -> Vec<Vec<u32>> {
    let alone = |column| {
        bits(&compute(Level::Scalar, 1, &[a, &matrix(columns, k, column..column + 1)], mul_mat).unwrap())
    };
    (0..columns.len() / k).map(alone).collect()
}

/// The first rows and elements of a matrix.
fn cut(all: &Tensor, k: usize, m: usize) -> Tensor {
    let dtype = all.layout.dtype();
    let (row, whole) = (dtype.row_bytes(k).unwrap(), dtype.row_bytes(all.layout.ne()[0]).unwrap());
    let rows = all.bytes.chunks_exact(whole).take(m);
    let bytes = rows.flat_map(|bytes| bytes[..row].to_vec()).collect();
    Tensor { layout: Layout::packed(dtype, [k, m, 1, 1]).unwrap(), bytes }
}

fn check(a: &Tensor, columns: &[f32], widths: &[usize]) {
    let [k, m, ..] = a.layout.ne().extents();
    let (dtype, count) = (a.layout.dtype(), columns.len() / k);
    let alone = each_alone(a, columns, k);
    for level in Level::available() {
        for &width in [1].iter().chain(widths) {
            // The first ones, and the last ones in reverse: other neighbours, other places.
            for reversed in [false, true] {
                let place = |i: usize| if reversed { count - 1 - i } else { i };
                let b = matrix(columns, k, (0..width).map(place));
                for threads in [1, 2] {
                    let found = compute(level, threads, &[a, &b], mul_mat).unwrap();
                    for (i, found) in found.chunks_exact(m).enumerate() {
                        assert!(
                            bits(found) == alone[place(i)],
                            "{level} {dtype} k={k} m={m}: column {} is another one at place {i} of {width}, {threads} threads",
                            place(i)
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn columns_of_every_type_do_not_depend_on_their_neighbours() {
    let mut random = Random(21);
    for dtype in weight_types() {
        // Searching good codes for some types takes long, so all shapes are cut from the same weights.
        let (k_max, m_max) = (768, 45);
        let all = Tensor::new(dtype, [k_max, m_max, 1, 1], &random.numbers(k_max * m_max));
        let few = if dtype.is_quantized() { dtype.block_len() } else { 5 };
        // Pieces of every length: 256 elements, 64 and a block.
        let odd = match (dtype.is_quantized(), dtype.block_len()) {
            (true, len @ ..=64) => 11 * len,
            (true, len) => 3 * len,
            (false, _) => 255,
        };
        for (k, m) in [(few, 3), (odd, 33), (k_max, m_max)] {
            check(&cut(&all, k, m), &columns(&mut random, k, COLUMNS), &WIDTHS);
        }
    }
}

#[test]
fn long_rows_are_cut_without_a_trace() {
    let mut random = Random(22);
    for dtype in
        [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q4_1, DType::Q4_K, DType::Q6_K]
    {
        let (k, m) = if dtype.is_quantized() { (4608, 35) } else { (1111, 35) };
        let a = Tensor::new(dtype, [k, m, 1, 1], &random.numbers(k * m));
        check(&a, &columns(&mut random, k, 50), &[2, 9, 32, 50]);
    }
}

#[test]
fn what_is_not_a_number_stays_in_its_column() {
    let mut random = Random(23);
    for dtype in [DType::F32, DType::F16, DType::Q8_0, DType::Q4_1, DType::Q4_K, DType::Q6_K] {
        let (k, m, n) = (256, 33, 20);
        let a = Tensor::new(dtype, [k, m, 1, 1], &random.numbers(k * m));
        let good = columns(&mut random, k, n);
        let mut bad = good.clone();
        (bad[3 * k + 7], bad[11 * k + 200]) = (f32::NAN, f32::INFINITY);
        for level in Level::available() {
            for width in [5, n] {
                let product = |columns: &[f32]| {
                    compute(level, 2, &[&a, &matrix(columns, k, 0..width)], mul_mat).unwrap()
                };
                let (good, bad) = (product(&good), product(&bad));
                for (i, (good, bad)) in good.chunks_exact(m).zip(bad.chunks_exact(m)).enumerate() {
                    assert!(
                        [3, 11].contains(&i) || bits(good) == bits(bad),
                        "{level} {dtype}: column {i} of {width}"
                    );
                }
            }
        }
    }
}

#[test]
fn planes_that_share_weights_do_not_depend_on_each_other() {
    let mut random = Random(24);
    for dtype in [DType::F32, DType::F16, DType::Q8_0, DType::Q4_K] {
        let (k, m) = (256, 33);
        let a = Tensor::new(dtype, [k, m, 2, 1], &random.numbers(k * m * 2));
        let planes = [0, 1].map(|plane| plane_of(&a, plane));
        for n in [1, 3, 17] {
            let values = columns(&mut random, k, n * 6);
            let b = Tensor::new(DType::F32, [k, n, 6, 1], &values);
            let alone: Vec<_> = planes.iter().map(|plane| each_alone(plane, &values, k)).collect();
            for level in Level::available() {
                let found = compute(level, 2, &[&a, &b], mul_mat).unwrap();
                for (i, found) in found.chunks_exact(m).enumerate() {
                    assert!(bits(found) == alone[i / n / 3][i], "{level} {dtype} n={n}: column {i}");
                }
            }
        }
    }
}

/// One matrix of several.
fn plane_of(a: &Tensor, plane: usize) -> Tensor {
    let ([k, m, ..], dtype) = (a.layout.ne().extents(), a.layout.dtype());
    let len = dtype.row_bytes(k).unwrap() * m;
    Tensor {
        layout: Layout::packed(dtype, [k, m, 1, 1]).unwrap(),
        bytes: a.bytes[plane * len..][..len].to_vec(),
    }
}

#[test]
fn chosen_matrices_give_what_each_gives_alone() {
    let mut random = Random(25);
    for dtype in weight_types() {
        let (k, m, experts, used) = (256, 37, 3, 2);
        let a = Tensor::new(dtype, [k, m, experts, 1], &random.numbers(k * m * experts));
        for (tokens, rows) in [(1, 1), (2, 2), (9, 1), (70, 2)] {
            let values = columns(&mut random, k, rows * tokens);
            let b = Tensor::new(DType::F32, [k, rows, tokens, 1], &values);
            // Most go to matrix 0, so that others are multiplied with few columns at the same time.
            let ids: Vec<i32> = (0..used * tokens).map(|_| (random.bits() % 7 % 5 % 3) as i32).collect();
            let chosen = Tensor::ints([used, tokens, 1, 1], &ids);
            let alone: Vec<_> =
                (0..experts).map(|expert| each_alone(&plane_of(&a, expert), &values, k)).collect();
            for level in Level::available() {
                for threads in [1, 2] {
                    let found = compute(level, threads, &[&a, &b, &chosen], mul_mat_id).unwrap();
                    for (slot, found) in found.chunks_exact(m).enumerate() {
                        let column = slot / used * rows + slot % used % rows;
                        assert!(
                            bits(found) == alone[ids[slot] as usize][column],
                            "{level} {dtype}: id {slot} of {tokens} tokens, {threads} threads"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn activations_that_were_not_rounded_here_may_have_any_codes() {
    let mut random = Random(26);
    let (k, m) = (256, 33);
    let lowest = |mut tensor: Tensor| {
        let block = DType::Q8_0.block_bytes();
        let codes = tensor.bytes.iter_mut().enumerate().filter(|(at, _)| at % block >= block - 32);
        codes.filter(|(at, _)| at % 3 > 0).for_each(|(_, code)| *code = i8::MIN as u8);
        tensor
    };
    let a = lowest(Tensor::new(DType::Q8_0, [k, m, 1, 1], &random.numbers(k * m)));
    for n in [1, 2, 4, 9] {
        let b = lowest(Tensor::new(DType::Q8_0, [k, n, 1, 1], &random.numbers(k * n)));
        let expected = bits(&compute(Level::Scalar, 1, &[&a, &b], mul_mat).unwrap());
        for level in Level::available() {
            assert!(
                bits(&compute(level, 2, &[&a, &b], mul_mat).unwrap()) == expected,
                "{level}, {n} columns"
            );
        }
    }
}
