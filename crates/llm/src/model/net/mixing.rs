//! Mixing the channels of keys and values before they are stored as quantized blocks.
//!
//! A few channels of a head are often much larger than the others. In a block they set the scale, and the small ones lose most of
//! their bits. A Hadamard matrix spreads every channel over [`MIXED`] neighbours, so that all are about as large.
//!
//! Invariant: attention computes what it would without mixing, but for rounding. Queries are mixed as keys are, which leaves
//! their products as they were, and the matrix is its own inverse: results are mixed once more where values were.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{Hint, MulMat};

use super::Net;
use crate::model::error::Error;
use crate::model::hyper_parameters::Block;
use crate::runner::options::CacheTypes;
use crate::runner::state::StateTensor;

/// Channels that are mixed with each other.
pub(crate) const MIXED: usize = 64;

/// What of a block is mixed before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mixing {
    pub(crate) keys: bool,
    pub(crate) values: bool,
}

impl Mixing {
    /// Nothing is mixed.
    const NONE: Mixing = Mixing { keys: false, values: false };

    /// That of a block whose keys and values are stored in these types.
    pub(crate) fn of(block: &Block, types: CacheTypes) -> Mixing {
        let whole = |size: usize| size > 0 && size.is_multiple_of(MIXED);
        let Some(rows) = block.state.rows else { return Mixing::NONE };
        let keys = types.keys.is_quantized() && whole(block.key_size);
        match rows.values > 0 {
            true => Mixing { keys, values: types.values.is_quantized() && whole(block.value_size) },
            // Values are channels of keys.
            false => {
                let both = keys && whole(block.value_size);
                Mixing { keys: both, values: both }
            }
        }
    }

    /// Whether there is anything to mix.
    pub(crate) fn is_any(self) -> bool {
        self.keys || self.values
    }
}

/// The matrix, row by row.
pub(crate) fn matrix() -> impl Iterator<Item = f32> {
    let number = (MIXED as f32).sqrt().recip();
    let sign = |at: usize| ((at / MIXED) & (at % MIXED)).count_ones() % 2;
    (0..MIXED * MIXED).map(move |at| if sign(at) == 0 { number } else { -number })
}

impl Net<'_> {
    /// What of the block that is being built is mixed.
    pub(super) fn mixing(&self) -> Mixing {
        match self.hyper.sees_whole() {
            // What is seen whole is not stored.
            true => Mixing::NONE,
            false => Mixing::of(&self.block(), self.style.cache),
        }
    }

    /// Heads with their channels mixed, or, once more, as they were before. [D, H, T]
    pub(super) fn mixed(&mut self, heads: TensorId) -> Result<TensorId, Error> {
        let layout = self.graph.tensor(heads)?.layout();
        let (shape, [channel, head, token, _]) = (layout.ne(), layout.nb());
        let matrix = self.state(StateTensor::Mixer)?;
        let parts = [MIXED, shape[0] / MIXED, shape[1], shape[2]];
        let parts = self.graph.view(heads, parts, &[MIXED * channel, head, token], 0)?;
        let product = MulMat { hint: Hint::Hadamard, ..MulMat::default() };
        let mixed = self.graph.apply(product, &[Some(matrix), Some(parts)])?;
        Ok(self.graph.reshape(mixed, shape)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_is_its_own_inverse() {
        let rows: Vec<f32> = matrix().collect();
        for (i, a) in rows.chunks(MIXED).enumerate() {
            for (j, b) in rows.chunks(MIXED).enumerate() {
                let product: f32 = a.iter().zip(b).map(|(x, y)| x * y).sum();
                assert_eq!(product, if i == j { 1.0 } else { 0.0 });
            }
        }
    }
}
