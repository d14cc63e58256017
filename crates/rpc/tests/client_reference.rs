//! The client against a live worker, which is the reference's own when `tools/interop` runs this.
//!
//! `OXCART_WORKER` says where it listens; without it there is nothing to do. Recorded ops come from the folder
//! `OXCART_CASES`, or from `graphs` in `OXCART_GOLDEN`; `OXCART_CASE` may name a part of a case's name, to run those alone.
//! With `OXCART_WORKER_CACHE` set, the worker is known to keep weights.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(clippy::print_stdout, reason = "what was skipped is said")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oxcart_backend::{Buffers, Place, Registry, Stream, StreamOptions, Usage, Work, copy_async, place_all};
use oxcart_cases::{Case, RunError, read_folder};
use oxcart_rpc::client::{Options, RemoteRegistry};
use oxcart_rpc::wire::Command;
use oxcart_tensor::{DType, Graph};

/// More than what is sent without asking for its hash first.
const LARGE: usize = 11 << 20;

/// A connection. The reference serves one client at a time, so the tests take turns.
struct Live {
    registry: Arc<RemoteRegistry>,
    stream: Box<dyn Stream>,
    _turn: MutexGuard<'static, ()>,
}

/// `None`, and a line that says so, where there is no worker.
fn connect(options: &Options) -> Option<Live> {
    static TURN: Mutex<()> = Mutex::new(());
    let endpoint = oxcart_fixtures::variable("OXCART_WORKER")?.into_string().unwrap();
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let registry = RemoteRegistry::connect(&endpoint, options).unwrap();
    let stream = registry.devices().remove(0).open(&StreamOptions::default()).unwrap();
    Some(Live { registry, stream, _turn: turn })
}

impl Live {
    /// Waits a little for the worker to come back; whether it did.
    fn reconnect(&mut self) -> bool {
        let endpoint = self.registry.endpoint().to_owned();
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(100));
            if let Ok(registry) = RemoteRegistry::connect(&endpoint, &Options::default()) {
                self.stream = registry.devices().remove(0).open(&StreamOptions::default()).unwrap();
                self.registry = registry;
                return true;
            }
        }
        false
    }
}

fn noise(seed: u32, len: usize) -> Vec<u8> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_le_bytes()[3]
    };
    (0..len).map(next).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
#[ignore = "tools/interop.sh starts a worker and runs it"]
fn memory_is_written_filled_copied_and_read() {
    let Some(Live { registry, stream, .. }) = connect(&Options::default()) else { return };
    let device = registry.devices().remove(0);
    let memory = device.memory().unwrap();
    assert!(memory.free > 0 && memory.free <= memory.total, "{memory:?}");
    let (first, second) = (stream.allocate(4096).unwrap(), stream.allocate(4096).unwrap());
    let (mut back, mut expected) = (vec![1; 4096], vec![5; 4096]);
    first.clear(5).unwrap();
    let pattern = noise(1, 1000);
    first.write(100, &pattern).unwrap();
    expected[100..1100].copy_from_slice(&pattern);
    first.fill(200, 50, 7).unwrap();
    expected[200..250].fill(7);
    first.read(0, &mut back).unwrap();
    assert_eq!(back, expected);

    second.clear(9).unwrap();
    assert!(second.copy_from(0, &*first, 100, 1000).unwrap(), "copies are made by the worker");
    second.read(0, &mut back).unwrap();
    assert_eq!(back[..1000], expected[100..1100]);
    assert_eq!(back[1000..], [9; 3096]);

    let place = |buffer: &Arc<_>, offset| Place { buffer: Arc::clone(buffer), offset, len: 100 };
    stream.set_async(&place(&first, 0), vec![3; 100]).unwrap();
    copy_async(&*stream, &place(&first, 0), &*stream, &place(&second, 2000)).unwrap();
    let pending = stream.get_async(&place(&second, 2000)).unwrap();
    stream.finish(stream.record().unwrap()).unwrap();
    assert_eq!(pending.wait().unwrap(), [3; 100], "commands take effect behind each other");
}

#[test]
#[ignore = "tools/interop.sh starts a worker and runs it"]
fn an_impossible_allocation_is_an_error_and_no_more() {
    let Some(Live { registry, stream, .. }) = connect(&Options::default()) else { return };
    let buffer = stream.allocate(64).unwrap();
    assert!(stream.allocate(1 << 50).is_err());
    buffer.write(0, &[1; 64]).unwrap();
    let mut back = [0; 64];
    buffer.read(0, &mut back).unwrap();
    assert_eq!(back, [1; 64]);
    assert!(registry.failure().is_none());
}

#[test]
#[ignore = "tools/interop.sh starts a worker and runs it"]
fn weights_that_the_worker_keeps_are_sent_once() {
    let keeps = std::env::var_os("OXCART_WORKER_CACHE").is_some();
    let Some(Live { registry, stream, .. }) = connect(&Options { worker_cache: true, ..Options::default() })
    else {
        return;
    };
    // The cache is empty at first: the script makes a new one for each worker.
    let weights = noise(1, LARGE);
    let send = || {
        let buffer = stream.allocate(LARGE).unwrap();
        buffer.set_usage(Usage::Weights);
        buffer.write(0, &weights).unwrap();
        let mut back = vec![0; LARGE];
        buffer.read(0, &mut back).unwrap();
        assert!(back == weights);
        (
            registry.traffic().of(Command::SetTensorHash).messages,
            registry.traffic().of(Command::SetTensor).messages,
        )
    };
    assert_eq!(send(), (1, 1));
    assert_eq!(send(), (2, if keeps { 1 } else { 2 }));
}

#[test]
#[ignore = "tools/interop.sh starts a worker and runs it"]
fn a_graph_runs_again_with_other_inputs() {
    let Some(Live { registry, stream, .. }) = connect(&Options::default()) else { return };
    let mut graph = Graph::new();
    let a = graph.leaf(DType::F32, [4, 2]).unwrap();
    let b = graph.leaf(DType::F32, [4, 1]).unwrap();
    let product = graph.mul_mat(a, b).unwrap();
    let sum = graph.add(product, product).unwrap();
    graph.expand(sum).unwrap();
    let mut buffers = Buffers::new();
    let device = registry.devices().remove(0);
    place_all(&mut graph, &[a, b, product, sum], &device.buffer_type(), &mut buffers).unwrap();
    buffers.set(graph.tensor(a).unwrap(), 0, &bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])).unwrap();
    let nodes = graph.range(0..graph.nodes().len()).unwrap();
    let mut plan = stream.plan(Work { nodes, buffers: &buffers }).unwrap().unwrap();
    for value in [1.0, 2.0, 3.0] {
        buffers.set(graph.tensor(b).unwrap(), 0, &bytes(&[value; 4])).unwrap();
        plan.compute().unwrap();
        let found = buffers.bytes(graph.tensor(sum).unwrap()).unwrap();
        assert_eq!(found, bytes(&[20.0 * value, 52.0 * value]));
    }
    let sent = |command| registry.traffic().of(command).messages;
    let expected = if registry.dialect().has_recompute { (1, 2) } else { (3, 0) };
    assert_eq!((sent(Command::GraphCompute), sent(Command::GraphRecompute)), expected);
}

/// Where recorded ops are.
fn cases() -> Option<PathBuf> {
    let golden = || Some(PathBuf::from(std::env::var_os("OXCART_GOLDEN")?).join("graphs"));
    std::env::var_os("OXCART_CASES").map(PathBuf::from).or_else(golden)
}

#[test]
#[ignore = "tools/interop.sh starts a worker and runs it"]
fn every_case_is_computed_by_the_worker() {
    let Some(folder) = cases() else {
        return oxcart_fixtures::skip("neither OXCART_CASES nor OXCART_GOLDEN is set");
    };
    let wanted = std::env::var("OXCART_CASE").unwrap_or_default();
    let Some(mut live) = connect(&Options::default()) else { return };
    let (mut passed, mut complaints) = (0, Vec::new());
    let mut unsupported = BTreeMap::<String, usize>::new();
    for case in read_folder(&folder).iter().filter(|case| case.name.contains(&wanted)) {
        if corrupts_the_reference(case) {
            oxcart_fixtures::skip(&format!("{}: the reference writes past its end", case.name));
            continue;
        }
        match outcome(case, &*live.stream) {
            Ok(true) => passed += 1,
            Ok(false) => *unsupported.entry(case.op_name().to_owned()).or_default() += 1,
            Err(why) => complaints.push(format!("{}: {why}", case.name)),
        }
        // The script that runs the test may start a crashed worker again, so that one run names all crashes.
        if live.registry.failure().is_some() && !live.reconnect() {
            complaints.push("nothing after this was tried".to_owned());
            break;
        }
    }
    println!("{}: {passed} passed, not in the dialect: {unsupported:?}", live.registry.dialect());
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
    assert!(passed > 0);
}

/// With 512-bit vectors the reference goes through the heads of RWKV_WKV7 in steps of 64, whatever their size: smaller ones
/// are written past their end, and the worker dies of it sooner or later.
fn corrupts_the_reference(case: &Case) -> bool {
    let head = case.sources().first().and_then(Option::as_ref).map_or(0, |source| source.layout.ne()[0]);
    case.op_name() == "RWKV_WKV7" && !head.is_multiple_of(64)
}

/// Whether a case passed; `false` if the worker cannot be asked for it.
fn outcome(case: &Case, stream: &dyn Stream) -> Result<bool, String> {
    match case.run(stream) {
        Ok(found) => case.judge(&found).map(|()| true),
        Err(RunError::Unsupported) => Ok(false),
        Err(error) => Err(error.to_string()),
    }
}
