use super::*;

#[rustfmt::skip]
pub(super) fn cases() -> Vec<Case> {
    const NAN: f32 = f32::NAN;
    const INF: f32 = f32::INFINITY;
    let scale = |scale, bias| Scale { scale, bias };
    let clamp = |min, max| Clamp { min, max };
    let leaky = |slope| LeakyRelu { slope };
    vec![
        takes(scale(2.0, 0.0), &["?[256]"], "f32 bf16"),
        makes(scale(2.0, 1.0), &["f32[4, 3]"], "f32[4, 3]"),
        makes(scale(0.0, -INF), &["bf16[4, 3, 2, 2]"], "bf16[4, 3, 2, 2]"),
        makes(scale(NAN, NAN), &["f32[4, 0]"], "f32[4, 0]"),
        makes(scale(2.0, 0.0), &["f32[1, 3]@[12, 4]"], "f32[1, 3]"),
        shares(scale(2.0, 0.0), &["f32[4, 3]"], 0, 0, "f32[4, 3]").in_place(),
        refuses(scale(2.0, 0.0), &["f32[4, 3]@[12, 4]"], "a", "must be contiguous"),
        refuses(scale(2.0, 0.0), &["f32[4, 3]@[4, 32]"], "a", "must be contiguous"),
        refuses(scale(2.0, 0.0), &["f32[4, 3]@[4, 32]"], "a", "must be contiguous").in_place(),
        refuses(scale(2.0, 0.0), &["bf16[4]"], "result", "type is f32").typed(DType::F32),

        takes(clamp(0.0, 1.0), &["?[256]"], "f32 f16"),
        makes(clamp(-INF, INF), &["f32[4, 3]"], "f32[4, 3]"),
        makes(clamp(1.0, 0.0), &["f16[4, 3, 2]@[2, 16]"], "f16[4, 3, 2]"),
        makes(clamp(NAN, NAN), &["f32[0, 3]"], "f32[0, 3]"),
        shares(clamp(0.0, 1.0), &["f32[4, 3]@[4, 32]"], 0, 0, "f32[4, 3]@[4, 32]").in_place(),
        refuses(clamp(0.0, 1.0), &["f32[4, 3]@[4, 8]"], "result", "share bytes").in_place(),
        refuses(clamp(0.0, 1.0), &["f32[4, 3]@[12, 4]"], "a", "one common distance"),
        refuses(clamp(0.0, 1.0), &["f32[4, 3, 2]@[4, 16, 64]"], "a", "one common distance"),

        takes(leaky(0.1), &["?[256]"], "f32 f16"),
        makes(leaky(-1.0), &["f32[4, 3, 2]@[4, 32]"], "f32[4, 3, 2]"),
        makes(leaky(NAN), &["f16[4, 0]"], "f16[4, 0]"),
        shares(leaky(0.1), &["f16[4, 3]"], 0, 0, "f16[4, 3]").in_place(),
        refuses(leaky(0.1), &["f32[4, 3]@[12, 4]"], "a", "one common distance"),
        refuses(leaky(0.1), &["f32[4, 3, 2]@[4, 16, 64]"], "a", "one common distance"),
        refuses(leaky(0.1), &["f16[4]"], "result", "type is f32").typed(DType::F32),

        takes(Sqr, &["?[256]"], "f32 f16 bf16"),
        takes(Sqr, &["?[256]"], "f32 f16 bf16").typed(DType::F32),
        makes(Sqr, &["f32[4, 3, 2]@[4, 32, 16]"], "f32[4, 3, 2]"),
        makes(Sqr, &["f16[1, 3]@[12, 4]"], "f16[1, 3]"),
        makes(Sqr, &["f32[4, 3]@[4, 0]"], "f32[4, 3]"),
        makes(Sqr, &["bf16[0, 3]"], "f32[0, 3]").typed(DType::F32),
        shares(Sqr, &["f32[4, 3]@[4, 32]"], 0, 0, "f32[4, 3]@[4, 32]").in_place(),
        refuses(Sqr, &["f32[4, 3]@[12, 4]"], "a", "rows must be contiguous"),
        refuses(Sqr, &["f32[4, 3]@[4, 0]"], "result", "share bytes").in_place(),
        refuses(Sqr, &["f32[4]"], "result", "type is f16, must be the type of a or f32").typed(DType::F16),
        refuses(Sqr, &["f16[4]"], "result", "type is bf16, must be the type of a or f32").typed(DType::BF16),
        refuses(Sqr, &["f16[4]"], "result", "cannot be computed in place").typed(DType::F32).in_place(),

        takes(Sqrt, &["?[256]"], "f32 f16 bf16"),
        takes(Sqrt, &["?[256]"], "f32 f16 bf16").typed(DType::F32),
        makes(Sqrt, &["f32[4, 3, 2]@[4, 32, 16]"], "f32[4, 3, 2]"),
        shares(Sqrt, &["bf16[4, 3]"], 0, 0, "bf16[4, 3]").in_place(),
        refuses(Sqrt, &["f32[4, 3]@[12, 4]"], "a", "rows must be contiguous"),

        takes(Log, &["?[256]"], "f32 f16 bf16"),
        takes(Log, &["?[256]"], "f32 f16 bf16").typed(DType::F32),
        makes(Log, &["f32[4, 3, 2]@[4, 32, 16]"], "f32[4, 3, 2]"),
        shares(Log, &["f32[4, 3]"], 0, 0, "f32[4, 3]").in_place(),
        refuses(Log, &["f32[4, 3]@[12, 4]"], "a", "rows must be contiguous"),

        takes(Sin, &["?[256]"], "f32 f16 bf16"),
        takes(Sin, &["?[256]"], "f32 f16 bf16").typed(DType::F32),
        makes(Sin, &["f32[4, 3, 2]@[4, 32, 16]"], "f32[4, 3, 2]"),
        shares(Sin, &["f32[4, 3]"], 0, 0, "f32[4, 3]").in_place(),
        refuses(Sin, &["f32[4, 3]@[12, 4]"], "a", "rows must be contiguous"),

        takes(Cos, &["?[256]"], "f32 f16 bf16"),
        takes(Cos, &["?[256]"], "f32 f16 bf16").typed(DType::F32),
        makes(Cos, &["f32[4, 3, 2]@[4, 32, 16]"], "f32[4, 3, 2]"),
        shares(Cos, &["f32[4, 3]"], 0, 0, "f32[4, 3]").in_place(),
        refuses(Cos, &["f32[4, 3]@[12, 4]"], "a", "rows must be contiguous"),
    ]
}
