//! How attention is cut into pieces of work.
//!
//! Invariant: the cut follows from the shapes alone, never from the number of threads, so neither do results.

use oxcart_tensor::Layout;

use super::expand::is_fast;
use super::room;
use crate::simd::MAX_LANES;

/// Keys that are looked at together.
pub(super) const KEYS: usize = 64;

/// The most rows of a tile.
const MOST_ROWS: usize = 64;

/// From this many rows on, keys are worth being expanded.
const MANY: usize = 8;

/// Pieces of work that are enough for any number of threads; with fewer, keys are cut too.
const ENOUGH_ITEMS: usize = 128;

/// Fewer keys than this are not cut.
const LEAST_SPAN: usize = 256;

/// One piece of work: some rows of a group of heads that share keys and values, over a span of keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) batch: usize,
    pub(super) first_head: usize,
    /// First row of the group.
    pub(super) first_row: usize,
    pub(super) rows: usize,
    pub(super) piece: usize,
    pub(super) keys: (usize, usize),
}

/// Where a row comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) token: usize,
    pub(super) head: usize,
    pub(super) batch: usize,
}

/// How the work is cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) d: usize,
    pub(super) dv: usize,
    pub(super) kv: usize,
    pub(super) tokens: usize,
    pub(super) heads: usize,
    pub(super) batch: usize,
    /// Neighbouring heads that have the same keys and values. Its rows are all heads of the first token, then of the next.
    pub(super) group: usize,
    /// Rows of a tile.
    pub(super) tile: usize,
    /// Whether values are used as they lie in memory, and keys too unless they are expanded.
    pub(super) few: bool,
    /// Whether keys become `f32` first.
    pub(super) expands_keys: bool,
    /// Keys of a piece.
    span: usize,
    /// How many pieces the keys are cut into.
    pub(super) pieces: usize,
    /// Floats that hold an encoded query.
    pub(super) encoded: usize,
}

impl Cut {
    pub(super) fn new(q: &Layout, k: &Layout, v: &Layout) -> Cut {
        let ([d, tokens, heads, batch], kv) = (q.ne().extents(), k.ne()[1]);
        let group = greatest_common_divisor(heads / k.ne()[2], heads / v.ne()[2]);
        let rows = tokens * group;
        let few = rows < MANY;
        let tile = if few { rows } else { rows.next_multiple_of(MAX_LANES).min(MOST_ROWS) };
        let whole = batch * (heads / group) * rows.div_ceil(tile.max(1));
        let wanted = ENOUGH_ITEMS.div_ceil(whole.max(1)).min(kv.div_ceil(LEAST_SPAN)).max(1);
        let span = kv.div_ceil(wanted).next_multiple_of(KEYS).max(KEYS);
        let partner = k.dtype().dot_partner().filter(|_| k.dtype().is_quantized());
        let encoded = partner.and_then(|partner| partner.row_bytes(d)).map_or(0, |bytes| bytes.div_ceil(4));
        Cut {
            d,
            dv: v.ne()[0],
            kv,
            tokens,
            heads,
            batch,
            group,
            tile,
            few,
            expands_keys: !few || rows > 1 && k.dtype().is_quantized() && is_fast(k.dtype()),
            span,
            pieces: kv.div_ceil(span).max(1),
            encoded: room(encoded),
        }
    }

    fn groups(&self) -> usize {
        self.heads / self.group
    }

    /// Rows of a group.
    fn rows(&self) -> usize {
        self.tokens * self.group
    }

    fn row_tiles(&self) -> usize {
        self.rows().div_ceil(self.tile)
    }

    /// Pieces of work.
    pub(super) fn items(&self) -> usize {
        self.batch * self.groups() * self.row_tiles() * self.pieces
    }

    pub(super) fn item(&self, index: usize) -> Item {
        let (piece, rest) = (index % self.pieces, index / self.pieces);
        // With a causal mask the last rows are the most work; they come first.
        let (tile, rest) = (self.row_tiles() - 1 - rest % self.row_tiles(), rest / self.row_tiles());
        let first_row = tile * self.tile;
        Item {
            batch: rest / self.groups(),
            first_head: rest % self.groups() * self.group,
            first_row,
            rows: self.tile.min(self.rows() - first_row),
            piece,
            keys: (piece * self.span, self.kv.min((piece + 1) * self.span)),
        }
    }

    /// Where row `row` of a piece of work comes from.
    #[inline(always)]
    pub(super) fn query(&self, item: &Item, row: usize) -> Query {
        let row = item.first_row + row;
        Query { token: row / self.group, head: item.first_head + row % self.group, batch: item.batch }
    }

    /// All queries have a number.
    #[inline(always)]
    pub(super) fn number(&self, query: Query) -> usize {
        (query.batch * self.tokens + query.token) * self.heads + query.head
    }

    pub(super) fn numbered(&self, number: usize) -> Query {
        let (head, rest) = (number % self.heads, number / self.heads);
        Query { token: rest % self.tokens, head, batch: rest / self.tokens }
    }

    pub(super) fn queries(&self) -> usize {
        self.batch * self.tokens * self.heads
    }

    /// A row of values, padded to whole vectors.
    pub(super) const fn padded_dv(&self) -> usize {
        self.dv.next_multiple_of(MAX_LANES)
    }

    /// A row of a query, padded to whole vectors.
    pub(super) const fn padded_d(&self) -> usize {
        self.d.next_multiple_of(MAX_LANES)
    }

    /// Floats of a thread's own scratch, by what they hold.
    pub(super) fn areas(&self) -> Areas {
        let Cut { d, tile, encoded, .. } = *self;
        Areas {
            queries: if self.few { tile * self.padded_d() } else { tile * d },
            encoded: tile * encoded,
            keys: if self.expands_keys { KEYS * d } else { 0 },
            values: KEYS * self.padded_dv(),
            scores: KEYS * tile,
            biases: if self.few { 0 } else { KEYS * tile },
            sums: tile * self.padded_dv(),
            states: tile,
        }
    }

    /// Floats of what a piece says about a query: maximum, sum, and weighted values.
    pub(super) const fn partial(&self) -> usize {
        self.dv + 2
    }

    /// Multiply-adds of everything.
    pub(super) fn work(&self) -> usize {
        self.queries().saturating_mul(self.kv).saturating_mul(self.d + self.dv)
    }
}

/// Sizes of the parts of a thread's scratch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Areas {
    pub(super) queries: usize,
    pub(super) encoded: usize,
    pub(super) keys: usize,
    pub(super) values: usize,
    pub(super) scores: usize,
    pub(super) biases: usize,
    pub(super) sums: usize,
    pub(super) states: usize,
}

impl Areas {
    /// Floats of all parts, three of them holding states.
    pub(super) fn total(&self) -> usize {
        let Areas { queries, encoded, keys, values, scores, biases, sums, states } = *self;
        [queries, encoded, keys, values, scores, biases, sums, states, states, states].map(room).iter().sum()
    }
}

const fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
