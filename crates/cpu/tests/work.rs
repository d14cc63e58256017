//! What an op says that a node costs, beside what kernels count when they compute it; and that no kernel counts much without
//! looking whether to stop. For every op, with ordinary nodes and with those that an attacker would make. `OXCART_DRAWS` says how
//! many times as many nodes are drawn, for a longer search.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test says what it has seen, and fails where it must not"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oxcart_backend::{Buffers, Device, Error, Stream, StreamOptions, Work, place_all};
use oxcart_cases::{Drawn, Draws, Manner, draw};
use oxcart_cpu::{CpuDevice, CpuStream, MOST_BETWEEN_LOOKS, WorkDone};
use oxcart_tensor::Op;

/// Units that a node may do besides: vectors that are not full, and what does not depend on its size.
const BESIDES: u64 = 2048;

/// Where nodes are computed.
struct Rig {
    device: Arc<CpuDevice>,
    stream: Box<dyn Stream>,
}

/// A node that was computed, or begun.
struct Computed {
    text: String,
    /// What its op says.
    work: u64,
    done: WorkDone,
    outcome: Result<(), Error>,
}

impl Rig {
    fn new() -> Rig {
        let device = CpuDevice::new().unwrap();
        let options = StreamOptions { max_scratch: Some(1 << 30), ..StreamOptions::threads(1) };
        let stream = Arc::clone(&device).open(&options).unwrap();
        Rig { device, stream }
    }

    /// Computes a node; `None` if this device has no kernel for it. With a time, it is asked to stop then.
    fn compute(&self, drawn: Drawn, stop_after: Option<Duration>) -> Option<Computed> {
        let Drawn { mut graph, node, data } = drawn;
        let tensor = graph.tensor(node).unwrap();
        if tensor.computes() && !self.device.supports_op(tensor) {
            return None;
        }
        let sources: Vec<_> = tensor.sources().flatten().collect();
        let text = format!(
            "{:?} of {} gives {}",
            tensor.op(),
            sources.iter().map(|source| source.layout().to_string()).collect::<Vec<_>>().join(", "),
            tensor.layout()
        );
        let work = tensor.work();
        let needed: Vec<_> = sources.iter().map(|source| source.id()).chain([node]).collect();
        let mut buffers = Buffers::new();
        place_all(&mut graph, &needed, &self.device.buffer_type(), &mut buffers).unwrap();
        for (tensor, words) in data {
            let bytes: Vec<_> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let place = buffers.place_of(graph.tensor(tensor).unwrap()).unwrap();
            place.buffer.write(place.offset, &bytes).unwrap();
        }
        let counter = self.stream.as_any().downcast_ref::<CpuStream>().unwrap();
        counter.take_work_done();
        let cancel = self.stream.cancel_flag().unwrap();
        let nodes = graph.range(0..graph.nodes().len()).unwrap();
        let is_over = AtomicBool::new(false);
        let outcome = std::thread::scope(|scope| {
            if let Some(time) = stop_after {
                let (is_over, cancel) = (&is_over, &cancel);
                scope.spawn(move || {
                    std::thread::park_timeout(time);
                    while !is_over.load(Ordering::Relaxed) {
                        cancel.store(true, Ordering::Relaxed);
                        std::thread::park_timeout(Duration::from_micros(100));
                    }
                });
            }
            let outcome = self.stream.compute_and_wait(Work { nodes, buffers: &buffers });
            is_over.store(true, Ordering::Relaxed);
            outcome
        });
        cancel.store(false, Ordering::Relaxed);
        Some(Computed { text, work, done: counter.take_work_done(), outcome })
    }
}

/// Seeds of an op, which are not those of another.
fn seeds(op: &str, count: u64) -> impl Iterator<Item = u64> {
    let times: u64 = std::env::var("OXCART_DRAWS").map_or(1, |times| times.parse().unwrap());
    let first = op.bytes().fold(7_u64, |sum, byte| sum.wrapping_mul(131).wrapping_add(byte.into()));
    (0..count * times).map(move |i| first.wrapping_add(i.wrapping_mul(0x1234_5677)))
}

#[test]
fn what_an_op_says_is_what_kernels_count() {
    let (rig, mut wrong) = (Rig::new(), Vec::new());
    for info in Op::ALL {
        let (mut computed, mut large) = (0, 0);
        for seed in seeds(info.name, 40) {
            let Some(drawn) = draw(info.name, &mut Draws::new(seed, Manner::Ordinary)) else { continue };
            let Some(Computed { text, work, done, outcome }) = rig.compute(drawn, None) else { continue };
            outcome.unwrap_or_else(|error| panic!("{text}: {error}"));
            computed += 1;
            large += u32::from(work > 2 * BESIDES);
            let within = |a: u64, b: u64| a <= b.saturating_mul(2).saturating_add(BESIDES);
            if !within(work, done.units) || !within(done.units, work) {
                wrong.push(format!("{text}: {work} said, {} counted", done.units));
            }
            if done.longest > MOST_BETWEEN_LOOKS {
                wrong.push(format!("{text}: {} units without a look", done.longest));
            }
        }
        if computed < 10 || info.computes && large == 0 {
            wrong.push(format!("{}: {computed} nodes were computed, {large} of them large", info.name));
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Extreme extents and parameters, rows in one place, nothing at all: refused, computed, or stopped, after no more work than was
/// said and never long without a look.
#[test]
fn no_kernel_works_long_without_a_look() {
    let (rig, mut wrong, mut all) = (Rig::new(), Vec::new(), [0; 3]);
    for info in Op::ALL {
        let before = all[0] + all[1];
        for seed in seeds(info.name, 24) {
            let Some(drawn) = draw(info.name, &mut Draws::new(seed, Manner::Nasty)) else { continue };
            let Some(computed) = rig.compute(drawn, Some(Duration::from_millis(3))) else { continue };
            let Computed { text, work, done, outcome } = computed;
            all[match outcome {
                Ok(()) => 0,
                Err(Error::Cancelled) => 1,
                Err(_) => 2,
            }] += 1;
            if let Err(error @ Error::Panicked { .. }) = outcome {
                wrong.push(format!("{text}: {error}"));
            }
            if done.longest > MOST_BETWEEN_LOOKS {
                wrong.push(format!("{text}: {} units without a look", done.longest));
            }
            if done.units > work.saturating_mul(2).saturating_add(1 << 20) {
                wrong.push(format!("{text}: {work} said, {} counted", done.units));
            }
        }
        if all[0] + all[1] == before {
            wrong.push(format!("{}: none was computed, not even begun", info.name));
        }
    }
    println!("{} computed, {} stopped, {} failed", all[0], all[1], all[2]);
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    // How many end in time depends on the machine.
    assert!(all[0] > 0 && all[1] > 0 && all[0] + all[1] > 600, "{all:?}");
}
