//! What a client says to a worker, whether that one is honest or not.

use std::sync::Arc;

use oxcart_backend::{Buffers, Error, Place, Registry, StreamOptions, Work, allocate, place_all};
use oxcart_rpc::client::RemoteRegistry;
use oxcart_tensor::{DType, Graph};

/// Everything a client does, each command at least once; the first error ends it.
pub(crate) fn hold(registry: &Arc<RemoteRegistry>) -> Result<(), Error> {
    let Some(device) = registry.devices().into_iter().next() else { return Ok(()) };
    device.memory()?;
    let stream = Arc::clone(&device).open(&StreamOptions::default())?;
    let mut graph = Graph::new();
    let weights = graph.leaf(DType::Q4_0, [64, 2])?;
    let input = graph.leaf(DType::F32, [64, 1])?;
    let output = graph.mul_mat(weights, input)?;
    graph.set_name(weights, "blk.0.attn_q.weight")?;
    graph.expand(output)?;
    let mut buffers = Buffers::new();
    place_all(&mut graph, &[weights, input, output], &device.buffer_type(), &mut buffers)?;
    buffers.set(graph.tensor(weights)?, 0, &[1; 72])?;
    let work = Work { nodes: graph.range(0..1).unwrap(), buffers: &buffers };
    stream.compute(work)?;
    stream.compute(work)?;
    buffers.bytes(graph.tensor(output)?)?;
    let first = allocate(&device.buffer_type(), 1000)?;
    let second = allocate(&device.buffer_type(), 1000)?;
    first.fill(3, 10, 7)?;
    second.copy_from(0, &*first, 0, 100)?;
    drop(second);
    let place = Place { buffer: first, offset: 0, len: 100 };
    stream.set_async(&place, vec![5; 100])?;
    stream.get_async(&place)?.wait()?;
    drop(place);
    stream.synchronize()
}
