//! Decoder models as llama.cpp builds them: the same nodes in the same order, weights and caches having storage.

use std::path::Path;

use oxcart_tensor::ops::{FlashAttnExt, GluKind, Precision, Rope, RopeMode, SoftMax, SortOrder};
use oxcart_tensor::{DType, Error, Graph, TensorId};

use super::{input, stored};

/// Hyperparameters of a model, and how it is run.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    pub layers: usize,
    pub width: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub ff: usize,
    pub vocab: usize,
    /// Number of experts and how many a token uses; `None` for a dense network.
    pub experts: Option<(usize, usize)>,
    /// Attention in one op.
    pub flash: bool,
    /// Keys in the cache.
    pub keys: usize,
    /// Tokens per run: 1 to decode, many to prefill.
    pub tokens: usize,
    /// Tokens whose logits are wanted.
    pub outputs: usize,
}

impl Model {
    /// Shaped like a Llama of eight billion parameters, decoding one token.
    pub const LLAMA_8B: Model = Model {
        layers: 32,
        width: 4096,
        heads: 32,
        kv_heads: 8,
        ff: 14336,
        vocab: 128_256,
        experts: None,
        flash: false,
        keys: 4096,
        tokens: 1,
        outputs: 1,
    };

    /// Shaped like a Mixtral of eight experts.
    pub const MIXTRAL: Model = Model { vocab: 32000, experts: Some((8, 2)), ..Model::LLAMA_8B };

    /// The same model, reading a prompt.
    pub const fn prefill(self, tokens: usize) -> Model {
        Model { tokens, ..self }
    }

    pub const fn flash(self) -> Model {
        Model { flash: true, ..self }
    }

    /// The same model with as many layers as it takes to have about this many nodes.
    pub fn with_nodes(self, nodes: usize) -> Model {
        let count = |layers| Model { layers, ..self }.graph().nodes().len();
        let (one, two) = (count(1), count(2));
        Model { layers: 1 + nodes.saturating_sub(one).div_ceil(two - one), ..self }
    }

    /// The graph of one run.
    pub fn graph(&self) -> Graph {
        Builder::new(self).and_then(Builder::build).expect("the models are consistent")
    }

    const fn head_dim(&self) -> usize {
        self.width / self.heads
    }
}

/// Models to plan, by name: the built-in ones in several sizes and modes, and with `OXCART_GOLDEN` set those of its
/// `tiny-models/index.json`.
pub fn models() -> Vec<(String, Model)> {
    let mut models = Vec::new();
    for (name, model) in [("llama-8b", Model::LLAMA_8B), ("mixtral", Model::MIXTRAL)] {
        for tokens in [1, 32, 512] {
            for model in [model.prefill(tokens), model.prefill(tokens).flash()] {
                let mode = if model.flash { "flash" } else { "plain" };
                models.push((format!("{name} {tokens} {mode}"), model));
                if tokens == 512 {
                    models.push((
                        format!("{name} {tokens} {mode} all logits"),
                        Model { outputs: tokens, ..model },
                    ));
                }
            }
        }
        models.push((format!("{name} 1 plain 5000 nodes"), model.with_nodes(5000)));
        models.push((format!("{name} 512 flash 5000 nodes"), model.prefill(512).flash().with_nodes(5000)));
    }
    models.extend(oxcart_fixtures::golden().iter().flat_map(|golden| tiny_models(golden)));
    models
}

/// Depth, width and vocabulary as the index tells them by the shapes of recorded results; the rest in proportion.
fn tiny_models(golden: &Path) -> Vec<(String, Model)> {
    let path = golden.join("tiny-models/index.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let index: serde_json::Value = serde_json::from_str(&text).expect("the index is JSON");
    let mut models = Vec::new();
    for entry in index["models"].as_array().into_iter().flatten() {
        let arrays = entry["arrays"].as_array().map_or(&[][..], Vec::as_slice);
        let shape =
            |prefix: &str| arrays.iter().find(|a| a["name"].as_str().is_some_and(|n| n.starts_with(prefix)));
        let (Some(hidden), Some(logits)) = (shape("hidden/l_out"), shape("prompt_logits")) else { continue };
        let extent = |array: &serde_json::Value, dim| array["shape"][dim].as_u64().expect("a shape") as usize;
        let layers =
            arrays.iter().filter(|a| a["name"].as_str().is_some_and(|n| n.starts_with("hidden/l_out")));
        let (name, arch) = (entry["name"].as_str().unwrap_or("?"), entry["arch"].as_str().unwrap_or("?"));
        let experts = (name.contains("mixtral") || arch.contains("moe")).then_some((8, 2));
        let width = extent(hidden, 1);
        let model = Model {
            layers: layers.count(),
            width,
            heads: width / 16,
            kv_heads: (width / 32).max(1),
            ff: 3 * width,
            vocab: extent(logits, 1),
            experts,
            keys: 256,
            ..Model::LLAMA_8B
        };
        models.push((format!("{name} 1"), model));
        models.push((format!("{name} {}", extent(hidden, 0)), model.prefill(extent(hidden, 0))));
    }
    models
}

struct Builder<'m> {
    graph: Graph,
    model: &'m Model,
    positions: TensorId,
    rows: TensorId,
    mask: TensorId,
    wanted: TensorId,
}

impl<'m> Builder<'m> {
    fn new(model: &'m Model) -> Result<Builder<'m>, Error> {
        let mut graph = Graph::new();
        let positions = input(&mut graph, DType::I32, [model.tokens], "inp_pos");
        let rows = input(&mut graph, DType::I64, [model.tokens], "k_idxs");
        let mask_type = if model.flash { DType::F16 } else { DType::F32 };
        let mask = input(&mut graph, mask_type, [model.keys, model.tokens], "attn_inp_kq_mask");
        let wanted = input(&mut graph, DType::I32, [model.outputs], "inp_out_ids");
        Ok(Builder { graph, model, positions, rows, mask, wanted })
    }

    fn weight(&mut self, rows: usize, columns: usize) -> TensorId {
        stored(&mut self.graph, DType::F16, [rows, columns])
    }

    fn build(mut self) -> Result<Graph, Error> {
        let Model { layers, width, tokens, vocab, outputs, .. } = *self.model;
        let table = self.weight(width, vocab);
        let ids = input(&mut self.graph, DType::I32, [tokens], "inp_tokens");
        let mut x = self.graph.get_rows(table, ids)?; // [width, tokens]
        for layer in 0..layers {
            let normed = self.norm(x)?;
            let mut attention = self.attention(normed)?;
            if layer + 1 == layers && outputs < tokens {
                attention = self.graph.get_rows(attention, self.wanted)?;
                x = self.graph.get_rows(x, self.wanted)?;
            }
            let middle = self.graph.add(attention, x)?;
            let normed = self.norm(middle)?;
            let change = match self.model.experts {
                None => self.feed_forward(normed)?,
                Some((count, used)) => self.mixture(normed, count, used)?,
            };
            x = self.graph.add(change, middle)?;
        }
        let hidden = self.norm(x)?;
        self.graph.set_name(hidden, "result_norm")?;
        self.graph.mark_output(hidden)?;
        let head = self.weight(width, vocab);
        let logits = self.graph.mul_mat(head, hidden)?;
        self.graph.set_name(logits, "result_output")?;
        self.graph.mark_output(logits)?;
        self.graph.expand(logits)?;
        Ok(self.graph)
    }

    fn norm(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let scale = stored(&mut self.graph, DType::F32, [self.model.width]);
        let normed = self.graph.rms_norm(x, 1e-5)?;
        self.graph.mul(normed, scale)
    }

    fn project(&mut self, x: TensorId, heads: usize) -> Result<TensorId, Error> {
        let Model { width, tokens, .. } = *self.model;
        let d = self.model.head_dim();
        let weight = self.weight(width, d * heads);
        let y = self.graph.mul_mat(weight, x)?;
        self.graph.reshape(y, [d, heads, tokens])
    }

    fn attention(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let Model { width, heads, kv_heads, keys, tokens, .. } = *self.model;
        let d = self.model.head_dim();
        let rope = Rope::new(d, RopeMode::Normal, 10000.0);
        let q = self.project(x, heads)?;
        let q = self.graph.rope(q, self.positions, None, rope)?;
        let k = self.project(x, kv_heads)?;
        let k = self.graph.rope(k, self.positions, None, rope)?;
        let v = self.project(x, kv_heads)?;
        for node in [q, v, k] {
            self.graph.expand(node)?;
        }

        let row = d * kv_heads;
        let (k_cache, v_cache) = (self.weight(row, keys), self.weight(row, keys));
        for (cache, new) in [(k_cache, k), (v_cache, v)] {
            let flat = self.graph.reshape(new, [row, tokens])?;
            let write = self.graph.set_rows(cache, flat, self.rows)?;
            self.graph.expand(write)?;
        }
        let q = self.graph.permute(q, [0, 2, 1, 3])?; // [d, tokens, heads]
        let k = self.graph.view(k_cache, [d, kv_heads, keys], &[2 * d, 2 * row], 0)?;
        let k = self.graph.permute(k, [0, 2, 1, 3])?; // [d, keys, kv_heads]
        let mixed = if self.model.flash { self.fused(q, k, v_cache)? } else { self.scores(q, k, v_cache)? };
        let out = self.weight(width, width);
        self.graph.mul_mat(out, mixed)
    }

    fn scores(&mut self, q: TensorId, k: TensorId, v_cache: TensorId) -> Result<TensorId, Error> {
        let Model { width, kv_heads, keys, tokens, .. } = *self.model;
        let d = self.model.head_dim();
        let scores = self.graph.mul_mat(k, q)?; // [keys, tokens, heads]
        let op = SoftMax { scale: 0.1, max_bias: 0.0 };
        let weights = self.graph.soft_max_ext(scores, Some(self.mask), None, op)?;
        // Without fused attention values are cached transposed.
        let v = self.graph.view(v_cache, [keys, d, kv_heads], &[2 * keys, 2 * keys * d], 0)?;
        let mixed = self.graph.mul_mat(v, weights)?; // [d, tokens, heads]
        let mixed = self.graph.permute(mixed, [0, 2, 1, 3])?;
        self.graph.cont_as(mixed, [width, tokens])
    }

    fn fused(&mut self, q: TensorId, k: TensorId, v_cache: TensorId) -> Result<TensorId, Error> {
        let Model { width, kv_heads, keys, tokens, .. } = *self.model;
        let d = self.model.head_dim();
        let v = self.graph.view(v_cache, [d, kv_heads, keys], &[2 * d, 2 * d * kv_heads], 0)?;
        let v = self.graph.permute(v, [0, 2, 1, 3])?; // [d, keys, kv_heads]
        let op =
            FlashAttnExt { scale: 0.1, max_bias: 0.0, softcap: 0.0, precision: Precision::F32, n_kv_max: 0 };
        let mixed = self.graph.flash_attn_ext([q, k, v], Some(self.mask), None, op)?;
        self.graph.reshape(mixed, [width, tokens])
    }

    fn feed_forward(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let Model { width, ff, .. } = *self.model;
        let (up, gate, down) = (self.weight(width, ff), self.weight(width, ff), self.weight(ff, width));
        let up = self.graph.mul_mat(up, x)?;
        let gate = self.graph.mul_mat(gate, x)?;
        let hidden = self.graph.glu_split(gate, up, GluKind::Swiglu)?;
        self.graph.mul_mat(down, hidden)
    }

    fn mixture(&mut self, x: TensorId, count: usize, used: usize) -> Result<TensorId, Error> {
        let Model { width, ff, .. } = *self.model;
        let tokens = self.graph.tensor(x)?.ne()[1];
        let router = self.weight(width, count);
        let logits = self.graph.mul_mat(router, x)?;
        let probabilities = self.graph.soft_max(logits)?; // [count, tokens]
        let sorted = self.graph.argsort(probabilities, SortOrder::Descending)?;
        let chosen = self.graph.view(sorted, [used, tokens], &[4 * count], 0)?;
        let table = self.graph.reshape(probabilities, [1, count, tokens])?;
        let weights = self.graph.get_rows(table, chosen)?; // [1, used, tokens]
        let weights = self.graph.reshape(weights, [used, tokens])?;
        let sum = self.graph.sum_rows(weights)?;
        let weights = self.graph.div(weights, sum)?;
        let weights = self.graph.reshape(weights, [1, used, tokens])?;

        let mut experts = |rows, columns| stored(&mut self.graph, DType::F16, [rows, columns, count]);
        let (up, gate, down) = (experts(width, ff), experts(width, ff), experts(ff, width));
        let x = self.graph.reshape(x, [width, 1, tokens])?;
        let up = self.graph.mul_mat_id(up, x, chosen)?; // [ff, used, tokens]
        let gate = self.graph.mul_mat_id(gate, x, chosen)?;
        let hidden = self.graph.glu_split(gate, up, GluKind::Swiglu)?;
        let results = self.graph.mul_mat_id(down, hidden, chosen)?; // [width, used, tokens]
        let results = self.graph.mul(results, weights)?;
        self.graph.expand(results)?;

        let row = 4 * width;
        let mut parts = Vec::with_capacity(used);
        for expert in 0..used {
            let part = self.graph.view(results, [width, tokens], &[row * used], row * expert)?;
            self.graph.expand(part)?;
            parts.push(part);
        }
        let mut sum = parts[0];
        for &part in &parts[1..] {
            sum = self.graph.add(sum, part)?;
        }
        Ok(sum)
    }
}
