//! Texts of all lengths, cut into pieces at random, with beginnings shared and sequences removed on the way: each must give to the
//! bit what it gives alone, on every instruction set of this processor, on devices of this process and on those of workers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use oxcart_backend::{Device, Registry, StreamOptions};
use oxcart_cpu::{CpuDevice, Level};
use oxcart_llm::model::{HyperParameters, Model, ModelFile, Placement, PlacementOptions, Proportions};
use oxcart_llm::runner::{Piece, Runner, RunnerOptions, SequenceId, Wanted};
use oxcart_rpc::client::{Options, RemoteRegistry};
use oxcart_rpc::worker::{Config, DialectChoice, Worker};
use oxcart_tensor::DType;

/// Numbers that look random.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit
    }
}

fn runner(path: &Path, level: Level, (devices, threads): (usize, usize), options: RunnerOptions) -> Runner {
    let devices = (0..devices).map(|_| CpuDevice::with_level(level) as Arc<dyn Device>).collect();
    runner_on(path, devices, threads, options)
}

/// A model in equal parts on devices.
fn runner_on(path: &Path, devices: Vec<Arc<dyn Device>>, threads: usize, options: RunnerOptions) -> Runner {
    let file = ModelFile::open(path).unwrap();
    let proportions = Proportions::Ratios(vec![1.0; devices.len()]);
    let placement = Placement::new(
        &file,
        devices.clone(),
        &PlacementOptions { proportions, ..PlacementOptions::default() },
    );
    let model = Model::load(file, placement.unwrap(), &|_| {}).unwrap();
    let open = |device: Arc<dyn Device>| device.open(&StreamOptions::threads(threads)).unwrap();
    Runner::new(model, devices.into_iter().map(open).collect(), options).unwrap()
}

/// Workers that lend one device each, and those devices as their client sees them; the last one is this process's own, because
/// some steps have to be taken here.
fn lent(count: usize, level: Level) -> (Vec<Worker>, Vec<Arc<dyn Device>>) {
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    let start = |_| {
        let mut config = Config::new([CpuDevice::with_level(level) as Arc<dyn Device>]);
        config.stream = StreamOptions::threads(1);
        let mut worker = Worker::new(config).unwrap();
        let address = worker.listen("127.0.0.1:0", DialectChoice::Auto).unwrap();
        let registry = RemoteRegistry::connect(&address.to_string(), &Options::default()).unwrap();
        devices.extend(registry.devices());
        worker
    };
    let workers = (0..count).map(start).collect();
    devices.push(CpuDevice::with_level(level));
    (workers, devices)
}

/// The tokens of a text; texts whose numbers are the same modulo 5 begin alike.
fn text(number: usize, vocabulary: usize) -> Vec<u32> {
    let mut dice = Dice(number as u64 + 1);
    let length = 1 + dice.below(if number.is_multiple_of(4) { 400 } else { 90 });
    let shared = Dice(1000 + number as u64 % 5).below(200);
    let mut common = Dice(77 + number as u64 % 5);
    let token = |at: usize| match at < shared {
        true => common.below(vocabulary) as u32,
        false => dice.below(vocabulary) as u32,
    };
    (0..length).map(token).collect()
}

/// The last row of logits of every text, each computed alone and in one go.
fn alone(runner: &mut Runner, texts: &[Vec<u32>]) -> Vec<Vec<f32>> {
    let one = |tokens: &Vec<u32>| {
        let sequence = runner.open().unwrap();
        let outputs = runner.compute(&[Piece { sequence, tokens, wanted: Wanted::Last }]).unwrap();
        let row = outputs.of(0).row(0).to_vec();
        runner.close(sequence).unwrap();
        row
    };
    texts.iter().map(one).collect()
}

/// The same, all at once: every step takes some tokens of some texts.
fn together(runner: &mut Runner, texts: &[Vec<u32>], dice: &mut Dice) -> Vec<Vec<f32>> {
    let mut rows = vec![Vec::new(); texts.len()];
    let mut open: BTreeMap<usize, (SequenceId, usize)> = BTreeMap::new();
    let mut waiting: Vec<usize> = (0..texts.len()).collect();
    while !waiting.is_empty() || !open.is_empty() {
        while let Some(&number) = waiting.last() {
            let Ok(sequence) = runner.open() else { break };
            waiting.pop();
            let known = runner.reuse(sequence, &texts[number]).unwrap();
            open.insert(number, (sequence, known));
        }
        let mut parts: Vec<(usize, SequenceId, std::ops::Range<usize>)> = Vec::new();
        for (&number, &(sequence, done)) in &open {
            if dice.below(4) == 0 {
                continue;
            }
            let left = texts[number].len() - done;
            let count = if dice.below(3) == 0 { left } else { 1 + dice.below(left.min(40)) };
            parts.push((number, sequence, done..done + count));
        }
        let pieces: Vec<Piece<'_>> = parts
            .iter()
            .map(|(number, sequence, range)| Piece {
                sequence: *sequence,
                tokens: &texts[*number][range.clone()],
                wanted: Wanted::Last,
            })
            .collect();
        let outputs = runner.compute(&pieces).unwrap();
        let mut ended = Vec::new();
        for (index, (number, _, range)) in parts.iter().enumerate() {
            if range.end == texts[*number].len() {
                rows[*number] = outputs.of(index).row(0).to_vec();
                ended.push(*number);
            } else if let Some(entry) = open.get_mut(number) {
                entry.1 = range.end;
            }
        }
        for number in ended {
            runner.close(open.remove(&number).unwrap().0).unwrap();
        }
        // Now and then one is given up and begins anew, or goes back a little.
        let numbers: Vec<usize> = open.keys().copied().collect();
        if let Some(&number) = numbers.get(dice.below(numbers.len().max(1) * 3)) {
            let entry = open.get_mut(&number).unwrap();
            let to = if dice.below(2) == 0 { 0 } else { dice.below(entry.1 + 1) };
            if runner.truncate(entry.0, to).is_ok() {
                entry.1 = to;
            }
        }
    }
    rows
}

/// Whether sums are in the order of cells, so that results depend in their last digits on where sequences lie.
pub(crate) fn looks_through_masks(hyper: &HyperParameters) -> bool {
    hyper.indexer.is_some() || hyper.one_row.is_some()
}

/// How many texts.
#[derive(Clone, Copy)]
pub(crate) struct Count {
    pub(crate) of_all: usize,
    /// Of these, how many are computed without vectors too, which takes far longer.
    pub(crate) scalar: usize,
}

/// Computes some texts alone and together, in several settings.
pub(crate) fn check(path: &Path, count: Count, cache_type: DType, seed: u64) {
    let options = RunnerOptions { context: 512, cache_type, ..RunnerOptions::default() };
    for level in Level::available() {
        let mut one = runner(path, level, (1, 1), RunnerOptions { batch: 400, ..options });
        let hyper = one.model().hyper();
        let vocabulary = hyper.vocabulary;
        // Where two runs of tokens are as good as each other but for rounding, either may be found.
        let slack = if looks_through_masks(hyper) { 1e-2 } else { 0.0 };
        let count = if level == Level::Scalar { count.scalar } else { count.of_all };
        let texts: Vec<Vec<u32>> = (0..count).map(|number| text(number, vocabulary)).collect();
        let expected = alone(&mut one, &texts);
        for (setting, batch, sequences) in [((1, 2), 512, 64), ((1, 1), 33, 7), ((3, 1), 128, 20)] {
            let options = RunnerOptions { batch, sequences, tokens: 8192, ..options };
            let mut many = runner(path, level, setting, options);
            let found = together(&mut many, &texts, &mut Dice(seed));
            let what = format!("{}, {level}, {setting:?}, {cache_type}", path.display());
            assert_same(&what, &texts, &found, &expected, slack);
        }
        let (_workers, devices) = lent(3, level);
        let options = RunnerOptions { batch: 64, sequences: 16, tokens: 8192, ..options };
        let mut many = runner_on(path, devices, 1, options);
        let found = together(&mut many, &texts, &mut Dice(seed + 1));
        let what = format!("{}, {level}, three workers, {cache_type}", path.display());
        assert_same(&what, &texts, &found, &expected, slack);
    }
}

/// Numbers are the same, or differ by no more than this part of the largest.
fn assert_same(what: &str, texts: &[Vec<u32>], found: &[Vec<f32>], expected: &[Vec<f32>], slack: f32) {
    for (number, (found, expected)) in found.iter().zip(expected).enumerate() {
        let largest = expected.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a - b).abs() <= slack * largest;
        let off =
            found.iter().zip(expected).fold(0.0_f32, |worst, (a, b)| worst.max((a - b).abs())) / largest;
        let what = || format!("{what}: text {number} of {} tokens is off by {off:.1e}", texts[number].len());
        assert!(found.len() == expected.len() && found.iter().zip(expected).all(same), "{}", what());
    }
}
