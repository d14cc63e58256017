//! Recorded ops on the real card of this machine, and what an exact stream promises.
//!
//! Without a card the tests say that they are skipped. `OXCART_GOLDEN` names the folder of reference outputs,
//! `OXCART_DIFFERENTIAL` that of random cases (`tools/differential.sh` makes them), `OXCART_CASES` a part of a case's name, to
//! run those alone.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a test may print figures, and may panic")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use oxcart_backend::{Buffers, Device, Registry, Stream, StreamOptions, Usage, Work, place_all};
use oxcart_cases::{RunError, read_folder};
use oxcart_cpu::CpuDevice;
use oxcart_cuda::CudaRegistry;
use oxcart_tensor::ops::{FlashAttnExt, GluKind, PagedAttn, Precision};
use oxcart_tensor::quant::{dequantize_row, quantize_row};
use oxcart_tensor::{DType, Graph, Shape, TensorId};

fn card() -> Option<Arc<dyn Device>> {
    let device = match CudaRegistry::new() {
        Ok(registry) => registry.devices().into_iter().next(),
        Err(error) => {
            oxcart_fixtures::skip(&error.to_string());
            return None;
        }
    };
    if device.is_none() {
        oxcart_fixtures::skip("there is no card");
    }
    device
}

fn check(variable: &str, inside: &str) {
    let Some(device) = card() else { return };
    let Some(folder) = oxcart_fixtures::variable(variable) else { return };
    println!("{}: {}", device.name(), device.description());
    let stream = device.open(&StreamOptions::default()).unwrap();
    let wanted = std::env::var("OXCART_CASES").unwrap_or_default();
    let (mut complaints, mut unsupported, mut passed) = (Vec::new(), BTreeMap::new(), 0);
    for case in
        read_folder(&Path::new(&folder).join(inside)).iter().filter(|case| case.name.contains(&wanted))
    {
        match case.run(&*stream).map(|found| case.judge(&found)) {
            Ok(Ok(())) => passed += 1,
            Ok(Err(wrong)) => complaints.push(format!("{}: {wrong}", case.name)),
            Err(RunError::Unsupported) => *unsupported.entry(case.op_name().to_owned()).or_insert(0) += 1,
            Err(error) => complaints.push(format!("{}: {error}", case.name)),
        }
        if complaints.len() > 200 {
            break;
        }
    }
    println!("{passed} cases passed; not supported: {unsupported:?}");
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

#[test]
fn every_golden_case_is_computed_as_the_reference_does() {
    check("OXCART_GOLDEN", "graphs");
}

#[test]
fn every_random_case_is_computed_as_the_reference_does() {
    check("OXCART_DIFFERENTIAL", "");
}

/// Numbers between -1 and 1 that look random.
fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn encoded(dtype: DType, numbers: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; dtype.row_bytes(numbers.len()).unwrap()];
    quantize_row(dtype, numbers, None, &mut bytes).unwrap();
    bytes
}

/// Computes a graph over leaves with these bytes; the bytes of its result.
fn compute(
    stream: &dyn Stream,
    leaves: &[(DType, Shape, Vec<u8>)],
    build: impl Fn(&mut Graph, &[TensorId]) -> TensorId,
) -> Vec<u8> {
    let mut graph = Graph::new();
    let ids: Vec<_> = leaves.iter().map(|(dtype, ne, _)| graph.leaf(*dtype, *ne).unwrap()).collect();
    let result = build(&mut graph, &ids);
    graph.mark_output(result).unwrap();
    graph.expand(result).unwrap();
    let mut buffers = Buffers::new();
    let all: Vec<_> = graph.ids().collect();
    place_all(&mut graph, &all, &stream.device().buffer_type(), &mut buffers).unwrap();
    for ((_, _, bytes), &id) in leaves.iter().zip(&ids) {
        buffers.set(graph.tensor(id).unwrap(), 0, bytes).unwrap();
    }
    stream.compute(Work { nodes: graph.range(0..graph.nodes().len()).unwrap(), buffers: &buffers }).unwrap();
    stream.synchronize().unwrap();
    buffers.bytes(graph.tensor(result).unwrap()).unwrap()
}

#[test]
fn an_exact_stream_computes_a_column_the_same_whatever_is_beside_it() {
    let Some(device) = card() else { return };
    let stream = device.open(&StreamOptions { exact: true, ..StreamOptions::default() }).unwrap();
    let (k, m) = (1024, 200);
    let column = encoded(DType::F32, &noise(5, k));
    for dtype in [DType::Q4_0, DType::Q4_K, DType::Q6_K, DType::Q8_0, DType::F16, DType::BF16, DType::F32] {
        let weights = encoded(dtype, &noise(1, k * m));
        let of = |columns: usize, place: usize| {
            let mut x = encoded(DType::F32, &noise(columns as u64, k * columns));
            x[place * 4 * k..(place + 1) * 4 * k].copy_from_slice(&column);
            let leaves = [(dtype, [k, m].into(), weights.clone()), (DType::F32, [k, columns].into(), x)];
            compute(&*stream, &leaves, |graph, ids| graph.mul_mat(ids[0], ids[1]).unwrap())
                [place * 4 * m..(place + 1) * 4 * m]
                .to_vec()
        };
        let alone = of(1, 0);
        for (columns, place) in [(2, 1), (8, 5), (17, 3), (64, 63), (300, 299), (2048, 1000)] {
            assert!(alone == of(columns, place), "{dtype}, column {place} of {columns}");
        }
    }
}

#[test]
fn an_exact_stream_computes_a_token_the_same_however_a_prompt_is_cut() {
    let Some(device) = card() else { return };
    let stream = device.open(&StreamOptions { exact: true, ..StreamOptions::default() }).unwrap();
    let (d, heads, key_heads, pages) = (128, 8, 2, 20);
    let cells = pages * PagedAttn::PAGE;
    let cache = |dtype, seed| encoded(dtype, &noise(seed, d * key_heads * cells));
    let queries = encoded(DType::F32, &noise(3, d * heads * 600));
    let token = 4 * d * heads;
    for dtype in [DType::F16, DType::BF16, DType::Q8_0, DType::F32] {
        let (keys, values) = (cache(dtype, 1), cache(dtype, 2));
        // Tokens of one prompt, at positions from 500 on.
        let of = |tokens: std::ops::Range<usize>| {
            let owners: Vec<u8> =
                tokens.clone().flat_map(|t| [0_i32, 500 + t as i32]).flat_map(i32::to_le_bytes).collect();
            let table: Vec<u8> =
                (0..pages).flat_map(|page| (((page * 7 + 3) % pages) as i32).to_le_bytes()).collect();
            let leaves = [
                (
                    DType::F32,
                    [d, heads, tokens.len()].into(),
                    queries[tokens.start * token..tokens.end * token].to_vec(),
                ),
                (dtype, [d * key_heads, cells].into(), keys.clone()),
                (dtype, [d * key_heads, cells].into(), values.clone()),
                (DType::I32, [pages, 1].into(), table),
                (DType::I32, [2, tokens.len()].into(), owners),
            ];
            let op = PagedAttn { key_heads, scale: 0.09, softcap: 0.0, max_bias: 0.0, window: 0, chunk: 0 };
            compute(&*stream, &leaves, |graph, ids| {
                graph.paged_attn([ids[0], ids[1], ids[2]], ids[3], ids[4], None, op).unwrap()
            })
        };
        let whole = of(0..600);
        for cut in [0..1, 1..2, 599..600, 100..107, 3..300] {
            let (among, alone) = (&whole[cut.start * token..cut.end * token], of(cut.clone()));
            let differ = among.chunks(4).zip(alone.chunks(4)).enumerate().filter(|(_, (a, b))| a != b);
            let places: Vec<usize> = differ.map(|(place, _)| place).collect();
            assert!(
                places.is_empty(),
                "{dtype}, tokens {cut:?}: {} differ, from {:?}",
                places.len(),
                places[0]
            );
        }
    }
}

/// Rows of weights that are about as large as in a model.
fn weights(dtype: DType, k: usize, m: usize, seed: u64) -> (DType, Shape, Vec<u8>) {
    let numbers: Vec<f32> = noise(seed, k * m).iter().map(|x| x * 1.7 / (k as f32).sqrt()).collect();
    (dtype, [k, m].into(), numbers.chunks(k).flat_map(|row| encoded(dtype, row)).collect())
}

#[test]
fn a_gated_network_of_many_tokens_is_that_of_the_cpu() {
    let Some(device) = card() else { return };
    let card = device.open(&StreamOptions::default()).unwrap();
    let cpu = CpuDevice::new().unwrap().open(&StreamOptions::threads(4)).unwrap();
    for (gate, down, k, wide) in [
        (DType::F16, DType::F16, 256, 832),
        (DType::BF16, DType::BF16, 256, 192),
        (DType::Q8_0, DType::Q8_0, 512, 832),
        (DType::Q4_0, DType::Q8_0, 256, 960),
        (DType::Q4_K, DType::Q6_K, 512, 768),
        // No kernel goes from one of these numbers to the other.
        (DType::F16, DType::Q8_0, 256, 256),
    ] {
        for tokens in [70, 128, 333] {
            let leaves = [
                (DType::F32, [k, tokens].into(), encoded(DType::F32, &noise(1, k * tokens))),
                (DType::F32, [k].into(), encoded(DType::F32, &noise(2, k))),
                weights(gate, k, wide, 3),
                weights(gate, k, wide, 4),
                weights(down, wide, k, 5),
            ];
            let build = |graph: &mut Graph, leaf: &[TensorId]| {
                let x = graph.scale(leaf[0], 1.5).unwrap();
                let normal = graph.rms_norm(x, 1e-5).unwrap();
                let h = graph.mul(normal, leaf[1]).unwrap();
                let [gate, up] = [2, 3].map(|at| graph.mul_mat(leaf[at], h).unwrap());
                let active = graph.glu_split(gate, up, GluKind::Swiglu).unwrap();
                let down = graph.mul_mat(leaf[4], active).unwrap();
                graph.add(down, x).unwrap()
            };
            let [found, wanted] = [&card, &cpu].map(|stream| {
                let bytes = compute(&**stream, &leaves, build);
                let mut numbers = vec![0.0; k * tokens];
                dequantize_row(DType::F32, &bytes, &mut numbers).unwrap();
                // What the network adds, without what it is added to.
                let given = noise(1, k * tokens);
                numbers.iter().zip(given).map(|(sum, x)| f64::from(sum - 1.5 * x)).collect::<Vec<_>>()
            });
            let wrong: f64 = found.iter().zip(&wanted).map(|(a, b)| (a - b) * (a - b)).sum();
            let wrong = wrong / wanted.iter().map(|x| x * x).sum::<f64>();
            println!("{gate} {down} {k} {wide}, {tokens} tokens: off by {wrong:.1e}");
            // With blocks, the CPU rounds columns to bytes.
            let limit = if down.is_quantized() { 1e-3 } else { 1e-6 };
            assert!(wrong < limit, "{gate} {down} {k} {wide}, {tokens} tokens: off by {wrong:.2e}");
        }
    }
}

/// How far numbers are off, as a part of what they should be: both squared and added up.
fn off_by(found: &[u8], wanted: &[u8]) -> f64 {
    let numbers = |bytes: &[u8]| {
        let mut numbers = vec![0.0; bytes.len() / 4];
        dequantize_row(DType::F32, bytes, &mut numbers).unwrap();
        numbers
    };
    let (found, wanted) = (numbers(found), numbers(wanted));
    let squares =
        |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|x| f64::from(x) * f64::from(x)).sum::<f64>();
    let wrong = squares(&mut found.iter().zip(&wanted).map(|(a, b)| a - b));
    wrong / squares(&mut wanted.iter().copied())
}

#[test]
fn attention_of_many_queries_is_that_of_the_cpu() {
    let Some(device) = card() else { return };
    let card = device.open(&StreamOptions::default()).unwrap();
    let cpu = CpuDevice::new().unwrap().open(&StreamOptions::threads(4)).unwrap();
    // So many that every multiprocessor has some, and not a multiple of what a block takes.
    let (heads, key_heads, tokens, pages) = (32, 16, 301, 9);
    let cells = pages * PagedAttn::PAGE;
    let i32s = |numbers: &mut dyn Iterator<Item = usize>| {
        numbers.flat_map(|number| (number as i32).to_le_bytes()).collect::<Vec<u8>>()
    };
    let check =
        |what: &str, limit: f64, leaves: &[_], build: &dyn Fn(&mut Graph, &[TensorId]) -> TensorId| {
            let [found, wanted] = [&card, &cpu].map(|stream| compute(&**stream, leaves, build));
            let wrong = off_by(&found, &wanted);
            println!("{what}: off by {wrong:.1e}");
            assert!(wrong < limit, "{what}: off by {wrong:.2e}");
        };
    for (dtype, limit) in [(DType::F16, 1e-5), (DType::BF16, 1e-4)] {
        for d in [40, 64, 96, 128] {
            let queries = encoded(DType::F32, &noise(3, d * heads * tokens));
            let sinks = (DType::F32, [heads].into(), encoded(DType::F32, &noise(7, heads)));
            let cache = |seed| encoded(dtype, &noise(seed, d * key_heads * cells));
            // Two sequences, whose pages alternate: tokens at the end of the first, then of the second.
            let (first, lengths) = (tokens / 3, [250, 230]);
            let owner = |t: usize| {
                if t < first {
                    [0, lengths[0] - first + t]
                } else {
                    [1, lengths[1] - (tokens - first) + t - first]
                }
            };
            let paged = [
                (DType::F32, [d, heads, tokens].into(), queries.clone()),
                (dtype, [d * key_heads, cells].into(), cache(1)),
                (dtype, [d * key_heads, cells].into(), cache(2)),
                (DType::I32, [4, 2].into(), i32s(&mut [0, 2, 4, 6, 7, 5, 3, 1].into_iter())),
                (DType::I32, [2, tokens].into(), i32s(&mut (0..tokens).flat_map(owner))),
                sinks.clone(),
            ];
            for (softcap, max_bias, window, has_sinks) in
                [(0.0, 0.0, 0, false), (15.0, 0.0, 0, true), (0.0, 8.0, 0, false), (0.0, 0.0, 70, true)]
            {
                let op = PagedAttn { key_heads, scale: 0.3, softcap, max_bias, window, chunk: 0 };
                let what = format!("{dtype}, {d} channels, pages, {softcap} {max_bias} {window}");
                check(&what, limit, &paged, &|graph, ids| {
                    let sinks = has_sinks.then_some(ids[5]);
                    graph.paged_attn([ids[0], ids[1], ids[2]], ids[3], ids[4], sinks, op).unwrap()
                });
            }
            // One cache, whose last tile is not whole; the mask hides what comes after a token, and more.
            let keys = 333;
            let mask: Vec<f32> = (0..keys * tokens)
                .map(|at| (at % keys, at / keys))
                .map(|(key, token)| if key > token + 20 || key % 97 == 3 { f32::NEG_INFINITY } else { 0.0 })
                .collect();
            let flat = [
                (DType::F32, [d, tokens, heads].into(), queries),
                (dtype, [d, keys, key_heads].into(), encoded(dtype, &noise(1, d * key_heads * keys))),
                (dtype, [d, keys, key_heads].into(), encoded(dtype, &noise(2, d * key_heads * keys))),
                (DType::F16, [keys, tokens].into(), encoded(DType::F16, &mask)),
                sinks,
            ];
            for (softcap, max_bias, has_mask) in
                [(0.0, 0.0, false), (0.0, 0.0, true), (15.0, 0.0, true), (0.0, 8.0, true)]
            {
                let op =
                    FlashAttnExt { scale: 0.3, max_bias, softcap, precision: Precision::F32, n_kv_max: 0 };
                let what = format!("{dtype}, {d} channels, one cache, {softcap} {max_bias} {has_mask}");
                check(&what, limit, &flat, &|graph, ids| {
                    let mask = has_mask.then_some(ids[3]);
                    graph
                        .flash_attn_ext([ids[0], ids[1], ids[2]], mask, has_mask.then_some(ids[4]), op)
                        .unwrap()
                });
            }
        }
    }
}

/// A product begins to read its weights before the one before it has ended; its column it reads afterwards, every time.
#[test]
fn products_that_follow_each_other_read_what_those_before_wrote() {
    // Enough that launches are recorded.
    const LAYERS: usize = 8;
    let Some(device) = card() else { return };
    let card = device.open(&StreamOptions::default()).unwrap();
    let cpu = CpuDevice::new().unwrap().open(&StreamOptions::threads(4)).unwrap();
    for (dtype, k, wide) in [
        (DType::F16, 2048, 3072),
        (DType::BF16, 1024, 2560),
        (DType::F32, 512, 1536),
        (DType::Q8_0, 2048, 5120),
        (DType::Q8_0, 576, 1536),
        (DType::Q4_0, 2048, 5120),
        (DType::Q4_K, 2048, 5120),
        (DType::Q6_K, 1024, 2560),
        (DType::IQ4_XS, 512, 768),
        (DType::MXFP4, 512, 768),
    ] {
        let mut leaves = vec![
            (DType::F32, [k, 1].into(), encoded(DType::F32, &noise(1, k))),
            (DType::F32, [k].into(), encoded(DType::F32, &noise(2, k))),
        ];
        let layer = [
            weights(dtype, k, wide, 3),
            weights(dtype, k, wide, 4),
            weights(dtype, wide, k, 5),
            weights(dtype, k, k, 6),
        ];
        leaves.extend((0..LAYERS).flat_map(|_| layer.clone()));
        let build = |graph: &mut Graph, leaf: &[TensorId]| {
            let mut x = graph.scale(leaf[0], 1.5).unwrap();
            for layer in 0..LAYERS {
                let own = &leaf[2 + 4 * layer..];
                let normal = graph.rms_norm(x, 1e-5).unwrap();
                let h = graph.mul(normal, leaf[1]).unwrap();
                let [gate, up] = [0, 1].map(|at| graph.mul_mat(own[at], h).unwrap());
                let active = graph.glu_split(gate, up, GluKind::Swiglu).unwrap();
                let down = graph.mul_mat(own[2], active).unwrap();
                let sum = graph.add(down, x).unwrap();
                let turned = graph.mul_mat(own[3], sum).unwrap();
                x = graph.add(turned, sum).unwrap();
            }
            x
        };
        let [found, wanted] = [(&card, 50), (&cpu, 1)].map(|(stream, runs)| {
            let mut graph = Graph::new();
            let ids: Vec<_> = leaves.iter().map(|(dtype, ne, _)| graph.leaf(*dtype, *ne).unwrap()).collect();
            let result = build(&mut graph, &ids);
            graph.mark_output(result).unwrap();
            graph.expand(result).unwrap();
            let (mut buffers, memory) = (Buffers::new(), stream.device().buffer_type());
            for id in place_all(&mut graph, &ids, &memory, &mut buffers).unwrap() {
                buffers.get(id).unwrap().set_usage(Usage::Weights);
            }
            let all: Vec<_> = graph.ids().collect();
            place_all(&mut graph, &all, &memory, &mut buffers).unwrap();
            for ((_, _, bytes), &id) in leaves.iter().zip(&ids) {
                buffers.set(graph.tensor(id).unwrap(), 0, bytes).unwrap();
            }
            let work = Work { nodes: graph.range(0..graph.nodes().len()).unwrap(), buffers: &buffers };
            let mut plan = stream.plan(work).unwrap().unwrap();
            let mut first: Option<Vec<u8>> = None;
            for run in 0..runs {
                plan.compute().unwrap();
                // Some runs follow each other without a pause.
                if run % 5 != 0 {
                    continue;
                }
                stream.synchronize().unwrap();
                let bytes = buffers.bytes(graph.tensor(result).unwrap()).unwrap();
                let first = first.get_or_insert_with(|| bytes.clone());
                assert!(*first == bytes, "{dtype}, {k} channels: run {run} differs from the first");
            }
            first.unwrap()
        });
        let wrong = off_by(&found, &wanted);
        println!("{dtype}, {k} channels, {wide} wide: off by {wrong:.1e}");
        // The CPU rounds columns to half precision, to brain floats and, for blocks, to bytes.
        let limit = match dtype {
            DType::F32 | DType::F16 => 1e-6,
            DType::BF16 => 1e-4,
            _ => 1e-3,
        };
        assert!(wrong < limit, "{dtype}, {k} channels, {wide} wide: off by {wrong:.2e}");
    }
}
