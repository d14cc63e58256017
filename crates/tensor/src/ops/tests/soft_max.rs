use super::*;

#[rustfmt::skip]
pub(super) fn cases() -> Vec<Case> {
    const NAN: f32 = f32::NAN;
    const INF: f32 = f32::INFINITY;
    let soft_max = SoftMax { scale: 0.125, max_bias: 0.0 };
    let biased = |max_bias| SoftMax { max_bias, ..soft_max };
    let back = |scale| SoftMaxBack { scale };
    vec![
        takes(soft_max, &["?[256]"], "f32"),
        takes(soft_max, &["f32[256]", "?[256]"], "f32 f16"),
        takes(soft_max, &["f32[4, 3, 256]", "-", "?[256]"], "f32"),
        makes(soft_max, &["f32[4, 3, 2, 5]"], "f32[4, 3, 2, 5]"),
        makes(soft_max, &["f32[4, 0]", "-", "-"], "f32[4, 0]"),
        makes(SoftMax { scale: NAN, ..soft_max }, &["f32[4]"], "f32[4]"),
        shares(soft_max, &["f32[4, 3]", "f16[4, 3]"], 0, 0, "f32[4, 3]").in_place(),
        refuses(soft_max, &["f32[4, 3]@[4, 32]"], "a", "must be contiguous"),
        refuses(soft_max, &["f32[4, 3]@[12, 4]"], "a", "must be contiguous").in_place(),
        refuses(soft_max, &["f32[4]"], "result", "type is f16").typed(DType::F16),
        // Masks.
        makes(soft_max, &["f32[4, 3, 6, 4]", "f16[4, 3, 6, 4]"], "f32[4, 3, 6, 4]"),
        makes(soft_max, &["f32[4, 3, 6, 4]", "f32[4, 64, 3, 2]"], "f32[4, 3, 6, 4]"),
        makes(soft_max, &["f32[4, 3, 6, 4]", "f16[4, 3]"], "f32[4, 3, 6, 4]"),
        makes(soft_max, &["f32[4, 3, 0]", "f16[4, 3]"], "f32[4, 3, 0]"),
        refuses(soft_max, &["f32[4, 3]", "f16[5, 3]"], "mask", "dimension 0 must be 4 (the row length of a)"),
        refuses(soft_max, &["f32[4, 3]", "f16[1, 3]"], "mask", "dimension 0 must be 4"),
        refuses(soft_max, &["f32[4, 3]", "f16[4, 2]"], "mask", "needs at least the 3 rows of a"),
        refuses(soft_max, &["f32[4, 3, 6]", "f16[4, 3, 4]"], "mask", "dimension 2 must divide 6 (dimension 2 of a)"),
        refuses(soft_max, &["f32[4, 3, 6]", "f16[4, 3, 0]"], "mask", "dimension 2 must divide 6"),
        refuses(soft_max, &["f32[4, 3, 6, 4]", "f16[4, 3, 6, 3]"], "mask", "dimension 3 must divide 4 (dimension 3 of a)"),
        refuses(soft_max, &["f32[4, 3, 6, 4]", "f16[4, 3, 1, 0]"], "mask", "dimension 3 must divide 4"),
        refuses(soft_max, &["f32[4, 3]", "f16[4, 3]@[2, 64]"], "mask", "must be contiguous"),
        refuses(soft_max, &["f32[4, 3]", "f16[4, 3]@[6, 2]"], "mask", "must be contiguous"),
        // Sinks.
        makes(soft_max, &["f32[4, 3, 6, 4]", "-", "f32[6]"], "f32[4, 3, 6, 4]"),
        makes(soft_max, &["f32[4, 3, 6, 4]", "f16[4, 3]", "f32[6]"], "f32[4, 3, 6, 4]"),
        refuses(soft_max, &["f32[4, 3, 6]", "-", "f32[5]"], "sinks", "must be [6] (one sink per head)"),
        refuses(soft_max, &["f32[4, 3, 6]", "-", "f32[1]"], "sinks", "must be [6]"),
        refuses(soft_max, &["f32[4, 3, 6]", "-", "f32[6, 2]"], "sinks", "must be [6]"),
        refuses(soft_max, &["f32[4, 3, 6]", "-", "f32[6]@[8]"], "sinks", "must be contiguous"),
        // Bias.
        makes(biased(8.0), &["f32[4, 3, 6]", "f16[4, 3]"], "f32[4, 3, 6]"),
        makes(biased(INF), &["f32[4, 3, 6]", "f16[4, 3]"], "f32[4, 3, 6]"),
        makes(biased(-1.0), &["f32[4, 3, 6]"], "f32[4, 3, 6]"),
        refuses(biased(f32::from_bits(1)), &["f32[4, 3]"], "max_bias", "needs a mask when positive"),
        refuses(biased(8.0), &["f32[4, 3]", "-", "f32[1]"], "max_bias", "needs a mask when positive"),
        refuses(biased(NAN), &["f32[4, 3]", "f16[4, 3]"], "max_bias", "is NaN, must be a number"),

        takes(back(1.0), &["?[256]", "f32[256]"], "f32"),
        takes(back(1.0), &["f32[256]", "?[256]"], "f32"),
        makes(back(1.0), &["f32[4, 3, 2, 5]", "f32[4, 3, 2, 5]"], "f32[4, 3, 2, 5]"),
        makes(back(NAN), &["f32[4, 0]", "f32[4, 0]"], "f32[4, 0]"),
        shares(back(1.0), &["f32[4, 3]", "f32[4, 3]"], 0, 0, "f32[4, 3]").in_place(),
        refuses(back(1.0), &["f32[4, 3]@[4, 32]", "f32[4, 3]"], "gradient", "must be contiguous"),
        refuses(back(1.0), &["f32[4, 3]", "f32[4, 3]@[12, 4]"], "y", "must be contiguous"),
        refuses(back(1.0), &["f32[4, 3]", "f32[4, 3]@[4, 32]"], "y", "must be contiguous"),
        refuses(back(1.0), &["f32[4, 3]", "f32[4]"], "y", "must be [4, 3] like gradient"),
    ]
}
