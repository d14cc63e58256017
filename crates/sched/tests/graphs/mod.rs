//! Graphs to plan: language models and random ones. Shared by tests, benches and examples of this crate.
#![allow(dead_code, unreachable_pub, reason = "each test, bench and example uses a part of it")]

pub mod random;
pub mod transformer;

use oxcart_sched::memory::{Pool, Request};
use oxcart_tensor::graph::{BufferId, Storage};
use oxcart_tensor::{DType, Graph, Shape, TensorId, TensorRef};

/// One pool without a limit, aligned as CPU memory of ggml is.
pub const CPU: [Pool; 1] = [Pool { alignment: 32, max_size: usize::MAX }];

/// Bytes of a tensor where no padding is asked for.
pub fn byte_len(tensor: TensorRef<'_>, _pool: usize) -> usize {
    tensor.byte_len()
}

/// A graph with everything in one pool.
pub fn request<'a>(graph: &'a Graph, pool_of: &'a [u16], keep_inputs: bool) -> Request<'a> {
    Request { keep_inputs, ..Request::new(graph, &CPU, pool_of, &byte_len) }
}

/// A leaf whose memory is not the planner's, as that of weights and caches.
pub fn stored(graph: &mut Graph, dtype: DType, ne: impl Into<Shape>) -> TensorId {
    let id = graph.leaf(dtype, ne).expect("a valid shape");
    graph.bind(id, Storage { buffer: BufferId(0), offset: 0 }, usize::MAX).expect("room");
    id
}

/// A leaf that is given before each run.
pub fn input(graph: &mut Graph, dtype: DType, ne: impl Into<Shape>, name: &str) -> TensorId {
    let id = graph.leaf(dtype, ne).expect("a valid shape");
    graph.mark_input(id).expect("a leaf");
    graph.set_name(id, name).expect("a short name");
    id
}
