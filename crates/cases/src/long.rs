//! Nodes that would take very long, made of little memory: what an attacker sends before leaving.
//!
//! Rows that lie in the same place, windows as long as what they move over, and heads, taps and streams without end.

use oxcart_tensor::ops::{
    Conv3d, ConvGeometry, ConvTranspose2d, Dsv4HcComb, Dsv4HcPost, Dsv4HcPre, FlashAttnExt, LightningIndexer,
    Pool1d, Pool2d, Pool2dBack, PoolKind, PoolWindow, Precision, ScaleMode, SetRows, SsmConv, Upscale,
};
use oxcart_tensor::{DType, Error, Graph, Layout, Op, TensorId};

/// A node and what it is called.
#[derive(Clone, Copy, Debug)]
pub struct LongNode {
    /// What it is.
    pub name: &'static str,
    /// Makes it of leaves that may hold zeros.
    pub build: fn(&mut Graph) -> Result<TensorId, Error>,
}

/// A tensor whose rows, planes and volumes begin one element after another.
pub fn close_rows(graph: &mut Graph, dtype: DType, ne: [usize; 4]) -> Result<TensorId, Error> {
    graph.leaf_with_layout(Layout::strided(dtype, ne, [dtype.block_bytes(); 4])?)
}

/// A tensor whose rows all lie in one place.
fn one_row(graph: &mut Graph, dtype: DType, ne: [usize; 4]) -> Result<TensorId, Error> {
    graph.leaf_with_layout(Layout::strided(dtype, ne, [dtype.block_bytes(), 0, 0, 0])?)
}

fn apply(graph: &mut Graph, op: impl Into<Op>, sources: &[TensorId]) -> Result<TensorId, Error> {
    let sources: Vec<_> = sources.iter().copied().map(Some).collect();
    graph.apply(op, &sources)
}

fn product(graph: &mut Graph, dtype: DType) -> Result<TensorId, Error> {
    let a = close_rows(graph, dtype, [1 << 14, 1 << 15, 1, 1])?;
    let b = close_rows(graph, DType::F32, [1 << 14, 2048, 1, 1])?;
    graph.mul_mat(a, b)
}

fn long_product(graph: &mut Graph, dtype: DType) -> Result<TensorId, Error> {
    let a = close_rows(graph, dtype, [1 << 21, 1 << 16, 1, 1])?;
    let b = close_rows(graph, DType::F32, [1 << 21, 4, 1, 1])?;
    graph.mul_mat(a, b)
}

fn attention(graph: &mut Graph, d: usize, keys: usize) -> Result<TensorId, Error> {
    let q = close_rows(graph, DType::F32, [d, 4096, 8, 1])?;
    let k = close_rows(graph, DType::F16, [d, keys, 8, 1])?;
    let op = FlashAttnExt { scale: 1.0, max_bias: 0.0, softcap: 0.0, precision: Precision::Any, n_kv_max: 0 };
    graph.flash_attn_ext([q, k, k], None, None, op)
}

const WIDE: PoolWindow<2> =
    PoolWindow { kernel: [1 << 11, 1 << 11], stride: [1, 1], pad: [1 << 10, 1 << 10] };

/// All of them.
pub const LONG_NODES: &[LongNode] = &[
    LongNode { name: "a product of floats", build: |graph| product(graph, DType::F32) },
    LongNode { name: "a product of blocks", build: |graph| product(graph, DType::Q4_0) },
    LongNode { name: "a product of long rows of floats", build: |graph| long_product(graph, DType::F32) },
    LongNode { name: "a product of long rows of blocks", build: |graph| long_product(graph, DType::Q8_0) },
    LongNode {
        name: "a product with one column",
        build: |graph| {
            let a = close_rows(graph, DType::F32, [1 << 17, 1 << 22, 1, 1])?;
            let b = graph.leaf(DType::F32, [1 << 17])?;
            graph.mul_mat(a, b)
        },
    },
    LongNode {
        name: "an outer product",
        build: |graph| {
            let a = close_rows(graph, DType::F32, [4096, 1 << 17, 1, 1])?;
            let b = close_rows(graph, DType::F32, [4096, 1 << 17, 1, 1])?;
            graph.out_prod(a, b)
        },
    },
    LongNode { name: "attention", build: |graph| attention(graph, 128, 1 << 18) },
    LongNode { name: "attention with large heads", build: |graph| attention(graph, 1 << 14, 1 << 14) },
    LongNode {
        name: "scores of sparse attention",
        build: |graph| {
            let q = close_rows(graph, DType::F32, [1 << 13, 1 << 10, 1 << 10, 1])?;
            let k = close_rows(graph, DType::F16, [1 << 13, 1, 1 << 14, 1])?;
            let weights = close_rows(graph, DType::F32, [1 << 10, 1 << 10, 1, 1])?;
            let mask = close_rows(graph, DType::F16, [1 << 14, 1 << 10, 1, 1])?;
            apply(graph, LightningIndexer, &[q, k, weights, mask])
        },
    },
    LongNode {
        name: "a sum",
        build: |graph| {
            let a = close_rows(graph, DType::F32, [1024, 1 << 16, 1 << 14, 1])?;
            graph.sum(a)
        },
    },
    LongNode {
        name: "sums of rows",
        build: |graph| {
            let a = close_rows(graph, DType::F32, [1 << 18, 1 << 22, 1, 1])?;
            graph.sum_rows(a)
        },
    },
    LongNode {
        name: "a recurrence",
        build: |graph| {
            let (d, tokens) = (1 << 12, 1 << 12);
            let mut rows = || graph.leaf(DType::F32, [d, 1, tokens]);
            let [r, w, k, v, a, b] = [rows()?, rows()?, rows()?, rows()?, rows()?, rows()?];
            let state = graph.leaf(DType::F32, [d * d, 1])?;
            graph.rwkv_wkv7([r, w, k, v, a, b, state])
        },
    },
    LongNode {
        name: "a window as long as its row",
        build: |graph| {
            let n = 1 << 20;
            let window = PoolWindow { kernel: [n as u32], stride: [1], pad: [n as u32] };
            let a = graph.leaf(DType::F32, [n])?;
            apply(graph, Pool1d { kind: PoolKind::Max, window }, &[a])
        },
    },
    LongNode {
        name: "windows as large as their plane",
        build: |graph| {
            let a = graph.leaf(DType::F32, [1 << 11, 1 << 11])?;
            apply(graph, Pool2d { kind: PoolKind::Avg, window: WIDE }, &[a])
        },
    },
    LongNode {
        name: "gradients of such windows",
        build: |graph| {
            let a = graph.leaf(DType::F32, [1 << 11, 1 << 11])?;
            let pooled = apply(graph, Pool2d { kind: PoolKind::Max, window: WIDE }, &[a])?;
            let ne = graph.tensor(pooled)?.ne();
            let gradient = graph.leaf(DType::F32, ne)?;
            apply(graph, Pool2dBack { kind: PoolKind::Max, window: WIDE }, &[gradient, a])
        },
    },
    LongNode {
        name: "a convolution of long taps",
        build: |graph| {
            let (taps, tokens) = (1 << 19, 1 << 20);
            let a = graph.leaf(DType::F32, [taps - 1 + tokens, 8])?;
            let kernel = graph.leaf(DType::F32, [taps, 8])?;
            apply(graph, SsmConv, &[a, kernel])
        },
    },
    LongNode {
        name: "rows without end into blocks",
        build: |graph| {
            let rows = (1 << 31) - 1;
            let values = one_row(graph, DType::F32, [128, rows, 1, 1])?;
            // Row numbers are all the same one.
            let numbers = graph.leaf_with_layout(Layout::strided(DType::I64, [rows, 1, 1, 1], [0; 4])?)?;
            let target = graph.leaf(DType::Q8_0, [128, 8])?;
            apply(graph, SetRows, &[values, numbers, target])
        },
    },
    LongNode {
        name: "streams without end mixed",
        build: |graph| {
            let streams = 1 << 30;
            let x = one_row(graph, DType::F32, [512, streams, 1, 1])?;
            let weights = graph.leaf_with_layout(Layout::strided(DType::F32, [streams, 1, 1, 1], [0; 4])?)?;
            apply(graph, Dsv4HcPre { scale: 1.0, gated: false }, &[x, weights])
        },
    },
    LongNode {
        name: "streams mixed with each other",
        build: |graph| {
            let streams = 1 << 16;
            let x = one_row(graph, DType::F32, [256, 1, 1, 1])?;
            let residual = one_row(graph, DType::F32, [256, streams, 1, 1])?;
            let post = graph.leaf(DType::F32, [streams, 1])?;
            let comb = one_row(graph, DType::F32, [streams, streams, 1, 1])?;
            apply(graph, Dsv4HcPost, &[x, residual, post, comb])
        },
    },
    LongNode {
        name: "a matrix normalized without end",
        build: |graph| {
            let mixes = one_row(graph, DType::F32, [24, 64, 1, 1])?;
            let (scale, base) = (graph.leaf(DType::F32, [3])?, graph.leaf(DType::F32, [24])?);
            let op = Dsv4HcComb { eps: 1e-6, iterations: i32::MAX as u32 };
            apply(graph, op, &[mixes, scale, base])
        },
    },
    LongNode {
        name: "an image made one pixel",
        build: |graph| {
            let a = one_row(graph, DType::F32, [1 << 20, 1 << 20, 1, 1])?;
            let ne = [1, 1, 1, 1].into();
            let op = Upscale { ne, mode: ScaleMode::Bilinear, align_corners: false, antialias: true };
            apply(graph, op, &[a])
        },
    },
    LongNode {
        name: "a convolution of volumes",
        build: |graph| {
            let kernel = graph.leaf(DType::F32, [32, 32, 32, 8 * 16])?;
            let image = close_rows(graph, DType::F32, [128, 128, 128, 8])?;
            let op = Conv3d { geometry: ConvGeometry::DENSE, channels: 8, batch: 1, filters: 16 };
            apply(graph, op, &[kernel, image])
        },
    },
    LongNode {
        name: "a transposed convolution",
        build: |graph| {
            let kernel = close_rows(graph, DType::F32, [256, 256, 16, 64])?;
            let image = close_rows(graph, DType::F32, [256, 256, 64, 1])?;
            apply(graph, ConvTranspose2d { stride: 1 }, &[kernel, image])
        },
    },
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    /// Long on any machine: the quickest kernels do some 2^36 units a second.
    #[test]
    fn every_node_has_far_more_work_than_a_test_waits_for() {
        for case in LONG_NODES {
            let mut graph = Graph::new();
            let node = (case.build)(&mut graph).unwrap();
            let work = graph.tensor(node).unwrap().work();
            assert!(work >= 1 << 36, "{}: {work}", case.name);
        }
    }
}
