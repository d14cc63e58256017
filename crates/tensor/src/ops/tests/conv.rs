use proptest::prelude::*;

use super::*;

/// The first number that does not fit a parameter word.
const LIMIT: u32 = 1 << 31;
const HUGE: usize = LIMIT as usize;

fn geometry<const N: usize>(stride: [u32; N], pad: [u32; N], dilation: [u32; N]) -> ConvGeometry<N> {
    ConvGeometry { stride, pad, dilation }
}

fn lines(dtype: DType) -> Im2col {
    Im2col { geometry: Im2colGeometry::Line(ConvGeometry::DENSE), dtype }
}

fn planes(dtype: DType) -> Im2col {
    Im2col { geometry: Im2colGeometry::Plane(ConvGeometry::DENSE), dtype }
}

fn planes_by(stride: [u32; 2], pad: [u32; 2], dilation: [u32; 2]) -> Im2col {
    Im2col { geometry: Im2colGeometry::Plane(geometry(stride, pad, dilation)), dtype: DType::F32 }
}

fn lines_back(ne: impl Into<Shape>) -> Im2colBack {
    Im2colBack { geometry: Im2colGeometry::Line(ConvGeometry::DENSE), ne: ne.into() }
}

fn planes_back(ne: impl Into<Shape>) -> Im2colBack {
    Im2colBack { geometry: Im2colGeometry::Plane(ConvGeometry::DENSE), ne: ne.into() }
}

fn volumes(channels: usize, dtype: DType) -> Im2col3d {
    Im2col3d { geometry: ConvGeometry::DENSE, channels, dtype }
}

fn fold(stride: usize, channels: usize, crop: usize) -> Col2im1d {
    Col2im1d { stride, channels, crop }
}

fn conv_2d(stride: [u32; 2], pad: [u32; 2], dilation: [u32; 2]) -> Conv2d {
    Conv2d { geometry: geometry(stride, pad, dilation) }
}

fn conv_3d(channels: usize, batch: usize, filters: usize) -> Conv3d {
    Conv3d { geometry: ConvGeometry::DENSE, channels, batch, filters }
}

fn depthwise(stride: [u32; 2], pad: [u32; 2], dilation: [u32; 2]) -> Conv2dDw {
    Conv2dDw { geometry: geometry(stride, pad, dilation) }
}

pub(super) fn cases() -> Vec<Case> {
    [unfolded(), folded(), direct(), transposed()].into_iter().flatten().collect()
}

#[rustfmt::skip]
fn unfolded() -> Vec<Case> {
    use DType::{BF16, F16, F32};
    let wide = Im2col3d { geometry: geometry([1, 2, 1], [1, 0, 1], [1, 1, 2]), ..volumes(2, F32) };
    vec![
        makes(lines(F32), &["f32[3, 2, 5]", "f32[12, 2]"], "f32[6, 10]"),
        makes(lines(F16), &["f16[3, 2, 5]", "f32[12, 2, 4]@[4, 64, 256]"], "f16[6, 10, 4]"),
        makes(lines(F16), &["q8_0[32, 2]", "f16[40, 2]"], "f16[64, 9]"),
        makes(lines(F32), &["f32[3, 2, 5]", "f32[12, 2, 0]"], "f32[6, 10, 0]"),
        makes(lines(F32), &["f32[1, 2]", "f32[1, 2, 3]@[24, 4]"], "f32[2, 1, 3]"),
        refuses(lines(F32), &["f32[3, 3, 5]", "f32[12, 2]"], "kernel", "dimension 1 must be 2"),
        refuses(lines(F32), &["f32[3, 2, 5, 2]", "f32[12, 2]"], "kernel", "at most 3 dimensions"),
        refuses(lines(F32), &["f32[3, 2, 5]", "f32[12, 2, 1, 2]"], "image", "at most 3 dimensions"),
        refuses(lines(F32), &["f32[3, 2, 5]", "f32[12, 2]@[8, 4]"], "image", "rows must be contiguous"),
        refuses(lines(F32), &["f32[13, 2]", "f32[12, 2]"], "geometry", "kernel of 13 in an image of 12 along axis 0"),

        makes(planes(F32), &["f32[3, 3, 2, 4]", "f32[9, 8, 2, 2]"], "f32[18, 7, 6, 2]"),
        makes(planes(F16), &["bf16[3, 3, 2, 4]", "f32[9, 8, 2, 2]@[4, 36, 512, 2048]"], "f16[18, 7, 6, 2]"),
        makes(planes(F16), &["i8[3, 3, 2, 4]", "f16[9, 8, 2, 2]"], "f16[18, 7, 6, 2]"),
        makes(planes_by([2, 1], [1, 1], [1, 2]), &["f32[3, 3, 2, 4]", "f32[9, 8, 2, 2]"], "f32[18, 5, 6, 2]"),
        makes(planes(F32), &["f32[0, 3, 2, 4]", "f32[9, 8, 2, 2]"], "f32[0, 10, 6, 2]"),
        // A kernel that sticks out by less than a stride has one position.
        makes(planes_by([3, 3], [0, 0], [1, 1]), &["f32[3, 3, 2]", "f32[2, 1, 2]"], "f32[18]"),
        refuses(planes_by([3, 2], [0, 0], [1, 1]), &["f32[3, 3, 2]", "f32[2, 1, 2]"], "geometry", "kernel of 3 in an image of 1 along axis 1"),
        refuses(planes(BF16), &["f32[3, 3, 2, 4]", "f32[9, 8, 2, 2]"], "result", "one of f16, f32"),
        refuses(planes(F32), &["f32[3, 3, 2, 4]", "f32[9, 8, 2, 2]"], "result", "type is f16").typed(F16),
        refuses(planes(F32), &["f32[3, 3, 2, 4]", "f16[9, 8, 2, 2]"], "image", "must be f32"),
        refuses(planes(F16), &["f32[3, 3, 2, 4]", "bf16[9, 8, 2, 2]"], "image", "one of f32, f16"),
        refuses(planes(F16), &["f32[3, 3, 2, 4]", "q8_0[32, 8, 2, 2]"], "image", "type is q8_0"),
        refuses(planes(F32), &["f32[3, 3, 2, 4]", "f32[9, 8, 2, 2]@[32, 4]"], "image", "planes of dimensions 0 and 1 must be contiguous"),
        refuses(planes(F32), &["f32[3, 3, 2, 4]", "f32[9, 8, 2, 2]@[4, 64]"], "image", "planes of dimensions 0 and 1 must be contiguous"),
        refuses(planes(F32), &["f32[3, 3, 3, 4]", "f32[9, 8, 2, 2]"], "kernel", "dimension 2 must be 2"),
        refuses(planes(F32), &["f32[3, 9, 2, 4]", "f32[9, 8, 2, 2]"], "geometry", "kernel of 9 in an image of 8 along axis 1"),
        refuses(planes(F32), &["f32[3, 3, 2, 4]", "f32[0, 8, 2, 2]"], "geometry", "in an image of 0 along axis 0"),
        refuses(planes_by([0, 1], [0, 0], [1, 1]), &["f32[3, 3, 2, 4]", "f32[9, 8, 2, 2]"], "stride", "must be positive"),
        refuses(planes_by([1, LIMIT], [0, 0], [1, 1]), &["f32[3, 3, 2, 4]", "f32[9, 8, 2, 2]"], "stride", "below 2^31"),
        refuses(planes_by([1, 1], [LIMIT, 0], [1, 1]), &["f32[3, 3, 2, 4]", "f32[9, 8, 2, 2]"], "pad", "below 2^31"),
        refuses(planes_by([1, 1], [0, 0], [1, 0]), &["f32[3, 3, 2, 4]", "f32[9, 8, 2, 2]"], "dilation", "must be positive"),
        refuses(planes_by([1, 1], [0, 0], [LIMIT, 1]), &["f32[3, 3, 2, 4]", "f32[9, 8, 2, 2]"], "dilation", "below 2^31"),
        makes(planes_by([LIMIT - 1, 1], [0, LIMIT - 1], [4, LIMIT - 1]), &["f32[3, 3, 2]", "f32[9, 8, 2]"], "f32[18, 1, 8]"),
        refuses(planes_by([1, 1], [LIMIT - 1, LIMIT - 1], [1, 1]), &["f32[3, 3, 2]", "f32[9, 8, 2]"], "result", "too large"),
        refuses(planes(F32), &["f32[3, 3, 2]", "f32[9, 8, 2]"], "result", "cannot be computed in place").in_place(),

        makes(lines_back([12, 2, 4]), &["f32[6, 10, 4]", "f32[3, 2, 5]"], "f32[12, 2, 4]"),
        makes(planes_back([9, 8, 2, 2]), &["f32[18, 7, 6, 2]", "f16[3, 3, 2, 4]"], "f32[9, 8, 2, 2]"),
        makes(planes_back([9, 8, 2, 0]), &["f32[18, 7, 6, 0]", "f16[3, 3, 2, 4]@[6, 2]"], "f32[9, 8, 2, 0]"),
        refuses(planes_back([9, 8, 2, 2]), &["f16[18, 7, 6, 2]", "f32[3, 3, 2, 4]"], "gradient", "must be f32"),
        refuses(planes_back([9, 8, 2, 2]), &["f32[18, 6, 7, 2]", "f32[3, 3, 2, 4]"], "gradient", "must be [18, 7, 6, 2]"),
        refuses(planes_back([9, 8, 2, 2]), &["f32[18, 7, 6, 2]@[4, 128]", "f32[3, 3, 2, 4]"], "gradient", "must be contiguous"),
        refuses(planes_back([9, 8, 2, 2]), &["f32[18, 7, 6, 2]", "bf16[3, 3, 2, 4]"], "kernel", "one of f32, f16"),
        refuses(planes_back([9, 8, 3, 2]), &["f32[18, 7, 6, 2]", "f32[3, 3, 2, 4]"], "kernel", "dimension 2 must be 3"),
        refuses(lines_back([12, 2, 4, 2]), &["f32[6, 10, 4]", "f32[3, 2, 5]"], "ne", "at most 3 dimensions"),
        refuses(planes_back([9, 2, 2, 2]), &["f32[18, 7, 6, 2]", "f32[3, 3, 2, 4]"], "geometry", "in an image of 2 along axis 1"),
        refuses(Im2colBack { geometry: Im2colGeometry::Line(geometry([0], [0], [1])), ..lines_back([12, 2]) }, &["f32[6, 10]", "f32[3, 2, 5]"], "stride", "must be positive"),
        refuses(planes_back([usize::MAX, 8, 2, 2]), &["f32[18, 7, 6, 2]", "f32[3, 3, 2, 4]"], "gradient", "must be [18, 18446744073709551613, 6, 2]"),

        makes(volumes(2, F32), &["f32[3, 2, 2, 4]", "f32[6, 5, 4, 6]"], "f32[24, 4, 4, 9]"),
        makes(volumes(2, F16), &["q4_0[32, 2, 2, 4]", "f32[40, 5, 4, 6]@[4, 320, 160]"], "f16[256, 9, 4, 9]"),
        makes(wide, &["f32[3, 2, 2, 4]", "f32[6, 5, 4, 6]"], "f32[24, 6, 2, 12]"),
        makes(volumes(2, F32), &["f32[3, 2, 2, 1]", "f32[6, 5, 4, 6]"], "f32[24, 4, 4, 9]"),
        refuses(volumes(2, F32), &["f32[3, 2, 2, 4]", "f32[6, 5, 4, 5]"], "image", "whole channels"),
        refuses(volumes(2, F16), &["f32[3, 2, 2, 4]", "f16[6, 5, 4, 6]"], "image", "must be f32"),
        refuses(volumes(2, F32), &["f32[3, 2, 2, 4]", "f32[6, 5, 4, 6]@[20, 4]"], "image", "must be one element"),
        refuses(volumes(0, F32), &["f32[3, 2, 2, 4]", "f32[6, 5, 4, 6]"], "channels", "must be positive"),
        refuses(volumes(HUGE - 1, F32), &["f32[3, 2, 2, 4]", "f32[6, 5, 4, 6]"], "image", "whole channels"),
        refuses(volumes(HUGE, F32), &["f32[3, 2, 2, 4]", "f32[6, 5, 4, 6]"], "channels", "below 2^31"),
        refuses(volumes(2, BF16), &["f32[3, 2, 2, 4]", "f32[6, 5, 4, 6]"], "result", "one of f16, f32"),
        refuses(volumes(2, F32), &["f32[3, 2, 5, 4]", "f32[6, 5, 4, 6]"], "geometry", "kernel of 5 in an image of 4 along axis 2"),
        refuses(Im2col3d { geometry: geometry([1, 1, 0], [0; 3], [1; 3]), ..wide }, &["f32[3, 2, 2, 4]", "f32[6, 5, 4, 6]"], "stride", "must be positive"),
    ]
}

#[rustfmt::skip]
fn folded() -> Vec<Case> {
    vec![
        makes(fold(2, 3, 0), &["f32[12, 7]"], "f32[16, 3]"),
        makes(fold(2, 3, 7), &["f16[12, 7]"], "f16[2, 3]"),
        makes(fold(1, 12, 0), &["bf16[12, 1]"], "bf16[1, 12]"),
        makes(fold(HUGE - 1, 3, 0), &["f32[12]"], "f32[4, 3]"),
        refuses(fold(2, 3, 0), &["f64[12, 7]"], "a", "one of f32, f16, bf16"),
        refuses(fold(2, 1, 0), &["q8_0[32, 7]"], "a", "type is q8_0"),
        refuses(fold(2, 3, 0), &["f32[12, 7]@[4, 64]"], "a", "must be contiguous"),
        refuses(fold(2, 3, 0), &["f32[12, 7, 2]"], "a", "at most 2 dimensions"),
        refuses(fold(2, 5, 0), &["f32[12, 7]"], "a", "whole multiples of 5 channels"),
        refuses(fold(2, 3, 0), &["f32[12, 0]"], "a", "needs at least one row"),
        refuses(fold(0, 3, 0), &["f32[12, 7]"], "stride", "must be positive"),
        refuses(fold(2, 0, 0), &["f32[12, 7]"], "channels", "must be positive"),
        refuses(fold(2, HUGE - 1, 0), &["f32[12, 7]"], "a", "whole multiples"),
        refuses(fold(2, HUGE, 0), &["f32[12, 7]"], "channels", "below 2^31"),
        refuses(fold(2, 3, 8), &["f32[12, 7]"], "crop", "leaves nothing of 16 elements"),
        refuses(fold(2, 3, HUGE - 1), &["f32[12, 7]"], "crop", "leaves nothing of 16 elements"),
        refuses(fold(2, 3, HUGE), &["f32[12, 7]"], "crop", "below 2^31"),
        refuses(fold(HUGE, 3, 0), &["f32[12, 7]"], "stride", "below 2^31"),
        refuses(fold(1, 1, 0), &["f32[1]"], "result", "cannot be computed in place").in_place(),
    ]
}

#[rustfmt::skip]
fn direct() -> Vec<Case> {
    let dense = conv_2d([1, 1], [0, 0], [1, 1]);
    let padded = depthwise([1, 1], [1, 1], [1, 1]);
    vec![
        makes(dense, &["f32[3, 3, 2, 4]", "f32[9, 8, 2, 5]"], "f32[7, 6, 4, 5]"),
        makes(dense, &["f16[3, 3, 2, 4]", "f32[9, 8, 2, 5]@[8, 72, 4, 1024]"], "f32[7, 6, 4, 5]"),
        makes(conv_2d([2, 1], [0, 1], [1, 2]), &["f32[3, 3, 2, 4]", "f32[9, 8, 2, 5]"], "f32[4, 6, 4, 5]"),
        makes(dense, &["f32[3, 3, 2, 4]", "f32[9, 8, 2, 0]"], "f32[7, 6, 4, 0]"),
        makes(dense, &["f32[0, 3, 2, 4]", "f32[9, 8, 2, 5]"], "f32[10, 6, 4, 5]"),
        refuses(dense, &["bf16[3, 3, 2, 4]", "f32[9, 8, 2, 5]"], "kernel", "one of f32, f16"),
        refuses(dense, &["q8_0[32, 3, 2, 4]", "f32[40, 8, 2, 5]"], "kernel", "type is q8_0"),
        refuses(dense, &["f32[3, 3, 2, 4]@[4, 16]", "f32[9, 8, 2, 5]"], "kernel", "must be contiguous"),
        refuses(dense, &["f32[3, 3, 3, 4]", "f32[9, 8, 2, 5]"], "kernel", "dimension 2 must be 2"),
        refuses(dense, &["f16[3, 3, 2, 4]", "f16[9, 8, 2, 5]"], "image", "must be f32"),
        refuses(dense, &["f32[10, 3, 2, 4]", "f32[9, 8, 2, 5]"], "geometry", "kernel of 10 in an image of 9 along axis 0"),
        refuses(conv_2d([1, 0], [0, 0], [1, 1]), &["f32[3, 3, 2, 4]", "f32[9, 8, 2, 5]"], "stride", "must be positive"),
        refuses(conv_2d([1, 1], [0, LIMIT], [1, 1]), &["f32[3, 3, 2, 4]", "f32[9, 8, 2, 5]"], "pad", "below 2^31"),
        refuses(conv_2d([1, 1], [0, 0], [0, 1]), &["f32[3, 3, 2, 4]", "f32[9, 8, 2, 5]"], "dilation", "must be positive"),
        refuses(conv_2d([1, 1], [0, 0], [5, 1]), &["f32[3, 3, 2, 4]", "f32[9, 8, 2, 5]"], "geometry", "along axis 0"),
        refuses(conv_2d([1, 1], [LIMIT - 1; 2], [1, 1]), &["f32[3, 3, 2, 4]", "f32[9, 8, 2, 5]"], "result", "too large"),

        makes(conv_3d(2, 5, 3), &["f32[3, 2, 2, 6]", "f32[6, 5, 4, 10]"], "f32[4, 4, 3, 15]"),
        makes(conv_3d(2, 5, 3), &["f16[3, 2, 2, 6]", "f32[6, 5, 4, 10]@[20, 4]"], "f32[4, 4, 3, 15]"),
        makes(conv_3d(2, 5, 3), &["f32[3, 0, 2, 6]", "f32[6, 5, 4, 10]"], "f32[4, 6, 3, 15]"),
        makes(conv_3d(2, 0, 3), &["f32[3, 2, 2, 6]", "f32[6, 5, 4, 0]"], "f32[4, 4, 3, 0]"),
        refuses(conv_3d(2, 5, 3), &["bf16[3, 2, 2, 6]", "f32[6, 5, 4, 10]"], "kernel", "one of f32, f16"),
        refuses(conv_3d(2, 5, 3), &["f32[3, 2, 2, 6]@[8, 4]", "f32[6, 5, 4, 10]"], "kernel", "must be contiguous"),
        refuses(conv_3d(2, 5, 4), &["f32[3, 2, 2, 6]", "f32[6, 5, 4, 10]"], "kernel", "dimension 3 must be 8 (channels times filters)"),
        refuses(conv_3d(2, 5, HUGE - 1), &["f32[3, 2, 2, 6]", "f32[6, 5, 4, 10]"], "kernel", "dimension 3 must be 4294967294"),
        refuses(conv_3d(HUGE, 5, 3), &["f32[3, 2, 2, 6]", "f32[6, 5, 4, 10]"], "channels", "below 2^31"),
        refuses(conv_3d(2, HUGE, 3), &["f32[3, 2, 2, 6]", "f32[6, 5, 4, 10]"], "batch", "below 2^31"),
        refuses(conv_3d(2, 5, HUGE), &["f32[3, 2, 2, 6]", "f32[6, 5, 4, 10]"], "filters", "below 2^31"),
        refuses(conv_3d(2, 5, 3), &["f32[3, 2, 2, 6]", "f16[6, 5, 4, 10]"], "image", "must be f32"),
        refuses(conv_3d(2, 6, 3), &["f32[3, 2, 2, 6]", "f32[6, 5, 4, 10]"], "image", "dimension 3 must be 12 (channels times batch)"),
        refuses(conv_3d(2, 5, 3), &["f32[3, 2, 5, 6]", "f32[6, 5, 4, 10]"], "geometry", "along axis 2"),
        refuses(Conv3d { geometry: geometry([1, 0, 1], [0; 3], [1; 3]), ..conv_3d(2, 5, 3) }, &["f32[3, 2, 2, 6]", "f32[6, 5, 4, 10]"], "stride", "must be positive"),

        makes(padded, &["f32[3, 3, 1, 4]", "f32[9, 8, 4, 2]"], "f32[9, 8, 4, 2]"),
        makes(depthwise([2, 1], [0, 1], [1, 2]), &["f16[3, 3, 1, 4]", "f32[9, 8, 4, 2]"], "f32[4, 6, 4, 2]"),
        makes(padded, &["f32[3, 3, 1, 4]", "f32[9, 8, 4, 0]"], "f32[9, 8, 4, 0]"),
        // Channels fastest, in kernel, image and result.
        makes(padded, &["f32[3, 3, 1, 4]@[16, 48, 16, 4]", "f32[9, 8, 4, 2]@[16, 144, 4, 1152]"], "f32[9, 8, 4, 2]@[16, 144, 4, 1152]"),
        makes(depthwise([2, 2], [0, 0], [1, 1]), &["f16[3, 3, 1, 4]@[8, 24, 8, 2]", "f32[9, 8, 4, 2]@[16, 144, 4, 1152]"], "f32[4, 3, 4, 2]@[16, 64, 4, 192]"),
        makes(padded, &["f32[1, 1, 1, 4]", "f32[9, 8, 4]@[16, 144, 4]"], "f32[11, 10, 4]@[16, 176, 4]"),
        refuses(padded, &["f32[3, 3, 1, 4]", "f32[9, 8, 4, 2]@[16, 144, 4, 1152]"], "kernel", "packed with channels fastest"),
        refuses(padded, &["f32[3, 3, 1, 4]@[16, 48, 16, 4]", "f32[9, 8, 4, 2]"], "kernel", "must be contiguous"),
        refuses(padded, &["f32[3, 3, 1, 4]@[48, 16, 16, 4]", "f32[9, 8, 4, 2]@[16, 144, 4, 1152]"], "kernel", "packed with channels fastest"),
        refuses(padded, &["f32[3, 3, 1, 4]", "f32[9, 8, 4, 2]@[4, 64]"], "image", "either plane by plane or pixel by pixel"),
        refuses(padded, &["f32[3, 3, 1, 4]@[16, 48, 16, 4]", "f32[9, 8, 4, 2]@[32, 288, 4, 2304]"], "image", "either plane by plane or pixel by pixel"),
        refuses(padded, &["f32[3, 3, 1, 4]@[16, 48, 16, 4]", "f32[9, 8, 4, 2]@[128, 16, 4, 1152]"], "image", "either plane by plane or pixel by pixel"),
        refuses(padded, &["bf16[3, 3, 1, 4]", "f32[9, 8, 4, 2]"], "kernel", "one of f32, f16"),
        refuses(padded, &["f32[3, 3, 2, 4]", "f32[9, 8, 4, 2]"], "kernel", "dimension 2 must be 1"),
        refuses(padded, &["f32[3, 3, 1, 3]", "f32[9, 8, 4, 2]"], "kernel", "dimension 3 must be 4"),
        refuses(padded, &["f16[3, 3, 1, 4]", "f16[9, 8, 4, 2]"], "image", "must be f32"),
        refuses(padded, &["f32[3, 11, 1, 4]", "f32[9, 8, 4, 2]"], "geometry", "kernel of 11 in an image of 8 along axis 1"),
        refuses(depthwise([0, 1], [1, 1], [1, 1]), &["f32[3, 3, 1, 4]", "f32[9, 8, 4, 2]"], "stride", "must be positive"),
        refuses(depthwise([1, 1], [LIMIT - 1; 2], [1, 1]), &["f32[1, 1, 1, 4]", "f32[9, 8, 4]@[16, 144, 4]"], "result", "too large"),
        refuses(padded, &["f32[3, 3, 1, 4]", "f32[9, 8, 4, 2]"], "result", "cannot be computed in place").in_place(),
    ]
}

#[rustfmt::skip]
fn transposed() -> Vec<Case> {
    let [line, plane] = [|stride| Op::from(ConvTranspose1d { stride }), |stride| Op::from(ConvTranspose2d { stride })];
    vec![
        makes(line(2), &["f32[3, 5, 4]", "f32[6, 4]"], "f32[13, 5]"),
        makes(line(1), &["f16[3, 5, 4]@[2, 8, 64]", "f32[6, 4]@[4, 32]"], "f32[8, 5]"),
        makes(line(HUGE - 1), &["f32[3, 5, 4]", "f32[1, 4]"], "f32[3, 5]"),
        refuses(line(2), &["bf16[3, 5, 4]", "f32[6, 4]"], "kernel", "one of f32, f16"),
        refuses(line(2), &["f32[3, 5, 4]@[20, 4]", "f32[6, 4]"], "kernel", "rows must be contiguous"),
        refuses(line(2), &["f32[3, 5, 3]", "f32[6, 4]"], "kernel", "dimension 2 must be 4"),
        refuses(line(2), &["f32[3, 5, 4, 2]", "f32[6, 4]"], "kernel", "at most 3 dimensions"),
        refuses(line(2), &["f16[3, 5, 4]", "f16[6, 4]"], "image", "must be f32"),
        refuses(line(2), &["f32[3, 5, 4]", "f32[6, 4]@[16, 4]"], "image", "rows must be contiguous"),
        refuses(line(2), &["f32[3, 5, 4]", "f32[6, 4, 2]"], "image", "at most 2 dimensions"),
        refuses(line(2), &["f32[3, 5, 4]", "f32[0, 4]"], "image", "must not be empty"),
        refuses(line(0), &["f32[3, 5, 4]", "f32[6, 4]"], "stride", "must be positive"),
        refuses(line(HUGE), &["f32[3, 5, 4]", "f32[6, 4]"], "stride", "below 2^31"),

        makes(plane(2), &["f16[3, 2, 5, 4]", "f32[6, 7, 4, 8]"], "f32[13, 14, 5, 8]"),
        makes(plane(1), &["f32[3, 2, 5, 4]@[4, 16]", "f32[6, 7, 4, 8]@[4, 96, 24, 768]"], "f32[8, 8, 5, 8]"),
        makes(plane(2), &["f32[3, 2, 5, 4]", "f32[6, 7, 4, 0]"], "f32[13, 14, 5, 0]"),
        refuses(plane(2), &["bf16[3, 2, 5, 4]", "f32[6, 7, 4, 8]"], "kernel", "one of f16, f32"),
        refuses(plane(2), &["f32[3, 2, 5, 4]@[8, 4]", "f32[6, 7, 4, 8]"], "kernel", "rows must be contiguous"),
        refuses(plane(2), &["f32[3, 2, 5, 3]", "f32[6, 7, 4, 8]"], "kernel", "dimension 3 must be 4"),
        refuses(plane(2), &["f16[3, 2, 5, 4]", "f16[6, 7, 4, 8]"], "image", "must be f32"),
        refuses(plane(2), &["f32[3, 2, 5, 4]", "f32[6, 7, 4, 8]@[28, 4]"], "image", "rows must be contiguous"),
        refuses(plane(2), &["f32[3, 2, 5, 4]", "f32[6, 0, 4, 8]"], "image", "must not be empty"),
        refuses(plane(0), &["f32[3, 2, 5, 4]", "f32[6, 7, 4, 8]"], "stride", "must be positive"),
        refuses(plane(HUGE - 1), &["f32[3, 2, 5, 4]", "f32[6, 7, 4, 8]"], "result", "too large"),
        refuses(plane(HUGE), &["f32[3, 2, 5, 4]", "f32[6, 7, 4, 8]"], "stride", "below 2^31"),
        refuses(plane(1), &["f32[1, 1, 1, 1]", "f32[1, 1, 1, 1]"], "result", "cannot be computed in place").in_place(),
    ]
}

/// One axis of a convolution.
#[derive(Clone, Copy, Debug)]
struct Axis {
    image: usize,
    kernel: usize,
    stride: u32,
    pad: u32,
    dilation: u32,
}

impl Axis {
    fn any() -> impl Strategy<Value = Axis> {
        (0..12_usize, 0..5_usize, 1..5_u32, 0..4_u32, 1..4_u32)
            .prop_map(|(image, kernel, stride, pad, dilation)| Axis { image, kernel, stride, pad, dilation })
    }

    /// Positions at which the whole kernel lies within the padded image, or the first if less than a stride of the
    /// kernel sticks out there.
    fn count(&self) -> Option<usize> {
        let padded = (self.image + 2 * self.pad as usize) as i64;
        let reach = i64::from(self.dilation) * (self.kernel as i64 - 1) + 1;
        let starts = (0..).step_by(self.stride as usize);
        match starts.take_while(|start| start + reach <= padded).count() {
            0 => (reach - padded < i64::from(self.stride)).then_some(1),
            count => Some(count),
        }
    }
}

fn geometry_of<const N: usize>(axes: [Axis; N]) -> ConvGeometry<N> {
    geometry(axes.map(|axis| axis.stride), axes.map(|axis| axis.pad), axes.map(|axis| axis.dilation))
}

/// Extents that `op` makes of a packed kernel and a packed image.
fn extents(op: impl Into<Op>, kernel: [usize; 4], image: [usize; 4]) -> Option<Shape> {
    let mut graph = Graph::new();
    let sources = [kernel, image].map(|ne| Some(graph.leaf(DType::F32, ne).unwrap()));
    graph.apply(op, &sources).ok().map(|id| graph.tensor(id).unwrap().ne())
}

proptest! {
    #[test]
    fn extents_count_positions(axes in [Axis::any(), Axis::any(), Axis::any()]) {
        let dtype = DType::F32;
        let [x, y, z] = axes;
        let [line, plane, volume] = [&axes[..1], &axes[..2], &axes]
            .map(|axes| axes.iter().map(Axis::count).collect::<Option<Vec<_>>>());
        let (geometry, kernel, image) = (geometry_of([x]), [x.kernel, 2, 3, 1], [x.image, 2, 5, 1]);
        let found = extents(Im2col { geometry: Im2colGeometry::Line(geometry), dtype }, kernel, image);
        prop_assert_eq!(found, line.map(|n| Shape::from([2 * x.kernel, n[0], 5])));

        let (geometry, kernel, image) =
            (geometry_of([x, y]), [x.kernel, y.kernel, 2, 3], [x.image, y.image, 2, 5]);
        let found = extents(Im2col { geometry: Im2colGeometry::Plane(geometry), dtype }, kernel, image);
        let taps = 2 * x.kernel * y.kernel;
        prop_assert_eq!(found, plane.as_ref().map(|n| Shape::from([taps, n[0], n[1], 5])));
        let found = extents(Conv2d { geometry }, kernel, image);
        prop_assert_eq!(found, plane.as_ref().map(|n| Shape::from([n[0], n[1], 3, 5])));
        let found = extents(Conv2dDw { geometry }, [x.kernel, y.kernel, 1, 2], image);
        prop_assert_eq!(found, plane.map(|n| Shape::from([n[0], n[1], 2, 5])));

        let geometry = geometry_of(axes);
        let (kernel, image) = ([x.kernel, y.kernel, z.kernel, 6], [x.image, y.image, z.image, 10]);
        let found = extents(Im2col3d { geometry, channels: 2, dtype }, kernel, image);
        let taps = 2 * x.kernel * y.kernel * z.kernel;
        prop_assert_eq!(found, volume.as_ref().map(|n| Shape::from([taps, n[0], n[1], 5 * n[2]])));
        let found = extents(Conv3d { geometry, channels: 2, batch: 5, filters: 3 }, kernel, image);
        prop_assert_eq!(found, volume.map(|n| Shape::from([n[0], n[1], n[2], 15])));
    }

    /// A transposed convolution reaches from the first to the last element that some position writes.
    #[test]
    fn extents_reach_the_last_element(
        (image, kernel, stride, crop) in (1..8_usize, 1..6_usize, 1..5_usize, 0..4_usize),
    ) {
        let last = (0..image).flat_map(|t| (0..kernel).map(move |k| t * stride + k)).max();
        let reach = last.map_or(0, |last| last + 1);
        let found = extents(ConvTranspose1d { stride }, [kernel, 3, 2, 1], [image, 2, 1, 1]);
        prop_assert_eq!(found, Some(Shape::from([reach, 3])));
        let found = extents(ConvTranspose2d { stride }, [kernel, 1, 3, 2], [image, 2, 2, 5]);
        prop_assert_eq!(found, Some(Shape::from([reach, stride + 1, 3, 5])));

        let mut graph = Graph::new();
        let columns = graph.leaf(DType::F32, [3 * kernel, image]).unwrap();
        let folded = graph.col2im_1d(columns, fold(stride, 3, crop));
        let found = folded.ok().map(|id| graph.tensor(id).unwrap().ne());
        let kept = reach.checked_sub(2 * crop).filter(|&kept| kept > 0);
        prop_assert_eq!(found, kept.map(|kept| Shape::from([kept, 3])));
    }
}
