//! Random graphs: mixed sizes, fan-out, views, ops that work in place, long skips, inputs and outputs.

use oxcart_tensor::ops::Unary;
use oxcart_tensor::{DType, Error, Graph, TensorId};

use super::{input, stored};

/// Splitmix64: a seed gives the same graph everywhere.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// A number from 1 on whose logarithm is spread evenly.
    fn log_uniform(&mut self, bits: usize) -> usize {
        let high = 1 << self.below(bits);
        high + self.below(high)
    }
}

/// A graph of about `nodes` nodes.
pub fn graph(seed: u64, nodes: usize) -> Graph {
    let mut builder = Builder { graph: Graph::new(), random: Random(seed), values: Vec::new() };
    builder.build(nodes).expect("only valid nodes are asked for");
    builder.graph
}

struct Builder {
    graph: Graph,
    random: Random,
    /// Matrices of `f32` to compute with.
    values: Vec<TensorId>,
}

impl Builder {
    fn build(&mut self, nodes: usize) -> Result<(), Error> {
        for place in 0..1 + self.random.below(4) {
            let ne = [4 * self.random.log_uniform(9), self.random.log_uniform(5)];
            let id = match self.random.chance(80) {
                true => input(&mut self.graph, DType::F32, ne, &format!("input_{place}")),
                false => self.graph.leaf(DType::F32, ne)?,
            };
            self.values.push(id);
        }
        let mut made = Vec::with_capacity(nodes);
        while made.len() < nodes {
            let id = self.node()?;
            made.push(id);
            self.values.push(id);
            if self.random.chance(2) {
                self.graph.mark_output(id)?;
                self.graph.expand(id)?;
            }
        }
        // Everything is wanted, in an order that is not quite the one of making.
        for &id in made.iter().rev().take(3) {
            self.graph.expand(id)?;
        }
        for id in made {
            self.graph.expand(id)?;
        }
        Ok(())
    }

    /// A value to read: mostly a recent one, sometimes any.
    fn pick(&mut self) -> TensorId {
        let reach = if self.random.chance(12) { self.values.len() } else { self.values.len().min(5) };
        self.values[self.values.len() - 1 - self.random.below(reach)]
    }

    fn extents(&self, id: TensorId) -> Result<[usize; 2], Error> {
        let ne = self.graph.tensor(id)?.ne();
        Ok([ne[0], ne[1]])
    }

    fn node(&mut self) -> Result<TensorId, Error> {
        let a = self.pick();
        let [columns, rows] = self.extents(a)?;
        match self.random.below(12) {
            0 => self.graph.rms_norm(a, 1e-5),
            1 => self.graph.unary(a, Unary::Silu),
            2 => self.graph.scale(a, 0.5),
            3 => self.graph.norm(a, 1e-5),
            4..=6 => self.combine(a),
            7 | 8 => {
                let wide = 4 * self.random.log_uniform(9);
                let weight = stored(&mut self.graph, DType::F16, [columns, wide]);
                self.graph.mul_mat(weight, a)
            }
            9 => {
                let count = self.random.log_uniform(5);
                let ids = stored(&mut self.graph, DType::I32, [count]);
                self.graph.get_rows(a, ids)
            }
            10 => {
                let count = 1 + self.random.below(rows);
                let first = if self.random.chance(50) { 0 } else { self.random.below(rows - count + 1) };
                let nb = self.graph.tensor(a)?.layout().nb()[1];
                self.graph.view(a, [columns, count], &[nb], first * nb)
            }
            _ => {
                let turned = self.graph.transpose(a)?;
                self.graph.cont(turned)
            }
        }
    }

    /// A sum or a product with another value of the same extents, where there is one.
    fn combine(&mut self, a: TensorId) -> Result<TensorId, Error> {
        let ne = self.extents(a)?;
        let mut others = Vec::new();
        for &id in self.values.iter().rev().take(100) {
            if id != a && self.extents(id)? == ne {
                others.push(id);
            }
        }
        match (others.is_empty(), self.random.chance(50)) {
            (true, _) => self.graph.sqr(a),
            (_, true) => self.graph.add(a, others[self.random.below(others.len())]),
            (_, false) => self.graph.mul(others[self.random.below(others.len())], a),
        }
    }
}
