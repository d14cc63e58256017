//! Computing a prepared graph allocates nothing.

use oxcart_backend::{Buffers, Device, Usage, allocate};
use oxcart_sched::{Options, Scheduler};
use oxcart_tally::allocations;
use oxcart_tensor::graph::Storage;
use oxcart_tensor::{DType, Graph};
use oxcart_testdev::{Config, TestDevice};

#[test]
fn computing_again_and_again_allocates_nothing() {
    let null = |config: Config| TestDevice::new(Config { null: true, ..config });
    let devices = [
        null(Config::accelerator("A")),
        null(Config::accelerator("B")),
        null(Config::accelerator("C")),
        null(Config::default()),
    ];
    for runs in [1, 3] {
        let (mut graph, mut buffers) = (Graph::new(), Buffers::new());
        let input = graph.leaf(DType::F32, [64, 2]).unwrap();
        graph.mark_input(input).unwrap();
        let mut x = input;
        for layer in 0..30 {
            let weights = graph.leaf(DType::F32, [64, 64]).unwrap();
            let buffer = allocate(&devices[layer / 10].buffer_type(), 64 * 64 * 4).unwrap();
            buffer.set_usage(Usage::Weights);
            let buffer = buffers.add(buffer);
            graph.bind(weights, Storage { buffer, offset: 0 }, 64 * 64 * 4).unwrap();
            let product = graph.mul_mat(weights, x).unwrap();
            x = graph.add(x, product).unwrap();
        }
        graph.mark_output(x).unwrap();
        graph.expand(x).unwrap();
        let streams = devices.iter().map(|device| device.stream()).collect();
        let mut scheduler = Scheduler::new(streams, Options { runs, ..Options::default() }).unwrap();
        let mut prepared = scheduler.prepare(graph, buffers).unwrap();
        assert_eq!((prepared.splits().len(), prepared.copy_count()), (3, 3));

        let bytes = vec![0; 64 * 2 * 4];
        // The first run fills what is kept per thread.
        prepared.compute().unwrap();
        let before = allocations();
        for _ in 0..10 {
            prepared.set_input(input, &bytes).unwrap();
            prepared.compute().unwrap();
            prepared.synchronize().unwrap();
        }
        assert_eq!(allocations() - before, 0, "allocations in ten runs, {runs} under way");
    }
}
