use super::*;

/// The first number that does not fit a parameter word.
const LIMIT: usize = 1 << 31;
const NORMAL: Rope = Rope::new(32, RopeMode::Normal, 10000.0);

fn mode(mode: RopeMode) -> Rope {
    Rope { mode, ..NORMAL }
}

fn dims(n_dims: usize) -> Rope {
    Rope { n_dims, ..NORMAL }
}

fn from(first_channel: usize, n_dims: usize) -> Rope {
    Rope { first_channel, n_dims, ..NORMAL }
}

fn sections(mode: RopeMode, sections: [u32; 4]) -> Rope {
    Rope { mode, sections, ..NORMAL }
}

/// Vision rotates all channels, in pairs half a row apart.
fn vision(n_dims: usize, sections: [u32; 4]) -> Rope {
    Rope { n_dims, mode: RopeMode::Vision, sections, ..NORMAL }
}

#[rustfmt::skip]
pub(super) fn cases() -> Vec<Case> {
    use RopeMode::{Imrope, Mrope, Neox};
    vec![
        makes(NORMAL, &["f32[32, 4, 5]", "i32[5]"], "f32[32, 4, 5]"),
        makes(NORMAL, &["f16[48, 4, 5, 2]", "i32[5]", "f32[16]"], "f16[48, 4, 5, 2]"),
        makes(mode(Neox), &["f32[32, 4, 5]@[4, 256, 128]", "i32[5]", "f32[24, 2]"], "f32[32, 4, 5]"),
        makes(NORMAL, &["f32[32, 4, 0]", "i32[0]"], "f32[32, 4, 0]"),
        makes(Rope { n_ctx_orig: LIMIT - 1, ext_factor: 1.0, ..NORMAL }, &["f32[32, 4, 5]", "i32[5]"], "f32[32, 4, 5]"),
        refuses(Rope { n_ctx_orig: LIMIT, ..NORMAL }, &["f32[32, 4, 5]", "i32[5]"], "n_ctx_orig", "below 2^31"),
        refuses(NORMAL, &["bf16[32, 4, 5]", "i32[5]"], "a", "one of f32, f16"),
        refuses(NORMAL, &["i32[32, 4, 5]", "i32[5]"], "a", "type is i32"),
        refuses(NORMAL, &["q8_0[32, 4, 5]", "i32[5]"], "a", "type is q8_0"),
        refuses(NORMAL, &["f32[32, 4, 5]@[16, 4]", "i32[5]"], "a", "must be one element"),
        refuses(NORMAL, &["f32[33, 4, 5]", "i32[5]"], "a", "even number of channels"),
        refuses(NORMAL, &["f32[32, 4, 5]", "i64[5]"], "positions", "must be i32"),
        refuses(NORMAL, &["f32[32, 4, 5]", "f32[5]"], "positions", "must be i32"),
        refuses(NORMAL, &["f32[32, 4, 5]", "i32[4]"], "positions", "must be [5]"),
        refuses(NORMAL, &["f32[32, 4, 5]", "i32[20]"], "positions", "must be [5]"),
        refuses(NORMAL, &["f32[32, 4, 5]", "i32[5, 2]"], "positions", "must be [5]"),
        refuses(NORMAL, &["f32[32, 4, 5]", "i32[5]@[8]"], "positions", "must be contiguous"),
        refuses(NORMAL, &["f32[32, 4, 5]", "i32[5]", "f16[16]"], "factors", "must be f32"),
        refuses(NORMAL, &["f32[32, 4, 5]", "i32[5]", "f32[15]"], "factors", "each of the 16 channel pairs"),
        refuses(NORMAL, &["f32[32, 4, 5]", "i32[5]", "f32[16]@[8]"], "factors", "must be contiguous"),
        // Which channels.
        makes(dims(2), &["f32[32, 4, 5]", "i32[5]"], "f32[32, 4, 5]"),
        makes(from(14, 18), &["f32[32, 4, 5]", "i32[5]"], "f32[32, 4, 5]"),
        refuses(dims(0), &["f32[32, 4, 5]", "i32[5]"], "n_dims", "must be even and positive"),
        refuses(dims(31), &["f32[32, 4, 5]", "i32[5]"], "n_dims", "must be even and positive"),
        refuses(dims(34), &["f32[32, 4, 5]", "i32[5]"], "n_dims", "must not exceed the 32 channels"),
        refuses(dims(LIMIT - 2), &["f32[32, 4, 5]", "i32[5]"], "n_dims", "must not exceed the 32 channels"),
        refuses(dims(LIMIT), &["f32[32, 4, 5]", "i32[5]"], "n_dims", "below 2^31"),
        refuses(NORMAL, &["f32[0, 4, 5]", "i32[5]"], "n_dims", "must not exceed the 0 channels"),
        refuses(from(16, 18), &["f32[32, 4, 5]", "i32[5]"], "first_channel", "all rotated channels inside"),
        refuses(from(1, 16), &["f32[32, 4, 5]", "i32[5]"], "first_channel", "must be even"),
        refuses(from(LIMIT - 2, 16), &["f32[32, 4, 5]", "i32[5]"], "first_channel", "all rotated channels inside"),
        refuses(from(usize::MAX, 16), &["f32[32, 4, 5]", "i32[5]"], "first_channel", "below 2^31"),
        // Four positions a token.
        makes(sections(Mrope, [4, 6, 6, 0]), &["f32[32, 4, 5]", "i32[20]"], "f32[32, 4, 5]"),
        makes(sections(Imrope, [0, 0, 1, 31]), &["f16[32, 4, 5]", "i32[20]", "f32[16]"], "f16[32, 4, 5]"),
        makes(vision(16, [8, 8, 0, 0]), &["f32[32, 4, 5]", "i32[20]", "f32[16]"], "f32[32, 4, 5]"),
        makes(sections(RopeMode::Normal, [0, 0, 0, i32::MAX as u32]), &["f32[32, 4, 5]", "i32[5]"], "f32[32, 4, 5]"),
        refuses(sections(Mrope, [4, 6, 6, 0]), &["f32[32, 4, 5]", "i32[5]"], "positions", "must be [20]"),
        refuses(sections(Mrope, [0, 0, 0, 8]), &["f32[32, 4, 5]", "i32[20]"], "sections", "one of the first three"),
        refuses(sections(Imrope, [0; 4]), &["f32[32, 4, 5]", "i32[20]"], "sections", "one of the first three"),
        refuses(sections(Mrope, [1, 0, 0, 32]), &["f32[32, 4, 5]", "i32[20]"], "sections", "must not sum to more than 32"),
        refuses(sections(Imrope, [i32::MAX as u32; 4]), &["f32[32, 4, 5]", "i32[20]"], "sections", "must not sum to more than 32"),
        refuses(sections(RopeMode::Normal, [0, 0, 0, 1 << 31]), &["f32[32, 4, 5]", "i32[5]"], "sections", "below 2^31"),
        refuses(vision(14, [8, 8, 0, 0]), &["f32[32, 4, 5]", "i32[20]"], "n_dims", "must be half of the 32 channels"),
        refuses(vision(32, [8, 8, 0, 0]), &["f32[32, 4, 5]", "i32[20]"], "n_dims", "must be half of the 32 channels"),
        refuses(vision(16, [0; 4]), &["f32[32, 4, 5]", "i32[20]"], "sections", "one of the first three"),
        refuses(vision(16, [8, 8, 0, 0]), &["f32[32, 4, 5]", "i32[20]", "f32[15]"], "factors", "each of the 16 channel pairs"),
        refuses(Rope { first_channel: 2, ..vision(16, [8, 8, 0, 0]) }, &["f32[32, 4, 5]", "i32[20]"], "first_channel", "must be 0 in this mode"),
        // In place.
        shares(NORMAL, &["f32[32, 4, 5]@[4, 256]", "i32[5]"], 0, 0, "f32[32, 4, 5]@[4, 256, 1024]").in_place(),
        refuses(NORMAL, &["f32[32, 4, 5]@[4, 0]", "i32[5]"], "result", "share bytes").in_place(),
        refuses(NORMAL, &["f16[32, 4, 5]", "i32[5]"], "result", "type is f32").typed(DType::F32),

        makes(RopeBack(NORMAL), &["f32[32, 4, 5]@[4, 256]", "i32[5]", "f32[16]"], "f32[32, 4, 5]"),
        makes(RopeBack(sections(Mrope, [4, 6, 6, 0])), &["f16[32, 4, 5]", "i32[20]"], "f16[32, 4, 5]"),
        shares(RopeBack(NORMAL), &["f32[32, 4, 5]", "i32[5]"], 0, 0, "f32[32, 4, 5]").in_place(),
        refuses(RopeBack(NORMAL), &["bf16[32, 4, 5]", "i32[5]"], "a", "one of f32, f16"),
        refuses(RopeBack(NORMAL), &["f32[32, 4, 5]", "i32[6]"], "positions", "must be [5]"),
        refuses(RopeBack(NORMAL), &["f32[32, 4, 5]", "i32[5]", "f32[8]"], "factors", "each of the 16 channel pairs"),
        refuses(RopeBack(dims(0)), &["f32[32, 4, 5]", "i32[5]"], "n_dims", "must be even and positive"),
    ]
}
