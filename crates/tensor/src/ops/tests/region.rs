use super::*;

#[rustfmt::skip]
pub(super) fn cases() -> Vec<Case> {
    let set = |strides, offset| Set(Region { strides, offset });
    let acc = |strides, offset| Acc(Region { strides, offset });
    let limit = 1 << 30;
    vec![
        takes(set([1024; 3], 0), &["?[256]", "?[256]"], "f32 i32"),
        makes(set([16, 48, 48], 0), &["f32[4, 3]", "f32[4, 3]"], "f32[4, 3]"),
        makes(set([16, 48, 48], 20), &["f32[4, 3]", "f32[2, 2]"], "f32[4, 3]"),
        makes(set([16, 48, 48], 24), &["f32[4, 3]", "f32[2, 2]@[4, 32]"], "f32[4, 3]"),
        makes(set([24, 12, 96], 0), &["f32[3, 2, 2, 2]", "f32[3, 2, 2, 1]"], "f32[3, 2, 2, 2]"),
        makes(set([48, 24, 12], 0), &["f32[3, 2, 2, 2]", "f32[3, 2, 2, 2]"], "f32[3, 2, 2, 2]"),
        makes(set([16, 48, 48], 44), &["i32[4, 3]", "i32[1]"], "i32[4, 3]"),
        makes(set([16, 48, 48], 48), &["f32[4, 3]", "f32[0]"], "f32[4, 3]"),
        makes(set([0, 0, 0], 0), &["f32[0]", "f32[0]"], "f32[0]"),
        shares(set([16, 48, 48], 16), &["f32[4, 3]", "f32[4]"], 0, 0, "f32[4, 3]").in_place(),
        refuses(set([16, 48, 48], 0), &["f32[4, 3]@[4, 32]", "f32[4]"], "a", "must be contiguous"),
        refuses(set([16, 48, 48], 0), &["f32[4, 3]@[12, 4]", "f32[4]"], "a", "must be contiguous").in_place(),
        refuses(set([16, 48, 48], 0), &["f32[4, 3]", "f32[4]@[8]"], "b", "the stride of dimension 0 must be one element"),
        refuses(set([16, 48, 48], 0), &["f32[4, 3]", "i32[4]"], "b", "must be f32, the type of a"),
        refuses(set([4, 4, 4], 0), &["f32[4]", "f32[5]"], "b", "must not have more than the 4 elements of a"),
        // Bounds.
        refuses(set([16, 48, 48], 48), &["f32[4, 3]", "f32[1]"], "offset", "bytes 48..+4 reach outside the 48 bytes"),
        refuses(set([16, 48, 48], 4), &["f32[4, 3]", "f32[4, 3]"], "offset", "bytes 4..+48 reach outside the 48 bytes"),
        refuses(set([20, 60, 60], 0), &["f32[4, 3]", "f32[4, 3]"], "offset", "bytes 0..+56 reach outside"),
        makes(set([16, 44, 44], 0), &["f32[4, 3]", "f32[1, 1, 2]"], "f32[4, 3]"),
        refuses(set([16, 48, 48], 0), &["f32[4, 3]", "f32[1, 1, 2]"], "offset", "bytes 0..+52 reach outside"),
        refuses(set([16, 48, 48], 52), &["f32[4, 3]", "f32[0]"], "offset", "reach outside"),
        refuses(set([16, 48, limit], 0), &["f32[4, 3]", "f32[1, 1, 1, 2]"], "offset", "reach outside"),
        // Parameters.
        refuses(set([16, 48, 48], 2), &["f32[4, 3]", "f32[1]"], "offset", "must be whole elements"),
        refuses(set([16, 48, 48], limit - 4), &["f32[4, 3]", "f32[1]"], "offset", "reach outside"),
        refuses(set([16, 48, 48], limit), &["f32[4, 3]", "f32[1]"], "offset", "must be below 2^30"),
        refuses(set([16, 48, 48], usize::MAX - 3), &["f32[4, 3]", "f32[1]"], "offset", "must be below 2^30"),
        refuses(set([18, 48, 48], 0), &["f32[4, 3]", "f32[1, 2]"], "strides", "stride 18 of dimension 1"),
        refuses(set([i32::MAX as usize - 3, 48, 48], 0), &["f32[4, 3]", "f32[1, 2]"], "offset", "reach outside"),
        refuses(set([1 << 31, 48, 48], 0), &["f32[4, 3]", "f32[1, 2]"], "strides", "must be below 2^31"),
        refuses(set([16, 48, usize::MAX - 3], 0), &["f32[4, 3]", "f32[1, 1, 1, 2]"], "strides", "must be below 2^31"),
        makes(set([1 << 31, 1 << 40, usize::MAX], 0), &["f32[4, 3]", "f32[4]"], "f32[4, 3]"),
        refuses(set([0, 48, 48], 0), &["f32[4, 3]", "f32[2, 2]"], "strides", "share bytes"),
        refuses(set([4, 48, 48], 0), &["f32[4, 3]", "f32[2, 2]"], "strides", "share bytes"),
        refuses(set([16, 16, 48], 0), &["f32[4, 3]", "f32[2, 2, 2]"], "strides", "share bytes"),

        takes(acc([1024; 3], 0), &["?[256]", "?[256]"], "f32"),
        makes(acc([16, 48, 48], 20), &["f32[4, 3]", "f32[2, 2]@[4, 32]"], "f32[4, 3]"),
        makes(acc([16, 48, 48], 44), &["f32[4, 3]", "f32[1]"], "f32[4, 3]"),
        makes(acc([1 << 31, 48, 48], 0), &["f32[4, 3]", "f32[4]"], "f32[4, 3]"),
        shares(acc([16, 48, 48], 0), &["f32[4, 3]", "f32[4, 3]"], 0, 0, "f32[4, 3]").in_place(),
        refuses(acc([16, 48, 48], 0), &["i32[4, 3]", "i32[4]"], "a", "type is i32, must be f32"),
        refuses(acc([16, 48, 48], 0), &["f32[4, 3]@[4, 32]", "f32[4]"], "a", "must be contiguous"),
        refuses(acc([16, 48, 48], 0), &["f32[4, 3]", "f16[4]"], "b", "must be f32, the type of a"),
        refuses(acc([16, 48, 48], 0), &["f32[4, 3]", "f32[4, 2]@[8, 4]"], "b", "the stride of dimension 0 must be one element"),
        refuses(acc([16, 48, 48], 0), &["f32[4, 3]", "f32[13]"], "b", "must not have more than the 12 elements of a"),
        refuses(acc([16, 48, 48], 48), &["f32[4, 3]", "f32[1]"], "offset", "bytes 48..+4 reach outside"),
        refuses(acc([16, 48, 48], limit), &["f32[4, 3]", "f32[1]"], "offset", "must be below 2^30"),
        refuses(acc([1 << 31, 48, 48], 0), &["f32[4, 3]", "f32[1, 2]"], "strides", "must be below 2^31"),
        refuses(acc([0, 48, 48], 0), &["f32[4, 3]", "f32[2, 2]"], "strides", "share bytes"),
    ]
}
