//! How tiles lie in scratch memory: a panel of weights is a few rows side by side, a panel of columns a few rows of
//! activations side by side, both in the order in which a micro-kernel reads them.
//!
//! Codes of a panel come in steps of `step` consecutive elements: step 0 of every row, then step 1 of every row, and so
//! on. With the codes go `f32` scales, one per group and row of weights and one per run and column;
//! they lie row by row (column by column) within a group (run) as well.
//!
//! Invariant: the parts of a panel start at multiples of 64 bytes and do not meet. A block of `k` elements of a panel of
//! columns is a contiguous piece of each of its parts.

use std::ops::Range;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// How panels of one weight type look on one instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    /// Rows in a panel of weights: a multiple of 16.
    pub(super) rows: usize,
    /// Columns in a panel of activations; the most that micro-kernels take, until [`Format::narrowed`].
    pub(super) cols: usize,
    /// Bytes of a code.
    pub(super) code: usize,
    /// Consecutive elements of one row that lie together.
    pub(super) step: usize,
    /// Steps whose products can be added up in 16 bits.
    pub(super) reach: usize,
    /// Elements that share a scale of the weights.
    pub(super) group: usize,
    /// Elements that share a scale of the activations; a multiple of `group`.
    pub(super) run: usize,
    /// Whether groups of weights have a minimum.
    pub(super) mins: bool,
    /// What was added to the codes of the weights; if it is not zero, a sum of codes per group of activations is needed to
    /// correct products.
    pub(super) offset: i32,
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
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only some processors add up in 16 bits"))]
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights<'p> {
    pub(super) codes: &'p [u8],
    /// By group and row.
    pub(super) scales: &'p [f32],
    /// By group and row; empty if there are none.
    pub(super) mins: &'p [f32],
    /// See [`Format::reach`].
    pub(super) reach: usize,
}

/// Some rows of weights, being packed.
#[derive(Debug)]
pub(super) struct WeightsMut<'p> {
    pub(super) codes: &'p mut [u8],
    pub(super) scales: &'p mut [f32],
    pub(super) mins: &'p mut [f32],
}

/// Some columns, packed.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only some processors need corrections"))]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Columns<'p> {
    /// How many.
    pub(super) cols: usize,
    pub(super) codes: &'p [u8],
    /// By run and column.
    pub(super) scales: &'p [f32],
    /// By group and column: the sum of the values; empty if weights have no minimums.
    pub(super) sums: &'p [f32],
    /// By group and column: the sum of the codes times what corrects for the offset of the weights; empty if they have none.
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
    /// The same with fewer columns in a panel.
    pub(super) fn narrowed(self, cols: usize) -> Format {
        assert!(cols <= self.cols);
        Format { cols, ..self }
    }

    fn weight_parts(&self, k: usize) -> WeightParts {
        let mut placer = Placer(0);
        let codes = placer.place(k * self.rows * self.code);
        let scales = placer.place(k / self.group * self.rows * 4);
        let mins = placer.place(if self.mins { k / self.group * self.rows * 4 } else { 0 });
        WeightParts { codes, scales, mins, end: placer.0 }
    }

    fn column_parts(&self, k: usize) -> ColumnParts {
        let numbers = |wanted: bool, len: usize| if wanted { k / len * self.cols * 4 } else { 0 };
        let mut placer = Placer(0);
        let codes = placer.place(k * self.cols * self.code);
        let scales = placer.place(numbers(true, self.run));
        let sums = placer.place(numbers(self.mins, self.group));
        let corrections = placer.place(numbers(self.offset != 0, self.group));
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
            reach: self.reach,
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
        let codes = block.start * self.cols * self.code..block.end * self.cols * self.code;
        let scales = block.start / self.run * self.cols..block.end / self.run * self.cols;
        let groups = block.start / self.group * self.cols..block.end / self.group * self.cols;
        let per_group = |part: &Range<usize>| if part.is_empty() { 0..0 } else { groups.clone() };
        let (of_sums, of_corrections) = (per_group(&parts.sums), per_group(&parts.corrections));
        Columns {
            cols: self.cols,
            codes: &panel[parts.codes][codes],
            scales: &items(&panel[parts.scales])[scales],
            sums: &items(&panel[parts.sums])[of_sums],
            corrections: &items(&panel[parts.corrections])[of_corrections],
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
