//! An index: a cheap measure of which tokens are worth attention.
//!
//! Every token leaves a short key. A token that comes later compares a few queries with all keys, and attention looks at the tokens
//! whose keys suit it best. Where there are no more tokens than it would look at, nothing is compared.

use oxcart_tensor::ops::Rope;
use oxcart_tensor::{DType, TensorId};

use super::layers::Scale;
use super::{Bias, Net};
use crate::model::error::Error;
use crate::model::hyper_parameters::Indexer;
use crate::runner::state::StateTensor;

impl Net<'_> {
    /// A mask of the cells that each token looks at, by its queries' short form; none where it looks at all that it may see.
    /// [cells, T]
    pub(super) fn found_by_index(&mut self, x: TensorId, short: TensorId) -> Result<Option<TensorId>, Error> {
        let Indexer { heads, size, chosen, epsilon, .. } = self.indexer()?;
        let key = self.product(x, "indexer.attn_k", size, Bias::None, Scale::None)?;
        let key = self.layer_norm_within(key, "indexer.k_norm", epsilon)?;
        let key = self.index_heads(key, 1)?;
        let keys = self.store(key, StateTensor::Index)?; // [size, cells]
        let q = self.product(short, "indexer.attn_q_b", heads * size, Bias::None, Scale::None)?;
        let q = self.index_heads(q, heads)?;
        let weights = self.product(x, "indexer.proj", heads, Bias::None, Scale::None)?;
        let weights = self.scale(weights, ((size * heads) as f32).sqrt().recip())?;
        let cells = self.step.cells[self.kind()];
        if cells <= chosen {
            return Ok(None);
        }
        let row = self.graph.tensor(keys)?.layout().nb()[1];
        let keys = self.graph.view(keys, [size, 1, cells], &[row, row], 0)?;
        let mask = self.mask()?;
        let small = self.as_type(mask, DType::F16)?;
        let scores = self.graph.lightning_indexer(q, keys, weights, small)?; // [cells, T]
        self.largest_of(scores, chosen, mask).map(Some)
    }

    fn indexer(&self) -> Result<Indexer, Error> {
        let missing =
            || Error::NotThatKind { architecture: self.hyper.architecture(), what: "have an index" };
        self.hyper.indexer.ok_or_else(missing)
    }

    /// Rows [size * heads, T] as heads, rotated by their positions. [size, heads, T]
    fn index_heads(&mut self, rows: TensorId, heads: usize) -> Result<TensorId, Error> {
        let Indexer { size, mode, first_channel, .. } = self.indexer()?;
        let rows = self.graph.reshape(rows, [size, heads, self.step.tokens])?;
        let positions = self.positions()?;
        let rope = Rope { mode, first_channel, ..self.hyper.rope };
        Ok(self.graph.rope(rows, positions, None, rope)?)
    }

    /// The mask, with all cells hidden but those of the largest scores. [cells, T]
    fn largest_of(&mut self, scores: TensorId, count: usize, mask: TensorId) -> Result<TensorId, Error> {
        let shape = self.graph.tensor(scores)?.ne();
        let (cells, tokens) = (shape[0], shape[1]);
        let best = self.graph.top_k(scores, count)?; // [count, T]
        let columns = self.graph.reshape(scores, [1, cells, tokens])?;
        let hidden = self.graph.fill(columns, f32::NEG_INFINITY)?;
        let numbers = self.graph.cast(best, DType::F32)?;
        let numbers = self.graph.reshape(numbers, [1, count, tokens])?;
        let seen = self.graph.fill(numbers, 0.0)?;
        let found = self.graph.set_rows(hidden, seen, best)?;
        let found = self.graph.reshape(found, [cells, tokens])?;
        let mask = self.as_type(mask, DType::F32)?;
        let found = self.graph.add(found, mask)?;
        self.as_type(found, self.style.path.mask_type())
    }

    fn as_type(&mut self, x: TensorId, dtype: DType) -> Result<TensorId, Error> {
        match self.graph.tensor(x)?.dtype() == dtype {
            true => Ok(x),
            false => Ok(self.graph.cast(x, dtype)?),
        }
    }
}
