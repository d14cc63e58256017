//! Weights cross the network once, and are read once: what a client reads and sends of a model that its workers have already.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use oxcart::backend::{Device, Registry, StreamOptions};
use oxcart::cpu::CpuDevice;
use oxcart::digests::Digests;
use oxcart::gguf::{Builder, Gguf, Header};
use oxcart::llm::model::{HyperParameters, Model, ModelFile, Placement, PlacementOptions, Proportions};
use oxcart::llm::runner::{Piece, Runner, RunnerOptions, Wanted};
use oxcart::own_models::{Offered, OwnModels};
use oxcart::rpc::client::{Options, RemoteRegistry};
use oxcart::rpc::wire::Command;
use oxcart::rpc::worker::{CacheSettings, Config, DialectChoice, Domain, WeightCache, Worker};
use oxcart::tensor::{DType, Layout};

/// Longer than a file takes to settle, after which its digests are kept.
const SETTLED: Duration = Duration::from_millis(2_100);
const PATIENCE: Duration = Duration::from_secs(300);
/// Tensors up to here are sent to workers that have no files of their own.
const SMALL: u64 = 128 << 10;
/// Bytes of SET_TENSOR besides its data.
const SET_HEAD: u64 = 9 + 305;
/// The system maps so much around a byte that is touched, at most.
const AROUND: u64 = 128 << 10;

/// A model whose large tensors are 9 MB, and whose small ones are 5 norms.
fn write_model(path: &Path) {
    write_model_of(path, 2, 256);
}

/// A model of so many blocks and such a width.
fn write_model_of(path: &Path, blocks: u32, width: u32) {
    let settings = || {
        let mut builder = Builder::new();
        builder.set("general.architecture", "llama");
        for (key, value) in [
            ("context_length", 128_u32),
            ("embedding_length", width),
            ("block_count", blocks),
            ("feed_forward_length", 4 * width),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 4),
            ("vocab_size", 512),
        ] {
            builder.set(&format!("llama.{key}"), value);
        }
        builder.set("llama.attention.layer_norm_rms_epsilon", 1e-5_f32);
        builder
    };
    let mut header = Vec::new();
    settings().write(&mut header).unwrap();
    let hyper = HyperParameters::read(Header::parse(&header).unwrap().metadata()).unwrap();
    let mut builder = settings();
    let mut state = 1_u64;
    for (name, shape) in hyper.tensors().unwrap() {
        let layout = Layout::packed(DType::F32, shape).unwrap();
        let number = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1 << 23) as f32 - 1.0).mul_add(0.1, 0.01).to_le_bytes()
        };
        builder.tensor(&name, layout, (0..layout.byte_len() / 4).flat_map(number).collect::<Vec<u8>>());
    }
    builder.write(File::create(path).unwrap()).unwrap();
}

/// The same bytes in another file.
fn copy(from: &Path, to: &Path) -> PathBuf {
    fs::copy(from, to).unwrap();
    to.to_owned()
}

/// Bytes of a file that this process has touched through mappings that it has now.
fn touched(path: &Path) -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut is_of_file, mut kilobytes) = (false, 0);
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [range, _, _, _, _, rest @ ..] if range.contains('-') => {
                is_of_file = rest.last().is_some_and(|last| Path::new(last) == path);
            }
            ["Rss:", number, "kB"] if is_of_file => kilobytes += number.parse::<u64>().unwrap(),
            _ => {}
        }
    }
    kilobytes << 10
}

fn cpu() -> Arc<dyn Device> {
    CpuDevice::new().unwrap()
}

/// Workers that are set up in some way.
fn workers(count: usize, set_up: impl Fn(usize, &mut Config)) -> (Vec<Worker>, Vec<String>) {
    (0..count)
        .map(|number| {
            let mut config = Config::new([cpu()]);
            config.stream = StreamOptions::threads(1);
            set_up(number, &mut config);
            let mut worker = Worker::new(config).unwrap();
            let address = worker.listen("127.0.0.1:0", DialectChoice::Auto).unwrap();
            (worker, address.to_string())
        })
        .unzip()
}

/// Workers with caches in a folder, for any client.
fn with_caches(folder: &Path) -> (Vec<Worker>, Vec<String>) {
    workers(3, |number, config| {
        let settings = CacheSettings {
            keep_free_bytes: 0,
            domain_of: |_, _| Some(Domain::of_user(1)),
            patience: PATIENCE,
            stall: PATIENCE,
            ..CacheSettings::new(folder.join(number.to_string()))
        };
        config.cache = Some(WeightCache::open(&settings).unwrap());
    })
}

/// What a load came to.
#[derive(Debug)]
struct Loaded {
    /// Bytes of weights that were sent.
    sent: u64,
    /// Bytes that workers need, of large tensors and of small ones.
    large: u64,
    small: u64,
    /// How many there are of each.
    larges: usize,
    smalls: u64,
    /// Bytes of the file that were looked at for that.
    touched: u64,
    /// How long that took.
    seconds: f64,
    /// What is computed then.
    logits: Vec<f32>,
}

impl Loaded {
    fn assert_cold(&self) {
        assert_eq!(self.sent, self.large + self.small, "each byte leaves once");
        assert!(self.touched >= self.large, "{self:?}");
    }

    fn assert_warm(&self) {
        assert_eq!(self.sent, self.small, "only small tensors leave");
        assert!(self.touched <= self.smalls * AROUND, "{} bytes are read", self.touched);
    }
}

fn compute(model: Arc<Model>) -> Vec<f32> {
    let open = |device: &Arc<dyn Device>| Arc::clone(device).open(&StreamOptions::threads(1)).unwrap();
    let streams = model.devices().iter().map(open).collect();
    let mut runner = Runner::new(model, streams, RunnerOptions::default()).unwrap();
    let sequence = runner.open().unwrap();
    let outputs = runner.compute(&[Piece { sequence, tokens: &[1, 2, 3], wanted: Wanted::Last }]).unwrap();
    outputs.of(0).row(0).to_vec()
}

/// Loads as commands do.
fn load(path: &Path, endpoints: &[String], digests: &Digests) -> Loaded {
    let options = Options { worker_cache: true, ..Options::default() };
    let connect = |endpoint: &String| RemoteRegistry::connect(endpoint, &options).unwrap();
    let registries: Vec<_> = endpoints.iter().map(connect).collect();
    let mut devices: Vec<_> = registries.iter().map(|registry| registry.devices().remove(0)).collect();
    let mut ratios = vec![1.0; devices.len()];
    devices.push(cpu());
    ratios.push(0.0);
    let here = devices.len() - 1;
    let file = ModelFile::open(path).unwrap();
    digests.recall(&file);
    let options =
        PlacementOptions { proportions: Proportions::Ratios(ratios), ..PlacementOptions::default() };
    let placement = Placement::new(&file, devices, &options).unwrap();
    let away = placement.tensors().iter().filter(|tensor| tensor.device != here);
    let (mut large, mut small, mut larges, mut smalls) = (0, 0, 0, 0);
    for bytes in away.map(|tensor| tensor.bytes as u64) {
        match bytes > SMALL {
            true => (large, larges) = (large + bytes, larges + 1),
            false => (small, smalls) = (small + bytes, smalls + 1),
        }
    }
    let start = std::time::Instant::now();
    let model = Model::load(file, placement, &|_| {}).unwrap();
    // What is sent has arrived once something is answered.
    for registry in &registries {
        registry.devices()[0].memory().unwrap();
    }
    let seconds = start.elapsed().as_secs_f64();
    digests.keep(model.file()).unwrap();
    let touched = touched(path);
    let data = |registry: &Arc<RemoteRegistry>| {
        let usage = registry.traffic().of(Command::SetTensor);
        usage.bytes_sent - usage.messages * SET_HEAD
    };
    let sent = registries.iter().map(data).sum();
    Loaded { sent, large, small, larges, smalls, touched, seconds, logits: compute(model) }
}

/// What is computed in this process.
fn expected(path: &Path) -> Vec<f32> {
    let file = ModelFile::open(path).unwrap();
    let placement = Placement::new(&file, vec![cpu()], &PlacementOptions::default()).unwrap();
    compute(Model::load(file, placement, &|_| {}).unwrap())
}

/// Waits until caches have so many entries, and gives these.
fn entries(folder: &Path, at_least: usize) -> Vec<PathBuf> {
    let inner = |folder: PathBuf| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let start = std::time::Instant::now();
    loop {
        let domains = inner(folder.to_owned()).flat_map(inner);
        let is_entry = |path: &PathBuf| path.extension().is_some_and(|end| end == "weights");
        let mut entries: Vec<_> = domains.flat_map(inner).filter(is_entry).collect();
        entries.sort();
        if entries.len() >= at_least {
            return entries;
        }
        assert!(start.elapsed() < PATIENCE, "{entries:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_warm_load_neither_reads_nor_sends_weights() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    write_model(&path);
    let expected_logits = expected(&path);
    std::thread::sleep(SETTLED);
    let digests = Digests::at(folder.path().join("digests"));
    let caches = folder.path().join("caches");
    let (_workers, endpoints) = with_caches(&caches);

    let cold = load(&path, &endpoints, &digests);
    cold.assert_cold();
    assert!(cold.large > 8 << 20 && cold.small > 0, "{cold:?}");
    assert_eq!(cold.logits, expected_logits);
    let kept = entries(&caches, cold.larges);
    let warm = load(&path, &endpoints, &digests);
    warm.assert_warm();
    assert_eq!(warm.logits, expected_logits);

    // Without its record, everything is read once more, and nothing is sent.
    let other = Digests::at(folder.path().join("others"));
    let read = load(&path, &endpoints, &other);
    assert!(read.touched >= read.large && read.sent == read.small, "{read:?}");
    load(&path, &endpoints, &other).assert_warm();

    // An entry that is gone, and one that is damaged: those two are sent again.
    let bytes = |path: &PathBuf| fs::metadata(path).unwrap().len() - 64;
    let lost = bytes(&kept[0]) + bytes(&kept[1]);
    fs::remove_file(&kept[0]).unwrap();
    let damaged = File::options().write(true).open(&kept[1]).unwrap();
    damaged.write_all_at(&[0x5a; 8], 5_000).unwrap();
    let partly = load(&path, &endpoints, &digests);
    assert_eq!(partly.sent, partly.small + lost);
    assert_eq!(partly.logits, expected_logits);
    entries(&caches, kept.len());
    load(&path, &endpoints, &digests).assert_warm();
}

/// The record says what was in the file before; nothing of that is loaded.
#[test]
fn a_file_that_changed_is_loaded_as_it_is_now() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    write_model(&path);
    std::thread::sleep(SETTLED);
    let digests = Digests::at(folder.path().join("digests"));
    let caches = folder.path().join("caches");
    let (_workers, endpoints) = with_caches(&caches);
    let before = load(&path, &endpoints, &digests);
    before.assert_cold();
    entries(&caches, before.larges);

    // In place, with the same length, and with the time of writing set back.
    let file = Gguf::open(&path).unwrap();
    let tensor = file.tensor("blk.1.ffn_down.weight").unwrap();
    let written = fs::metadata(&path).unwrap().modified().unwrap();
    let writing = File::options().write(true).open(&path).unwrap();
    writing.write_all_at(&[0; 4096], tensor.offset()).unwrap();
    writing.set_modified(written).unwrap();
    let changed = load(&path, &endpoints, &digests);
    assert!(changed.logits == expected(&path) && changed.logits != before.logits);
    assert_eq!(changed.sent, changed.small + tensor.byte_len(), "the one that changed");

    // Replaced by another file of the same length, with the same time.
    let other = copy(&path, &folder.path().join("other.gguf"));
    let replacing = File::options().write(true).open(&other).unwrap();
    replacing.write_all_at(&[0x3e; 4096], tensor.offset()).unwrap();
    replacing.set_modified(written).unwrap();
    fs::rename(&other, &path).unwrap();
    let replaced = load(&path, &endpoints, &digests);
    assert!(replaced.logits == expected(&path) && replaced.logits != changed.logits);
}

/// Another file with the same tensors, on the worker.
#[test]
fn what_workers_have_in_files_is_not_sent() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    write_model(&path);
    let (theirs, digests) = (folder.path().join("theirs"), Digests::at(folder.path().join("digests")));
    fs::create_dir_all(theirs.join("deeper")).unwrap();
    let copied = copy(&path, &theirs.join("deeper/model-2.gguf"));
    fs::write(theirs.join("no-model.gguf"), b"GGUF").unwrap();
    let expected_logits = expected(&path);
    std::thread::sleep(SETTLED);
    let own = Digests::at(folder.path().join("own"));
    let (told, offers) = mpsc::channel();
    let start = || {
        let told = told.clone();
        let tell = Box::new(move |offered: &Offered| told.send(*offered).unwrap());
        OwnModels::start(&theirs, Some(own.clone()), tell).unwrap()
    };
    let models = start();
    let offered = offers.recv_timeout(PATIENCE).unwrap();
    let tensors = Gguf::open(&path).unwrap().tensors().len();
    assert_eq!((offered.files, offered.tensors), (1, tensors));
    let (_workers, endpoints) = workers(2, |_, config| config.copies = Some(Arc::clone(&models) as Arc<_>));
    let first = load(&path, &endpoints, &digests);
    assert_eq!((first.sent, &first.logits), (0, &expected_logits));
    assert!(first.touched >= first.large, "digests are computed once");
    let second = load(&path, &endpoints, &digests);
    assert_eq!((second.sent, second.touched, &second.logits), (0, 0, &expected_logits));

    // The worker's file changes unseen, between two looks: what was there is sent.
    let tensor = Gguf::open(&copied).unwrap().tensor("blk.0.attn_q.weight").unwrap().offset();
    let writing = File::options().write(true).open(&copied).unwrap();
    writing.write_all_at(&[9; 4096], tensor).unwrap();
    let third = load(&path, &endpoints, &digests);
    assert_eq!(third.logits, expected_logits);
    assert!(third.sent > 0);
    // It is looked through again, and what is left of it serves.
    models.look();
    let start = std::time::Instant::now();
    loop {
        let fourth = load(&path, &endpoints, &digests);
        assert_eq!(fourth.logits, expected_logits);
        if fourth.sent == 256 * 256 * 4 {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{} bytes are sent", fourth.sent);
    }
}

/// Digests of a worker's files are computed once, too.
#[test]
fn a_folder_is_not_read_again_by_the_next_worker() {
    let folder = tempfile::tempdir().unwrap();
    let theirs = folder.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    write_model(&theirs.join("model.gguf"));
    std::thread::sleep(SETTLED);
    let own = Digests::at(folder.path().join("own"));
    let read_bytes = || {
        let said = fs::read_to_string("/proc/thread-self/io").unwrap_or_default();
        said.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse::<u64>().ok())
    };
    let look = || {
        let (told, offers) = mpsc::channel();
        // Told by the thread that reads, so these are its bytes.
        let tell = Box::new(move |offered: &Offered| told.send((*offered, read_bytes())).unwrap());
        let _models = OwnModels::start(&theirs, Some(own.clone()), tell).unwrap();
        offers.recv_timeout(PATIENCE).unwrap()
    };
    let (first, read_first) = look();
    let (second, read_second) = look();
    assert_eq!(first, second);
    if let (Some(first_bytes), Some(second_bytes)) = (read_first, read_second) {
        assert!(first_bytes >= first.bytes && second_bytes < 1 << 20, "{first_bytes}, {second_bytes}");
    }
}

/// How long a warm load takes, beside a digest of as many bytes on one thread: `OXCART_WARM_MB` says how many. To be run with `--release`.
#[test]
#[ignore = "measures; needs a release build and as much room in memory as twice OXCART_WARM_MB"]
#[allow(clippy::print_stderr, reason = "says what it measures")]
fn warm_loads_beside_digests() {
    let megabytes: u32 = std::env::var("OXCART_WARM_MB").map_or(1024, |text| text.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    // Blocks of 64 MB.
    write_model_of(&path, megabytes.div_ceil(64), 1024);
    std::thread::sleep(SETTLED);
    let digests = Digests::at(folder.path().join("digests"));
    let caches = folder.path().join("caches");
    let (_workers, endpoints) = with_caches(&caches);
    let cold = load(&path, &endpoints, &digests);
    cold.assert_cold();
    entries(&caches, cold.larges);
    let bytes = fs::read(&path).unwrap();
    for _ in 0..5 {
        let start = std::time::Instant::now();
        let digest = blake3::hash(&bytes);
        let alone = start.elapsed().as_secs_f64() * (cold.large as f64 / bytes.len() as f64);
        let warm = load(&path, &endpoints, &digests);
        warm.assert_warm();
        let seconds = warm.seconds;
        eprintln!(
            "{} MB by 3 workers: {seconds:.2} s, a digest of as much {alone:.2} s, {:.2}x ({})",
            cold.large >> 20,
            seconds / alone,
            &digest.to_hex()[..8]
        );
    }
}
