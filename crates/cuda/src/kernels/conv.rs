//! Convolutions, pooling and resampling: the twins of `conv.cu`.

use oxcart_tensor::ops::{ConvGeometry, Im2colGeometry, PoolKind, PoolWindow, ScaleMode};
use oxcart_tensor::{Op, TensorRef};
use zerocopy::{Immutable, IntoBytes};

use super::count;
use crate::images::Family;
use crate::plan::{Builder, Done, Refused, Tensor};

const THREADS: u32 = 256;

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct ConvParams {
    kernel: Tensor,
    image: Tensor,
    y: Tensor,
    count: i64,
    stride: [i64; 3],
    pad: [i64; 3],
    dilation: [i64; 3],
    channels: i64,
    batch: i64,
    lines: i32,
    unused: i32,
}

/// Numbers of a window, axis by axis; those of absent axes do nothing.
fn window<const N: usize>(window: &ConvGeometry<N>) -> [[i64; 3]; 3] {
    let axis = |numbers: [u32; N], absent: i64| {
        std::array::from_fn(|i| numbers.get(i).map_or(absent, |&n| i64::from(n)))
    };
    [axis(window.stride, 1), axis(window.pad, 0), axis(window.dilation, 1)]
}

pub(super) fn add(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let ([stride, pad, dilation], name) = match *node.op() {
        Op::Im2col(op) => (unfolding(op.geometry), "im2col"),
        Op::Im2colBack(op) => (unfolding(op.geometry), "im2col_back"),
        Op::Im2col3d(op) => (window(&op.geometry), "im2col_3d"),
        Op::Col2im1d(op) => ([[op.stride as i64; 3], [op.crop as i64; 3], [1; 3]], "col2im_1d"),
        Op::Conv2d(op) => (window(&op.geometry), "conv_2d"),
        Op::Conv3d(op) => (window(&op.geometry), "conv_3d"),
        Op::Conv2dDw(op) => (window(&op.geometry), "conv_2d_dw"),
        Op::ConvTranspose1d(op) => ([[op.stride as i64; 3], [0; 3], [1; 3]], "conv_transpose_1d"),
        Op::ConvTranspose2d(op) => ([[op.stride as i64; 3], [0; 3], [1; 3]], "conv_transpose_2d"),
        Op::Pool1d(op) => return pool(node, op.kind, wide(op.window), true, b),
        Op::Pool2d(op) => return pool(node, op.kind, op.window, false, b),
        Op::Pool2dBack(op) => return pool(node, op.kind, op.window, false, b),
        Op::Upscale(_) => return upscale(node, b),
        _ => return Err(Refused::Unsupported),
    };
    let first = b.source(node, 0)?;
    let (kernel, image) = match node.op() {
        Op::Col2im1d(_) => (Tensor::NONE, first),
        // The gradient is what is looked at; of the kernel only the extents count.
        Op::Im2colBack(_) => (b.source(node, 1)?, first),
        _ => (first, b.source(node, 1)?),
    };
    let lines = match *node.op() {
        Op::Im2col(op) => matches!(op.geometry, Im2colGeometry::Line(_)),
        Op::Im2colBack(op) => matches!(op.geometry, Im2colGeometry::Line(_)),
        _ => false,
    };
    let (channels, batch) = match *node.op() {
        Op::Im2col3d(op) => (op.channels, image.ne[3] as usize / op.channels.max(1)),
        Op::Conv3d(op) => (op.channels, op.batch),
        Op::Col2im1d(op) => (op.channels, 1),
        _ => (0, 0),
    };
    let params = ConvParams {
        kernel,
        image,
        y: b.tensor(node)?,
        count: count(node),
        stride,
        pad,
        dilation,
        channels: channels as i64,
        batch: batch as i64,
        lines: lines.into(),
        unused: 0,
    };
    b.launch_each(Family::Conv, name, node.layout().elements(), THREADS, &params);
    Ok(())
}

fn unfolding(im2col: Im2colGeometry) -> [[i64; 3]; 3] {
    match im2col {
        Im2colGeometry::Line(line) => window(&line),
        Im2colGeometry::Plane(plane) => window(&plane),
    }
}

/// A window over lines as one over planes.
fn wide(line: PoolWindow<1>) -> PoolWindow<2> {
    PoolWindow { kernel: [line.kernel[0], 1], stride: [line.stride[0], 1], pad: [line.pad[0], 0] }
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct PoolParams {
    a: Tensor,
    y: Tensor,
    gradient: Tensor,
    count: i64,
    kernel: [i64; 2],
    stride: [i64; 2],
    pad: [i64; 2],
    mean: i32,
    lines: i32,
}

fn pool(
    node: TensorRef<'_>,
    kind: PoolKind,
    window: PoolWindow<2>,
    lines: bool,
    b: &mut Builder<'_>,
) -> Done {
    let back = matches!(node.op(), Op::Pool2dBack(_));
    let (gradient, a) = match back {
        true => (b.source(node, 0)?, b.source(node, 1)?),
        false => (Tensor::NONE, b.source(node, 0)?),
    };
    let params = PoolParams {
        a,
        y: b.tensor(node)?,
        gradient,
        count: count(node),
        kernel: window.kernel.map(i64::from),
        stride: window.stride.map(i64::from),
        pad: window.pad.map(i64::from),
        mean: (kind == PoolKind::Avg).into(),
        lines: lines.into(),
    };
    let name = if back { "pool_back" } else { "pool" };
    b.launch_each(Family::Conv, name, node.layout().elements(), THREADS, &params);
    Ok(())
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct UpscaleParams {
    a: Tensor,
    y: Tensor,
    count: i64,
    factor: [f32; 4],
    offset: f32,
    mode: i32,
}

fn upscale(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let Op::Upscale(op) = *node.op() else { return Err(Refused::Unsupported) };
    let (from, to) = (node.source(0).ok_or(Refused::Unsupported)?.ne().extents(), node.ne().extents());
    let mut factor: [f32; 4] = std::array::from_fn(|dim| to[dim] as f32 / from[dim] as f32);
    if op.align_corners {
        for dim in 0..2 {
            if to[dim] > 1 && from[dim] > 1 {
                factor[dim] = (to[dim] - 1) as f32 / (from[dim] - 1) as f32;
            }
        }
    }
    let mode = match (op.mode, op.antialias) {
        (ScaleMode::Nearest, _) => 0,
        (ScaleMode::Bilinear, false) => 1,
        (ScaleMode::Bicubic, _) => 2,
        (ScaleMode::Bilinear, true) => 3,
    };
    let params = UpscaleParams {
        a: b.source(node, 0)?,
        y: b.tensor(node)?,
        count: count(node),
        factor,
        offset: if op.align_corners { 0.0 } else { 0.5 },
        mode,
    };
    b.launch_each(Family::Conv, "upscale", node.layout().elements(), THREADS, &params);
    Ok(())
}
