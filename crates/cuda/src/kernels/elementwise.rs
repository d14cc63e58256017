//! Elements computed one by one: the twins of `elementwise.cu`.

use oxcart_tensor::ops::{Glu, GluKind, Region, Triangle, Unary};
use oxcart_tensor::{DType, Op, TensorRef};
use zerocopy::{Immutable, IntoBytes};

use super::{count, packed};
use crate::driver::Address;
use crate::images::Family;
use crate::plan::{Builder, Done, Refused, Tensor};

const THREADS: u32 = 256;

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct MapParams {
    a: Tensor,
    y: Tensor,
    count: i64,
    op: i32,
    packed: i32,
    c: [f32; 4],
}

/// The number of a function, and its constants.
fn function(op: &Op) -> Option<(i32, [f32; 4])> {
    let plain = |number| Some((number, [0.0; 4]));
    match *op {
        Op::Unary(unary) => match unary {
            Unary::Abs => plain(0),
            Unary::Sgn => plain(1),
            Unary::Neg => plain(2),
            Unary::Step => plain(3),
            Unary::Tanh => plain(4),
            Unary::Elu => plain(5),
            Unary::Relu => plain(6),
            Unary::Sigmoid => plain(7),
            Unary::Gelu => plain(8),
            Unary::GeluQuick => plain(9),
            Unary::Silu => plain(10),
            Unary::Hardswish => plain(11),
            Unary::Hardsigmoid => plain(12),
            Unary::Exp => plain(13),
            Unary::Expm1 => plain(14),
            Unary::Softplus => plain(15),
            Unary::GeluErf => plain(16),
            Unary::Xielu { alpha_n, alpha_p, beta, eps } => Some((17, [alpha_n, alpha_p, beta, eps])),
            Unary::Floor => plain(18),
            Unary::Ceil => plain(19),
            Unary::Round => plain(20),
            Unary::Trunc => plain(21),
        },
        Op::Sqr(_) => plain(22),
        Op::Sqrt(_) => plain(23),
        Op::Log(_) => plain(24),
        Op::Sin(_) => plain(25),
        Op::Cos(_) => plain(26),
        Op::Scale(scale) => Some((27, [scale.scale, scale.bias, 0.0, 0.0])),
        Op::Clamp(clamp) => Some((28, [clamp.min, clamp.max, 0.0, 0.0])),
        Op::LeakyRelu(leaky) => Some((29, [leaky.slope, 0.0, 0.0, 0.0])),
        Op::Fill(fill) => Some((30, [fill.value, 0.0, 0.0, 0.0])),
        _ => None,
    }
}

pub(super) fn map(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let (op, c) = function(node.op()).ok_or(Refused::Unsupported)?;
    let source = node.source(0).ok_or(Refused::Unsupported)?;
    let params = MapParams {
        a: b.source(node, 0)?,
        y: b.tensor(node)?,
        count: count(node),
        op,
        packed: packed(&[source, node]).into(),
        c,
    };
    b.launch_each(Family::Elementwise, "map", node.layout().elements(), THREADS, &params);
    Ok(())
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct BinaryParams {
    a: Tensor,
    b: Tensor,
    y: Tensor,
    count: i64,
    op: i32,
    form: i32,
}

pub(super) fn binary(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let op = match node.op() {
        Op::Add(_) | Op::Add1(_) => 0,
        Op::Sub(_) => 1,
        Op::Mul(_) => 2,
        _ => 3,
    };
    let [x, other] = [0, 1].map(|slot| node.source(slot));
    let (Some(x), Some(other)) = (x, other) else { return Err(Refused::Unsupported) };
    let real = |tensor: TensorRef<'_>| matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::BF16);
    if ![x, other, node].into_iter().all(real) {
        return Err(Refused::Unsupported);
    }
    let plain =
        [x, other, node].iter().all(|tensor| tensor.dtype() == DType::F32) && packed(&[x, other, node]);
    let form = match () {
        () if plain && other.ne() == node.ne() => 1,
        () if plain && other.ne().extents() == [node.ne()[0], 1, 1, 1] => 2,
        () => 0,
    };
    let (a, second, y) = (b.source(node, 0)?, b.source(node, 1)?, b.tensor(node)?);
    let params = BinaryParams { a, b: second, y, count: count(node), op, form };
    b.launch_each(Family::Elementwise, "binary", node.layout().elements(), THREADS, &params);
    Ok(())
}

pub(super) fn silu_back(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let (a, second, y) = (b.source(node, 0)?, b.source(node, 1)?, b.tensor(node)?);
    let params = BinaryParams { a, b: second, y, count: count(node), op: 0, form: 0 };
    b.launch_each(Family::Elementwise, "silu_back", node.layout().elements(), THREADS, &params);
    Ok(())
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct AddIdParams {
    a: Tensor,
    b: Tensor,
    ids: Tensor,
    y: Tensor,
    count: i64,
    faults: u64,
}

pub(super) fn add_id(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let (a, rows, ids, y) = (b.source(node, 0)?, b.source(node, 1)?, b.source(node, 2)?, b.tensor(node)?);
    let params = AddIdParams { a, b: rows, ids, y, count: count(node), faults: b.faults() };
    b.launch_each(Family::Elementwise, "add_id", node.layout().elements(), THREADS, &params);
    Ok(())
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct GluParams {
    a: Tensor,
    b: Tensor,
    y: Tensor,
    count: i64,
    kind: i32,
    packed: i32,
    alpha: f32,
    limit: f32,
}

/// The number of a gated unit, and its constants.
pub(super) fn glu_kind(kind: GluKind) -> (i32, f32, f32) {
    match kind {
        GluKind::Reglu => (0, 0.0, 0.0),
        GluKind::Geglu => (1, 0.0, 0.0),
        GluKind::Swiglu => (2, 0.0, 0.0),
        GluKind::SwigluOai { alpha, limit } => (3, alpha, limit),
        GluKind::GegluErf => (4, 0.0, 0.0),
        GluKind::GegluQuick => (5, 0.0, 0.0),
        GluKind::SwigluClamp { limit } => (6, 1.0, limit),
    }
}

pub(super) fn glu(node: TensorRef<'_>, op: Glu, b: &mut Builder<'_>) -> Done {
    let source = node.source(0).ok_or(Refused::Unsupported)?;
    let (mut x, y) = (b.source(node, 0)?, b.tensor(node)?);
    let (gate, plain) = match node.source(1) {
        Some(gate) => (b.source(node, 1)?, packed(&[source, gate, node])),
        None => {
            // Two halves of a row.
            let (mut gate, half) = (x, node.ne()[0] * node.dtype().block_bytes());
            let later = if op.swapped { &mut x } else { &mut gate };
            later.data += half as u64;
            (gate, false)
        }
    };
    let (kind, alpha, limit) = glu_kind(op.kind);
    let packed = (plain && node.dtype() == DType::F32).into();
    let params = GluParams { a: x, b: gate, y, count: count(node), kind, packed, alpha, limit };
    b.launch_each(Family::Elementwise, "glu", node.layout().elements(), THREADS, &params);
    Ok(())
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct RegionParams {
    b: Tensor,
    region: Tensor,
    count: i64,
    adds: i32,
    unused: i32,
}

pub(super) fn region(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let (Region { strides, offset }, adds) = match node.op() {
        Op::Set(set) => (set.0, 0),
        Op::Acc(acc) => (acc.0, 1),
        _ => return Err(Refused::Unsupported),
    };
    let inner = node.source(1).ok_or(Refused::Unsupported)?;
    let (whole, part, mut region) = (b.source(node, 0)?, b.source(node, 1)?, b.tensor(node)?);
    b.copy(Address(region.data), Address(whole.data), node.byte_len());
    region.data += offset as u64;
    region.ne = part.ne;
    region.nb = [4, strides[0] as i64, strides[1] as i64, strides[2] as i64];
    let params = RegionParams { b: part, region, count: count(inner), adds, unused: 0 };
    if inner.layout().elements() > 0 {
        b.launch_each(Family::Elementwise, "region", inner.layout().elements(), THREADS, &params);
    }
    Ok(())
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct MakeParams {
    a: Tensor,
    y: Tensor,
    count: i64,
    op: i32,
    kind: i32,
    past: i64,
    c: [f32; 2],
}

pub(super) fn make(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let a = if node.source(0).is_some() { b.source(node, 0)? } else { Tensor::NONE };
    let (op, kind, past, c) = match *node.op() {
        Op::Arange(arange) => (0, 0, 0, [arange.start, arange.step]),
        Op::Tri(tri) => {
            let kind = match tri.keep {
                Triangle::UpperWithDiagonal => 0,
                Triangle::Upper => 1,
                Triangle::LowerWithDiagonal => 2,
                Triangle::Lower => 3,
            };
            (1, kind, 0, [0.0; 2])
        }
        Op::DiagMaskInf(mask) => (2, 1, mask.n_past as i64, [0.0; 2]),
        Op::DiagMaskZero(mask) => (2, 0, mask.n_past as i64, [0.0; 2]),
        Op::Diag(_) => (3, 0, 0, [0.0; 2]),
        Op::TimestepEmbedding(steps) => (4, 0, (steps.dim / 2) as i64, [steps.max_period as f32, 0.0]),
        _ => return Err(Refused::Unsupported),
    };
    let mut a = a;
    if op == 4 {
        // Steps are looked up along dimension 0.
        a.ne = [node.ne()[1] as i64, 1, 1, 1];
    }
    let params = MakeParams { a, y: b.tensor(node)?, count: count(node), op, kind, past, c };
    b.launch_each(Family::Elementwise, "make", node.layout().elements(), THREADS, &params);
    Ok(())
}
