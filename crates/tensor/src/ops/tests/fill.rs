use super::*;

#[rustfmt::skip]
pub(super) fn cases() -> Vec<Case> {
    const NAN: f32 = f32::NAN;
    const INF: f32 = f32::INFINITY;
    let arange = |start, stop, step| Arange { start, stop, step };
    let fill = |value| Fill { value };
    let tri = |keep| Tri { keep };
    let to_inf = |n_past| DiagMaskInf { n_past };
    let to_zero = |n_past| DiagMaskZero { n_past };
    let embed = |dim, max_period| TimestepEmbedding { dim, max_period };
    vec![
        makes(arange(0.0, 3.0, 1.0), &[], "f32[3]"),
        makes(arange(-1.0, 1.25, 0.5), &[], "f32[5]"),
        makes(arange(0.0, 1.0, 3.0), &[], "f32[1]"),
        makes(arange(0.0, f32::from_bits(1), 1.0), &[], "f32[1]"),
        makes(arange(0.0, f32::from_bits(1), f32::MAX), &[], "f32[0]"),
        makes(arange(0.0, 4294967296.0, 1.0), &[], "f32[4294967296]"),
        refuses(arange(0.0, 0.0, 1.0), &[], "stop", "must be finite and above start"),
        refuses(arange(0.0, -1.0, -1.0), &[], "stop", "must be finite and above start"),
        refuses(arange(0.0, INF, 1.0), &[], "stop", "must be finite and above start"),
        refuses(arange(0.0, NAN, 1.0), &[], "stop", "must be finite and above start"),
        refuses(arange(NAN, 1.0, 1.0), &[], "start", "must be finite"),
        refuses(arange(-INF, 1.0, 1.0), &[], "start", "must be finite"),
        refuses(arange(0.0, 1.0, 0.0), &[], "step", "must be finite and positive"),
        refuses(arange(0.0, 1.0, -1.0), &[], "step", "must be finite and positive"),
        refuses(arange(0.0, 1.0, INF), &[], "step", "must be finite and positive"),
        refuses(arange(0.0, 1.0, NAN), &[], "step", "must be finite and positive"),
        refuses(arange(0.0, f32::MAX, 1.0), &[], "result", "too large"),
        refuses(arange(f32::MIN, f32::MAX, f32::MAX), &[], "result", "too large"),
        refuses(arange(0.0, 3.0, 1.0), &[], "result", "type is i32").typed(DType::I32),
        refuses(arange(0.0, 3.0, 1.0), &[], "result", "cannot be computed in place").in_place(),

        takes(fill(0.0), &["?[256]"], "f32 f16"),
        makes(fill(-INF), &["f32[4, 3]"], "f32[4, 3]"),
        makes(fill(NAN), &["f16[4, 3]"], "f16[4, 3]"),
        makes(fill(1.0), &["f32[4, 0]"], "f32[4, 0]"),
        shares(fill(1.0), &["f16[4, 3]"], 0, 0, "f16[4, 3]").in_place(),
        refuses(fill(1.0), &["f32[4, 3]@[4, 32]"], "a", "must be contiguous"),
        refuses(fill(1.0), &["f32[4, 3]@[12, 4]"], "a", "must be contiguous").in_place(),
        refuses(fill(1.0), &["f16[4, 3]"], "result", "type is f32").typed(DType::F32),

        takes(tri(Triangle::Lower), &["?[256, 256]"], "f32"),
        makes(tri(Triangle::UpperWithDiagonal), &["f32[4, 4]"], "f32[4, 4]"),
        makes(tri(Triangle::Upper), &["f32[4, 4, 3, 2]"], "f32[4, 4, 3, 2]"),
        makes(tri(Triangle::LowerWithDiagonal), &["f32[1, 1, 3]"], "f32[1, 1, 3]"),
        makes(tri(Triangle::Lower), &["f32[0, 0]"], "f32[0, 0]"),
        refuses(tri(Triangle::Lower), &["f32[4, 3]"], "a", "dimension 1 must be 4 (matrices must be square)"),
        refuses(tri(Triangle::Lower), &["f32[4, 4]@[4, 32]"], "a", "must be contiguous"),
        refuses(tri(Triangle::Lower), &["f32[4, 4]"], "result", "cannot be computed in place").in_place(),

        takes(to_inf(0), &["?[256]"], "f32"),
        makes(to_inf(0), &["f32[4, 3]"], "f32[4, 3]"),
        makes(to_inf(i32::MAX as usize), &["f32[4, 3, 2, 2]"], "f32[4, 3, 2, 2]"),
        makes(to_inf(5), &["f32[4, 0]"], "f32[4, 0]"),
        shares(to_inf(1), &["f32[4, 3, 2]@[4, 32, 16]"], 0, 0, "f32[4, 3, 2]@[4, 32, 16]").in_place(),
        refuses(to_inf(1), &["f32[4, 3]@[4, 32]"], "a", "must be contiguous"),
        refuses(to_inf(1), &["f32[4, 3]@[12, 4]"], "a", "the stride of dimension 0 must be one element").in_place(),
        refuses(to_inf(1), &["f32[4, 3]@[4, 8]"], "result", "share bytes").in_place(),
        refuses(to_inf(1 << 31), &["f32[4, 3]"], "n_past", "must be below 2^31"),
        refuses(to_inf(usize::MAX), &["f32[4, 3]"], "n_past", "must be below 2^31"),

        takes(to_zero(0), &["?[256]"], "f32"),
        makes(to_zero(i32::MAX as usize), &["f32[4, 3]"], "f32[4, 3]"),
        shares(to_zero(0), &["f32[4, 3]@[4, 32]"], 0, 0, "f32[4, 3]@[4, 32]").in_place(),
        refuses(to_zero(0), &["f32[4, 3]@[12, 4]"], "a", "must be contiguous"),
        refuses(to_zero(1 << 31), &["f32[4, 3]"], "n_past", "must be below 2^31"),

        takes(embed(8, 10000), &["?[256]"], "f32"),
        makes(embed(8, 10000), &["f32[3]"], "f32[8, 3]"),
        makes(embed(7, 1), &["f32[3]"], "f32[7, 3]"),
        makes(embed(1, i32::MAX as u32), &["f32[0]"], "f32[1, 0]"),
        makes(embed(i32::MAX as usize, 1), &["f32[1]"], "f32[2147483647]"),
        refuses(embed(0, 10000), &["f32[3]"], "dim", "must be positive, below 2^31"),
        refuses(embed(1 << 31, 10000), &["f32[3]"], "dim", "must be positive, below 2^31"),
        refuses(embed(usize::MAX, 10000), &["f32[3]"], "dim", "must be positive, below 2^31"),
        refuses(embed(8, 0), &["f32[3]"], "max_period", "must be positive, below 2^31"),
        refuses(embed(8, 1 << 31), &["f32[3]"], "max_period", "must be positive, below 2^31"),
        refuses(embed(8, 10000), &["f32[3, 2]"], "steps", "at most 1 dimensions"),
        refuses(embed(8, 10000), &["f32[3]@[8]"], "steps", "the stride of dimension 0 must be one element"),
    ]
}
