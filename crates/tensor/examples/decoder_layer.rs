//! One layer of a decoder as a graph, printed as text or, with `--dot`, as a Graphviz picture in which attention and
//! feed-forward have their own colours:
//!
//! ```sh
//! cargo run -p oxcart-tensor --example decoder_layer -- --dot | dot -Tsvg > layer.svg
//! ```
#![expect(clippy::print_stdout, reason = "printing is what this example is for")]

use oxcart_tensor::ops::{FlashAttnExt, GluKind, Precision, Rope, RopeMode};
use oxcart_tensor::{DType, Error, Graph, TensorId};

const EMBD: usize = 256;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD: usize = EMBD / HEADS;
const FF: usize = 512;
const TOKENS: usize = 3;
const CONTEXT: usize = 64;

struct Layer {
    graph: Graph,
    /// The last node of the attention half.
    attention_end: TensorId,
}

fn weight(graph: &mut Graph, name: &str, columns: usize, rows: usize) -> Result<TensorId, Error> {
    let id = graph.leaf(if rows == 1 { DType::F32 } else { DType::Q4_K }, [columns, rows])?;
    graph.set_name(id, name)?;
    Ok(id)
}

fn norm(graph: &mut Graph, x: TensorId, name: &str) -> Result<TensorId, Error> {
    let weight = weight(graph, name, EMBD, 1)?;
    let x = graph.rms_norm(x, 1e-5)?;
    graph.mul(x, weight)
}

/// Queries, keys or values: projected, cut into heads. `[head, heads, tokens]`
fn heads(graph: &mut Graph, x: TensorId, name: &str, count: usize) -> Result<TensorId, Error> {
    let weight = weight(graph, name, EMBD, HEAD * count)?;
    let x = graph.mul_mat(weight, x)?;
    graph.reshape(x, [HEAD, count, TOKENS])
}

/// Writes rows into a cache and returns the whole of it as `[head, context, heads]`.
fn remember(graph: &mut Graph, x: TensorId, rows: TensorId, name: &str) -> Result<TensorId, Error> {
    let cache = graph.leaf(DType::F16, [HEAD * KV_HEADS, CONTEXT])?;
    graph.set_name(cache, name)?;
    let x = graph.reshape(x, [HEAD * KV_HEADS, TOKENS])?;
    let cache = graph.set_rows(cache, x, rows)?;
    let cache = graph.reshape(cache, [HEAD, KV_HEADS, CONTEXT])?;
    graph.permute(cache, [0, 2, 1, 3])
}

fn layer() -> Result<Layer, Error> {
    let mut graph = Graph::new();
    let g = &mut graph;
    let [x, positions, rows, mask] = [
        (g.leaf(DType::F32, [EMBD, TOKENS])?, "x"),
        (g.leaf(DType::I32, [TOKENS])?, "positions"),
        (g.leaf(DType::I64, [TOKENS])?, "cache rows"),
        (g.leaf(DType::F16, [CONTEXT, TOKENS])?, "mask"),
    ]
    .map(|(id, name)| g.mark_input(id).and_then(|()| g.set_name(id, name)).map(|()| id));
    let (x, positions, rows, mask) = (x?, positions?, rows?, mask?);

    let rope = Rope::new(HEAD, RopeMode::Normal, 10_000.0);
    let normed = norm(g, x, "attn_norm")?;
    let q = heads(g, normed, "attn_q", HEADS)?;
    let k = heads(g, normed, "attn_k", KV_HEADS)?;
    let v = heads(g, normed, "attn_v", KV_HEADS)?;
    let q = g.rope(q, positions, None, rope)?;
    let k = g.rope(k, positions, None, rope)?;
    let q = g.permute(q, [0, 2, 1, 3])?; // [head, tokens, heads]
    let k = remember(g, k, rows, "cache_k")?;
    let v = remember(g, v, rows, "cache_v")?;
    let attention = FlashAttnExt {
        scale: 1.0 / (HEAD as f32).sqrt(),
        max_bias: 0.0,
        softcap: 0.0,
        precision: Precision::F32,
        n_kv_max: 0,
    };
    let seen = g.flash_attn_ext([q, k, v], Some(mask), None, attention)?; // [head, heads, tokens]
    let seen = g.reshape(seen, [EMBD, TOKENS])?;
    let out = weight(g, "attn_output", EMBD, EMBD)?;
    let seen = g.mul_mat(out, seen)?;
    let x = g.add(x, seen)?;

    let attention_end = x;
    let normed = norm(g, x, "ffn_norm")?;
    let gate = weight(g, "ffn_gate", EMBD, FF)?;
    let up = weight(g, "ffn_up", EMBD, FF)?;
    let down = weight(g, "ffn_down", FF, EMBD)?;
    let gate = g.mul_mat(gate, normed)?;
    let up = g.mul_mat(up, normed)?;
    let hidden = g.glu_split(gate, up, GluKind::Swiglu)?;
    let hidden = g.mul_mat(down, hidden)?;
    let x = g.add(x, hidden)?;
    g.set_name(x, "layer output")?;
    g.mark_output(x)?;
    g.expand(x)?;
    Ok(Layer { graph, attention_end })
}

fn main() -> Result<(), Error> {
    let Layer { graph, attention_end } = layer()?;
    if std::env::args().any(|argument| argument == "--dot") {
        let half = |id| {
            let is_node = graph.nodes().contains(&id);
            is_node.then(|| if id <= attention_end { "attention" } else { "feed-forward" }.to_owned())
        };
        print!("{}", graph.dot(half));
    } else {
        print!("{}", graph.dump());
    }
    Ok(())
}
