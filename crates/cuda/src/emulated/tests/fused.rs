//! Blocks of a language model, as the runner builds them: few launches, and what the CPU makes of them.

use oxcart_tensor::ops::{GluKind, PagedAttn, Rope, RopeMode};
use oxcart_tensor::{DType, Graph, TensorId};

use super::twins::{Leaf, check};

/// A block: 256 channels, 4 heads of 64 of which 2 have keys, 512 channels in the feed-forward network.
struct Block {
    tokens: usize,
    weights: DType,
    cache: DType,
    bias: bool,
    mode: RopeMode,
}

const WIDTH: usize = 256;
const HEAD: usize = 64;
const HEADS: usize = 4;
const KEY_HEADS: usize = 2;
const WIDE: usize = 512;
const CELLS: usize = 4 * PagedAttn::PAGE;

impl Block {
    fn leaves(&self) -> Vec<Leaf> {
        let tokens = self.tokens;
        let matrix = |k: usize, m: usize, seed| {
            // As in a model: what comes out is about as large as what goes in.
            let mut leaf = Leaf::scaled(self.weights, [k, m], seed, 1.7 / (k as f32).sqrt());
            leaf.usage_weights = true;
            leaf
        };
        let scaled = |ne: [usize; 2], seed| Leaf::noise(DType::F32, ne, seed);
        let positions: Vec<i32> = (0..tokens as i32).map(|t| 70 + t).collect();
        let owners: Vec<i32> = positions.iter().flat_map(|&position| [0, position]).collect();
        let cells: Vec<i64> = positions.iter().map(|&position| i64::from(position)).collect();
        vec![
            scaled([WIDTH, tokens], 1),
            Leaf::noise(DType::F32, [WIDTH], 2),
            matrix(WIDTH, HEAD * HEADS, 3),
            matrix(WIDTH, HEAD * KEY_HEADS, 4),
            matrix(WIDTH, HEAD * KEY_HEADS, 5),
            matrix(HEAD * HEADS, WIDTH, 6),
            Leaf::noise(DType::F32, [WIDTH], 7),
            matrix(WIDTH, WIDE, 8),
            matrix(WIDTH, WIDE, 9),
            matrix(WIDE, WIDTH, 10),
            Leaf::noise(self.cache, [HEAD * KEY_HEADS, CELLS], 11),
            Leaf::noise(self.cache, [HEAD * KEY_HEADS, CELLS], 12),
            Leaf::i32([tokens], &positions),
            Leaf::i64([tokens], &cells),
            Leaf::i32([4, 1], &[0, 1, 2, 3]),
            Leaf::i32([2, tokens], &owners),
            Leaf::noise(DType::F32, [HEAD * HEADS], 13),
        ]
    }

    fn build(&self, graph: &mut Graph, leaf: &[TensorId]) -> Vec<TensorId> {
        let tokens = self.tokens;
        let rope = Rope { n_ctx_orig: 512, ..Rope::new(HEAD, self.mode, 10_000.0) };
        let x = leaf[0];
        let normal = graph.rms_norm(x, 1e-5).unwrap();
        let h = graph.mul(normal, leaf[1]).unwrap();
        let mut q = graph.mul_mat(leaf[2], h).unwrap();
        if self.bias {
            q = graph.add(q, leaf[16]).unwrap();
        }
        let q = graph.reshape(q, [HEAD, HEADS, tokens]).unwrap();
        let k = graph.mul_mat(leaf[3], h).unwrap();
        let k = graph.reshape(k, [HEAD, KEY_HEADS, tokens]).unwrap();
        let v = graph.mul_mat(leaf[4], h).unwrap();
        let v = graph.reshape(v, [HEAD, KEY_HEADS, tokens]).unwrap();
        let q = graph.rope(q, leaf[12], None, rope).unwrap();
        let k = graph.rope(k, leaf[12], None, rope).unwrap();
        graph.expand(q).unwrap();
        graph.expand(v).unwrap();
        let store = |graph: &mut Graph, rows: TensorId, cache: TensorId| {
            let token = graph.tensor(rows).unwrap().layout().nb()[2];
            let rows = graph.view(rows, [HEAD * KEY_HEADS, tokens], &[token], 0).unwrap();
            let stored = graph.set_rows(cache, rows, leaf[13]).unwrap();
            graph.expand(stored).unwrap();
            stored
        };
        let keys = store(graph, k, leaf[10]);
        let values = store(graph, v, leaf[11]);
        let op = PagedAttn {
            key_heads: KEY_HEADS,
            scale: 0.125,
            softcap: 0.0,
            max_bias: 0.0,
            window: 0,
            chunk: 0,
        };
        let a = graph.paged_attn([q, keys, values], leaf[14], leaf[15], None, op).unwrap();
        let a = graph.reshape(a, [HEAD * HEADS, tokens]).unwrap();
        let a = graph.mul_mat(leaf[5], a).unwrap();
        let x = graph.add(a, x).unwrap();
        let normal = graph.rms_norm(x, 1e-5).unwrap();
        let h = graph.mul(normal, leaf[6]).unwrap();
        let gate = graph.mul_mat(leaf[7], h).unwrap();
        let up = graph.mul_mat(leaf[8], h).unwrap();
        let active = graph.glu_split(gate, up, GluKind::Swiglu).unwrap();
        let down = graph.mul_mat(leaf[9], active).unwrap();
        let x = graph.add(down, x).unwrap();
        vec![x, keys, values]
    }
}

#[test]
fn a_block_is_few_launches() {
    for (tokens, weights, cache, bias, mode, launches) in [
        (1, DType::Q8_0, DType::F16, false, RopeMode::Normal, 5),
        (1, DType::Q4_0, DType::F16, true, RopeMode::Neox, 5),
        (1, DType::Q8_0, DType::BF16, false, RopeMode::Normal, 5),
        (1, DType::F16, DType::F32, false, RopeMode::Neox, 6),
        (1, DType::Q8_0, DType::Q8_0, false, RopeMode::Normal, 8),
        (3, DType::Q4_0, DType::F16, true, RopeMode::Normal, 11),
        (20, DType::Q8_0, DType::F16, false, RopeMode::Normal, 11),
        (40, DType::F16, DType::F16, true, RopeMode::Neox, 11),
    ] {
        let block = Block { tokens, weights, cache, bias, mode };
        let name = format!("{tokens} tokens, {weights}, {cache}, bias {bias}");
        let ran = check(&name, &block.leaves(), &|graph, leaf| block.build(graph, leaf), 3e-4);
        // Three runs, of which two are replayed.
        assert!(ran.is_empty() || ran.len() == 3 * launches, "{name}: {} launches: {ran:?}", ran.len() / 3);
    }
}

/// Attention of one token after rows that are written to some cache, by a node that is computed ahead of its turn.
fn after_moved_rows(into_keys: bool) -> Vec<String> {
    let row = HEAD * KEY_HEADS;
    let leaves = [
        Leaf::noise(DType::F32, [HEAD, HEADS, 1], 1),
        Leaf::noise(DType::F32, [HEAD, KEY_HEADS, 1], 2),
        Leaf::noise(DType::F32, [row, 1], 3),
        Leaf::noise(DType::F32, [row, 1], 4),
        Leaf::noise(DType::F16, [row, CELLS], 5),
        Leaf::noise(DType::F16, [row, CELLS], 6),
        Leaf::noise(DType::F16, [row, CELLS], 7),
        Leaf::i32([1], &[70]),
        Leaf::i64([1], &[70]),
        Leaf::i64([1], &[11]),
        Leaf::i32([4, 1], &[0, 1, 2, 3]),
        Leaf::i32([2, 1], &[0, 70]),
    ];
    let build = |graph: &mut Graph, leaf: &[TensorId]| {
        let law = |base| Rope { n_ctx_orig: 512, ..Rope::new(HEAD, RopeMode::Normal, base) };
        let result = |graph: &mut Graph, of: TensorId| {
            let scaled = graph.scale(of, 1.5).unwrap();
            graph.expand(scaled).unwrap();
            scaled
        };
        let [q, k, other, rows] = [0, 1, 0, 2].map(|at| result(graph, leaf[at]));
        // These rows have nothing to do with what comes after: they are written together with this rotation.
        let other = graph.rope(other, leaf[7], None, law(500.0)).unwrap();
        graph.expand(other).unwrap();
        let v = result(graph, leaf[3]);
        let q = graph.rope(q, leaf[7], None, law(10_000.0)).unwrap();
        graph.expand(q).unwrap();
        let moved = graph.set_rows(leaf[if into_keys { 4 } else { 6 }], rows, leaf[9]).unwrap();
        graph.expand(moved).unwrap();
        let k = graph.rope(k, leaf[7], None, law(10_000.0)).unwrap();
        let k = graph.reshape(k, [row, 1]).unwrap();
        let keys = graph.set_rows(leaf[4], k, leaf[8]).unwrap();
        graph.expand(keys).unwrap();
        let values = graph.set_rows(leaf[5], v, leaf[8]).unwrap();
        graph.expand(values).unwrap();
        let op = PagedAttn {
            key_heads: KEY_HEADS,
            scale: 0.125,
            softcap: 0.0,
            max_bias: 0.0,
            window: 0,
            chunk: 0,
        };
        let a = graph.paged_attn([q, keys, values], leaf[10], leaf[11], None, op).unwrap();
        vec![a, other, moved, keys, values]
    };
    check("rows that are written ahead of their turn", &leaves, &build, 1e-5)
}

#[test]
fn keys_are_not_read_early_while_a_node_that_was_moved_writes_them() {
    let is_fresh = |ran: &[String]| ran.iter().any(|name| name.starts_with("decode_fresh"));
    let (apart, meeting) = (after_moved_rows(false), after_moved_rows(true));
    assert!(apart.is_empty() || is_fresh(&apart), "{apart:?}");
    assert!(!is_fresh(&meeting), "{meeting:?}");
}
