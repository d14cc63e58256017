//! Peak, lower bound and time of both planners, from 1,000 to 64,000 nodes.
//!
//! `cargo bench -p oxcart-sched --bench planner`
#![allow(clippy::print_stdout, reason = "a bench prints its table")]

#[path = "../tests/graphs/mod.rs"]
mod graphs;

use std::time::Instant;

use graphs::transformer::Model;
use oxcart_sched::memory::{MemoryPlan, Planner, Strategy};
use oxcart_tensor::Graph;

fn main() {
    println!(
        "{:28} {:>6} {:>10} {:>8} {:>8} {:>10} {:>10} {:>8} {:>10}",
        "graph", "nodes", "bound MiB", "online", "whole", "online us", "whole us", "ns/node", "suits us"
    );
    let models = [
        ("llama decode", Model::LLAMA_8B),
        ("llama decode flash", Model::LLAMA_8B.flash()),
        ("llama prefill 512", Model::LLAMA_8B.prefill(512)),
        ("llama prefill 512 flash", Model::LLAMA_8B.prefill(512).flash()),
        ("mixtral decode", Model::MIXTRAL),
        ("mixtral prefill 512 flash", Model::MIXTRAL.prefill(512).flash()),
    ];
    for (name, model) in models {
        for nodes in [1000, 5000, 16_000, 64_000] {
            row(name, &model.with_nodes(nodes).graph());
        }
    }
    for nodes in [100, 300, 1000, 5000, 16_000, 64_000] {
        row("random", &graphs::random::graph(1, nodes));
    }
}

fn row(name: &str, graph: &Graph) {
    let pool_of = vec![0; graph.len()];
    let request = graphs::request(graph, &pool_of, true);
    let mut planner = Planner::new();
    let (online, online_us) = measure(graph, || planner.plan(&request, Strategy::Online));
    let (whole, whole_us) = measure(graph, || planner.plan(&request, Strategy::Whole));
    let (online, whole) = (online.expect("a plan"), whole.expect("a plan"));
    let (suits, suits_us) = measure(graph, || planner.suits(&whole, &request));
    assert!(suits, "a plan suits its own graph");
    let bound = whole.pools()[0].lower_bound() as f64;
    let ratio = |plan: &MemoryPlan| plan.pools()[0].peak() as f64 / bound;
    let nodes = graph.nodes().len();
    println!(
        "{name:28} {nodes:6} {:10.2} {:8.4} {:8.4} {online_us:10.1} {whole_us:10.1} {:8.1} {suits_us:10.1}",
        bound / (1 << 20) as f64,
        ratio(&online),
        ratio(&whole),
        whole_us * 1e3 / nodes as f64,
    );
}

/// A result, and the least time of several runs in microseconds.
fn measure<T>(graph: &Graph, mut work: impl FnMut() -> T) -> (T, f64) {
    let mut best = f64::MAX;
    let mut result = None;
    for _ in 0..(200_000 / graph.nodes().len()).clamp(3, 200) {
        let start = Instant::now();
        result = Some(work());
        best = best.min(start.elapsed().as_secs_f64() * 1e6);
    }
    (result.expect("at least three runs"), best)
}
