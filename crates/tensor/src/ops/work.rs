//! How much work a node is: extents that it follows from, and formulas that several ops have in common.
//!
//! A unit is a multiplication, or an element that is looked at once. What an op says is within a factor of two of what the CPU
//! device's kernels count, unless tensor data lets them do less; `crates/cpu/tests/work.rs` compares them.
//!
//! Invariant: no number overflows; what is too large to be counted is the largest number there is.

use crate::layout::Layout;
use crate::limits::DIMS;

/// Extents of a node's result and of its sources.
#[derive(Clone, Debug)]
pub struct Sizes {
    result: [u64; DIMS],
    sources: Vec<Option<[u64; DIMS]>>,
}

/// A product that may be too large.
pub(super) fn times(factors: impl IntoIterator<Item = u64>) -> u64 {
    factors.into_iter().fold(1, u64::saturating_mul)
}

/// A sum that may be too large.
pub(super) fn sum(terms: impl IntoIterator<Item = u64>) -> u64 {
    terms.into_iter().fold(0, u64::saturating_add)
}

/// How often sorting so many numbers looks at each of them: long rows are sorted by their digits.
pub(super) fn rounds(len: u64) -> u64 {
    u64::from(len.max(2).ilog2()).min(10)
}

/// From this length on a row is sorted whole, however few of its largest numbers are wanted.
pub(super) const LONG_ROW: u64 = 1 << 20;

/// How windows move over a line: tap `t` of the window at position `p` is at element `p * stride + t * dilation - pad`.
#[derive(Clone, Copy, Debug)]
pub(super) struct LineGeometry {
    /// Elements of the line.
    pub(super) len: u64,
    /// Taps of a window.
    pub(super) kernel: u64,
    pub(super) positions: u64,
    pub(super) stride: u32,
    pub(super) dilation: u32,
    pub(super) pad: u32,
}

impl LineGeometry {
    /// Positions or taps that are counted one by one.
    const FEW: u64 = 256;

    /// Pairs of a tap and an element under it: exactly, or where there are many of both as many as there can be.
    pub(super) fn pairs(self) -> u64 {
        let LineGeometry { len, kernel, positions, stride, dilation, .. } = self;
        if kernel <= LineGeometry::FEW {
            return self.counted([kernel, positions], [dilation, stride]);
        }
        if positions <= LineGeometry::FEW {
            return self.counted([positions, kernel], [stride, dilation]);
        }
        // A window has no more than its taps or the elements; a tap and an element meet at one position, if at any.
        let [stride, dilation] = [stride, dilation].map(|n| u64::from(n).max(1));
        let every = stride / greatest_common_divisor(stride, dilation);
        let by_window = times([positions, kernel.min(len.div_ceil(dilation))]);
        by_window.min(times([len, kernel.div_ceil(every)]))
    }

    /// The pairs, the few being gone through one by one.
    fn counted(self, [few, many]: [u64; 2], [step, stride]: [u32; 2]) -> u64 {
        let (stride, many) = (i128::from(stride).max(1), i128::from(many));
        let up = |n: i128| -(-n).div_euclid(stride);
        sum((0..few).map(|i| {
            let first = i128::from(self.pad) - i128::from(i) * i128::from(step);
            let from = up(first).clamp(0, many);
            let to = up(first + i128::from(self.len)).clamp(from, many);
            u64::try_from(to - from).unwrap_or(u64::MAX)
        }))
    }
}

const fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

impl Sizes {
    pub(crate) fn new<'l>(result: &Layout, sources: impl Iterator<Item = Option<&'l Layout>>) -> Sizes {
        let extents = |layout: &Layout| layout.ne().extents().map(|n| n as u64);
        Sizes { result: extents(result), sources: sources.map(|source| source.map(extents)).collect() }
    }

    /// Elements of the result.
    pub(super) fn result(&self) -> u64 {
        times(self.result)
    }

    /// Extents of the result.
    pub(super) const fn result_ne(&self) -> [u64; DIMS] {
        self.result
    }

    /// Extents of a source; none where it is absent.
    pub(super) fn ne(&self, slot: usize) -> [u64; DIMS] {
        self.sources.get(slot).copied().flatten().unwrap_or_default()
    }

    /// Whether a source is there.
    pub(super) fn has(&self, slot: usize) -> bool {
        self.sources.get(slot).is_some_and(Option::is_some)
    }

    /// Elements of a source.
    pub(super) fn source(&self, slot: usize) -> u64 {
        times(self.ne(slot))
    }

    /// Rows of a source.
    pub(super) fn rows(&self, slot: usize) -> u64 {
        let [_, rows @ ..] = self.ne(slot);
        times(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs, one by one.
    fn slowly(geometry: LineGeometry) -> u64 {
        let LineGeometry { len, kernel, positions, stride, dilation, pad } = geometry;
        let pairs = (0..positions).flat_map(|position| (0..kernel).map(move |tap| (position, tap)));
        let element = |(position, tap)| position * u64::from(stride) + tap * u64::from(dilation);
        pairs.map(element).filter(|&at| (u64::from(pad)..u64::from(pad) + len).contains(&at)).count() as u64
    }

    #[test]
    fn pairs_are_counted_exactly_where_few_and_never_too_low() {
        for len in [0, 1, 5, 17, 400] {
            for (kernel, positions) in [(1, 1), (3, 9), (20, 4), (300, 7), (2, 500), (300, 290)] {
                for (stride, dilation) in [(1, 1), (2, 1), (1, 3), (4, 6), (50, 1)] {
                    for pad in [0, 1, 7, 299, 5000] {
                        let geometry = LineGeometry { len, kernel, positions, stride, dilation, pad };
                        let (exact, found) = (slowly(geometry), geometry.pairs());
                        let is_few = kernel <= LineGeometry::FEW || positions <= LineGeometry::FEW;
                        assert!(found == exact || !is_few && found > exact, "{geometry:?}: {found}, {exact}");
                    }
                }
            }
        }
    }
}
