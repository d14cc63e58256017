//! Models of a few kilobytes, made up here: files that are wrong, placements, sequences, devices of several kinds.
#![allow(clippy::unwrap_used, reason = "tests")]

mod model_support;

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use model_support::{Session, rms};
use oxcart_backend::{Device, Stream, StreamOptions};
use oxcart_cpu::CpuDevice;
use oxcart_gguf::Builder;
use oxcart_llm::model::{
    Error, Model, ModelFile, Override, Placement, PlacementOptions, Proportions, Section,
};
use oxcart_llm::runner::{AttentionChoice, Encoder, EncoderOptions, RunnerOptions, Wanted};
use oxcart_tensor::{DType, Layout};
use oxcart_testdev::{Config, TestDevice};
use tempfile::TempDir;

const VOCABULARY: usize = 40;
const EMBEDDING: usize = 64;
const HEADS: usize = 2;
const FEED_FORWARD: usize = 96;

#[derive(Clone, Debug)]
enum Setting {
    Count(u32),
    Number(f32),
    Text(&'static str),
    Flag(bool),
    Counts(Vec<u32>),
    Flags(&'static [bool]),
    Texts(&'static [&'static str]),
}

/// A model in the making.
#[derive(Clone)]
struct Tiny {
    settings: BTreeMap<String, Setting>,
    tensors: BTreeMap<String, (Vec<usize>, DType)>,
    tokens: usize,
}

impl Tiny {
    fn new(architecture: &'static str, blocks: usize) -> Tiny {
        let mut tiny = Tiny { settings: BTreeMap::new(), tensors: BTreeMap::new(), tokens: VOCABULARY };
        tiny.settings.insert("general.architecture".into(), Setting::Text(architecture));
        for (key, value) in [
            ("context_length", 128),
            ("embedding_length", EMBEDDING),
            ("block_count", blocks),
            ("feed_forward_length", FEED_FORWARD),
            ("attention.head_count", HEADS),
            ("attention.head_count_kv", 1),
        ] {
            tiny = tiny.with(key, Setting::Count(value as u32));
        }
        tiny.with("attention.layer_norm_rms_epsilon", Setting::Number(1e-5))
            .tensor("token_embd.weight", &[EMBEDDING, VOCABULARY])
            .tensor("output_norm.weight", &[EMBEDDING])
    }

    fn llama(blocks: usize) -> Tiny {
        let tiny = Tiny::new("llama", blocks).tensor("output.weight", &[EMBEDDING, VOCABULARY]);
        (0..blocks).fold(tiny, Tiny::dense_block)
    }

    fn dense_block(self, block: usize) -> Tiny {
        let size = EMBEDDING / HEADS;
        let name = |base: &str| format!("blk.{block}.{base}.weight");
        self.tensor(&name("attn_norm"), &[EMBEDDING])
            .tensor(&name("attn_q"), &[EMBEDDING, EMBEDDING])
            .tensor(&name("attn_k"), &[EMBEDDING, size])
            .tensor(&name("attn_v"), &[EMBEDDING, size])
            .tensor(&name("attn_output"), &[EMBEDDING, EMBEDDING])
            .tensor(&name("ffn_norm"), &[EMBEDDING])
            .tensor(&name("ffn_gate"), &[EMBEDDING, FEED_FORWARD])
            .tensor(&name("ffn_up"), &[EMBEDDING, FEED_FORWARD])
            .tensor(&name("ffn_down"), &[FEED_FORWARD, EMBEDDING])
    }

    /// With one head, of which a channel of keys and one of values are much larger than the others.
    fn outliers(blocks: usize) -> Tiny {
        let tiny = Tiny::llama(blocks).with("attention.head_count", Setting::Count(1));
        let part = |tiny: Tiny, base: String| {
            tiny.tensor(&format!("{base}.weight"), &[EMBEDDING, EMBEDDING])
                .tensor(&format!("{base}.bias"), &[EMBEDDING])
        };
        let block = |tiny, block| {
            ["attn_k", "attn_v"].iter().fold(tiny, |tiny, base| part(tiny, format!("blk.{block}.{base}")))
        };
        (0..blocks).fold(tiny, block)
    }

    /// Windows of 8 tokens in every other block.
    fn gemma2(blocks: usize) -> Tiny {
        let mut tiny = Tiny::new("gemma2", blocks).with("attention.sliding_window", Setting::Count(8));
        for block in 0..blocks {
            let name = |base: &str| format!("blk.{block}.{base}.weight");
            tiny = tiny.dense_block(block);
            tiny = tiny.tensor(&name("post_attention_norm"), &[EMBEDDING]);
            tiny = tiny.tensor(&name("post_ffw_norm"), &[EMBEDDING]);
        }
        tiny
    }

    fn with(mut self, key: &str, value: Setting) -> Tiny {
        let prefix = match &self.settings["general.architecture"] {
            Setting::Text(name) if !key.starts_with("general.") && !key.starts_with("tokenizer.") => {
                format!("{name}.")
            }
            _ => String::new(),
        };
        self.settings.insert(format!("{prefix}{key}"), value);
        self
    }

    fn without(mut self, key: &str) -> Tiny {
        assert!(self.settings.remove(key).is_some());
        self
    }

    fn tensor(mut self, name: &str, shape: &[usize]) -> Tiny {
        self.tensors.insert(name.to_owned(), (shape.to_vec(), DType::F32));
        self
    }

    /// Writes the file; contents follow from names.
    fn write(&self, folder: &TempDir) -> PathBuf {
        let mut builder = Builder::new();
        for (key, value) in &self.settings {
            match value {
                Setting::Count(value) => builder.set(key, *value),
                Setting::Number(value) => builder.set(key, *value),
                Setting::Text(value) => builder.set(key, *value),
                Setting::Flag(value) => builder.set(key, *value),
                Setting::Counts(values) => builder.set(key, values.clone()),
                Setting::Flags(values) => builder.set(key, values.to_vec()),
                Setting::Texts(values) => builder.set(key, values.to_vec()),
            };
        }
        let tokens: Vec<String> = (0..self.tokens).map(|token| format!("t{token}")).collect();
        builder.set("tokenizer.ggml.tokens", tokens.iter().map(String::as_str).collect::<Vec<_>>());
        for (name, (shape, dtype)) in &self.tensors {
            let mut extents = [1; 4];
            extents[..shape.len()].copy_from_slice(shape);
            let layout = Layout::packed(*dtype, extents).unwrap();
            builder.tensor(name, layout, contents(name, shape, *dtype, layout.byte_len()));
        }
        let path = folder.path().join("tiny.gguf");
        builder.write(std::fs::File::create(&path).unwrap()).unwrap();
        path
    }

    fn open(&self) -> Result<ModelFile, Error> {
        let folder = TempDir::new().unwrap();
        // The file stays open.
        ModelFile::open(self.write(&folder))
    }

    fn context(&self, devices: usize, options: RunnerOptions) -> Session {
        let devices: Vec<Arc<CpuDevice>> = (0..devices).map(|_| CpuDevice::new().unwrap()).collect();
        let list = devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
        let proportions = Proportions::Ratios(vec![1.0; devices.len()]);
        let file = self.open().unwrap();
        let placement =
            Placement::new(&file, list, &PlacementOptions { proportions, ..PlacementOptions::default() })
                .unwrap();
        let model = Model::load(file, placement, &|_| {}).unwrap();
        let streams =
            devices.into_iter().map(|device| device.open(&StreamOptions::threads(1)).unwrap()).collect();
        Session::new(model, streams, options).unwrap()
    }
}

/// Numbers that look random: around one for norms, small for matrices. Of a bias, one stands out.
fn contents(name: &str, shape: &[usize], dtype: DType, len: usize) -> Vec<u8> {
    if dtype != DType::F32 {
        return vec![0; len];
    }
    let mut state = name
        .bytes()
        .fold(0x9E37_79B9_7F4A_7C15_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3));
    let (centre, spread) = if shape.len() == 1 { (1.0, 0.2) } else { (0.0, 2.0 / (shape[0] as f32).sqrt()) };
    let count: usize = shape.iter().product();
    if name.ends_with(".bias") {
        return (0..count).flat_map(|at| if at == 5 { 40_f32 } else { 0.0 }.to_le_bytes()).collect();
    }
    (0..count)
        .flat_map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let uniform = (state >> 40) as f32 / (1 << 23) as f32 - 1.0;
            (centre + spread * uniform).to_le_bytes()
        })
        .collect()
}

fn exact() -> RunnerOptions {
    RunnerOptions { context: 128, cache_type: DType::F32, ..RunnerOptions::default() }
}

fn text(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 7 + i * i % 11) % VOCABULARY as u32).collect()
}

fn rows(context: &mut Session, tokens: &[u32]) -> Vec<Vec<f32>> {
    context.evaluate(tokens, Wanted::From(0)).unwrap()
}

#[track_caller]
fn assert_close(a: &[Vec<f32>], b: &[Vec<f32>], tolerance: f32) {
    assert_eq!(a.len(), b.len());
    for (index, (a, b)) in a.iter().zip(b).enumerate() {
        let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= tolerance, "row {index}: off by {worst}");
        assert!(a.iter().all(|x| x.is_finite()), "row {index}");
    }
}

#[test]
fn batches_of_any_size_agree() {
    let tiny = Tiny::llama(2);
    let tokens = text(30);
    let together = rows(&mut tiny.context(1, exact()), &tokens);
    for batch in [1, 7, 29] {
        let batched = rows(&mut tiny.context(1, RunnerOptions { batch, ..exact() }), &tokens);
        assert_close(&together, &batched, 1e-4);
        let mut context = tiny.context(2, exact());
        let called: Vec<Vec<f32>> = tokens.chunks(batch).flat_map(|call| rows(&mut context, call)).collect();
        assert_close(&together, &called, 1e-4);
    }
    for attention in [AttentionChoice::Flash, AttentionChoice::Plain] {
        let other = rows(&mut tiny.context(1, RunnerOptions { attention, ..exact() }), &tokens);
        assert_close(&together, &other, 1e-4);
    }
}

#[test]
fn decoding_uses_one_graph() {
    let mut context = Tiny::llama(2).context(2, RunnerOptions { context: 600, ..exact() });
    context.evaluate(&text(10), Wanted::None).unwrap();
    for token in text(300) {
        assert_eq!(context.evaluate(&[token], Wanted::Last).unwrap().len(), 1);
    }
    // One for the prompt, one for single tokens.
    let usage = context.runner.usage();
    assert_eq!((usage.graphs, usage.computed_tokens, context.position()), (2, 310, 310));
}

#[test]
fn one_can_go_back() {
    let tiny = Tiny::llama(2);
    let mut context = tiny.context(1, exact());
    let first = rows(&mut context, &text(20));
    context.truncate(8).unwrap();
    assert_eq!(context.position(), 8);
    assert_close(&rows(&mut context, &text(20)[8..]), &first[8..], 1e-4);
    context.reset();
    assert_close(&rows(&mut context, &text(20)), &first, 0.0);
    assert!(matches!(context.truncate(21), Err(Error::CannotTruncate { used: 20, .. })));
}

#[test]
fn the_limit_is_an_error_and_changes_nothing() {
    let mut context = Tiny::llama(1).context(1, RunnerOptions { context: 16, ..exact() });
    let first = rows(&mut context, &text(12));
    let error = context.evaluate(&text(5), Wanted::Last).unwrap_err();
    assert_eq!(error.to_string(), "sequence 1: 5 tokens after 12 do not fit into a context of 16");
    let error = context.evaluate(&[1, VOCABULARY as u32], Wanted::Last).unwrap_err();
    assert_eq!(error.to_string(), "sequence 1: token 40 is not one of the 40 tokens of the model");
    assert_eq!(context.position(), 12);
    context.truncate(3).unwrap();
    assert_close(&rows(&mut context, &text(12)[3..]), &first[3..], 1e-4);
    assert!(context.evaluate(&[], Wanted::From(0)).unwrap().is_empty());
}

/// With one block, keys and values depend on nothing but their tokens. So after forgetting some, everything must be as if
/// the tokens that are left had been the only ones.
#[test]
fn what_is_forgotten_is_as_if_it_had_never_been() {
    for (cache_type, attention, tolerance) in [
        (DType::F32, AttentionChoice::Auto, 1e-3),
        (DType::F32, AttentionChoice::Flash, 1e-3),
        (DType::F32, AttentionChoice::Plain, 1e-3),
        (DType::F16, AttentionChoice::Auto, 0.02),
        (DType::Q8_0, AttentionChoice::Auto, 0.2),
    ] {
        for tiny in [Tiny::llama(1), Tiny::outliers(1), yarn()] {
            let options = RunnerOptions { context: 300, sequences: 2, cache_type, attention, ..exact() };
            let tokens = text(290);
            let left: Vec<u32> = [&tokens[..64], &tokens[192..]].concat();
            let fresh = rows(&mut tiny.context(1, options), &left);
            for (is_exact, tolerance) in [(true, 1e-4), (false, tolerance)] {
                let mut context = tiny.context(1, options);
                context.evaluate(&tokens[..280], Wanted::None).unwrap();
                // One that shares pages must not notice.
                let other = context.runner.fork(context.id).unwrap();
                context.runner.forget(context.id, 64, 192, is_exact).unwrap();
                assert_eq!(context.position(), 152);
                assert_close(&rows(&mut context, &tokens[280..]), &fresh[152..], tolerance);
                let mine = std::mem::replace(&mut context.id, other);
                let unmoved = rows(&mut context, &tokens[280..]);
                context.runner.close(mine).unwrap();
                assert_close(&unmoved, &rows(&mut tiny.context(1, options), &tokens)[280..], 1e-4);
            }
        }
    }
}

/// Without mixing, the channel that stands out takes most bits of its block from the others: the error is three times as large.
#[test]
fn channels_that_stand_out_do_not_spoil_quantized_caches() {
    let (tiny, tokens) = (Tiny::outliers(2), text(60));
    let fine = rows(&mut tiny.context(1, exact()), &tokens);
    for attention in [AttentionChoice::Auto, AttentionChoice::Flash] {
        for (cache_type, value_type, most) in [
            (DType::Q8_0, None, 0.006),
            (DType::Q4_0, None, 0.1),
            (DType::Q8_0, Some(DType::Q4_0), 0.1),
            (DType::Q4_0, Some(DType::F16), 0.1),
            (DType::F16, Some(DType::Q8_0), 0.006),
        ] {
            let options = RunnerOptions { cache_type, value_type, attention, ..exact() };
            let error = rms(&rows(&mut tiny.context(2, options), &tokens), &fine);
            assert!(error < most, "{cache_type}, {value_type:?}: {error}");
        }
    }
}

/// Each of keys and values has its own type: what only one of them loses is less than what both lose.
#[test]
fn keys_and_values_may_have_different_types() {
    let (tiny, tokens) = (Tiny::llama(2), text(60));
    let fine = rows(&mut tiny.context(1, exact()), &tokens);
    for attention in [AttentionChoice::Auto, AttentionChoice::Flash] {
        let error = |keys, values| {
            let options = RunnerOptions { cache_type: keys, value_type: Some(values), attention, ..exact() };
            rms(&rows(&mut tiny.context(2, options), &tokens), &fine)
        };
        let both = error(DType::Q4_0, DType::Q4_0);
        for (keys, values) in [(DType::Q4_0, DType::F32), (DType::F32, DType::Q4_0)] {
            let one = error(keys, values);
            assert!(one > 0.0 && one < both, "{keys}, {values}: {one}, not below {both}");
        }
        assert!(error(DType::F16, DType::Q8_0) < error(DType::F16, DType::Q4_0));
    }
    let plain = RunnerOptions { value_type: Some(DType::F16), attention: AttentionChoice::Plain, ..exact() };
    assert!(rms(&rows(&mut tiny.context(1, plain), &tokens), &fine) < 0.01);
}

/// Keys are rotated where they lie, so forgetting that fails in the middle leaves nothing that could be trusted.
#[test]
fn forgetting_that_fails_leaves_nothing() {
    let (tiny, tokens) = (Tiny::llama(2), text(200));
    let device = CpuDevice::new().unwrap();
    let file = tiny.open().unwrap();
    let placement = Placement::new(&file, vec![device.clone()], &PlacementOptions::default()).unwrap();
    let model = Model::load(file, placement, &|_| {}).unwrap();
    let stream = device.open(&StreamOptions::threads(1)).unwrap();
    let stop = stream.cancel_flag().unwrap();
    let mut context = Session::new(model, vec![stream], RunnerOptions { context: 256, ..exact() }).unwrap();
    let fresh = rows(&mut context, &tokens);
    // A range that makes no sense changes nothing.
    for (from, to) in [(64, 256), (128, 64), (3, 64), (64, 100)] {
        assert!(context.runner.forget(context.id, from, to, false).is_err());
        assert_eq!(context.position(), 200);
    }
    for is_exact in [true, false] {
        stop.store(true, Ordering::Relaxed);
        assert!(context.runner.forget(context.id, 64, 128, is_exact).is_err());
        stop.store(false, Ordering::Relaxed);
        assert_eq!(context.position(), 0, "what is left is not known");
        assert_close(&rows(&mut context, &tokens), &fresh, 0.0);
    }
}

fn yarn() -> Tiny {
    Tiny::llama(1)
        .with("rope.scaling.type", Setting::Text("yarn"))
        .with("rope.scaling.factor", Setting::Number(4.0))
        .with("rope.scaling.original_context_length", Setting::Count(32))
}

/// Windowed blocks keep few pages and use them again; that must not show.
#[test]
fn windows_can_be_kept_in_few_pages() {
    let tiny = Tiny::gemma2(3);
    let options = RunnerOptions { context: 1024, batch: 16, ..exact() };
    let tokens = text(600);
    let mut few = tiny.context(1, options);
    // With large batches there is room for all of them.
    let mut all = tiny.context(1, RunnerOptions { batch: 1024, ..options });
    assert!(few.runner.state_bytes()[0] < all.runner.state_bytes()[0]);
    assert_close(&rows(&mut few, &tokens[..590]), &rows(&mut all, &tokens[..590]), 1e-3);
    for &token in &tokens[590..] {
        assert_close(&rows(&mut few, &[token]), &rows(&mut all, &[token]), 1e-3);
    }
    let error = few.truncate(100).unwrap_err();
    assert!(error.to_string().contains("windowed blocks have forgotten"), "{error}");
    few.truncate(595).unwrap();
    few.reset();
    assert_close(&rows(&mut few, &tokens[..20]), &rows(&mut tiny.context(2, options), &tokens[..20]), 1e-3);
}

/// An accelerator with memory of its own that cannot do everything, and the CPU for the rest.
#[test]
fn accelerators_get_weights_and_work() {
    let tiny = Tiny::llama(3);
    let accelerators: Vec<_> =
        (0..2).map(|i| TestDevice::new(Config::accelerator(&format!("GPU{i}")))).collect();
    let cpu = CpuDevice::new().unwrap();
    let mut devices: Vec<Arc<dyn Device>> =
        accelerators.iter().map(|device| Arc::clone(device) as _).collect();
    devices.push(cpu.clone());
    let file = tiny.open().unwrap();
    let options = PlacementOptions {
        proportions: Proportions::Ratios(vec![1.0, 1.0, 0.0]),
        ..PlacementOptions::default()
    };
    let placement = Placement::new(&file, devices, &options).unwrap();
    let totals: Vec<usize> = placement.shares().iter().map(|share| share.weights).collect();
    let seen = Mutex::new(vec![0; 3]);
    let model = Model::load(file, placement, &|progress| {
        let mut seen = seen.lock().unwrap();
        assert!(progress.done >= seen[progress.device] && progress.done <= progress.total);
        seen[progress.device] = progress.done;
    })
    .unwrap();
    assert_eq!(*seen.lock().unwrap(), totals);
    assert!(accelerators.iter().all(|device| device.allocated_bytes() > 10_000));
    let mut streams: Vec<Box<dyn Stream>> = accelerators.iter().map(|device| device.stream()).collect();
    streams.push(cpu.open(&StreamOptions::threads(1)).unwrap());
    let mut context = Session::new(model, streams, exact()).unwrap();
    let found = rows(&mut context, &text(9));
    assert_close(&found, &rows(&mut tiny.context(1, exact()), &text(9)), 1e-3);
    for token in text(3) {
        context.evaluate(&[token], Wanted::Last).unwrap();
    }
    assert!(accelerators.iter().all(|device| !device.take_log().is_empty()));
}

#[test]
fn placements_follow_ratios_and_exceptions() {
    let file = Tiny::llama(8).open().unwrap();
    let devices = || -> Vec<Arc<dyn Device>> {
        let accelerator = |i| TestDevice::new(Config::accelerator(&format!("GPU{i}"))) as Arc<dyn Device>;
        vec![accelerator(0), accelerator(1), CpuDevice::new().unwrap()]
    };
    let placement = |proportions, overrides: Vec<Override>| {
        Placement::new(
            &file,
            devices(),
            &PlacementOptions { proportions, overrides, ..PlacementOptions::default() },
        )
    };
    let thirds = placement(Proportions::Ratios(vec![3.0, 1.0, 0.0]), Vec::new()).unwrap();
    let blocks: Vec<_> = thirds.shares().iter().map(|share| share.blocks.clone()).collect();
    assert_eq!(blocks, [0..6, 6..8, 0..0]);
    assert_eq!(thirds.device_of(Section::Input), 2);
    assert_eq!(thirds.device_of(Section::Output), 1);
    let shown = thirds.to_string();
    assert!(shown.starts_with("GPU0: blocks 0-5; "), "{shown}");
    assert!(shown.contains("CPU: embeddings; "), "{shown}");

    let exception = Override { pattern: "blk.*.ffn_*".into(), device: 2 };
    let moved = placement(Proportions::Ratios(vec![1.0, 0.0, 0.0]), vec![exception]).unwrap();
    for tensor in moved.tensors() {
        let wanted = match tensor.name.as_str() {
            "token_embd.weight" => 2,
            name => 2 * usize::from(name.contains(".ffn_")),
        };
        assert_eq!(tensor.device, wanted, "{}", tensor.name);
    }
    let bytes: usize = moved.shares().iter().map(|share| share.weights).sum();
    assert_eq!(bytes, moved.tensors().iter().map(|tensor| tensor.bytes).sum::<usize>());
    assert!(placement(Proportions::ByFreeMemory, Vec::new()).unwrap().shortfall().is_none());

    for (ratios, device) in [
        (vec![1.0], 0),
        (vec![0.0; 3], 0),
        (vec![1.0, -1.0, 1.0], 0),
        (vec![1.0, f64::NAN, 1.0], 0),
        (vec![1.0; 3], 3),
    ] {
        let exception = Override { pattern: "x".into(), device };
        assert!(matches!(
            placement(Proportions::Ratios(ratios), vec![exception]),
            Err(Error::Setting { .. })
        ));
    }
}

/// The processor beside cards computes only what they have no room for.
#[test]
fn the_last_device_is_spared_as_far_as_memory_allows() {
    let file = Tiny::llama(8).open().unwrap();
    let limited = |capacities: &[usize], most| {
        let card = |(at, &capacity): (usize, &usize)| {
            let config = Config { capacity, ..Config::accelerator(&format!("GPU{at}")) };
            TestDevice::new(config) as Arc<dyn Device>
        };
        let mut devices: Vec<_> = capacities.iter().enumerate().map(card).collect();
        devices.push(CpuDevice::new().unwrap());
        let proportions = Proportions::SpareLast { most };
        let options = PlacementOptions { proportions, ..PlacementOptions::default() };
        let placement = Placement::new(&file, devices, &options).unwrap();
        assert!(placement.shortfall().is_none(), "{placement}");
        (
            placement.shares().iter().map(|share| share.blocks.clone()).collect::<Vec<_>>(),
            placement.shares()[0].needed(),
        )
    };
    let blocks = |capacities: &[usize]| limited(capacities, None);
    let (all, needed) = blocks(&[1 << 40]);
    assert_eq!(all, [0..8, 0..0]);
    let (some, _) = blocks(&[needed / 2]);
    assert!(some[0].start == 0 && some[0].end == some[1].start && some[1].end == 8, "{some:?}");
    assert!((1..5).contains(&some[0].len()), "{some:?}");
    assert_eq!(blocks(&[1 << 40, 1 << 40]).0, [0..4, 4..8, 0..0]);
    assert_eq!(blocks(&[]).0.first(), Some(&(0..8)), "one that is alone has everything");
    // As many as are allowed, and no more than there is room for.
    for most in 0..=9 {
        let (all, _) = limited(&[1 << 40], Some(most));
        assert_eq!(
            all,
            [0..most.min(8), most.min(8)..8].map(|range| if range.is_empty() { 0..0 } else { range })
        );
    }
    assert_eq!(limited(&[needed / 2], Some(8)).0, some);
}

/// A tied table that input and output both need is on the devices of both.
#[test]
fn shared_tensors_are_where_they_are_needed() {
    let mut tiny = Tiny::llama(2);
    tiny.tensors.remove("output.weight");
    let file = tiny.open().unwrap();
    let devices: Vec<Arc<dyn Device>> =
        vec![TestDevice::new(Config::accelerator("GPU")), CpuDevice::new().unwrap()];
    let options =
        PlacementOptions { proportions: Proportions::Ratios(vec![1.0, 0.0]), ..PlacementOptions::default() };
    let placement = Placement::new(&file, devices, &options).unwrap();
    let tables: Vec<_> =
        placement.tensors().iter().filter(|tensor| tensor.name == "token_embd.weight").collect();
    assert_eq!(
        tables.iter().map(|tensor| (tensor.section, tensor.device)).collect::<Vec<_>>(),
        [(Section::Input, 1), (Section::Output, 0)]
    );
}

#[test]
fn streams_must_be_those_of_the_placement() {
    let (device, other) = (CpuDevice::new().unwrap(), CpuDevice::new().unwrap());
    let file = Tiny::llama(1).open().unwrap();
    let placement = Placement::new(&file, vec![device], &PlacementOptions::default()).unwrap();
    let model = Model::load(file, placement, &|_| {}).unwrap();
    let wrong = Session::new(model.clone(), vec![other.open(&StreamOptions::default()).unwrap()], exact());
    assert!(matches!(wrong, Err(Error::OtherDevice { index: 0, .. })));
    assert!(matches!(Session::new(model.clone(), Vec::new(), exact()), Err(Error::Setting { .. })));
    let device = model.devices()[0].clone();
    let encoder =
        Encoder::new(model, vec![device.open(&StreamOptions::default()).unwrap()], EncoderOptions::default());
    assert_eq!(encoder.unwrap_err().to_string(), "llama models cannot be used as encoders");
}

#[test]
fn settings_of_contexts_are_checked() {
    let tiny = Tiny::llama(1);
    let device = CpuDevice::new().unwrap();
    let file = tiny.open().unwrap();
    let placement = Placement::new(&file, vec![device.clone()], &PlacementOptions::default()).unwrap();
    let model = Model::load(file, placement, &|_| {}).unwrap();
    for options in [
        RunnerOptions { batch: 0, ..exact() },
        RunnerOptions { batch: 1 << 20, ..exact() },
        RunnerOptions { context: 1 << 40, ..exact() },
        RunnerOptions { cache_type: DType::Q4_K, ..exact() },
        RunnerOptions { value_type: Some(DType::Q4_K), ..exact() },
        RunnerOptions { value_type: Some(DType::Q8_0), attention: AttentionChoice::Plain, ..exact() },
        RunnerOptions { cache_type: DType::Q8_0, attention: AttentionChoice::Plain, ..exact() },
    ] {
        let stream = device.clone().open(&StreamOptions::threads(1)).unwrap();
        assert!(matches!(Session::new(model.clone(), vec![stream], options), Err(Error::Setting { .. })));
    }
}

#[test]
fn hyper_parameters_that_make_no_sense_are_refused() {
    use Setting::{Count, Counts, Flag, Number, Text};
    let change = |key: &str, value: Setting| Tiny::llama(2).with(key, value);
    for (tiny, said) in [
        (change("block_count", Count(0)), "llama.block_count is 0: must be from 1 to 512"),
        (change("block_count", Count(u32::MAX)), "llama.block_count is 4294967295"),
        (change("attention.head_count", Count(0)), "llama.attention.head_count is 0"),
        (change("attention.head_count", Count(5)), "llama.attention.head_count is 5: must divide"),
        (change("attention.head_count_kv", Count(0)), "llama.attention.head_count_kv is 0"),
        (change("attention.head_count", Counts(vec![2])), "must be one for each of 2 blocks"),
        (change("attention.key_length", Count(u32::MAX)), "llama.attention.key_length is 4294967295"),
        (change("attention.value_length", Count(16)), "the tensor 'blk.0.attn_v.weight' is"),
        (change("embedding_length", Count(0)), "llama.embedding_length is 0"),
        (change("feed_forward_length", Count(0)), "neither a feed-forward network nor experts"),
        (change("context_length", Count(u32::MAX)), "llama.context_length is 4294967295"),
        (change("context_length", Text("long")), "llama.context_length"),
        (change("rope.dimension_count", Count(64)), "llama.rope.dimension_count is 64"),
        (
            change("rope.dimension_count", Count(16)),
            "llama.rope.dimension_count is 16: must be the head size 32",
        ),
        (change("rope.freq_base", Number(-1.0)), "llama.rope.freq_base is -1: must not be negative"),
        (change("rope.freq_base", Number(f32::NAN)), "llama.rope.freq_base is NaN: must be finite"),
        (change("rope.scaling.factor", Number(-2.0)), "llama.rope.scaling.factor is -2"),
        (change("rope.scaling.type", Text("magic")), "llama.rope.scaling.type is magic"),
        (change("expert_count", Count(2)), "llama.expert_used_count is 0: cannot be with 2 experts"),
        (
            change("expert_used_count", Count(2)),
            "llama.expert_used_count is 2: must not exceed the 0 experts",
        ),
        (change("attention.layer_norm_rms_epsilon", Number(-1.0)), "layer_norm_rms_epsilon is negative"),
        (change("attention.causal", Flag(false)), "llama.attention.causal is false"),
        (change("pooling_type", Count(4)), "models that write cannot rank here"),
        (Tiny::llama(2).without("llama.context_length"), "llama.context_length"),
        (Tiny::llama(2).without("general.architecture"), "general.architecture"),
        (
            change("general.architecture", Text("llama0")),
            "the architecture 'llama0' is not known; known are llama, llama-embed",
        ),
        (Tiny { tokens: 0, ..Tiny::llama(2) }, "tokenizer.ggml.tokens is 0 tokens"),
    ] {
        let error = tiny.open().unwrap_err().to_string();
        assert!(error.contains(said), "'{error}' should contain '{said}'");
    }
}

#[test]
fn tensors_that_are_missing_or_wrong_are_named() {
    let whole = Tiny::llama(2);
    for name in whole.tensors.keys() {
        let mut tiny = whole.clone();
        tiny.tensors.remove(name);
        match tiny.open() {
            // The embedding table stands in for it.
            Ok(_) => assert_eq!(name, "output.weight"),
            Err(error) => assert_eq!(error.to_string(), format!("the tensor '{name}' is missing")),
        }
        let mut tiny = whole.clone();
        tiny.tensors.get_mut(name).unwrap().0[0] += 32;
        let error = tiny.open().unwrap_err().to_string();
        assert!(error.starts_with(&format!("the tensor '{name}' is [")), "{error}");
        let mut tiny = whole.clone();
        tiny.tensors.get_mut(name).unwrap().1 = DType::I32;
        let error = tiny.open().unwrap_err().to_string();
        assert!(error.starts_with(&format!("the tensor '{name}' is of type i32")), "{error}");
    }
    let error = whole.tensor("blk.0.attn_q.surprise", &[4]).open().unwrap_err().to_string();
    assert_eq!(error, "the tensor 'blk.0.attn_q.surprise' has no place in this architecture");
}

#[test]
fn keys_without_a_use_are_named() {
    let unread = |key: &str, value: Setting| {
        let file = Tiny::llama(2).with(key, value).open().unwrap();
        file.hyper().unread_keys.clone()
    };
    assert_eq!(unread("surprise", Setting::Count(3)), ["llama.surprise"]);
    assert_eq!(unread("surprise", Setting::Text("yes")), ["llama.surprise"]);
    assert_eq!(unread("surprise", Setting::Flag(true)), ["llama.surprise"]);
    for listed in [Setting::Flags(&[false, true]), Setting::Texts(&["", "yes"]), Setting::Counts(vec![0, 3])]
    {
        assert_eq!(unread("surprise", listed), ["llama.surprise"]);
    }
    assert!(unread("surprise", Setting::Flags(&[false, false])).is_empty());
    // A word for "none", and what has nothing to do with results.
    assert!(unread("surprise", Setting::Count(0)).is_empty());
    assert!(unread("tensor_data_layout", Setting::Text("Meta AI original pth")).is_empty());
}

/// What a placement says beforehand is what a runner takes, so that memory does not run out after everything was sent.
#[test]
fn memory_is_known_before_anything_is_loaded() {
    for (devices, batch) in [(1, 512), (1, 64), (3, 512)] {
        let file = Tiny::llama(6).open().unwrap();
        let runner = RunnerOptions { batch, sequences: 3, ..exact() };
        let cpus: Vec<Arc<CpuDevice>> = (0..devices).map(|_| CpuDevice::new().unwrap()).collect();
        let list = cpus.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
        let proportions = Proportions::Ratios(vec![1.0; devices]);
        let options = PlacementOptions { proportions, runner, ..PlacementOptions::default() };
        let placement = Placement::new(&file, list, &options).unwrap();
        let shares = placement.shares().to_vec();
        let model = Model::load(file, placement, &|_| {}).unwrap();
        let streams = cpus.into_iter().map(|cpu| cpu.open(&StreamOptions::threads(1)).unwrap()).collect();
        let session = Session::new(model, streams, runner).unwrap();
        let (state, results) = (session.runner.state_bytes(), session.runner.result_bytes().unwrap());
        for (index, share) in shares.iter().enumerate() {
            // Tables of pages come on top.
            assert!(share.state <= state[index] && share.state + 4096 > state[index], "{share:?} {state:?}");
            let (told, found) = (share.results, results[index]);
            assert!(told >= found && told <= found + found / 2, "{devices} {batch}: {told}, took {found}");
        }
    }
}

#[test]
fn results_that_do_not_fit_are_noticed_before_loading() {
    let file = Tiny::llama(4).open().unwrap();
    let placed = |capacity: usize| {
        let device = TestDevice::new(Config { capacity, ..Config::accelerator("GPU") });
        let devices: Vec<Arc<dyn Device>> = vec![device, CpuDevice::new().unwrap()];
        let proportions = Proportions::Ratios(vec![1.0, 0.0]);
        let options = PlacementOptions { proportions, runner: exact(), ..PlacementOptions::default() };
        Placement::new(&file, devices, &options).unwrap()
    };
    let share = placed(1 << 30).shares()[0].clone();
    assert!(share.results > 10_000, "{share:?}");
    assert!(placed(share.needed()).shortfall().is_none());
    let short = placed(share.needed() - 1);
    assert_eq!(short.shortfall().map(|share| share.name.as_str()), Some("GPU"));
}

/// A sequence that was saved goes on as if nothing had happened, and what cannot be restored is refused.
#[test]
fn sequences_are_saved_and_restored() {
    let tokens = text(300);
    for (tiny, cache_type) in
        [(Tiny::llama(2), DType::F32), (Tiny::gemma2(3), DType::F16), (Tiny::llama(2), DType::Q8_0)]
    {
        let options = RunnerOptions { context: 400, sequences: 3, cache_type, batch: 32, ..exact() };
        let mut one = tiny.context(2, options);
        one.evaluate(&tokens[..290], Wanted::None).unwrap();
        let mut saved = Vec::new();
        one.runner.save(one.id, b"and more", &mut saved).unwrap();
        let expected = rows(&mut one, &tokens[290..]);
        let mut other = tiny.context(1, options);
        let restored = |session: &mut Session, bytes: &[u8]| session.runner.restore(Cursor::new(bytes));
        let (id, extra) = restored(&mut other, &saved).unwrap();
        assert_eq!(
            (extra.as_slice(), other.runner.tokens(id).unwrap()),
            (b"and more".as_slice(), &tokens[..290])
        );
        let before = std::mem::replace(&mut other.id, id);
        assert_close(&rows(&mut other, &tokens[290..]), &expected, 0.0);
        // What came from a file is not what others find by content.
        assert_eq!(other.runner.reuse(before, &tokens).unwrap(), 0);

        let refusal = |session: &mut Session, bytes: &[u8]| restored(session, bytes).unwrap_err().to_string();
        let free = other.runner.usage().free_tokens;
        for at in [0, 9, 50, 1000, saved.len() - 1] {
            let mut damaged = saved.clone();
            damaged[at] ^= 1;
            assert!(refusal(&mut other, &damaged).ends_with("it is damaged"));
        }
        assert!(refusal(&mut other, &saved[..20]).ends_with("it is too short"));
        let other_type = if cache_type == DType::F16 { DType::F32 } else { DType::F16 };
        let mut wrong = tiny.context(1, RunnerOptions { cache_type: other_type, ..options });
        assert!(refusal(&mut wrong, &saved).ends_with("another type of cache"));
        let mut wrong = tiny.context(1, RunnerOptions { value_type: Some(other_type), ..options });
        assert!(refusal(&mut wrong, &saved).ends_with("another type of cache"));
        let mut wrong = Tiny::llama(3).context(1, options);
        assert!(refusal(&mut wrong, &saved).ends_with("another model"));
        let mut short = tiny.context(1, RunnerOptions { context: 200, ..options });
        assert!(refusal(&mut short, &saved).ends_with("more tokens than fit into a context"));
        assert_eq!(other.runner.usage().free_tokens, free);
    }
}
