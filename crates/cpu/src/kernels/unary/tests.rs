//! Functions of one number: hard cases by name, and layouts, threads and shared memory that must not matter.

use oxcart_tensor::Graph;
use oxcart_tensor::ops::{Cos, Log, Sin, Sqr, Sqrt};

use super::*;
use crate::kernels::testing::{Tensor, Trial, decode, run, wide_numbers};

const XIELU: Unary = Unary::Xielu { alpha_n: 0.8, alpha_p: 0.3, beta: 0.5, eps: 1e-6 };

fn all_unary() -> Vec<Unary> {
    use Unary::*;
    vec![
        Abs,
        Sgn,
        Neg,
        Step,
        Tanh,
        Elu,
        Relu,
        Sigmoid,
        Gelu,
        GeluQuick,
        Silu,
        Hardswish,
        Hardsigmoid,
        Exp,
        Expm1,
        Softplus,
        GeluErf,
        XIELU,
        Floor,
        Ceil,
        Round,
        Trunc,
    ]
}

fn all_ops() -> Vec<Op> {
    let mut ops: Vec<Op> = all_unary().into_iter().map(Op::from).collect();
    ops.extend([Op::from(Sqr), Sqrt.into(), Log.into(), Sin.into(), Cos.into()]);
    ops.extend([Op::from(LeakyRelu { slope: 0.1 }), Clamp { min: -1.0, max: 0.5 }.into()]);
    ops.extend([Op::from(Scale { scale: 0.3, bias: 0.0 }), Scale { scale: 0.3, bias: -1.0 }.into()]);
    ops
}

/// Rows of a length, enough of them for three threads.
fn rows_of(len: usize) -> [usize; 2] {
    [len, 26_000 / len + 1]
}

fn accepts(op: Op, dtype: DType) -> bool {
    let mut graph = Graph::new();
    let leaf = graph.leaf(dtype, 1).unwrap();
    graph.apply(op, &[Some(leaf)]).is_ok()
}

#[test]
fn threads_and_shared_memory_change_nothing() {
    for len in [1, 127, 128, 129] {
        let ne = rows_of(len);
        let values = wide_numbers(len as u64, ne[0] * ne[1]);
        for op in all_ops() {
            for dtype in [DType::F32, DType::F16, DType::BF16].into_iter().filter(|&dtype| accepts(op, dtype))
            {
                // Ops that planners leave alone are not given the memory of their source.
                let a = Tensor::of(dtype, ne, &values);
                Trial::graph(&[a], |graph, leaves| graph.apply(op, &[Some(leaves[0])]).unwrap())
                    .over(op.info().reuses)
                    .best();
            }
        }
    }
}

#[test]
fn padded_rows_give_what_packed_rows_give() {
    let (values, ne) = (wide_numbers(1, 200 * 130), [130, 200]);
    let padded: Vec<f32> = values.chunks(130).flat_map(|row| row.iter().copied().chain([7.5; 3])).collect();
    for op in all_ops().into_iter().filter(|op| !matches!(op, Op::Scale(_))) {
        let apply = |graph: &mut Graph, leaves: &[_]| graph.apply(op, &[Some(leaves[0])]).unwrap();
        let packed = Trial::graph(&[Tensor::f32(ne, &values)], apply).best();
        let view = Tensor::f32(padded.len(), &padded).strided(ne, [4, 532, 532 * 200, 532 * 200]);
        assert_eq!(Trial::graph(std::slice::from_ref(&view), apply).best(), packed, "{}", op.label());
        let in_place =
            Trial::graph(&[view], |graph, leaves| graph.apply_in_place(op, &[Some(leaves[0])]).unwrap())
                .best();
        for (row, packed) in in_place.bytes.chunks(532).zip(packed.bytes.chunks(520)) {
            assert_eq!(&row[..520], packed, "{}", op.label());
            assert_eq!(decode(DType::F32, &row[520..]), [7.5; 3], "{}", op.label());
        }
    }
}

#[test]
fn sixteen_bits_may_become_f32() {
    let values: Vec<f32> = wide_numbers(5, 300).iter().map(|x| bf16::from_f32(*x).to_f32()).collect();
    for op in [Op::from(Unary::Tanh), Sqr.into(), Unary::Softplus.into(), Cos.into()] {
        let apply =
            |graph: &mut Graph, leaves: &[_]| graph.apply_as(op, &[Some(leaves[0])], DType::F32).unwrap();
        let wide = Trial::graph(&[Tensor::f32(300, &values)], apply).best();
        for dtype in [DType::F16, DType::BF16] {
            assert_eq!(Trial::graph(&[Tensor::of(dtype, 300, &values)], apply).best(), wide);
        }
    }
}

/// What a function makes of some numbers, the same on all levels.
fn values(op: impl Into<Op>, x: &[f32]) -> Vec<f32> {
    let results: Vec<_> = run(op, &[&Tensor::f32(x.len(), x)]).iter().map(Tensor::values).collect();
    for other in &results[1..] {
        assert!(
            other.iter().zip(&results[0]).all(|(a, b)| a == b || a.is_nan() && b.is_nan()),
            "{results:?}"
        );
    }
    results[0].clone()
}

#[test]
fn hard_cases_follow_the_table() {
    const NAN: f32 = f32::NAN;
    const INF: f32 = f32::INFINITY;
    assert_eq!(values(Unary::Sgn, &[NAN, -0.0, -3.0, 2.0, -INF]), [0.0, 0.0, -1.0, 1.0, -1.0]);
    assert_eq!(values(Unary::Relu, &[NAN, -1.0, 2.0]), [0.0, 0.0, 2.0]);
    assert_eq!(values(Unary::Step, &[NAN, 0.0, 1e-40]), [0.0, 0.0, 1.0]);
    assert_eq!(values(Unary::Round, &[0.5, -0.5, 1.5, 2.5, -2.5]), [1.0, -1.0, 2.0, 3.0, -3.0]);
    assert_eq!(values(Unary::Hardsigmoid, &[NAN, -3.0, 0.0, 9.0]), [0.0, 0.0, 0.5, 1.0]);
    assert_eq!(values(Unary::Softplus, &[21.0, -200.0, -INF]), [21.0, 0.0, 0.0]);
    assert_eq!(values(Unary::Elu, &[-1e-20, 3.0, -INF]), [-1e-20, 3.0, -1.0]);
    assert_eq!(values(Unary::Expm1, &[1e-20]), [0.0]);
    assert_eq!(values(Unary::Exp, &[-INF, INF, 0.0, 1e9]), [0.0, INF, 1.0, INF]);
    assert_eq!(values(Unary::Sigmoid, &[-INF, INF, 0.0, -1e9]), [0.0, 1.0, 0.5, 0.0]);
    let clamp = Clamp { min: -1.0, max: 2.0 };
    assert_eq!(values(clamp, &[NAN, -INF, INF, 0.5]), [2.0, -1.0, 2.0, 0.5]);
    assert_eq!(values(LeakyRelu { slope: 0.5 }, &[NAN, -4.0, 3.0]), [0.0, -2.0, 3.0]);
    assert_eq!(values(Scale { scale: 2.0, bias: 0.0 }, &[INF, 3.0]), [INF, 6.0]);
    assert!(values(Unary::Exp, &[NAN])[0].is_nan());
    assert!(values(Log, &[-1.0])[0].is_nan());
    assert_eq!(values(Log, &[0.0]), [-INF]);
}

#[test]
fn silu_back_is_the_slope_of_silu() {
    let (ne, x) = (rows_of(129), wide_numbers(9, 129 * 202));
    let gradient = wide_numbers(10, x.len());
    let build = |graph: &mut Graph, leaves: &[_]| graph.silu_back(leaves[0], leaves[1]).unwrap();
    let inputs = [Tensor::f32(ne, &gradient), Tensor::f32(ne, &x)];
    let found = Trial::graph(&inputs, build).over(&[0, 1]).best().values();
    for ((y, dy), x) in
        found.iter().zip(&gradient).zip(&x).map(|((y, dy), x)| ((*y, f64::from(*dy)), f64::from(*x)))
    {
        let s = 1.0 / (1.0 + (-x).exp());
        let exact = dy * s * (1.0 + x * (1.0 - s));
        assert!((f64::from(y) - exact).abs() < 1e-5, "{y} instead of {exact}");
    }
    let inputs = [Tensor::of(DType::F16, ne, &gradient), Tensor::of(DType::F16, ne, &x)];
    Trial::graph(&inputs, build).over(&[0, 1]).best();
}
