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

/// Numbers that look random, the same on every run; or, as long as there are bytes, those that bytes choose.
#[derive(Clone, Debug)]
pub struct Draws {
    chosen: std::vec::IntoIter<u8>,
    state: u64,
    manner: Manner,
}

impl Draws {
    /// Numbers that follow from a seed.
    pub fn new(seed: u64, manner: Manner) -> Draws {
        Draws { chosen: Vec::new().into_iter(), state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, manner }
    }

    /// Numbers that bytes choose one after another, each as few bytes as it needs; once there are no more, numbers that follow from
    /// all of the bytes. So a search that changes single bytes changes single numbers, and any bytes make a whole node.
    pub fn chosen(bytes: &[u8], manner: Manner) -> Draws {
        let seed = bytes.iter().fold(bytes.len() as u64, |sum, &byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3).rotate_left(23)
        });
        Draws { chosen: Vec::from(bytes).into_iter(), ..Draws::new(seed, manner) }
    }

    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state >> 11
    }

    /// A number below `limit`, which is positive.
    fn below(&mut self, limit: usize) -> usize {
        let limit = limit as u64;
        if self.chosen.as_slice().is_empty() {
            return (self.next() % limit) as usize;
        }
        let needed = (64 - (limit - 1).leading_zeros()).div_ceil(8) as usize;
        let number = self.chosen.by_ref().take(needed).fold(0, |sum, byte| sum << 8 | u64::from(byte));
        (number % limit) as usize
    }

    fn flip(&mut self) -> bool {
        self.below(2) == 0
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_choose_numbers_and_then_all_of_them_do() {
        let mut draws = Draws::chosen(&[7, 1, 2, 3], Manner::Ordinary);
        // One byte is enough for the first, two are needed for the second, and nothing is left to choose for the third.
        assert_eq!((draws.below(5), draws.below(1000), draws.below(1)), (2, 258, 0));
        assert_eq!((draws.flip(), draws.chosen.len()), (false, 0));
        let after = |bytes: &[u8]| {
            let mut draws = Draws::chosen(bytes, Manner::Ordinary);
            for _ in bytes {
                draws.below(256);
            }
            [0; 4].map(|_| draws.below(1 << 30))
        };
        assert_eq!(after(&[1, 2, 3]), after(&[1, 2, 3]));
        assert_ne!(after(&[1, 2, 3]), after(&[1, 3, 3]));
        assert_ne!(after(&[]), after(&[0]));
    }

    #[test]
    fn any_bytes_draw_every_op() {
        for info in Op::ALL {
            let drawn = |n: u8| draw(info.name, &mut Draws::chosen(&[n; 5], Manner::Ordinary));
            assert!((0..=255).any(|n| drawn(n).is_some()), "{}", info.name);
        }
    }
}
