//! What both attentions have in common: rows of queries that share keys, tiles of keys, and what a row sees of a tile.
//!
//! An op says through a [`Lens`] where tiles lie and what is seen of them; the rest of this folder knows neither masks nor
//! pages. Rows of a group are all heads of the first token, then of the next.

use std::ops::Range;

use oxcart_tensor::DType;

use super::super::soft_max::Slopes;
use super::soften::Shaping;
use crate::job::Fault;
use crate::simd::MAX_LANES;
use crate::view::Src;

/// Keys that are looked at together.
pub(super) const KEYS: usize = 64;

/// Tiles of a span. Each span has a maximum, a sum and weighted values of its own.
pub(super) const SPAN_TILES: usize = 8;

/// Keys of a span.
pub(super) const SPAN: usize = SPAN_TILES * KEYS;

/// The most rows of an item.
pub(super) const MOST_ROWS: usize = 64;

/// From this many rows on, keys and values are worth being expanded.
pub(super) const MANY: usize = 8;

/// The longest keys and values together, in channels: one row is multiplied with a tile of them in one go.
pub(super) const MOST_CHANNELS: usize = 1 << 16;

/// Multiplications of an item with a tile of keys and values, at most.
const MOST_TILE_WORK: usize = 2 * KEYS * MOST_CHANNELS;

/// Floats that some channels take in scratch: whole vectors of every instruction set, at least one.
const fn whole_vectors(channels: usize) -> usize {
    if channels == 0 { MAX_LANES } else { channels.next_multiple_of(MAX_LANES) }
}

/// Sizes that all items have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Channels of a query and of a key.
    pub(super) d: usize,
    /// Channels of a value.
    pub(super) dv: usize,
    /// Neighbouring heads that have the same keys and values.
    pub(super) group: usize,
    /// Heads of queries.
    pub(super) heads: usize,
}

impl Sizes {
    /// The most rows of an item: fewer where heads are large, so that a tile does not take long.
    pub(super) fn most_rows(&self) -> usize {
        (MOST_TILE_WORK / (KEYS.saturating_mul(self.d.saturating_add(self.dv).max(1)))).clamp(1, MOST_ROWS)
    }

    /// A query, padded to whole vectors.
    pub(super) const fn padded_d(&self) -> usize {
        whole_vectors(self.d)
    }

    /// A value, padded to whole vectors.
    pub(super) const fn padded_dv(&self) -> usize {
        whole_vectors(self.dv)
    }

    /// Floats of what a span says about a row: maximum, sum, and weighted values.
    pub(super) const fn partial(&self) -> usize {
        self.padded_dv() + 2
    }
}

/// One piece of work: some rows of a group of heads that share keys and values, over some spans of keys.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) batch: usize,
    pub(super) first_head: usize,
    /// First row of the group.
    pub(super) first_row: usize,
    pub(super) rows: usize,
    pub(super) spans: Range<usize>,
}

/// Where a row comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) token: usize,
    pub(super) head: usize,
    pub(super) batch: usize,
}

impl Item {
    /// Where row `row` comes from.
    #[inline(always)]
    pub(super) fn query(&self, sizes: &Sizes, row: usize) -> Query {
        let row = self.first_row + row;
        Query { token: row / sizes.group, head: self.first_head + row % sizes.group, batch: self.batch }
    }
}

/// Keys of a sequence, from a multiple of [`KEYS`] on.
#[derive(Clone, Debug)]
pub(super) struct Tile {
    /// Which multiple.
    pub(super) number: usize,
    /// The row of the tensor of keys that is the first of the tile, and of that of values.
    pub(super) cell: usize,
    /// Those keys of the tile that some row may see; at least one.
    pub(super) keys: Range<usize>,
}

impl Tile {
    /// Where its keys are.
    #[inline(always)]
    pub(super) fn cells(&self) -> Range<usize> {
        self.cell + self.keys.start..self.cell + self.keys.end
    }
}

/// What a row sees of a tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// All keys of the tile.
    All,
    /// These keys.
    Keys(Range<usize>),
    /// What the biases say: minus infinity hides a key.
    Biased,
}

/// Where a head of keys or of values is: planes of dimensions 2 and 3, and the first channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadAt {
    pub(super) plane: [usize; 2],
    pub(super) channel: usize,
}

/// What an op knows about its keys. Asked once per tile, or per row and tile, and never compiled into loops.
pub(super) trait Lens {
    /// Where the keys of an item are, and its values.
    fn heads(&self, item: &Item) -> [HeadAt; 2];
    /// A tile of an item; `None` if no row sees anything of it.
    fn tile(&self, item: &Item, number: usize) -> Result<Option<Tile>, Fault>;
    /// What a row sees of a tile, whose biases are times `slope`. Only those of the tile's keys are looked at.
    fn sight(&self, item: &Item, query: Query, tile: &Tile, slope: f32, biases: &mut [f32; KEYS]) -> Sight;
    /// A query's numbers.
    fn query(&self, query: Query) -> &[f32];
}

/// How keys take part in products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyForm {
    /// As the numbers they are.
    Numbers,
    /// As codes of 8 bits with a scale for each 32, times codes of queries.
    Codes,
    /// As the numbers they stand for.
    Expanded,
}

impl KeyForm {
    /// The type alone decides.
    pub(super) const fn of(dtype: DType) -> KeyForm {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 => KeyForm::Numbers,
            DType::Q8_0 | DType::Q4_0 | DType::Q5_0 | DType::IQ4_NL => KeyForm::Codes,
            _ => KeyForm::Expanded,
        }
    }
}

/// What all items look at.
pub(super) struct Attention<'t> {
    pub(super) lens: &'t dyn Lens,
    pub(super) sizes: Sizes,
    pub(super) form: KeyForm,
    pub(super) keys: Src<'t>,
    pub(super) values: Src<'t>,
    pub(super) sinks: Option<Src<'t>>,
    pub(super) slopes: Slopes,
    pub(super) shaping: Shaping,
}
