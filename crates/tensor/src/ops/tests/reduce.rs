use super::*;

#[rustfmt::skip]
pub(super) fn cases() -> Vec<Case> {
    vec![
        takes(Sum, &["?[256]"], "f32 f16 bf16"),
        makes(Sum, &["f32[4, 3, 2, 5]"], "f32[1]"),
        makes(Sum, &["f16[4, 3, 2]@[2, 32, 8]"], "f16[1]"),
        makes(Sum, &["bf16[1, 3]@[12, 4]"], "bf16[1]"),
        makes(Sum, &["f32[4, 0]"], "f32[1]"),
        refuses(Sum, &["f32[4, 3]@[12, 4]"], "a", "rows must be contiguous"),
        refuses(Sum, &["f16[4]"], "result", "type is f32").typed(DType::F32),
        refuses(Sum, &["f32[1]"], "result", "cannot be computed in place").in_place(),

        takes(SumRows, &["?[256]"], "f32"),
        makes(SumRows, &["f32[4, 3, 2, 5]"], "f32[1, 3, 2, 5]"),
        makes(SumRows, &["f32[4, 3, 2]@[4, 32, 16]"], "f32[1, 3, 2]"),
        makes(SumRows, &["f32[0, 3]"], "f32[1, 3]"),
        makes(SumRows, &["f32[4, 0]"], "f32[1, 0]"),
        refuses(SumRows, &["f32[4, 3]@[12, 4]"], "a", "rows must be contiguous"),

        takes(Mean, &["?[256]"], "f32"),
        makes(Mean, &["f32[4, 3, 2, 5]@[4, 32]"], "f32[1, 3, 2, 5]"),
        makes(Mean, &["f32[0, 3]"], "f32[1, 3]"),
        refuses(Mean, &["f32[4, 3]@[12, 4]"], "a", "rows must be contiguous"),

        takes(Cumsum, &["?[256]"], "f32"),
        makes(Cumsum, &["f32[4, 3, 2]@[4, 32, 16]"], "f32[4, 3, 2]"),
        makes(Cumsum, &["f32[0, 3]"], "f32[0, 3]"),
        refuses(Cumsum, &["f32[4, 3]@[12, 4]"], "a", "rows must be contiguous"),
        refuses(Cumsum, &["f32[4]"], "result", "cannot be computed in place").in_place(),

        takes(Argmax, &["?[256]"], "f32"),
        makes(Argmax, &["f32[4, 3]"], "i32[3]"),
        makes(Argmax, &["f32[4, 3]@[4, 32]"], "i32[3]"),
        makes(Argmax, &["f32[0, 3]"], "i32[3]"),
        makes(Argmax, &["f32[2147483647, 0]"], "i32[0]"),
        refuses(Argmax, &["f32[2147483648, 0]"], "a", "rows must have less than 2^31 elements"),
        refuses(Argmax, &["f32[4, 3, 2]"], "a", "at most 2 dimensions"),
        refuses(Argmax, &["f32[4, 3, 1, 2]"], "a", "at most 2 dimensions"),
        refuses(Argmax, &["f32[4, 3]@[12, 4]"], "a", "rows must be contiguous"),
        refuses(Argmax, &["f32[4]"], "result", "type is i64").typed(DType::I64),

        takes(CountEqual, &["?[256]", "i32[256]"], "i32"),
        takes(CountEqual, &["i32[256]", "?[256]"], "i32"),
        makes(CountEqual, &["i32[4, 3, 2, 5]", "i32[4, 3, 2, 5]"], "i64[1]"),
        makes(CountEqual, &["i32[4, 3]@[12, 4]", "i32[4, 3]@[4, 0]"], "i64[1]"),
        makes(CountEqual, &["i32[4, 0]", "i32[4, 0]"], "i64[1]"),
        refuses(CountEqual, &["f32[4]", "i32[4]"], "a", "type is f32, must be i32"),
        refuses(CountEqual, &["i32[4, 3]", "i32[4]"], "b", "must be [4, 3] like a"),
        refuses(CountEqual, &["i32[4, 3]", "i32[3, 4]"], "b", "must be [4, 3] like a"),
    ]
}
