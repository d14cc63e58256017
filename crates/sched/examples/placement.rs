//! A small language model spread over two accelerators and a CPU, as a picture:
//!
//! ```sh
//! cargo run -p oxcart-sched --example placement > placement.svg
//! cargo run -p oxcart-sched --example placement -- --report      # the same as text
//! ```
#![expect(clippy::print_stdout, reason = "printing is what this example is for")]

#[path = "../tests/graphs/mod.rs"]
mod graphs;

use std::error::Error;
use std::sync::Arc;

use graphs::transformer::Model;
use oxcart_backend::{Buffers, Device, Usage, allocate};
use oxcart_sched::{Options, Scheduler};
use oxcart_tensor::Graph;
use oxcart_tensor::graph::Storage;
use oxcart_testdev::{Config, TestDevice};

const MODEL: Model = Model {
    layers: 12,
    width: 256,
    heads: 4,
    kv_heads: 2,
    ff: 512,
    vocab: 1024,
    keys: 64,
    ..Model::LLAMA_8B
};

/// Puts weights and caches on the devices, the first ones on the first device and so on.
fn lay_out(graph: &mut Graph, devices: &[Arc<TestDevice>]) -> Result<Buffers, Box<dyn Error>> {
    let mut buffers = Buffers::new();
    let stored: Vec<_> = graph.ids().filter(|&id| matches!(graph.storage(id), Ok(Some(_)))).collect();
    let stored: Vec<_> =
        stored.into_iter().filter(|&id| graph.tensor(id).is_ok_and(|t| t.is_leaf())).collect();
    for (index, &id) in stored.iter().enumerate() {
        let device = &devices[index * devices.len() / stored.len()];
        let len = graph.tensor(id)?.byte_len();
        let buffer = allocate(&device.buffer_type(), len)?;
        buffer.set_usage(Usage::Weights);
        let buffer = buffers.add(buffer);
        graph.bind(id, Storage { buffer, offset: 0 }, len)?;
    }
    Ok(buffers)
}

fn main() -> Result<(), Box<dyn Error>> {
    let null = |config: Config| TestDevice::new(Config { null: true, ..config });
    let devices =
        [null(Config::accelerator("GPU0")), null(Config::accelerator("GPU1")), null(Config::default())];
    let mut graph = MODEL.graph();
    let buffers = lay_out(&mut graph, &devices)?;
    let streams = devices.iter().map(|device| device.stream()).collect();
    let prepared = Scheduler::new(streams, Options::default())?.prepare(graph, buffers)?;
    if std::env::args().any(|argument| argument == "--report") {
        print!("{}", prepared.report());
    } else {
        print!("{}", prepared.svg());
    }
    Ok(())
}
