//! A client that does what clients do and knows what must come out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oxcart::backend::{Buffers, Device, Error, Place, Registry, StreamOptions, Work, allocate, place_all};
use oxcart::rpc::client::{Options, RemoteRegistry, Timeouts};
use oxcart::rpc::wire::{Command, Dialect, OpCode};
use oxcart::tensor::{DType, Graph};

use super::Random;
use super::attack::Attacker;
use super::process::PATIENCE;

/// What became of one round of an honest client.
#[derive(Debug)]
pub(crate) enum Round {
    /// So many operations with right results.
    Right(u64),
    /// A wrong result.
    Wrong(String),
    /// No result.
    Failed(String),
}

const TERMS: usize = 64;
const ROWS: usize = 48;
const COLUMNS: usize = 5;

/// Connects, computes, checks and leaves. Even rounds speak the newest dialect, odd ones the oldest.
pub(crate) fn round(address: &str, random: &mut Random) -> Round {
    let newest = random.below(2) == 0;
    let dialect = (!newest).then(|| "2.0".parse().unwrap());
    let timeouts = Timeouts {
        connect: PATIENCE,
        control: PATIENCE,
        data: PATIENCE,
        compute: PATIENCE,
        ..Timeouts::default()
    };
    let registry =
        match RemoteRegistry::connect(address, &Options { dialect, timeouts, ..Options::default() }) {
            Ok(registry) => registry,
            Err(error) => return Round::Failed(error.to_string()),
        };
    let device = registry.devices().remove(0);
    let mut done = 0;
    for _ in 0..3 {
        for step in [product, data] {
            match step(&device, random) {
                Ok(Ok(operations)) => done += operations,
                Ok(Err(wrong)) => return Round::Wrong(wrong),
                // Attackers of the same address have its memory, which is theirs as well.
                Err(Error::OutOfMemory { .. }) => return Round::Right(done),
                Err(error) => return Round::Failed(error.to_string()),
            }
        }
    }
    Round::Right(done)
}

/// Bytes that a worker has to lend now, and bytes that this machine has free.
pub(crate) fn free_bytes(address: &str) -> (usize, usize) {
    let timeouts = Timeouts { connect: PATIENCE, control: PATIENCE, ..Timeouts::default() };
    let registry = RemoteRegistry::connect(address, &Options { timeouts, ..Options::default() }).unwrap();
    let here = oxcart::devices::find(&[] as &[&str]).unwrap().device_by_name("CPU").unwrap();
    let before = here.memory().unwrap().free;
    let lent = registry.devices()[0].memory().unwrap().free;
    (lent, before.min(here.memory().unwrap().free))
}

/// A client that stays and adds four numbers to themselves, again and again; says how long each answer took.
pub(crate) fn add_for(address: &str, duration: Duration) -> Result<Vec<Duration>, String> {
    let lost = || "the connection ended".to_owned();
    let mut client = Attacker::connect(address, [127, 0, 0, 1], Dialect::newest()).ok_or_else(lost)?;
    client.be_patient(PATIENCE).ok_or_else(lost)?;
    client.greet().ok_or_else(lost)?;
    let (handle, base) = client.alloc(4096).ok_or_else(lost)?;
    let a = client.record(1, [4, 1, 1, 1], (handle, base));
    let sum = client.node(OpCode::Add, 2, [4, 1, 1, 1], (handle, base + 64), &[1, 1]).ok_or_else(lost)?;
    let graph = client.graph(&[2], &[a, sum]);
    let get = [&client.bytes(&sum)[..], &[0; 8], &16_u64.to_le_bytes()].concat();
    let (start, mut taken) = (Instant::now(), Vec::new());
    while start.elapsed() < duration {
        let number = taken.len() as f32;
        let set = [&client.bytes(&a)[..], &[0; 9], &bytes(&[number; 4])].concat();
        let asked = Instant::now();
        client.send(Command::SetTensor, &set).ok_or_else(lost)?;
        client.send(Command::GraphCompute, &graph).ok_or_else(lost)?;
        let found = client.ask(Command::GetTensor, &get).ok_or_else(lost)?;
        taken.push(asked.elapsed());
        if found != bytes(&[2.0 * number; 4]) {
            return Err(format!("twice {number} is not {found:?}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(taken)
}

type Step = Result<Result<u64, String>, Error>;

/// A product of small whole numbers, whose result is exact; computed three times with other numbers.
fn product(device: &Arc<dyn Device>, random: &mut Random) -> Step {
    let mut graph = Graph::new();
    let a = graph.leaf(DType::F32, [TERMS, ROWS])?;
    let b = graph.leaf(DType::F32, [TERMS, COLUMNS])?;
    let product = graph.mul_mat(a, b)?;
    let result = graph.add(product, product)?;
    graph.expand(result)?;
    let mut buffers = Buffers::new();
    place_all(&mut graph, &[a, b, product, result], &device.buffer_type(), &mut buffers)?;
    let stream = Arc::clone(device).open(&StreamOptions::default())?;
    let left = numbers(TERMS * ROWS, random);
    buffers.set(graph.tensor(a)?, 0, &bytes(&left))?;
    for _ in 0..3 {
        let right = numbers(TERMS * COLUMNS, random);
        buffers.set(graph.tensor(b)?, 0, &bytes(&right))?;
        let nodes = graph.range(0..graph.nodes().len()).unwrap();
        stream.compute_and_wait(Work { nodes, buffers: &buffers })?;
        let mut expected = Vec::with_capacity(ROWS * COLUMNS);
        for column in right.chunks(TERMS) {
            for row in left.chunks(TERMS) {
                expected.push(2.0 * row.iter().zip(column).map(|(x, y)| x * y).sum::<f32>());
            }
        }
        if buffers.bytes(graph.tensor(result)?)? != bytes(&expected) {
            return Ok(Err("a product is not what it should be".into()));
        }
    }
    Ok(Ok(3))
}

/// Data that goes there and back, and is copied there.
fn data(device: &Arc<dyn Device>, random: &mut Random) -> Step {
    let len = 1 + random.below(100_000);
    let kind = device.buffer_type();
    let [from, to] = [allocate(&kind, len)?, allocate(&kind, len)?];
    let mut fresh = vec![1; len];
    to.read(0, &mut fresh)?;
    if fresh.iter().any(|&byte| byte != 0) {
        return Ok(Err("fresh memory is not zero".into()));
    }
    let data: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
    from.write(0, &data)?;
    let place = |buffer| Place { buffer, offset: 0, len };
    let (from, to) = (place(from), place(to));
    oxcart::backend::copy_place(&from, &to)?;
    if to.bytes()? != data || from.bytes()? != data {
        return Ok(Err("data is not what was sent".into()));
    }
    Ok(Ok(3))
}

fn numbers(count: usize, random: &mut Random) -> Vec<f32> {
    (0..count).map(|_| random.below(9) as f32 - 4.0).collect()
}

fn bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|x| x.to_le_bytes()).collect()
}
