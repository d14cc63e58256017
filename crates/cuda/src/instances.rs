//! Every kernel of the images, launched at least once: what is run under sanitizers, and a list of what is never launched.
//!
//! Products and attention are built here, one case for each instantiation; the other kernels are launched by recorded ops
//! (`OXCART_GOLDEN`). On a card on paper, which computes nothing, a test sees that none is missing and that a card of another
//! capability finds every kernel it asks for; on a real card the same cases compute (`tools/cuda/device.sh instances`).

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a test may print figures, and may panic")]

use std::collections::BTreeSet;
use std::sync::Arc;

use oxcart_backend::{Buffers, Device, Error, Stream, StreamOptions, Usage, Work, place_all};
use oxcart_cases::{RunError, read_folder};
use oxcart_tensor::ops::{
    FlashAttnExt, GluKind, Hint, MulMat, PagedAttn, Precision, Rope, RopeMode, SortOrder,
};
use oxcart_tensor::{DType, Graph, Shape, TensorId};

use crate::device::CudaDevice;
use crate::images;
use crate::registry::CudaRegistry;

/// A leaf: its type, extents, bytes, and whether it holds weights.
struct Leaf(DType, Shape, Vec<u8>, bool);

impl Leaf {
    /// Bytes that look random, but of which neither numbers nor scales are large or undefined.
    fn some(dtype: DType, ne: impl Into<Shape>) -> Leaf {
        let ne = ne.into();
        let count = dtype.row_bytes(ne.elements().unwrap()).unwrap();
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8 & 0x1F
        };
        Leaf(dtype, ne, (0..count).map(|_| next()).collect(), false)
    }

    fn weights(dtype: DType, ne: impl Into<Shape>) -> Leaf {
        Leaf { 3: true, ..Leaf::some(dtype, ne) }
    }

    fn i32(ne: impl Into<Shape>, numbers: impl IntoIterator<Item = i32>) -> Leaf {
        Leaf(DType::I32, ne.into(), numbers.into_iter().flat_map(i32::to_le_bytes).collect(), false)
    }

    fn i64(ne: impl Into<Shape>, numbers: impl IntoIterator<Item = i64>) -> Leaf {
        Leaf(DType::I64, ne.into(), numbers.into_iter().flat_map(i64::to_le_bytes).collect(), false)
    }
}

/// Computes a graph over leaves, without looking at results.
fn compute(
    stream: &dyn Stream,
    leaves: &[Leaf],
    build: impl FnOnce(&mut Graph, &[TensorId]) -> TensorId,
) -> Result<(), Error> {
    let mut graph = Graph::new();
    let ids: Vec<_> = leaves.iter().map(|Leaf(dtype, ne, ..)| graph.leaf(*dtype, *ne).unwrap()).collect();
    let result = build(&mut graph, &ids);
    graph.mark_output(result).unwrap();
    graph.expand(result).unwrap();
    let mut buffers = Buffers::new();
    let memory = stream.device().buffer_type();
    let weights: Vec<_> = ids.iter().zip(leaves).filter(|(_, leaf)| leaf.3).map(|(&id, _)| id).collect();
    for id in place_all(&mut graph, &weights, &memory, &mut buffers)? {
        buffers.get(id)?.set_usage(Usage::Weights);
    }
    let all: Vec<_> = graph.ids().collect();
    place_all(&mut graph, &all, &memory, &mut buffers)?;
    for (Leaf(_, _, bytes, _), &id) in leaves.iter().zip(&ids) {
        buffers.set(graph.tensor(id).unwrap(), 0, bytes)?;
    }
    let nodes = graph.range(0..graph.nodes().len()).unwrap();
    if nodes.nodes().iter().any(|&id| !stream.device().supports_op(graph.tensor(id).unwrap())) {
        // Older cards have less room; then it is computed elsewhere.
        assert!(is_old(stream), "not supported");
        return Ok(());
    }
    stream.compute_and_wait(Work { nodes, buffers: &buffers })
}

fn is_old(stream: &dyn Stream) -> bool {
    !stream.device().description().contains("capability 9.0")
}

fn has_products(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16) || (dtype.is_quantized() && dtype.decodes())
}

/// Products of weights of a type with as many columns as there are kernels for, and with experts.
fn products(stream: &dyn Stream, dtype: DType) -> Result<(), Error> {
    let (k, m) = (512, 72);
    for columns in [1, 2, 4, 8, 16, 32, 64, 130] {
        let leaves = [Leaf::weights(dtype, [k, m]), Leaf::some(DType::F32, [k, columns])];
        compute(stream, &leaves, |graph, leaf| graph.mul_mat(leaf[0], leaf[1]).unwrap())?;
    }
    // One by one, few and many columns for each of two experts.
    for tokens in [1, 40, 90] {
        let leaves = [
            Leaf::weights(dtype, [k, m, 2]),
            Leaf::some(DType::F32, [k, 1, tokens]),
            Leaf::i32([1, tokens], (0..tokens as i32).map(|token| token % 2)),
        ];
        compute(stream, &leaves, |graph, leaf| graph.mul_mat_id(leaf[0], leaf[1], leaf[2]).unwrap())?;
    }
    // Enough rows for tiles of 256 to fill a card better than those of 128.
    if matches!(dtype, DType::F16 | DType::BF16) {
        let leaves = [Leaf::weights(dtype, [64, 256 * 132]), Leaf::some(DType::F32, [64, 130])];
        compute(stream, &leaves, |graph, leaf| graph.mul_mat(leaf[0], leaf[1]).unwrap())?;
        // A feed-forward network: one product gates another.
        let leaves = [
            Leaf::weights(dtype, [128, 192]),
            Leaf::weights(dtype, [128, 192]),
            Leaf::weights(dtype, [192, 128]),
            Leaf::some(DType::F32, [128, 130]),
        ];
        compute(stream, &leaves, |graph, leaf| {
            let [gate, up] = [0, 1].map(|at| graph.mul_mat(leaf[at], leaf[3]).unwrap());
            let active = graph.glu_split(gate, up, GluKind::Swiglu).unwrap();
            graph.mul_mat(leaf[2], active).unwrap()
        })?;
    }
    Ok(())
}

/// Attention with every kind of numbers, of few tokens and of many, over one cache and over pages.
fn attention(stream: &dyn Stream, cache: DType, (d, dv): (usize, usize)) -> Result<(), Error> {
    let scale = 0.1;
    // One kernel has all that F32 takes, a block for each token and head, which is more than sanitizers end with.
    let (many, pages) = if cache == DType::F32 { ((3, 8, 4), 2) } else { ((300, 32, 16), 12) };
    for (tokens, heads, key_heads) in [(1, 4, 2), (2, 32, 2), many] {
        let keys = 16 * pages;
        let leaves = [
            Leaf::some(DType::F32, [d, tokens, heads]),
            Leaf::some(cache, [d, keys, key_heads]),
            Leaf::some(cache, [dv, keys, key_heads]),
        ];
        let op = FlashAttnExt { scale, max_bias: 0.0, softcap: 0.0, precision: Precision::F32, n_kv_max: 0 };
        compute(stream, &leaves, |graph, leaf| {
            graph.flash_attn_ext([leaf[0], leaf[1], leaf[2]], None, None, op).unwrap()
        })?;
        over_pages(stream, cache, (d, dv), (tokens, pages), (heads, key_heads))?;
    }
    if d == dv { fresh(stream, cache, d) } else { Ok(()) }
}

/// The tables of one sequence: pages, and the position of each token.
fn tables(tokens: usize, pages: usize) -> [Leaf; 2] {
    let first = pages * PagedAttn::PAGE - tokens;
    [
        Leaf::i32([pages, 1], 0..pages as i32),
        Leaf::i32([2, tokens], (first..first + tokens).flat_map(|position| [0, position as i32])),
    ]
}

fn paged(key_heads: usize) -> PagedAttn {
    PagedAttn { key_heads, scale: 0.1, softcap: 0.0, max_bias: 0.0, window: 0, chunk: 0 }
}

fn over_pages(
    stream: &dyn Stream,
    cache: DType,
    (d, dv): (usize, usize),
    (tokens, pages): (usize, usize),
    (heads, key_heads): (usize, usize),
) -> Result<(), Error> {
    let rows = |channels: usize| [channels * key_heads, pages * PagedAttn::PAGE];
    let [table, owners] = tables(tokens, pages);
    let leaves = [
        Leaf::some(DType::F32, [d, heads, tokens]),
        Leaf::some(cache, rows(d)),
        Leaf::some(cache, rows(dv)),
        table,
        owners,
    ];
    compute(stream, &leaves, |graph, leaf| {
        graph.paged_attn([leaf[0], leaf[1], leaf[2]], leaf[3], leaf[4], None, paged(key_heads)).unwrap()
    })
}

/// Attention of one token with the rotation of its queries and its key, and with what is written to its caches.
fn fresh(stream: &dyn Stream, cache: DType, d: usize) -> Result<(), Error> {
    let (heads, key_heads, pages) = (4, 2, 4);
    let rows = [d * key_heads, pages * PagedAttn::PAGE];
    let [table, owners] = tables(1, pages);
    let position = (pages * PagedAttn::PAGE - 1) as i32;
    let leaves = [
        Leaf::some(DType::F32, [d, heads, 1]),
        Leaf::some(DType::F32, [d, key_heads, 1]),
        Leaf::some(DType::F32, [d, key_heads, 1]),
        Leaf::some(cache, rows),
        Leaf::some(cache, rows),
        table,
        owners,
        Leaf::i32([1], [position]),
        Leaf::i64([1], [i64::from(position)]),
    ];
    let rope = Rope { n_ctx_orig: 512, ..Rope::new(d, RopeMode::Normal, 10_000.0) };
    compute(stream, &leaves, |graph, leaf| {
        // What is rotated and stored must be results: leaves are not written in passing.
        let [q, k, v] = [0, 1, 2].map(|at| {
            let scaled = graph.scale(leaf[at], 1.5).unwrap();
            graph.expand(scaled).unwrap();
            scaled
        });
        let q = graph.rope(q, leaf[7], None, rope).unwrap();
        let k = graph.rope(k, leaf[7], None, rope).unwrap();
        graph.expand(q).unwrap();
        let store = |graph: &mut Graph, rows: TensorId, cache: TensorId| {
            let token = graph.tensor(rows).unwrap().layout().nb()[2];
            let rows = graph.view(rows, [d * key_heads, 1], &[token], 0).unwrap();
            let stored = graph.set_rows(cache, rows, leaf[8]).unwrap();
            graph.expand(stored).unwrap();
            stored
        };
        let keys = store(graph, k, leaf[3]);
        let values = store(graph, v, leaf[4]);
        graph.paged_attn([q, keys, values], leaf[5], leaf[6], None, paged(key_heads)).unwrap()
    })
}

/// What recorded ops do not have: large transpositions and sorts, and products with Hadamard matrices.
fn others(stream: &dyn Stream) -> Result<(), Error> {
    for dtype in [DType::F32, DType::F16] {
        compute(stream, &[Leaf::some(dtype, [40, 70])], |graph, leaf| {
            let turned = graph.transpose(leaf[0]).unwrap();
            graph.cont(turned).unwrap()
        })?;
    }
    compute(stream, &[Leaf::some(DType::F32, [10_000, 2])], |graph, leaf| {
        graph.argsort(leaf[0], SortOrder::Descending).unwrap()
    })?;
    let leaves = [Leaf::weights(DType::F32, [64, 64]), Leaf::some(DType::F32, [64, 3])];
    compute(stream, &leaves, |graph, leaf| {
        let product = MulMat { hint: Hint::Hadamard, ..MulMat::default() };
        graph.apply(product, &[Some(leaf[0]), Some(leaf[1])]).unwrap()
    })
}

/// Of so many parts of all cases, one: a sanitizer takes too long for all of them.
#[derive(Clone, Copy)]
struct CasePart {
    number: usize,
    of: usize,
}

impl CasePart {
    const ALL: CasePart = CasePart { number: 0, of: 1 };

    /// As `OXCART_PART` says, `3/16` for the fourth of sixteen; otherwise everything.
    fn wanted() -> CasePart {
        let Ok(text) = std::env::var("OXCART_PART") else { return CasePart::ALL };
        let (number, of) = text.split_once('/').unwrap();
        CasePart { number: number.parse().unwrap(), of: of.parse().unwrap() }
    }

    fn has(self, number: usize) -> bool {
        number % self.of == self.number
    }
}

/// Runs every case of a part; whether recorded ops were among them.
fn run_all(device: &Arc<CudaDevice>, part: CasePart) -> bool {
    let mut number = 0;
    let mut is_next_wanted = || {
        number += 1;
        part.has(number)
    };
    for exact in [false, true] {
        let stream = Arc::clone(device).open(&StreamOptions { exact, ..StreamOptions::default() }).unwrap();
        for dtype in DType::all().filter(|&dtype| has_products(dtype)) {
            if is_next_wanted() {
                products(&*stream, dtype).unwrap();
            }
        }
        for cache in [DType::F16, DType::BF16, DType::Q8_0, DType::F32] {
            for widths in [(64, 64), (128, 128), (192, 128), (256, 256)] {
                if is_next_wanted() {
                    attention(&*stream, cache, widths).unwrap();
                }
            }
        }
        if is_next_wanted() {
            others(&*stream).unwrap();
        }
    }
    let Some(folder) = oxcart_fixtures::golden() else { return false };
    let stream = Arc::clone(device).open(&StreamOptions::default()).unwrap();
    for case in read_folder(&folder.join("graphs")) {
        if !is_next_wanted() {
            continue;
        }
        match case.run(&*stream) {
            Ok(_) | Err(RunError::Unsupported) => {}
            Err(error) => panic!("{}: {error}", case.name),
        }
    }
    true
}

/// Kernels of the images that were not launched: all, or those of families that this file has cases for.
fn missing(launched: &BTreeSet<String>, capability: (u32, u32), with_recorded: bool) -> Vec<String> {
    let built = ["matvec", "bands", "tiles", "attention", "attention_prompt", "attention_decode", "gemm"];
    let kernels = images::all_kernels(capability);
    println!("{} kernels for {capability:?}, {} launched", kernels.len(), launched.len());
    kernels
        .into_iter()
        .filter(|(file, _, kernel)| {
            let is_known = with_recorded || built.contains(file);
            is_known && !launched.contains(kernel)
        })
        .map(|(file, part, kernel)| format!("{file} {part} {kernel}"))
        .collect()
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn no_kernel_for_hopper_is_without_a_case() {
    let (_, device) = crate::emulated::on_paper((9, 0), 132, 227 << 10);
    let with_recorded = run_all(&device, CasePart::ALL);
    let missing = missing(&device.card().launched(), (9, 0), with_recorded);
    assert!(missing.is_empty(), "{} kernels without a case:\n{}", missing.len(), missing.join("\n"));
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn cards_of_every_capability_find_their_kernels() {
    for (capability, multiprocessors, shared) in [((7, 5), 40, 64 << 10), ((8, 6), 82, 99 << 10)] {
        let (_, device) = crate::emulated::on_paper(capability, multiprocessors, shared);
        let with_recorded = run_all(&device, CasePart::ALL);
        let _ = missing(&device.card().launched(), capability, with_recorded);
    }
}

#[test]
#[ignore = "needs a card; tools/cuda/device.sh instances runs it, alone and under compute-sanitizer"]
fn every_kernel_runs_on_the_card() {
    let Some(device) = CudaRegistry::new().ok().and_then(|found| found.cuda_devices().first().cloned())
    else {
        return oxcart_fixtures::skip("there is no card");
    };
    let part = CasePart::wanted();
    let with_recorded = run_all(&device, part);
    let (launched, capability) = (device.card().launched(), device.card().info.capability);
    let missing = missing(&launched, capability, with_recorded);
    println!("launched: {}", launched.into_iter().collect::<Vec<_>>().join(" "));
    // Of a part, the script sees what all parts have launched.
    assert!(
        part.of > 1 || missing.is_empty(),
        "{} kernels without a case:\n{}",
        missing.len(),
        missing.join("\n")
    );
}
