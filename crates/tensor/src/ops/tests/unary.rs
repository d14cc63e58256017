use super::*;

fn xielu(value: f32) -> Unary {
    Unary::Xielu { alpha_n: value, alpha_p: value, beta: value, eps: value }
}

/// Functions that can turn 16 bits into `f32`.
fn widening() -> [Unary; 18] {
    use Unary::*;
    [
        Abs,
        Sgn,
        Neg,
        Step,
        Tanh,
        Elu,
        Relu,
        Sigmoid,
        Hardswish,
        Hardsigmoid,
        Exp,
        Expm1,
        Softplus,
        xielu(0.5),
        Floor,
        Ceil,
        Round,
        Trunc,
    ]
}

#[rustfmt::skip]
pub(super) fn cases() -> Vec<Case> {
    use Unary::*;
    let mut cases = vec![
        makes(Relu, &["f32[4, 3, 2]@[4, 32, 16]"], "f32[4, 3, 2]"),
        makes(Gelu, &["bf16[4, 3, 2]@[2, 32, 8]"], "bf16[4, 3, 2]"),
        makes(Silu, &["f16[1, 3]@[12, 4]"], "f16[1, 3]"),
        makes(Exp, &["f32[4, 3]@[4, 0]"], "f32[4, 3]"),
        makes(Neg, &["f32[4, 0]"], "f32[4, 0]"),
        shares(Tanh, &["f32[4, 3]@[4, 32]"], 0, 0, "f32[4, 3]@[4, 32]").in_place(),
        shares(GeluErf, &["f16[4, 3]"], 0, 0, "f16[4, 3]").in_place(),
        refuses(Relu, &["f32[4, 3]@[12, 4]"], "a", "rows must be contiguous"),
        refuses(Silu, &["f32[4, 3]@[12, 4]"], "a", "rows must be contiguous").in_place(),
        refuses(Relu, &["f32[4, 3]@[4, 0]"], "result", "share bytes").in_place(),
        refuses(Floor, &["i32[4]"], "a", "type is i32, must be one of f32, f16, bf16"),
        makes(Relu, &["f16[4, 3]"], "f32[4, 3]").typed(DType::F32),
        makes(Silu, &["f16[4, 3]"], "f16[4, 3]").typed(DType::F16),
        refuses(Relu, &["f32[4]"], "result", "type is f16, must be the type of a or f32").typed(DType::F16),
        refuses(Relu, &["f16[4]"], "result", "type is bf16, must be the type of a or f32").typed(DType::BF16),
        refuses(Relu, &["f16[4]"], "result", "cannot be computed in place").typed(DType::F32).in_place(),

        makes(xielu(0.5), &["f32[4, 3, 2]@[4, 32]"], "f32[4, 3, 2]"),
        makes(xielu(f32::NAN), &["bf16[4, 3]"], "f32[4, 3]").typed(DType::F32),
        shares(xielu(-1.0), &["f32[4, 3]@[4, 32]"], 0, 0, "f32[4, 3]@[4, 32]").in_place(),
        refuses(xielu(0.5), &["f32[4, 3, 2]@[4, 16, 64]"], "a", "one common distance"),
        refuses(xielu(0.5), &["f32[4, 3]@[12, 4]"], "a", "one common distance"),
    ];
    for function in widening() {
        cases.push(takes(function, &["?[256]"], "f32 f16 bf16"));
        cases.push(takes(function, &["?[256]"], "f32 f16 bf16").typed(DType::F32));
    }
    for function in [Gelu, GeluErf, GeluQuick, Silu] {
        cases.push(takes(function, &["?[256]"], "f32 f16 bf16"));
        cases.push(takes(function, &["?[256]"], "f32").typed(DType::F32));
        cases.push(refuses(function, &["bf16[4]"], "result", "type is f32, must be the type of a").typed(DType::F32));
    }
    cases
}
