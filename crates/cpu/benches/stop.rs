//! How long a node that would take minutes goes on after it was asked to stop: milliseconds from raising the flag to the end, the
//! median and the worst of some runs, and the most units of work between two looks at the flag.
//!
//! `cargo bench -p oxcart-cpu --bench stop`, with a number of threads (2 if none) and a part of a name as arguments.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program that measures and prints")]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use oxcart_backend::{Buffers, Device, Error, StreamOptions, Work, place_all};
use oxcart_cases::LONG_NODES;
use oxcart_cpu::{CpuDevice, CpuStream};
use oxcart_tensor::Graph;

const RUNS: usize = 5;

fn main() {
    let words: Vec<_> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let threads = words.iter().find_map(|word| word.parse().ok()).unwrap_or(2);
    let wanted = words.iter().find(|word| word.parse::<usize>().is_err());
    let device = CpuDevice::new().unwrap();
    let stream = Arc::clone(&device).open(&StreamOptions::threads(threads)).unwrap();
    let counter = stream.as_any().downcast_ref::<CpuStream>().unwrap();
    let cancel = stream.cancel_flag().unwrap();
    println!("{:36} {:>9} {:>9} {:>14}", "node", "median ms", "worst ms", "units at most");
    for case in LONG_NODES.iter().filter(|case| wanted.is_none_or(|wanted| case.name.contains(wanted))) {
        let mut graph = Graph::new();
        let result = (case.build)(&mut graph).unwrap();
        graph.expand(result).unwrap();
        let node = graph.tensor(result).unwrap();
        let needed: Vec<_> = node.sources().flatten().map(|source| source.id()).chain([result]).collect();
        let mut buffers = Buffers::new();
        place_all(&mut graph, &needed, &device.buffer_type(), &mut buffers).unwrap();
        let mut times = Vec::new();
        counter.take_work_done();
        for _ in 0..RUNS {
            let nodes = graph.range(0..graph.nodes().len()).unwrap();
            let took = std::thread::scope(|scope| {
                let asker = scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(200));
                    let asked = Instant::now();
                    cancel.store(true, Ordering::Relaxed);
                    asked
                });
                let outcome = stream.compute_and_wait(Work { nodes, buffers: &buffers });
                let ended = Instant::now();
                assert!(matches!(outcome, Err(Error::Cancelled)), "{}: {outcome:?}", case.name);
                ended.saturating_duration_since(asker.join().unwrap())
            });
            cancel.store(false, Ordering::Relaxed);
            times.push(took.as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        let longest = counter.take_work_done().longest;
        println!("{:36} {:9.2} {:9.2} {longest:14}", case.name, times[RUNS / 2], times[RUNS - 1]);
    }
}
