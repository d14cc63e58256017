//! Graphs and their plans as JSON lines, for tools/planner_vs_ggml.py to rebuild and to plan again with ggml.
//!
//! `cargo run --release -p oxcart-sched --example planner_export -- 1000 > graphs.jsonl`; the argument is the number
//! of random graphs. With `OXCART_GOLDEN` set, the models of its `tiny-models/index.json` are among the graphs.
//!
//! A line has `name`, `kind` (`transformer` or `random`), `tensors` (op, type, ne, nb, flags, view root or -1, view
//! offset, sources with -1 for absent ones, whether it has storage), `nodes` (indices in execution order), `plans`
//! (for inputs that may be overwritten and inputs that are kept: lower bound and the peaks of both planners) and `us`
//! (the least time to plan and to bind every tensor, in microseconds).
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

#[path = "../tests/graphs/mod.rs"]
mod graphs;

use std::error::Error;
use std::time::Instant;

use graphs::random::{self, Random};
use graphs::transformer::{self, Model};
use oxcart_sched::memory::{MemoryPlan, Planner, Strategy, plan};
use oxcart_tensor::graph::{BufferId, Storage};
use oxcart_tensor::{Graph, TensorId, TensorRef};
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn Error>> {
    let count = std::env::args().nth(1).map_or(Ok(1000), |text| text.parse::<u64>())?;
    for (name, model) in transformer::models() {
        println!("{}", line(&name, "transformer", &model.graph())?);
    }
    let huge = Model::LLAMA_8B.prefill(512).flash().with_nodes(64_000);
    println!("{}", line("llama-8b 512 flash 64000 nodes", "transformer", &huge.graph())?);
    for seed in 0..count {
        let nodes = 20 + Random(seed).below(300);
        println!("{}", line(&format!("random {seed}"), "random", &random::graph(seed, nodes))?);
    }
    Ok(())
}

fn line(name: &str, kind: &str, graph: &Graph) -> Result<Value, Box<dyn Error>> {
    let pool_of = vec![0; graph.len()];
    let mut plans = serde_json::Map::new();
    for (key, keep) in [("inputs_die", false), ("inputs_kept", true)] {
        let request = graphs::request(graph, &pool_of, keep);
        let [online, whole] = [Strategy::Online, Strategy::Whole].map(|strategy| plan(&request, strategy));
        let (online, whole) = (online?, whole?);
        whole.check(&request)?;
        let bound = whole.pools()[0].lower_bound();
        let peak = |plan: &MemoryPlan| plan.pools()[0].peak();
        plans.insert(key.into(), json!({ "bound": bound, "online": peak(&online), "whole": peak(&whole) }));
    }
    let tensors = graph
        .ids()
        .map(|id| Ok(tensor(graph.tensor(id)?)))
        .collect::<Result<Vec<_>, oxcart_tensor::Error>>()?;
    Ok(json!({
        "name": name,
        "kind": kind,
        "alignment": graphs::CPU[0].alignment,
        "plans": plans,
        "us": time(graph)?,
        "nodes": graph.nodes().iter().map(|id| id.index()).collect::<Vec<_>>(),
        "tensors": tensors,
    }))
}

fn tensor(tensor: TensorRef<'_>) -> Value {
    let index = |id: Option<TensorId>| id.map_or(-1, |id| id.index() as i64);
    let (view, layout) = (tensor.view(), tensor.layout());
    json!([
        tensor.op().name(),
        layout.dtype().name(),
        layout.ne().extents(),
        layout.nb(),
        flags(tensor),
        index(view.map(|view| view.root)),
        view.map_or(0, |view| view.offset),
        tensor.sources().map(|source| index(source.map(TensorRef::id))).collect::<Vec<_>>(),
        view.is_none() && tensor.storage().is_some(),
    ])
}

/// The bits ggml uses.
fn flags(tensor: TensorRef<'_>) -> u32 {
    use oxcart_tensor::graph::Flags;
    let bits =
        [(Flags::INPUT, 1), (Flags::OUTPUT, 2), (Flags::PARAM, 4), (Flags::LOSS, 8), (Flags::COMPUTE, 16)];
    bits.iter().filter(|(flag, _)| tensor.has(*flag)).map(|(_, bit)| bit).sum()
}

/// Plans and binds several times, keeping the planner as ggml's side keeps its allocator.
fn time(graph: &Graph) -> Result<f64, Box<dyn Error>> {
    let mut best = f64::MAX;
    let pool_of = vec![0; graph.len()];
    let mut bound = graph.clone();
    let mut planner = Planner::new();
    for _ in 0..(200_000 / graph.nodes().len()).clamp(3, 50) {
        let start = Instant::now();
        let plan = planner.plan(&graphs::request(graph, &pool_of, false), Strategy::Whole)?;
        for (id, spot) in plan.spots() {
            let capacity = plan.pools()[usize::from(spot.pool)].chunks()[spot.chunk as usize];
            bound.bind(id, Storage { buffer: BufferId(1), offset: spot.offset }, capacity)?;
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(best)
}
