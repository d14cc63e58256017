use super::*;

fn upscale(ne: impl Into<Shape>, mode: ScaleMode) -> Upscale {
    Upscale { ne: ne.into(), mode, align_corners: false, antialias: false }
}

fn smooth(mode: ScaleMode) -> Upscale {
    Upscale { antialias: true, ..upscale([3, 2, 2], mode) }
}

fn join(width: usize, height: usize, window: usize) -> WinUnpart {
    WinUnpart { width, height, window }
}

#[rustfmt::skip]
pub(super) fn cases() -> Vec<Case> {
    use ScaleMode::{Bicubic, Bilinear, Nearest};
    vec![
        makes(upscale([10, 8, 2], Nearest), &["f32[5, 4, 2]"], "f32[10, 8, 2]"),
        makes(upscale([3, 9, 4, 6], Bilinear), &["f32[5, 4, 2, 3]@[16, 4]"], "f32[3, 9, 4, 6]"),
        makes(upscale([1], Bicubic), &["f32[5, 4, 2]@[4, 0]"], "f32[1]"),
        makes(Upscale { align_corners: true, ..upscale([10, 8, 2], Nearest) }, &["f32[5, 4, 2]"], "f32[10, 8, 2]"),
        makes(Upscale { align_corners: true, ..smooth(Bilinear) }, &["f32[5, 4, 2]"], "f32[3, 2, 2]"),
        makes(upscale([10, 8, 2, 0], Nearest), &["f32[5, 4, 2, 0]"], "f32[10, 8, 2, 0]"),
        makes(upscale([10, 0], Nearest), &["f32[5, 4]"], "f32[10, 0]"),
        refuses(upscale([10, 8, 2], Nearest), &["f16[5, 4, 2]"], "a", "must be f32"),
        refuses(upscale([10, 8, 2], Nearest), &["i32[5, 4, 2]"], "a", "type is i32"),
        refuses(upscale([10, 8, 2], Nearest), &["f32[5, 0, 2]"], "a", "no pixels can be made of none"),
        refuses(upscale([usize::MAX, 8], Nearest), &["f32[5, 4]"], "result", "too large"),
        refuses(smooth(Nearest), &["f32[5, 4, 2]"], "antialias", "goes with bilinear only"),
        refuses(smooth(Bicubic), &["f32[5, 4, 2]"], "antialias", "goes with bilinear only"),
        refuses(upscale([5, 4, 2], Nearest), &["f32[5, 4, 2]"], "result", "cannot be computed in place").in_place(),

        makes(WinPart { window: 3 }, &["f32[4, 7, 6]"], "f32[4, 3, 3, 6]"),
        makes(WinPart { window: 1 }, &["f32[4, 7, 6]"], "f32[4, 1, 1, 42]"),
        makes(WinPart { window: 8 }, &["f32[4, 7, 6]"], "f32[4, 8, 8]"),
        makes(WinPart { window: 3 }, &["f32[4, 0, 6]"], "f32[4, 3, 3, 0]"),
        refuses(WinPart { window: 3 }, &["f16[4, 7, 6]"], "a", "must be f32"),
        refuses(WinPart { window: 3 }, &["f32[4, 7, 6]@[4, 32]"], "a", "must be contiguous"),
        refuses(WinPart { window: 3 }, &["f32[4, 7, 6, 2]"], "a", "at most 3 dimensions"),
        refuses(WinPart { window: 0 }, &["f32[4, 7, 6]"], "window", "must be positive"),
        refuses(WinPart { window: (1 << 31) - 1 }, &["f32[4, 7, 6]"], "result", "too large"),
        refuses(WinPart { window: 1 << 31 }, &["f32[4, 7, 6]"], "window", "below 2^31"),

        makes(join(7, 6, 3), &["f32[4, 3, 3, 6]"], "f32[4, 7, 6]"),
        makes(join(7, 6, 1), &["f32[4, 1, 1, 42]"], "f32[4, 7, 6]"),
        makes(join(0, 6, 3), &["f32[4, 3, 3, 0]"], "f32[4, 0, 6]"),
        refuses(join(7, 6, 3), &["f16[4, 3, 3, 6]"], "a", "must be f32"),
        refuses(join(7, 6, 3), &["f32[4, 3, 3, 6]@[4, 32]"], "a", "must be contiguous"),
        refuses(join(7, 6, 3), &["f32[4, 3, 3, 5]"], "a", "must be [4, 3, 3, 6]"),
        refuses(join(7, 6, 3), &["f32[4, 3, 2, 6]"], "a", "must be [4, 3, 3, 6]"),
        refuses(join(10, 6, 3), &["f32[4, 3, 3, 6]"], "a", "must be [4, 3, 3, 8]"),
        refuses(join(usize::MAX, usize::MAX, 3), &["f32[4, 3, 3, 6]"], "a", "windows of the image"),
        refuses(join(7, 6, 0), &["f32[4, 3, 3, 6]"], "window", "must be positive"),
        refuses(join(7, 6, 1 << 31), &["f32[4, 3, 3, 6]"], "window", "below 2^31"),

        makes(GetRelPos { size: 5 }, &["f16[64, 9]"], "f16[64, 5, 5]"),
        makes(GetRelPos { size: 1 }, &["f16[64]"], "f16[64]"),
        refuses(GetRelPos { size: 5 }, &["bf16[64, 9]"], "a", "must be f16"),
        refuses(GetRelPos { size: 5 }, &["f32[64, 9]"], "a", "must be f16"),
        refuses(GetRelPos { size: 5 }, &["f16[64, 9]@[18, 2]"], "a", "must be contiguous"),
        refuses(GetRelPos { size: 5 }, &["f16[64, 10]"], "a", "must be [64, 9]"),
        refuses(GetRelPos { size: 6 }, &["f16[64, 9]"], "a", "must be [64, 11]"),
        refuses(GetRelPos { size: 5 }, &["f16[64, 9, 2]"], "a", "must be [64, 9]"),
        refuses(GetRelPos { size: 0 }, &["f16[64, 0]"], "size", "must be positive"),
        refuses(GetRelPos { size: usize::MAX }, &["f16[64, 9]"], "a", "distances of two positions"),

        makes(AddRelPos, &["f32[9, 6, 4]", "f32[3, 2, 3, 4]", "f32[3, 2, 3, 4]"], "f32[9, 6, 4]"),
        makes(AddRelPos, &["f32[9, 6, 0]", "f32[3, 2, 3, 0]", "f32[3, 2, 3, 0]"], "f32[9, 6, 0]"),
        shares(AddRelPos, &["f32[9, 6, 4]", "f32[3, 2, 3, 4]", "f32[3, 2, 3, 4]"], 0, 0, "f32[9, 6, 4]").in_place(),
        refuses(AddRelPos, &["f16[9, 6, 4]", "f32[3, 2, 3, 4]", "f32[3, 2, 3, 4]"], "a", "must be f32"),
        refuses(AddRelPos, &["f32[9, 6, 4]@[4, 64]", "f32[3, 2, 3, 4]", "f32[3, 2, 3, 4]"], "a", "must be contiguous"),
        refuses(AddRelPos, &["f32[6, 6, 4]", "f32[3, 2, 3, 4]", "f32[3, 2, 3, 4]"], "a", "must be [9, 6, 4]"),
        refuses(AddRelPos, &["f32[9, 5, 4]", "f32[3, 2, 3, 4]", "f32[3, 2, 3, 4]"], "a", "must be [9, 6, 4]"),
        refuses(AddRelPos, &["f32[9, 6, 4, 2]", "f32[3, 2, 3, 4]", "f32[3, 2, 3, 4]"], "a", "must be [9, 6, 4]"),
        refuses(AddRelPos, &["f32[9, 6, 4]", "f16[3, 2, 3, 4]", "f32[3, 2, 3, 4]"], "pw", "must be f32"),
        refuses(AddRelPos, &["f32[9, 6, 4]", "f32[3, 2, 3, 4]@[8, 4]", "f32[3, 2, 3, 4]"], "pw", "must be contiguous"),
        refuses(AddRelPos, &["f32[9, 6, 4]", "f32[3, 2, 3, 4]", "f16[3, 2, 3, 4]"], "ph", "must be f32"),
        refuses(AddRelPos, &["f32[9, 6, 4]", "f32[3, 2, 3, 4]", "f32[3, 3, 2, 4]"], "ph", "must be [3, 2, 3, 4] like pw"),
        refuses(AddRelPos, &["f32[9, 6, 4]", "f32[3, 2, 3, 4]", "f32[3, 2, 3, 4]@[4, 16]"], "ph", "must be contiguous"),
    ]
}
