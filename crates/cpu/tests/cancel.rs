//! A single node that would take minutes stops soon after it was asked to: within a bounded number of units of work, and within
//! a second or so.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use oxcart_backend::{Buffers, Device, Error, StreamOptions, Work, place_all};
use oxcart_cases::LONG_NODES;
use oxcart_cpu::{CpuDevice, CpuStream, MOST_BETWEEN_LOOKS};
use oxcart_tensor::{DType, Graph};

#[test]
fn a_long_node_stops_when_asked_to() {
    let mut late = Vec::new();
    for threads in [1, 2] {
        let device = CpuDevice::new().unwrap();
        let stream = Arc::clone(&device).open(&StreamOptions::threads(threads)).unwrap();
        let counter = stream.as_any().downcast_ref::<CpuStream>().unwrap();
        let cancel = stream.cancel_flag().unwrap();
        for case in LONG_NODES {
            let (name, mut graph) = (case.name, Graph::new());
            let result = (case.build)(&mut graph).unwrap_or_else(|error| panic!("{name}: {error}"));
            graph.expand(result).unwrap();
            let node = graph.tensor(result).unwrap();
            let needed: Vec<_> = node.sources().flatten().map(|source| source.id()).chain([result]).collect();
            let mut buffers = Buffers::new();
            place_all(&mut graph, &needed, &device.buffer_type(), &mut buffers).unwrap();
            let mut delay = Duration::from_millis(100);
            let (took, done) = loop {
                let nodes = graph.range(0..graph.nodes().len()).unwrap();
                let (outcome, took) = std::thread::scope(|scope| {
                    let asker = scope.spawn(|| {
                        std::thread::sleep(delay);
                        cancel.store(true, Ordering::Relaxed);
                        Instant::now()
                    });
                    let outcome = stream.compute_and_wait(Work { nodes, buffers: &buffers });
                    let ended = Instant::now();
                    (outcome, ended.saturating_duration_since(asker.join().unwrap()))
                });
                cancel.store(false, Ordering::Relaxed);
                assert!(matches!(outcome, Err(Error::Cancelled)), "{name}: {outcome:?}");
                let done = counter.take_work_done();
                // Scratch memory takes time too; what is looked at here is a node that has begun.
                if done.units > 0 || delay > Duration::from_secs(10) {
                    break (took, done);
                }
                delay *= 2;
            };
            assert!(done.units > 0 && done.longest <= MOST_BETWEEN_LOOKS, "{name}: {done:?}");
            // One second is promised; this machine may be busy with other things. The whole node takes minutes.
            if took > Duration::from_secs(20) {
                late.push(format!("{name} went on for {took:?} with {threads} threads"));
            }
        }
    }
    assert!(late.is_empty(), "{}", late.join("\n"));
}

/// Threads agree on where to stop, whenever they are asked: many small runs, each stopped at another moment.
#[test]
fn being_stopped_at_any_moment_leaves_no_thread_waiting() {
    let device = CpuDevice::new().unwrap();
    let stream = Arc::clone(&device).open(&StreamOptions::threads(3)).unwrap();
    let cancel = stream.cancel_flag().unwrap();
    let mut graph = Graph::new();
    // Products of two phases each, packed first and then multiplied.
    let a = graph.leaf(DType::Q4_0, [256, 96]).unwrap();
    let b = graph.leaf(DType::F32, [256, 64]).unwrap();
    for _ in 0..4 {
        let product = graph.mul_mat(a, b).unwrap();
        graph.expand(product).unwrap();
    }
    let all: Vec<_> = graph.ids().collect();
    let mut buffers = Buffers::new();
    place_all(&mut graph, &all, &device.buffer_type(), &mut buffers).unwrap();
    let (over, mut stopped) = (std::sync::atomic::AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut turn = 0_u32;
            while !over.load(Ordering::Relaxed) {
                turn = turn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (0..turn >> 18).for_each(|_| std::hint::spin_loop());
                cancel.store(turn & 1 == 0, Ordering::Relaxed);
            }
        });
        // A machine that is busy otherwise may let no other thread ask for a while.
        let (start, mut runs) = (Instant::now(), 0);
        while runs < 2000 || stopped <= 100 && start.elapsed() < Duration::from_secs(60) {
            let nodes = graph.range(0..graph.nodes().len()).unwrap();
            let outcome = stream.compute_and_wait(Work { nodes, buffers: &buffers });
            stopped += u32::from(matches!(outcome, Err(Error::Cancelled)));
            runs += 1;
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(stopped > 100, "{stopped} runs were stopped");
}
