//! How tiles lie in scratch memory: a panel of weights is a few rows side by side, a panel of columns a few rows of
//! activations side by side, both in the order in which a micro-kernel reads them.
//!
//! Codes of a panel come in steps of `step` consecutive elements: step 0 of every row, then step 1 of every row, and so
//! on. With the codes of quantized types go `f32` scales, one per group and row of weights and one per run and column;
//! they lie row by row (column by column) within a group (run) as well.
//!
//! Invariant: the parts of a panel start at multiples of 64 bytes and do not meet. A block of `k` elements of a panel of
//! columns is a contiguous piece of each of its parts.

use std::ops::Range;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Scales of a quantized weight type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Groups {
    /// Elements that share a scale of the weights.
    pub(super) group: usize,
    /// Elements that share a scale of the activations; a multiple of `group`.
    pub(super) run: usize,
    /// Whether groups of weights have a minimum.
    pub(super) mins: bool,
    /// Whether a sum of codes per group of activations is needed to correct products of unsigned weights.
    pub(super) corrections: bool,
}

/// How panels of one weight type look on one instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    /// Rows in a panel of weights.
    pub(super) rows: usize,
    /// Columns in a panel of activations.
    pub(super) cols: usize,
    /// Bytes of a code.
    pub(super) code: usize,
    /// Scales, if there are any.
    pub(super) groups: Option<Groups>,
}

const ALIGN: usize = 64;

/// Places parts one after another.
struct Placer(usize);

impl Placer {
    fn place(&mut self, bytes: usize) -> Range<usize> {
        let start = self.0;
        self.0 = (start + bytes).next_multiple_of(ALIGN);
        start..start + bytes
    }
}

/// Where the parts of a panel of weights are.
struct WeightParts {
    codes: Range<usize>,
    scales: Range<usize>,
    mins: Range<usize>,
    end: usize,
}

/// Where the parts of a panel of columns are.
struct ColumnParts {
    codes: Range<usize>,
    scales: Range<usize>,
    sums: Range<usize>,
    corrections: Range<usize>,
    end: usize,
}

/// Some rows of weights, packed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights<'p> {
    pub(super) codes: &'p [u8],
    /// By group and row.
    pub(super) scales: &'p [f32],
    /// By group and row; empty if there are none.
    pub(super) mins: &'p [f32],
}

/// Some rows of weights, being packed.
#[derive(Debug)]
pub(super) struct WeightsMut<'p> {
    pub(super) codes: &'p mut [u8],
    pub(super) scales: &'p mut [f32],
    pub(super) mins: &'p mut [f32],
}

/// Some columns, packed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns<'p> {
    pub(super) codes: &'p [u8],
    /// By run and column.
    pub(super) scales: &'p [f32],
    /// By group and column: the sum of the values; empty if weights have no minimums.
    pub(super) sums: &'p [f32],
    /// By group and column: -128 times the sum of the codes; empty if weights are signed.
    pub(super) corrections: &'p [i32],
}

/// Some columns, being packed.
#[derive(Debug)]
pub(super) struct ColumnsMut<'p> {
    pub(super) codes: &'p mut [u8],
    pub(super) scales: &'p mut [f32],
    pub(super) sums: &'p mut [f32],
    pub(super) corrections: &'p mut [i32],
}

/// Bytes as numbers.
pub(super) fn items<T: FromBytes + Immutable + KnownLayout>(bytes: &[u8]) -> &[T] {
    <[T]>::ref_from_bytes(bytes).unwrap_or_else(|_| unreachable!("parts of panels are aligned and whole"))
}

/// Bytes as numbers.
pub(super) fn items_mut<T: FromBytes + IntoBytes + Immutable + KnownLayout>(bytes: &mut [u8]) -> &mut [T] {
    <[T]>::mut_from_bytes(bytes).unwrap_or_else(|_| unreachable!("parts of panels are aligned and whole"))
}

impl Format {
    fn weight_parts(&self, k: usize) -> WeightParts {
        let mut placer = Placer(0);
        let codes = placer.place(k * self.rows * self.code);
        let groups = self.groups.map_or(0, |groups| k / groups.group);
        let min_groups = self.groups.map_or(0, |groups| if groups.mins { k / groups.group } else { 0 });
        let scales = placer.place(groups * self.rows * 4);
        let mins = placer.place(min_groups * self.rows * 4);
        WeightParts { codes, scales, mins, end: placer.0 }
    }

    fn column_parts(&self, k: usize) -> ColumnParts {
        let count = |wanted: fn(&Groups) -> bool, len: fn(&Groups) -> usize| {
            self.groups.filter(wanted).map_or(0, |groups| k / len(&groups)) * self.cols * 4
        };
        let mut placer = Placer(0);
        let codes = placer.place(k * self.cols * self.code);
        let scales = placer.place(count(|_| true, |groups| groups.run));
        let sums = placer.place(count(|groups| groups.mins, |groups| groups.group));
        let corrections = placer.place(count(|groups| groups.corrections, |groups| groups.group));
        ColumnParts { codes, scales, sums, corrections, end: placer.0 }
    }

    /// Bytes of a panel of weights with `k` elements per row.
    pub(super) fn weight_bytes(&self, k: usize) -> usize {
        self.weight_parts(k).end
    }

    /// Bytes of a panel of columns with `k` elements per column.
    pub(super) fn column_bytes(&self, k: usize) -> usize {
        self.column_parts(k).end
    }

    /// A packed panel of weights.
    pub(super) fn weights<'p>(&self, panel: &'p [u8], k: usize) -> Weights<'p> {
        let parts = self.weight_parts(k);
        Weights {
            codes: &panel[parts.codes],
            scales: items(&panel[parts.scales]),
            mins: items(&panel[parts.mins]),
        }
    }

    /// A panel of weights to be packed.
    pub(super) fn weights_mut<'p>(&self, panel: &'p mut [u8], k: usize) -> WeightsMut<'p> {
        let parts = self.weight_parts(k);
        let (codes, rest) = panel.split_at_mut(parts.scales.start);
        let (scales, mins) = rest.split_at_mut(parts.mins.start - parts.scales.start);
        WeightsMut {
            codes: &mut codes[parts.codes],
            scales: items_mut(&mut scales[..parts.scales.len()]),
            mins: items_mut(&mut mins[..parts.mins.len()]),
        }
    }

    /// Some elements of a packed panel of columns that has `k` of them.
    pub(super) fn columns<'p>(&self, panel: &'p [u8], k: usize, block: Range<usize>) -> Columns<'p> {
        let parts = self.column_parts(k);
        let (mut scales, mut groups) = (0..0, 0..0);
        if let Some(Groups { group, run, .. }) = self.groups {
            scales = block.start / run * self.cols..block.end / run * self.cols;
            groups = block.start / group * self.cols..block.end / group * self.cols;
        }
        let per_group = |part: Range<usize>| if part.is_empty() { 0..0 } else { groups.clone() };
        let codes = block.start * self.cols * self.code..block.end * self.cols * self.code;
        Columns {
            codes: &panel[parts.codes][codes],
            scales: &items(&panel[parts.scales])[scales],
            sums: &items(&panel[parts.sums.clone()])[per_group(parts.sums)],
            corrections: &items(&panel[parts.corrections.clone()])[per_group(parts.corrections)],
        }
    }

    /// A panel of columns to be packed, with `k` elements per column.
    pub(super) fn columns_mut<'p>(&self, panel: &'p mut [u8], k: usize) -> ColumnsMut<'p> {
        let parts = self.column_parts(k);
        let (codes, rest) = panel.split_at_mut(parts.scales.start);
        let (scales, rest) = rest.split_at_mut(parts.sums.start - parts.scales.start);
        let (sums, corrections) = rest.split_at_mut(parts.corrections.start - parts.sums.start);
        ColumnsMut {
            codes: &mut codes[parts.codes],
            scales: items_mut(&mut scales[..parts.scales.len()]),
            sums: items_mut(&mut sums[..parts.sums.len()]),
            corrections: items_mut(&mut corrections[..parts.corrections.len()]),
        }
    }
}
