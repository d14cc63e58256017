//! Connects to a worker, shows its devices and has each of them compute a small matrix product.
//!
//! ```text
//! cargo run -p oxcart-rpc --example remote_devices -- 127.0.0.1:50052 [dialect]
//! ```
#![allow(clippy::print_stdout, reason = "an example is there to be looked at")]

use std::error::Error;
use std::sync::Arc;

use oxcart_backend::{Buffers, Device, Registry, StreamOptions, Work, copy_async, place_all};
use oxcart_rpc::client::{Options, RemoteRegistry};
use oxcart_tensor::{DType, Graph, TensorId};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let endpoint = args.next().unwrap_or("127.0.0.1:50052".into());
    let dialect = args.next().map(|name| name.parse()).transpose()?;
    let worker = RemoteRegistry::connect(&endpoint, &Options { dialect, ..Options::default() })?;
    println!("{} speaks {}", worker.endpoint(), worker.dialect());
    for device in worker.devices() {
        let memory = device.memory()?;
        println!("{}: {} of {} bytes free", device.name(), memory.free, memory.total);
        try_memory(&device)?;
        try_product(&device)?;
    }
    println!("{:<20} {:>8} {:>10} {:>10} {:>6}", "command", "messages", "sent", "received", "waits");
    for (command, usage) in worker.traffic().by_command() {
        println!(
            "{:<20} {:>8} {:>10} {:>10} {:>6}",
            command.name(),
            usage.messages,
            usage.bytes_sent,
            usage.bytes_received,
            usage.waits
        );
    }
    Ok(())
}

/// Writes, fills, copies and reads back.
fn try_memory(device: &Arc<dyn Device>) -> Result<(), Box<dyn Error>> {
    let stream = Arc::clone(device).open(&StreamOptions::default())?;
    let (first, second) = (stream.allocate(4096)?, stream.allocate(4096)?);
    let pattern: Vec<u8> = (0..=255).cycle().take(1000).collect();
    let mut back = vec![1; 4096];
    first.read(0, &mut back)?;
    same(&back, &[0; 4096], "new memory is zero")?;
    first.write(100, &pattern)?;
    first.fill(200, 50, 7)?;
    second.clear(9)?;
    let direct = second.copy_from(0, &*first, 100, 1000)?;
    second.read(0, &mut back)?;
    let mut expected = pattern.clone();
    expected[100..150].fill(7);
    expected.resize(4096, 9);
    same(&back, &expected, "written, filled, copied")?;
    let place = |buffer: &Arc<dyn oxcart_backend::Buffer>, offset| oxcart_backend::Place {
        buffer: Arc::clone(buffer),
        offset,
        len: 100,
    };
    stream.set_async(&place(&first, 0), vec![3; 100])?;
    copy_async(&*stream, &place(&first, 0), &*stream, &place(&second, 2000))?;
    let pending = stream.get_async(&place(&second, 2000))?;
    stream.finish(stream.record()?)?;
    same(&pending.wait()?, &[3; 100], "the same behind each other")?;
    println!("  memory: ok{}", if direct { ", copies on the worker" } else { "" });
    Ok(())
}

/// Computes the same product twice, the second time with other inputs.
fn try_product(device: &Arc<dyn Device>) -> Result<(), Box<dyn Error>> {
    let (graph, [a, b, c]) = product()?;
    let (mut graph, mut buffers) = (graph, Buffers::new());
    place_all(&mut graph, &[a, b, c], &device.buffer_type(), &mut buffers)?;
    let supported = device.supports_op(graph.tensor(c)?);
    let stream = Arc::clone(device).open(&StreamOptions::default())?;
    buffers.set(graph.tensor(a)?, 0, &bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]))?;
    let nodes = graph.range(0..graph.nodes().len()).ok_or("no nodes")?;
    let mut plan = stream.plan(Work { nodes, buffers: &buffers })?.ok_or("no plan")?;
    for (value, expected) in [(1.0, [10.0, 26.0]), (2.0, [20.0, 52.0]), (3.0, [30.0, 78.0])] {
        buffers.set(graph.tensor(b)?, 0, &bytes(&[value; 4]))?;
        plan.compute()?;
        stream.synchronize()?;
        same(&buffers.bytes(graph.tensor(c)?)?, &bytes(&expected), "the product")?;
    }
    println!("  MUL_MAT: ok, supported: {supported}");
    Ok(())
}

fn product() -> Result<(Graph, [TensorId; 3]), Box<dyn Error>> {
    let mut graph = Graph::new();
    let a = graph.leaf(DType::F32, [4, 2])?;
    let b = graph.leaf(DType::F32, [4, 1])?;
    let c = graph.mul_mat(a, b)?;
    graph.expand(c)?;
    Ok((graph, [a, b, c]))
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn same(found: &[u8], expected: &[u8], what: &str) -> Result<(), Box<dyn Error>> {
    match found == expected {
        true => Ok(()),
        false => Err(format!("{what}: found {found:?} instead of {expected:?}").into()),
    }
}
