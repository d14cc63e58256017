//! The ops, computed in the plainest way: every source becomes a list of `f32` in logical order, every result is
//! written element by element.

use oxcart_tensor::ops::{Op, Unary};
use oxcart_tensor::quant::{dequantize_row, encode_row_at_run_time};
use oxcart_tensor::{DType, Layout, TensorRef};

/// Elements of a tensor, in logical order.
pub type Interpreted = Vec<f32>;

/// Whether this device knows how to compute a node.
pub fn computes(node: TensorRef<'_>) -> bool {
    let plain =
        |dtype: DType| matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::I32 | DType::I64);
    let types_fit = plain(node.layout().dtype())
        && node.sources().flatten().all(|s| plain(s.layout().dtype()) || s.layout().dtype().decodes());
    let knows = matches!(
        node.op(),
        Op::None
            | Op::View(_)
            | Op::Reshape(_)
            | Op::Permute(_)
            | Op::Transpose(_)
            | Op::Dup(_)
            | Op::Cont(_)
            | Op::Cpy(_)
            | Op::Cast(_)
            | Op::Add(_)
            | Op::Sub(_)
            | Op::Mul(_)
            | Op::Div(_)
            | Op::Scale(_)
            | Op::Sqr(_)
            | Op::Repeat(_)
            | Op::RmsNorm(_)
            | Op::MulMat(_)
            | Op::GetRows(_)
            | Op::SetRows(_)
            | Op::Sum(_)
            | Op::SumRows(_)
            | Op::Concat(_)
            | Op::Unary(Unary::Relu | Unary::Silu | Unary::Neg | Unary::Abs)
    );
    let weightless = !matches!(node.op(), Op::SoftMax(_)) || node.source(1).is_none();
    (knows || matches!(node.op(), Op::SoftMax(_))) && weightless && types_fit
}

/// Byte offsets of all blocks of a tensor, in logical order.
fn block_offsets(layout: &Layout) -> impl Iterator<Item = usize> + use<> {
    let ([n0, n1, n2, n3], nb) = (layout.ne().extents(), layout.nb());
    let blocks = n0 / layout.dtype().block_len();
    let total = blocks * n1 * n2 * n3;
    (0..total).map(move |i| {
        let (i0, i) = (i % blocks, i / blocks);
        let (i1, i) = (i % n1, i / n1);
        let (i2, i3) = (i % n2, i / n2);
        i0 * nb[0] + i1 * nb[1] + i2 * nb[2] + i3 * nb[3]
    })
}

/// All elements of a tensor whose bytes start `bytes`.
pub(crate) fn load(layout: &Layout, bytes: &[u8]) -> Result<Interpreted, String> {
    let (len, size) = (layout.dtype().block_len(), layout.dtype().block_bytes());
    let mut out = Vec::with_capacity(layout.elements());
    let mut block = vec![0.0; len];
    for offset in block_offsets(layout) {
        let raw = &bytes[offset..offset + size];
        match (layout.dtype(), raw) {
            (DType::I32, &[a, b, c, d]) => out.push(i32::from_le_bytes([a, b, c, d]) as f32),
            (DType::I64, &[a, b, c, d, e, f, g, h]) => {
                out.push(i64::from_le_bytes([a, b, c, d, e, f, g, h]) as f32)
            }
            (dtype, raw) => {
                dequantize_row(dtype, raw, &mut block).map_err(|error| error.to_string())?;
                out.extend_from_slice(&block);
            }
        }
    }
    Ok(out)
}

/// Writes all elements of a tensor whose bytes start `bytes`.
pub(crate) fn store(layout: &Layout, bytes: &mut [u8], values: &[f32]) -> Result<(), String> {
    let (len, size) = (layout.dtype().block_len(), layout.dtype().block_bytes());
    for (offset, values) in block_offsets(layout).zip(values.chunks(len)) {
        let raw = &mut bytes[offset..offset + size];
        match layout.dtype() {
            DType::I32 => raw.copy_from_slice(&(values[0] as i32).to_le_bytes()),
            DType::I64 => raw.copy_from_slice(&(values[0] as i64).to_le_bytes()),
            dtype => encode_row_at_run_time(dtype, values, raw).map_err(|error| error.to_string())?,
        }
    }
    Ok(())
}

/// The result of a node from its sources' elements. `target` holds what the result's memory held before.
pub(crate) fn compute(
    node: TensorRef<'_>,
    sources: &[Interpreted],
    target: Interpreted,
) -> Result<Interpreted, String> {
    let shape = |slot: usize| node.source(slot).map_or([0; 4], |source| source.layout().ne().extents());
    let ne = node.layout().ne().extents();
    let each = |f: &dyn Fn(f32) -> f32| sources[0].iter().map(|&x| f(x)).collect();
    let both = |f: &dyn Fn(f32, f32) -> f32| {
        let inner = shape(1);
        let b = |i: usize| sources[1][flat(inner, wrap(unflat(ne, i), inner))];
        sources[0].iter().enumerate().map(|(i, &a)| f(a, b(i))).collect()
    };
    Ok(match node.op() {
        Op::Dup(_) | Op::Cont(_) | Op::Cpy(_) | Op::Cast(_) => sources[0].clone(),
        Op::Add(_) => both(&|a, b| a + b),
        Op::Sub(_) => both(&|a, b| a - b),
        Op::Mul(_) => both(&|a, b| a * b),
        Op::Div(_) => both(&|a, b| a / b),
        Op::Scale(op) => each(&|x| op.scale * x + op.bias),
        Op::Sqr(_) => each(&|x| x * x),
        Op::Unary(Unary::Relu) => each(&|x| x.max(0.0)),
        Op::Unary(Unary::Silu) => each(&|x| x / (1.0 + (-x).exp())),
        Op::Unary(Unary::Neg) => each(&|x| -x),
        Op::Unary(Unary::Abs) => each(&f32::abs),
        Op::Repeat(_) => {
            let inner = shape(0);
            (0..target.len()).map(|i| sources[0][flat(inner, wrap(unflat(ne, i), inner))]).collect()
        }
        Op::Sum(_) => vec![sources[0].iter().sum()],
        Op::SumRows(_) => rows(&sources[0], shape(0)[0]).map(|row| row.iter().sum()).collect(),
        Op::RmsNorm(op) => rows(&sources[0], ne[0])
            .flat_map(|row| {
                let mean = row.iter().map(|x| x * x).sum::<f32>() / row.len() as f32;
                let scale = 1.0 / (mean + op.eps).sqrt();
                row.iter().map(move |x| x * scale)
            })
            .collect(),
        Op::SoftMax(op) => rows(&sources[0], ne[0])
            .flat_map(|row| {
                let max = row.iter().fold(f32::NEG_INFINITY, |max, x| max.max(x * op.scale));
                let sum: f32 = row.iter().map(|x| (x * op.scale - max).exp()).sum();
                row.iter().map(move |x| (x * op.scale - max).exp() / sum)
            })
            .collect(),
        Op::MulMat(_) => {
            let (a, b) = (shape(0), shape(1));
            let (r2, r3) = (b[2] / a[2], b[3] / a[3]);
            (0..target.len())
                .map(|i| {
                    let [m, n, p, q] = unflat(ne, i);
                    let x = &sources[0][flat(a, [0, m, p / r2, q / r3])..][..a[0]];
                    let y = &sources[1][flat(b, [0, n, p, q])..][..b[0]];
                    x.iter().zip(y).map(|(x, y)| x * y).sum()
                })
                .collect()
        }
        Op::GetRows(_) => {
            let (table, ids) = (shape(0), shape(1));
            let mut out = Vec::with_capacity(target.len());
            for (i, &row) in sources[1].iter().enumerate() {
                let [_, k, l, _] = unflat(ids, i);
                let row = index(row, table[1])?;
                out.extend_from_slice(&sources[0][flat(table, [0, row, k, l])..][..table[0]]);
            }
            out
        }
        Op::SetRows(_) => {
            let (values, ids) = (shape(0), shape(1));
            let mut out = target;
            for (i, row) in rows(&sources[0], values[0]).enumerate() {
                let [j, k, l, _] = unflat([values[1], values[2], values[3], 1], i);
                let to = index(sources[1][flat(ids, [j, k % ids[1], l % ids[2], 0])], ne[1])?;
                out[flat(ne, [0, to, k, l])..][..ne[0]].copy_from_slice(row);
            }
            out
        }
        Op::Concat(op) => {
            let (a, b) = (shape(0), shape(1));
            (0..target.len())
                .map(|i| {
                    let mut at = unflat(ne, i);
                    if at[op.dim] < a[op.dim] {
                        sources[0][flat(a, at)]
                    } else {
                        at[op.dim] -= a[op.dim];
                        sources[1][flat(b, at)]
                    }
                })
                .collect()
        }
        op => return Err(format!("{} is not among the ops of this device", op.name())),
    })
}

fn rows(values: &[f32], len: usize) -> impl Iterator<Item = &[f32]> {
    values.chunks(len.max(1))
}

fn index(value: f32, len: usize) -> Result<usize, String> {
    if value >= 0.0 && (value as usize) < len {
        return Ok(value as usize);
    }
    Err(format!("row {value} of {len} does not exist"))
}

fn flat(ne: [usize; 4], [i0, i1, i2, i3]: [usize; 4]) -> usize {
    i0 + ne[0] * (i1 + ne[1] * (i2 + ne[2] * i3))
}

fn unflat(ne: [usize; 4], i: usize) -> [usize; 4] {
    [i % ne[0], i / ne[0] % ne[1], i / (ne[0] * ne[1]) % ne[2], i / (ne[0] * ne[1] * ne[2])]
}

fn wrap(at: [usize; 4], ne: [usize; 4]) -> [usize; 4] {
    std::array::from_fn(|d| at[d] % ne[d])
}
