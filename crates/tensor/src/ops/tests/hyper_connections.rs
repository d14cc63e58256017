use super::*;

#[rustfmt::skip]
pub(super) fn cases() -> Vec<Case> {
    let comb = |eps, iterations| Dsv4HcComb { eps, iterations };
    let [plain, gated] = [false, true].map(|gated| Dsv4HcPre { scale: 1.5, gated });
    vec![
        makes(comb(1e-6, 4), &["f32[24, 3]", "f32[3]", "f32[24]"], "f32[4, 4, 3]"),
        makes(comb(0.0, 1), &["f32[24, 3]@[12, 4]", "f32[5]@[8]", "f32[24]@[0]"], "f32[4, 4, 3]"),
        makes(comb(1e-6, i32::MAX as u32), &["f32[24, 0]", "f32[3]", "f32[24]"], "f32[4, 4, 0]"),
        refuses(comb(1e-6, 4), &["f16[24, 3]", "f32[3]", "f32[24]"], "mixes", "must be f32"),
        refuses(comb(1e-6, 4), &["f32[23, 3]", "f32[3]", "f32[24]"], "mixes", "must be [24, 3]"),
        refuses(comb(1e-6, 4), &["f32[24, 3, 2]", "f32[3]", "f32[24]"], "mixes", "must be [24, 3]"),
        refuses(comb(1e-6, 4), &["f32[24, 3]", "f16[3]", "f32[24]"], "scale", "must be f32"),
        refuses(comb(1e-6, 4), &["f32[24, 3]", "f32[2]", "f32[24]"], "scale", "at least 3 elements"),
        refuses(comb(1e-6, 4), &["f32[24, 3]", "f32[3, 2]", "f32[24]"], "scale", "at most 1 dimensions"),
        refuses(comb(1e-6, 4), &["f32[24, 3]", "f32[3]", "f16[24]"], "base", "must be f32"),
        refuses(comb(1e-6, 4), &["f32[24, 3]", "f32[3]", "f32[25]"], "base", "must be [24]"),
        refuses(comb(1e-6, 4), &["f32[24, 3]", "f32[3]", "f32[24, 3]"], "base", "must be [24]"),
        refuses(comb(-1e-6, 4), &["f32[24, 3]", "f32[3]", "f32[24]"], "eps", "must not be negative"),
        refuses(comb(f32::NAN, 4), &["f32[24, 3]", "f32[3]", "f32[24]"], "eps", "must not be negative"),
        refuses(comb(1e-6, 0), &["f32[24, 3]", "f32[3]", "f32[24]"], "iterations", "must be positive"),
        refuses(comb(1e-6, 1 << 31), &["f32[24, 3]", "f32[3]", "f32[24]"], "iterations", "below 2^31"),

        makes(plain, &["f32[10, 4, 3]", "f32[4, 3]"], "f32[10, 3]"),
        makes(plain, &["f32[10, 4, 3]@[16, 4]", "f32[4, 3]@[12, 4]"], "f32[10, 3]"),
        makes(plain, &["f32[10, 4, 0]", "f32[4, 0]"], "f32[10, 0]"),
        makes(gated, &["f32[10, 4, 3]", "f32[10, 4, 3]@[4, 0]"], "f32[10, 3]"),
        refuses(plain, &["f16[10, 4, 3]", "f32[4, 3]"], "x", "must be f32"),
        refuses(plain, &["f32[10, 4, 3, 2]", "f32[4, 3]"], "x", "at most 3 dimensions"),
        refuses(plain, &["f32[10, 4, 3]", "f16[4, 3]"], "weights", "must be f32"),
        refuses(plain, &["f32[10, 4, 3]", "f32[3, 4]"], "weights", "must be [4, 3]"),
        refuses(plain, &["f32[10, 4, 3]", "f32[10, 4, 3]"], "weights", "must be [4, 3]"),
        refuses(gated, &["f32[10, 4, 3]", "f32[4, 3]"], "weights", "must be [10, 4, 3] like x"),
        refuses(plain, &["f32[10, 1, 1]", "f32[1]"], "result", "cannot be computed in place").in_place(),

        makes(Dsv4HcPost, &["f32[10, 3]", "f32[10, 4, 3]", "f32[4, 3]"], "f32[10, 4, 3]"),
        makes(Dsv4HcPost, &["f32[10, 3]@[12, 4]", "f32[10, 4, 3]@[4, 120, 40]", "f32[4, 3]@[12, 4]", "f32[4, 4, 3]@[16, 4]"], "f32[10, 4, 3]"),
        makes(Dsv4HcPost, &["f32[10, 0]", "f32[10, 4, 0]", "f32[4, 0]", "f32[4, 4, 0]"], "f32[10, 4, 0]"),
        refuses(Dsv4HcPost, &["f16[10, 3]", "f32[10, 4, 3]", "f32[4, 3]"], "x", "must be f32"),
        refuses(Dsv4HcPost, &["f32[10, 3, 2]", "f32[10, 4, 3]", "f32[4, 3]"], "x", "at most 2 dimensions"),
        refuses(Dsv4HcPost, &["f32[10, 3]", "f16[10, 4, 3]", "f32[4, 3]"], "residual", "must be f32"),
        refuses(Dsv4HcPost, &["f32[10, 3]", "f32[9, 4, 3]", "f32[4, 3]"], "residual", "must be [10, 4, 3]"),
        refuses(Dsv4HcPost, &["f32[10, 3]", "f32[10, 4, 3, 2]", "f32[4, 3]"], "residual", "must be [10, 4, 3]"),
        refuses(Dsv4HcPost, &["f32[10, 3]", "f32[10, 4, 3]", "f16[4, 3]"], "post", "must be f32"),
        refuses(Dsv4HcPost, &["f32[10, 3]", "f32[10, 4, 3]", "f32[3, 4]"], "post", "must be [4, 3]"),
        refuses(Dsv4HcPost, &["f32[10, 3]", "f32[10, 4, 3]", "f32[4, 3]", "f16[4, 4, 3]"], "comb", "must be f32"),
        refuses(Dsv4HcPost, &["f32[10, 3]", "f32[10, 4, 3]", "f32[4, 3]", "f32[4, 4]"], "comb", "must be [4, 4, 3]"),
    ]
}
