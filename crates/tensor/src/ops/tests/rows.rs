use super::*;

#[rustfmt::skip]
pub(super) fn cases() -> Vec<Case> {
    vec![
        makes(GetRows, &["f32[64, 10]", "i32[3]"], "f32[64, 3]"),
        makes(GetRows, &["i32[64, 10]", "i32[3]"], "i32[64, 3]"),
        makes(GetRows, &["q4_K[256, 10, 2, 3]@[144, 288]", "i32[5, 2, 3]@[8, 64]"], "f32[256, 5, 2, 3]"),
        makes(GetRows, &["iq1_m[256, 10]", "i32[0]"], "f32[256, 0]"),
        refuses(GetRows, &["q8_1[64, 10]", "i32[3]"], "table", "type is q8_1"),
        refuses(GetRows, &["i64[64, 10]", "i32[3]"], "table", "type is i64"),
        refuses(GetRows, &["f32[64, 10]@[40, 4]", "i32[3]"], "table", "rows must be contiguous"),
        refuses(GetRows, &["f32[64, 10]", "i64[3]"], "rows", "must be i32"),
        refuses(GetRows, &["f32[64, 10, 2]", "i32[3]"], "rows", "dimension 1 must be 2"),
        refuses(GetRows, &["f32[64, 10, 1, 2]", "i32[3, 1, 1]"], "rows", "dimension 2 must be 2"),
        refuses(GetRows, &["f32[64, 10]", "i32[3, 1, 1, 2]"], "rows", "at most 3 dimensions"),

        makes(GetRowsBack { rows: 10 }, &["f32[64, 3]", "i32[3]"], "f32[64, 10]"),
        makes(GetRowsBack { rows: 10 }, &["f16[64, 3]@[2, 256]", "i32[3]"], "f32[64, 10]"),
        refuses(GetRowsBack { rows: 10 }, &["bf16[64, 3]", "i32[3]"], "gradient", "type is bf16"),
        refuses(GetRowsBack { rows: 10 }, &["f32[64, 3, 2]", "i32[3]"], "gradient", "at most 2 dimensions"),
        refuses(GetRowsBack { rows: 10 }, &["f32[64, 3]@[12, 4]", "i32[3]"], "gradient", "rows must be contiguous"),
        refuses(GetRowsBack { rows: 10 }, &["f32[64, 3]", "i32[4]"], "rows", "must be [3]"),
        refuses(GetRowsBack { rows: 10 }, &["f32[64, 3]", "i32[3]@[8]"], "rows", "must be contiguous"),
        refuses(GetRowsBack { rows: 10 }, &["f32[64, 3]", "f32[3]"], "rows", "must be i32"),
        refuses(GetRowsBack { rows: usize::MAX }, &["f32[64, 3]", "i32[3]"], "result", "too large"),

        shares(SetRows, &["f32[64, 3]", "i64[3]", "f16[64, 10]"], 2, 0, "f16[64, 10]"),
        shares(SetRows, &["f16[64, 3]@[2, 256]", "i32[3]@[8]", "q4_0[64, 10]@[18, 72]"], 2, 0, "q4_0[64, 10]@[18, 72]"),
        shares(SetRows, &["f32[64, 3, 4, 6]", "i64[3, 2, 3]", "f32[64, 10, 4, 6]"], 2, 0, "f32[64, 10, 4, 6]"),
        shares(SetRows, &["f32[64, 0]", "i64[0]", "i32[64, 10]"], 2, 0, "i32[64, 10]"),
        refuses(SetRows, &["bf16[64, 3]", "i64[3]", "f16[64, 10]"], "values", "one of f32, f16"),
        refuses(SetRows, &["f32[64, 3]@[12, 4]", "i64[3]", "f16[64, 10]"], "values", "rows must be contiguous"),
        refuses(SetRows, &["f32[64, 3]", "i16[3]", "f16[64, 10]"], "rows", "one of i64, i32"),
        refuses(SetRows, &["f32[64, 3]", "i64[4]", "f16[64, 10]"], "rows", "dimension 0 must be 3"),
        refuses(SetRows, &["f32[64, 3, 4]", "i64[3, 3]", "f16[64, 10, 4]"], "rows", "dimension 1 must divide 4"),
        refuses(SetRows, &["f32[64, 3, 4]", "i64[3, 0]", "f16[64, 10, 4]"], "rows", "dimension 1 must divide 4"),
        refuses(SetRows, &["f32[64, 3, 1, 4]", "i64[3, 1, 3]", "f16[64, 10, 1, 4]"], "rows", "dimension 2 must divide 4"),
        refuses(SetRows, &["f32[64, 3]", "i64[3, 1, 1, 2]", "f16[64, 10]"], "rows", "at most 3 dimensions"),
        refuses(SetRows, &["f32[256, 3]", "i64[3]", "iq3_s[256, 10]"], "target", "a type a graph can write"),
        refuses(SetRows, &["f32[64, 3]", "i64[3]", "i64[64, 10]"], "target", "a type a graph can write"),
        refuses(SetRows, &["f32[64, 3]", "i64[3]", "f16[32, 10]"], "target", "dimension 0 must be 64"),
        refuses(SetRows, &["f32[64, 3, 2]", "i64[3]", "f16[64, 10]"], "target", "dimension 2 must be 2"),
        refuses(SetRows, &["f32[64, 3, 1, 2]", "i64[3]", "f16[64, 10]"], "target", "dimension 3 must be 2"),
        refuses(SetRows, &["f32[64, 3]", "i64[3]", "f16[64, 10]@[20, 2]"], "target", "rows must be contiguous"),
        refuses(SetRows, &["f32[64, 3]", "i64[3]", "f32[64, 10]@[4, 0]"], "result", "share bytes"),
    ]
}
