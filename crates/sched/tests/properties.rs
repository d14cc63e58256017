//! Random graphs on random sets of devices: whatever the scheduler decides, every node runs on a device that supports
//! it (the test device refuses others), reads only memory that device can see (the test device refuses other memory),
//! and every value equals that of a single device.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use oxcart_backend::{Buffers, Device, Usage, allocate};
use oxcart_sched::{Options, Prepared, Scheduler};
use oxcart_tensor::graph::Storage;
use oxcart_tensor::ops::Unary;
use oxcart_tensor::{DType, Graph, TensorId};
use oxcart_testdev::{Config, TestDevice};
use proptest::prelude::*;

const WIDTH: usize = 8;
const ROWS: usize = 4;

/// One step of a random graph; numbers pick among what is there.
#[derive(Clone, Debug)]
enum Step {
    Map(usize, u8),
    Both(usize, usize, u8),
    Product(usize, usize),
    Norm(usize),
    View(usize, usize),
    Store(usize),
    Concat(usize, usize),
    Output(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let n = 0_usize..1000;
    prop_oneof![
        3 => (n.clone(), 0_u8..4).prop_map(|(a, f)| Step::Map(a, f)),
        4 => (n.clone(), n.clone(), 0_u8..3).prop_map(|(a, b, f)| Step::Both(a, b, f)),
        4 => (n.clone(), n.clone()).prop_map(|(a, w)| Step::Product(a, w)),
        2 => n.clone().prop_map(Step::Norm),
        2 => (n.clone(), n.clone()).prop_map(|(a, o)| Step::View(a, o)),
        2 => n.clone().prop_map(Step::Store),
        1 => (n.clone(), n.clone()).prop_map(|(a, b)| Step::Concat(a, b)),
        1 => n.prop_map(Step::Output),
    ]
}

/// What a device of the random set is like.
#[derive(Clone, Debug)]
struct Spec {
    lacks: Vec<&'static str>,
    reads_host: bool,
    offloads: bool,
    max_size: usize,
    asynchronous: bool,
}

const OPS: [&str; 13] = [
    "SQR", "NEG", "RELU", "SCALE", "ADD", "SUB", "MUL", "MUL_MAT", "RMS_NORM", "CONT", "SET_ROWS", "CONCAT",
    "CPY",
];

fn spec() -> impl Strategy<Value = Spec> {
    (
        prop::sample::subsequence(OPS.to_vec(), 0..6),
        any::<bool>(),
        any::<bool>(),
        prop::sample::select(vec![usize::MAX, 512, 4096]),
        any::<bool>(),
    )
        .prop_map(|(lacks, reads_host, offloads, max_size, asynchronous)| Spec {
            lacks,
            reads_host,
            offloads,
            max_size,
            asynchronous,
        })
}

fn devices(specs: &[Spec]) -> Vec<Arc<TestDevice>> {
    let accelerators = specs.iter().enumerate().map(|(index, spec)| {
        TestDevice::new(Config {
            ops: Some(OPS.iter().copied().filter(|op| !spec.lacks.contains(op)).collect()),
            reads_host: spec.reads_host,
            offloads: spec.offloads,
            max_size: spec.max_size,
            asynchronous: spec.asynchronous,
            delay: Duration::from_micros(if spec.asynchronous { 20 } else { 0 }),
            ..Config::accelerator(&format!("A{index}"))
        })
    });
    accelerators.chain([TestDevice::new(Config::default())]).collect()
}

/// A random graph, with its weights and caches on `homes`.
struct RandomGraph {
    graph: Graph,
    buffers: Buffers,
    inputs: Vec<TensorId>,
    outputs: Vec<TensorId>,
}

/// Weights and caches, the same numbers wherever they are.
fn stored(
    random: &mut RandomGraph,
    home: &TestDevice,
    ne: [usize; 2],
    seed: usize,
    usage: Usage,
) -> TensorId {
    let id = random.graph.leaf(DType::F32, ne).unwrap();
    let len = ne[0] * ne[1];
    let bytes: Vec<u8> =
        (0..len).flat_map(|i| (((i * 7 + seed * 13) % 11) as f32 / 5.0 - 1.0).to_le_bytes()).collect();
    let buffer = allocate(&home.buffer_type(), bytes.len()).unwrap();
    buffer.write(0, &bytes).unwrap();
    buffer.set_usage(usage);
    let buffer = random.buffers.add(buffer);
    random.graph.bind(id, Storage { buffer, offset: 0 }, len * 4).unwrap();
    id
}

fn random_graph(steps: &[Step], homes: &[Arc<TestDevice>], home_of: &[usize]) -> RandomGraph {
    let mut random =
        RandomGraph { graph: Graph::new(), buffers: Buffers::new(), inputs: Vec::new(), outputs: Vec::new() };
    let home = |index: usize| &homes[home_of[index % home_of.len()] % homes.len()];
    let weights: Vec<_> =
        (0..3).map(|i| stored(&mut random, home(i), [WIDTH, WIDTH], i, Usage::Weights)).collect();
    // A cache must be where it can be written, which is only sure of the last device.
    let mut cache = stored(&mut random, &homes[homes.len() - 1], [WIDTH, 2 * ROWS], 9, Usage::Any);
    let rows = random.graph.leaf(DType::I64, [ROWS]).unwrap();
    random.graph.mark_input(rows).unwrap();
    let mut values = Vec::new();
    for _ in 0..2 {
        let input = random.graph.leaf(DType::F32, [WIDTH, ROWS]).unwrap();
        random.graph.mark_input(input).unwrap();
        random.inputs.push(input);
        values.push(input);
    }
    let g = &mut random.graph;
    for step in steps {
        let at = |i: usize| values[i % values.len()];
        let made = match *step {
            Step::Map(a, 0) => g.sqr(at(a)),
            Step::Map(a, 1) => g.unary(at(a), Unary::Neg),
            Step::Map(a, 2) => g.unary(at(a), Unary::Relu),
            Step::Map(a, _) => g.scale(at(a), 0.5),
            Step::Both(a, b, 0) => g.add(at(a), at(b)),
            Step::Both(a, b, 1) => g.sub(at(a), at(b)),
            Step::Both(a, b, _) => g.mul(at(a), at(b)),
            Step::Product(a, w) => g.mul_mat(weights[w % weights.len()], at(a)),
            Step::Norm(a) => g.rms_norm(at(a), 1e-5),
            Step::View(a, offset) => {
                // Some columns, moved to the front and padded by joining them to themselves.
                let view = g.view(at(a), [WIDTH / 2, ROWS], &[WIDTH * 4], offset % (WIDTH / 2) * 4).unwrap();
                let part = g.cont(view).unwrap();
                g.concat(part, part, 0)
            }
            Step::Store(a) => {
                cache = g.set_rows(cache, at(a), rows).unwrap();
                g.view(cache, [WIDTH, ROWS], &[WIDTH * 4], 0)
            }
            Step::Concat(a, b) => {
                let tall = g.concat(at(a), at(b), 1).unwrap();
                g.view(tall, [WIDTH, ROWS], &[WIDTH * 4], WIDTH * 4)
            }
            Step::Output(a) => {
                let out = at(a);
                if g.tensor(out).unwrap().is_leaf() {
                    continue;
                }
                g.mark_output(out).unwrap();
                g.expand(out).unwrap();
                random.outputs.push(out);
                continue;
            }
        };
        values.push(made.unwrap());
    }
    let last = g.scale(*values.last().unwrap(), 1.0).unwrap_or_else(|_| {
        let packed = g.cont(*values.last().unwrap()).unwrap();
        g.scale(packed, 1.0).unwrap()
    });
    g.mark_output(last).unwrap();
    g.expand(last).unwrap();
    random.outputs.push(last);
    random.inputs.push(rows);
    random
}

/// Runs a random graph three times with other inputs each time; all outputs of all runs.
fn results(random: &RandomGraph, prepared: &mut Prepared) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for run in 0..3_usize {
        for (index, &input) in random.inputs.iter().enumerate() {
            let bytes: Vec<u8> = if index + 1 == random.inputs.len() {
                (0..ROWS).flat_map(|i| (((i + run) % (2 * ROWS)) as i64).to_le_bytes()).collect()
            } else {
                let value = |i: usize| ((i * 3 + index * 5 + run * 7) % 9) as f32 / 4.0 - 1.0;
                (0..WIDTH * ROWS).flat_map(|i| value(i).to_le_bytes()).collect()
            };
            // Rows are an input only if something is stored.
            if prepared.graph().slot(input).is_some() {
                prepared.set_input(input, &bytes).unwrap();
            }
        }
        prepared.compute().unwrap();
        all.extend(random.outputs.iter().map(|&output| prepared.read(output).unwrap()));
    }
    all
}

/// Prepares a random graph twice; the second time, the plan of the first is kept.
fn prepare(random: &RandomGraph, devices: &[Arc<TestDevice>], options: Options) -> Prepared {
    let streams = devices.iter().map(|device| device.stream()).collect();
    let mut scheduler = Scheduler::new(streams, options).unwrap();
    let mut prepare = || scheduler.prepare(random.graph.clone(), random.buffers.clone()).unwrap();
    let first = prepare();
    let second = prepare();
    assert!(first.memory().spots().eq(second.memory().spots()));
    second
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn values_do_not_depend_on_the_devices(
        steps in prop::collection::vec(step(), 1..40),
        specs in prop::collection::vec(spec(), 1..4),
        home_of in prop::collection::vec(0_usize..4, 3),
        runs in 1_usize..4,
        offload in any::<bool>(),
    ) {
        let alone = vec![TestDevice::new(Config::default())];
        let reference = random_graph(&steps, &alone, &[0]);
        let expected = results(&reference, &mut prepare(&reference, &alone, Options::default()));

        let devices = devices(&specs);
        // Weights go only where products can be computed.
        let able: Vec<usize> = (0..devices.len())
            .filter(|&i| i == specs.len() || !specs[i].lacks.contains(&"MUL_MAT"))
            .collect();
        let homes: Vec<usize> = home_of.iter().map(|&i| able[i % able.len()]).collect();
        let spread = random_graph(&steps, &devices, &homes);
        let options = Options { runs, offload, ..Options::default() };
        let mut prepared = prepare(&spread, &devices, options);
        prop_assert_eq!(results(&spread, &mut prepared), expected);

        // Nothing is copied twice to the same stream, unless it was written to, and splits cover every node once.
        let mut copied = BTreeSet::new();
        let mut next = 0;
        let graph = prepared.graph();
        for split in prepared.splits() {
            prop_assert_eq!(split.nodes.start, next);
            next = split.nodes.end;
            for input in &split.inputs {
                let root = graph.tensor(input.source).unwrap().root().id();
                let is_rewritten = graph.ids().any(|id| {
                    let tensor = graph.tensor(id).unwrap();
                    tensor.computes() && tensor.view().is_some_and(|view| view.root == root)
                });
                prop_assert!(copied.insert((input.source, split.stream)) || is_rewritten);
            }
        }
        prop_assert_eq!(next, prepared.graph().nodes().len());
    }
}
