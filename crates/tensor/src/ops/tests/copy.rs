use super::*;

fn cont(ne: impl Into<Shape>) -> Cont {
    Cont { ne: ne.into() }
}

fn cast(dtype: DType) -> Cast {
    Cast { dtype }
}

#[rustfmt::skip]
pub(super) fn cases() -> Vec<Case> {
    vec![
        makes(Dup, &["f32[4, 3]@[12, 4]"], "f32[4, 3]"),
        makes(Dup, &["q4_K[256, 2]@[144, 288]"], "q4_K[256, 2]"),
        makes(Dup, &["i64[3]"], "i64[3]"),
        shares(Dup, &["f32[4, 3]@[4, 32]"], 0, 0, "f32[4, 3]@[4, 32]").in_place(),
        refuses(Dup, &["f32[4, 3]@[4, 0]"], "result", "share bytes").in_place(),

        makes(cont([4, 3]), &["f32[4, 3]@[12, 4]"], "f32[4, 3]"),
        makes(cont([12]), &["f32[4, 3]@[12, 4]"], "f32[12]"),
        makes(cont([32, 4]), &["q8_0[64, 2]"], "q8_0[32, 4]"),
        refuses(cont([13]), &["f32[4, 3]"], "ne", "must have the number of elements of [4, 3]"),
        refuses(cont([16, 8]), &["q8_0[64, 2]"], "result", "not a whole number"),

        // Same type: anything goes.
        shares(Cpy, &["i16[4, 3]@[6, 2]", "i16[12]"], 1, 0, "i16[12]"),
        shares(Cpy, &["q4_K[256, 2]@[144, 288]", "q4_K[512]"], 1, 0, "q4_K[512]"),
        shares(Cpy, &["iq2_xxs[256, 2]", "iq2_xxs[512]"], 1, 0, "iq2_xxs[512]"),
        // Real numbers among themselves: any layouts.
        shares(Cpy, &["f32[4, 3]@[12, 4]", "f16[3, 4]@[2, 32]"], 1, 0, "f16[3, 4]@[2, 32]"),
        shares(Cpy, &["bf16[4, 3]", "f32[4, 3]@[12, 4]"], 1, 0, "f32[4, 3]@[12, 4]"),
        shares(Cpy, &["f32[4]", "i32[4]"], 1, 0, "i32[4]"),
        shares(Cpy, &["i32[4]@[8]", "f32[2, 2]"], 1, 0, "f32[2, 2]"),
        // Into blocks: whole rows of the source, packed target.
        shares(Cpy, &["f32[64, 2]@[4, 512]", "q4_0[128]"], 1, 0, "q4_0[128]"),
        shares(Cpy, &["f16[64, 2]", "q8_1[64, 2]"], 1, 0, "q8_1[64, 2]"),
        shares(Cpy, &["bf16[256]", "iq4_xs[256]"], 1, 0, "iq4_xs[256]"),
        refuses(Cpy, &["f32[64, 2]@[8, 4]", "q4_0[128]"], "source", "rows must be contiguous"),
        refuses(Cpy, &["f32[16, 8]", "q4_0[128]"], "source", "rows must be whole q4_0 blocks of 32"),
        refuses(Cpy, &["f32[64, 2]", "q4_0[64, 2]@[18, 72]"], "target", "must be contiguous"),
        refuses(Cpy, &["f32[256]", "iq2_xs[256]"], "source", "cannot be made from others"),
        refuses(Cpy, &["i32[64]", "q4_0[64]"], "source", "must be f32, f16, bf16 or the type of the target"),
        // Out of blocks: into f32.
        shares(Cpy, &["q6_K[256, 2]@[210, 420]", "f32[256, 2]@[4, 2048]"], 1, 0, "f32[256, 2]@[4, 2048]"),
        shares(Cpy, &["iq1_s[256, 2]", "f32[8, 64]"], 1, 0, "f32[8, 64]"),
        refuses(Cpy, &["q6_K[256, 2]", "f32[8, 64]@[4, 64]"], "target", "whole blocks of the source"),
        refuses(Cpy, &["q6_K[256, 2]", "f32[256, 2]@[8, 2048]"], "target", "rows must be contiguous"),
        refuses(Cpy, &["q6_K[256]", "f16[256]"], "source", "must be f32, f16 or bf16"),
        refuses(Cpy, &["q4_0[256]", "q8_0[256]"], "source", "type is q4_0"),
        refuses(Cpy, &["q8_1[256]", "f32[256]"], "source", "type is q8_1"),
        refuses(Cpy, &["q8_K[256]", "f32[256]"], "source", "type is q8_K"),
        // Integers and doubles only move.
        refuses(Cpy, &["i32[4]", "f16[4]"], "source", "type is i32"),
        refuses(Cpy, &["f16[4]", "i32[4]"], "source", "must be f32 or i32"),
        refuses(Cpy, &["f64[4]", "f32[4]"], "source", "type is f64"),
        refuses(Cpy, &["i64[4]", "i32[4]"], "source", "type is i64"),
        refuses(Cpy, &["f32[4]", "f32[5]"], "target", "must have the 4 elements"),
        refuses(Cpy, &["f32[4, 3]", "f32[4, 3]@[4, 0]"], "result", "share bytes"),
        refuses(Cpy, &["f32[4]", "f32[4]"], "result", "cannot be computed in place").in_place(),

        makes(cast(DType::F16), &["f32[4, 3]@[12, 4]"], "f16[4, 3]"),
        makes(cast(DType::F32), &["f32[4, 3]@[12, 4]"], "f32[4, 3]"),
        makes(cast(DType::Q8_0), &["bf16[32, 3]@[2, 128]"], "q8_0[32, 3]"),
        makes(cast(DType::F32), &["iq3_s[256, 2]"], "f32[256, 2]"),
        makes(cast(DType::I32), &["f32[4]"], "i32[4]"),
        refuses(cast(DType::Q8_0), &["f32[33]"], "result", "not a whole number"),
        refuses(cast(DType::Q8_0), &["f32[32, 2]@[8, 4]"], "source", "rows must be contiguous"),
        refuses(cast(DType::IQ1_S), &["f32[256]"], "source", "cannot be made from others"),
        refuses(cast(DType::F16), &["q8_0[32]"], "source", "type is q8_0"),
        refuses(cast(DType::F16), &["f32[32]"], "result", "type is bf16").typed(DType::BF16),
    ]
}
