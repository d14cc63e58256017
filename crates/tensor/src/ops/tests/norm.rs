use super::*;

#[rustfmt::skip]
pub(super) fn cases() -> Vec<Case> {
    const NAN: f32 = f32::NAN;
    let norm = |eps| Norm { eps };
    let rms_norm = |eps| RmsNorm { eps };
    let rms_norm_back = |eps| RmsNormBack { eps };
    let l2_norm = |eps| L2Norm { eps };
    let group_norm = |groups, eps| GroupNorm { groups, eps };
    vec![
        takes(norm(1e-5), &["?[256]"], "f32"),
        makes(norm(0.0), &["f32[4, 3]"], "f32[4, 3]"),
        makes(norm(-0.0), &["f32[4, 3, 2]@[4, 32, 16]"], "f32[4, 3, 2]"),
        makes(norm(f32::INFINITY), &["f32[4, 3]@[12, 4]"], "f32[4, 3]"),
        makes(norm(1e-5), &["f32[0, 3]"], "f32[0, 3]"),
        shares(norm(1e-5), &["f32[4, 3]@[12, 4]"], 0, 0, "f32[4, 3]@[12, 4]").in_place(),
        refuses(norm(1e-5), &["f32[4, 3]@[4, 0]"], "result", "share bytes").in_place(),
        refuses(norm(-f32::from_bits(1)), &["f32[4]"], "eps", "must not be negative"),
        refuses(norm(NAN), &["f32[4]"], "eps", "is NaN, must not be negative"),
        refuses(norm(1e-5), &["f16[4]"], "a", "type is f16, must be f32"),

        takes(rms_norm(1e-5), &["?[256]"], "f32"),
        makes(rms_norm(0.0), &["f32[4, 3, 2]@[4, 32, 16]"], "f32[4, 3, 2]"),
        makes(rms_norm(1e-5), &["f32[1, 3]@[12, 4]"], "f32[1, 3]"),
        makes(rms_norm(1e-5), &["f32[4, 0]"], "f32[4, 0]"),
        shares(rms_norm(1e-5), &["f32[4, 3]@[4, 32]"], 0, 0, "f32[4, 3]@[4, 32]").in_place(),
        refuses(rms_norm(1e-5), &["f32[4, 3]@[12, 4]"], "a", "rows must be contiguous"),
        refuses(rms_norm(-1e-5), &["f32[4]"], "eps", "must not be negative"),
        refuses(rms_norm(NAN), &["f32[4]"], "eps", "is NaN"),

        takes(rms_norm_back(1e-5), &["?[256]", "f32[256]"], "f32"),
        takes(rms_norm_back(1e-5), &["f32[256]", "?[256]"], "f32"),
        makes(rms_norm_back(0.0), &["f32[4, 3, 2]@[4, 32, 16]", "f32[4, 3, 2]@[4, 16, 64]"], "f32[4, 3, 2]"),
        makes(rms_norm_back(1e-5), &["f32[4, 0]", "f32[4, 0]"], "f32[4, 0]"),
        refuses(rms_norm_back(1e-5), &["f32[4, 3]@[12, 4]", "f32[4, 3]"], "gradient", "rows must be contiguous"),
        refuses(rms_norm_back(1e-5), &["f32[4, 3]", "f32[4, 3]@[12, 4]"], "x", "rows must be contiguous"),
        refuses(rms_norm_back(1e-5), &["f32[4, 3]", "f32[4]"], "x", "must be [4, 3] like gradient"),
        refuses(rms_norm_back(-1.0), &["f32[4]", "f32[4]"], "eps", "must not be negative"),
        refuses(rms_norm_back(NAN), &["f32[4]", "f32[4]"], "eps", "is NaN"),
        refuses(rms_norm_back(1e-5), &["f32[4]", "f32[4]"], "result", "cannot be computed in place").in_place(),

        takes(l2_norm(1e-5), &["?[256]"], "f32"),
        makes(l2_norm(0.0), &["f32[4, 3]@[12, 4]"], "f32[4, 3]"),
        makes(l2_norm(1e-5), &["f32[4, 3, 2]@[4, 32, 16]"], "f32[4, 3, 2]"),
        shares(l2_norm(1e-5), &["f32[4, 3]@[12, 4]"], 0, 0, "f32[4, 3]@[12, 4]").in_place(),
        refuses(l2_norm(-1.0), &["f32[4]"], "eps", "must not be negative"),
        refuses(l2_norm(NAN), &["f32[4]"], "eps", "is NaN"),
        refuses(l2_norm(1e-5), &["bf16[4]"], "a", "type is bf16, must be f32"),

        takes(group_norm(2, 1e-5), &["?[256, 3, 4]"], "f32"),
        makes(group_norm(1, 0.0), &["f32[5, 3, 4, 2]"], "f32[5, 3, 4, 2]"),
        makes(group_norm(3, 1e-5), &["f32[5, 3, 4]@[4, 80, 20]"], "f32[5, 3, 4]"),
        makes(group_norm(i32::MAX as usize, 1e-5), &["f32[5, 3, 4]"], "f32[5, 3, 4]"),
        makes(group_norm(2, 1e-5), &["f32[5, 3, 0]"], "f32[5, 3, 0]"),
        shares(group_norm(2, 1e-5), &["f32[5, 3, 4]@[4, 32, 96]"], 0, 0, "f32[5, 3, 4]@[4, 32, 96]").in_place(),
        refuses(group_norm(0, 1e-5), &["f32[5, 3, 4]"], "groups", "is 0, must be positive, below 2^31"),
        refuses(group_norm(1 << 31, 1e-5), &["f32[5, 3, 4]"], "groups", "must be positive, below 2^31"),
        refuses(group_norm(usize::MAX, 1e-5), &["f32[5, 3, 4]"], "groups", "must be positive, below 2^31"),
        refuses(group_norm(2, -1.0), &["f32[5, 3, 4]"], "eps", "must not be negative"),
        refuses(group_norm(2, NAN), &["f32[5, 3, 4]"], "eps", "is NaN"),
        refuses(group_norm(2, 1e-5), &["f32[5, 3, 4]@[12, 4]"], "a", "rows must be contiguous"),
    ]
}
