//! Nodes drawn at random: every op, with parameters and layouts that its rules accept.
//!
//! An op has a family below, a function that draws its extents, its sources and its parameters; a new op needs one, or drawing it
//! panics. How wild the numbers are is up to [`Draws`]: ordinary ones, or those that an attacker would choose: none, one, very
//! many, rows that all lie in the same place.
//!
//! Invariant: memory that is all zeros is valid data for every node, but for what [`Drawn::data`] says; no tensor is larger than
//! [`MOST_BYTES`].

mod families;

use oxcart_tensor::{DType, Graph, Layout, Op, Shape, TensorId};

/// The most bytes of a tensor.
pub const MOST_BYTES: usize = 1 << 27;

/// A graph of one node.
#[derive(Debug)]
pub struct Drawn {
    /// Its sources, and the node, which is in order.
    pub graph: Graph,
    /// The node.
    pub node: TensorId,
    /// What tensors must hold that do not hold zeros.
    pub data: Vec<(TensorId, Vec<i32>)>,
}

/// Which numbers are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Numbers as models have them, and packed tensors.
    Ordinary,
    /// Numbers as attackers choose them, and any strides.
    Nasty,
}

/// Numbers that look random, the same on every run.
#[derive(Clone, Debug)]
pub struct Draws {
    state: u64,
    manner: Manner,
}

impl Draws {
    /// Numbers that follow from a seed.
    pub const fn new(seed: u64, manner: Manner) -> Draws {
        Draws { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, manner }
    }

    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state >> 11
    }

    /// A number below `limit`, which is positive.
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn flip(&mut self) -> bool {
        self.next() & 1 == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// A number from one to `most`, short and long ones alike.
    fn up_to(&mut self, most: usize) -> usize {
        let bits = self.below(most.max(1).ilog2() as usize + 1);
        ((1 << bits) + self.below(1 << bits)).min(most)
    }

    /// An extent: ordinarily at most `most`.
    fn extent(&mut self, most: usize) -> usize {
        match self.manner {
            Manner::Ordinary => self.up_to(most),
            Manner::Nasty => match self.below(16) {
                0 => 0,
                1..4 => 1,
                4..8 => self.up_to(1 << 25),
                8..10 => self.up_to(1 << 14),
                _ => self.up_to(most),
            },
        }
    }

    /// A parameter that must be positive.
    fn param(&mut self, most: usize) -> usize {
        self.extent(most).max(1)
    }

    /// A shape that is mostly row.
    fn shape(&mut self) -> [usize; 4] {
        [self.extent(3000), self.extent(60), self.extent(4), self.extent(3)]
    }
}

/// A node in the making.
#[derive(Debug)]
struct Making<'d> {
    draws: &'d mut Draws,
    graph: Graph,
    data: Vec<(TensorId, Vec<i32>)>,
}

impl Making<'_> {
    /// A source; `None` if it would be too large.
    fn leaf(&mut self, dtype: DType, ne: impl Into<Shape>) -> Option<TensorId> {
        let (ne, unit) = (ne.into(), dtype.block_bytes());
        let packed = Layout::packed(dtype, ne).ok();
        let nb = match (self.draws.manner, self.draws.below(4)) {
            // Rows in one place, or one element after another.
            (Manner::Nasty, 0) => Some([unit, 0, 0, 0]),
            (Manner::Nasty, 1) => Some([unit; 4]),
            _ => None,
        };
        let layout = nb.and_then(|nb| Layout::strided(dtype, ne, nb).ok()).or(packed)?;
        (layout.byte_len() <= MOST_BYTES).then_some(())?;
        self.graph.leaf_with_layout(layout).ok()
    }

    /// As [`Making::leaf`], without gaps, where an op wants that.
    fn packed(&mut self, dtype: DType, ne: impl Into<Shape>) -> Option<TensorId> {
        let layout = Layout::packed(dtype, ne).ok().filter(|layout| layout.byte_len() <= MOST_BYTES)?;
        self.graph.leaf_with_layout(layout).ok()
    }

    fn f32(&mut self, ne: impl Into<Shape>) -> Option<TensorId> {
        self.leaf(DType::F32, ne)
    }

    /// The node itself.
    fn apply(&mut self, op: impl Into<Op>, sources: &[TensorId]) -> Option<TensorId> {
        let sources: Vec<_> = sources.iter().copied().map(Some).collect();
        self.graph.apply(op, &sources).ok()
    }
}

/// A node of an op, which is named as ggml names it; `None` if what was drawn makes none that is small enough.
///
/// # Panics
///
/// When there is no family for the op.
pub fn draw(op: &str, draws: &mut Draws) -> Option<Drawn> {
    let mut making = Making { draws, graph: Graph::new(), data: Vec::new() };
    let node = families::node(op, &mut making)?;
    let Making { mut graph, data, .. } = making;
    let fits = graph.tensor(node).ok()?.layout().byte_len() <= MOST_BYTES;
    (fits && graph.expand(node).is_ok()).then_some(Drawn { graph, node, data })
}
