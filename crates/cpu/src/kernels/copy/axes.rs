//! Where the units of a tensor lie, and a cursor that walks them.
//!
//! A unit is a plain element or a whole block: what is never taken apart. Dimensions that follow each other without a
//! gap are one axis here, so a packed tensor is a single run whatever its shape.
//!
//! Invariant: a walk visits units in the order of the axes, which is logical order for [`Axes::of`]. Offsets may only be
//! used through views, which check them.

use oxcart_tensor::Layout;

use crate::view::{In, OutBytes};

const DIMS: usize = 4;

/// Steps along one dimension, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    pub(super) extent: usize,
    /// Bytes per step.
    pub(super) stride: usize,
}

/// A tensor as nested steps over units, the innermost first. There is always a first axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axes {
    /// Bytes of a unit.
    pub(super) unit: usize,
    axes: [Axis; DIMS],
    len: usize,
}

/// The four axes of a layout as they are.
fn raw(layout: &Layout) -> [Axis; DIMS] {
    let (mut ne, nb) = (layout.ne().extents(), layout.nb());
    ne[0] /= layout.dtype().block_len();
    std::array::from_fn(|i| Axis { extent: ne[i], stride: nb[i] })
}

impl Axes {
    /// Axes of a layout in logical order, merged where they can be.
    pub(super) fn of(layout: &Layout) -> Axes {
        let mut axes = Axes::new(layout);
        for axis in raw(layout) {
            if axes.merges(axis) {
                axes.merge(axis);
            } else {
                axes.push(axis);
            }
        }
        axes
    }

    /// Axes of two layouts with the same extents, in one order for both: that in which the second lies in memory, merged
    /// where both can be. Unit `n` of one walk is then still unit `n` of the other.
    pub(super) fn of_pair(from: &Layout, to: &Layout) -> Option<(Axes, Axes)> {
        let (from_axes, to_axes) = (raw(from), raw(to));
        let same = (0..DIMS).all(|i| from_axes[i].extent == to_axes[i].extent);
        if !same || from.dtype().block_len() != to.dtype().block_len() {
            return None;
        }
        let mut order: [usize; DIMS] = std::array::from_fn(|i| i);
        order.sort_by_key(|&i| (to_axes[i].stride, i));
        let (mut a, mut b) = (Axes::new(from), Axes::new(to));
        for i in order {
            if a.merges(from_axes[i]) && b.merges(to_axes[i]) {
                a.merge(from_axes[i]);
                b.merge(to_axes[i]);
            } else {
                a.push(from_axes[i]);
                b.push(to_axes[i]);
            }
        }
        Some((a, b))
    }

    fn new(layout: &Layout) -> Axes {
        let unit = layout.dtype().block_bytes();
        Axes { unit, axes: [Axis { extent: 1, stride: unit }; DIMS], len: 1 }
    }

    /// Whether stepping past the end of the last axis is a step along `axis`; always true where there is no step.
    fn merges(&self, axis: Axis) -> bool {
        let last = self.axes[self.len - 1];
        axis.extent == 1 || last.extent == 1 || axis.stride == last.extent.wrapping_mul(last.stride)
    }

    fn merge(&mut self, axis: Axis) {
        let last = &mut self.axes[self.len - 1];
        match (last.extent, axis.extent) {
            (_, 1) => {}
            (1, _) => *last = axis,
            _ => last.extent *= axis.extent,
        }
    }

    fn push(&mut self, axis: Axis) {
        self.axes[self.len] = axis;
        self.len += 1;
    }

    /// The axes, innermost first.
    pub(super) fn axes(&self) -> &[Axis] {
        &self.axes[..self.len]
    }

    /// Whether units along the innermost axis are adjacent.
    pub(super) fn is_dense(&self) -> bool {
        self.axes[0].extent == 1 || self.axes[0].stride == self.unit
    }

    /// Bytes from the first unit to unit `at`.
    pub(super) fn offset(&self, at: [usize; DIMS]) -> usize {
        self.axes().iter().zip(at).map(|(axis, i)| axis.stride * i).sum()
    }
}

/// A place in a walk over all units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    axes: Axes,
    at: [usize; DIMS],
    pub(super) offset: usize,
}

impl Cursor {
    /// Unit number `start` of a walk over axes that are not empty.
    pub(super) fn new(axes: Axes, start: usize) -> Cursor {
        let (mut at, mut rest) = ([0; DIMS], start);
        for (at, axis) in at.iter_mut().zip(axes.axes()) {
            *at = rest % axis.extent;
            rest /= axis.extent;
        }
        Cursor { axes, at, offset: axes.offset(at) }
    }

    /// Units from here to the end of the innermost axis.
    #[inline(always)]
    pub(super) fn run(&self) -> usize {
        self.axes.axes[0].extent - self.at[0]
    }

    /// Bytes per step along the innermost axis.
    #[inline(always)]
    pub(super) fn stride(&self) -> usize {
        self.axes.axes[0].stride
    }

    #[inline(always)]
    pub(super) fn is_dense(&self) -> bool {
        self.axes.is_dense()
    }

    /// Goes on by units of the current run.
    #[inline(always)]
    pub(super) fn advance(&mut self, units: usize) {
        debug_assert!(units <= self.run());
        self.at[0] += units;
        self.offset += units * self.stride();
        if self.at[0] == self.axes.axes[0].extent {
            self.carry();
        }
    }

    /// To the start of the next run; past the last one the place means nothing and is not used.
    fn carry(&mut self) {
        for i in 0..self.axes.len - 1 {
            if self.at[i] < self.axes.axes[i].extent {
                break;
            }
            self.at[i] = 0;
            self.at[i + 1] += 1;
        }
        self.offset = self.axes.offset(self.at);
    }

    /// Copies the next units out, one after another.
    #[inline(always)]
    pub(super) fn gather(&mut self, from: &In<'_, u8>, mut to: &mut [u8]) {
        let unit = self.axes.unit;
        while !to.is_empty() {
            let count = self.run().min(to.len() / unit);
            let (part, rest) = to.split_at_mut(count * unit);
            if self.is_dense() {
                from.read(self.offset, part);
            } else {
                gather_run(unit, from, self.offset, self.stride(), part);
            }
            self.advance(count);
            to = rest;
        }
    }

    /// Writes the next units.
    #[inline(always)]
    pub(super) fn scatter(&mut self, mut from: &[u8], to: &mut OutBytes<'_>) {
        let unit = self.axes.unit;
        while !from.is_empty() {
            let count = self.run().min(from.len() / unit);
            let (part, rest) = from.split_at(count * unit);
            if self.is_dense() {
                to.write(self.offset, part);
            } else {
                scatter_run(unit, part, self.offset, self.stride(), to);
            }
            self.advance(count);
            from = rest;
        }
    }
}

#[inline(always)]
fn gather_run(unit: usize, from: &In<'_, u8>, offset: usize, stride: usize, to: &mut [u8]) {
    match unit {
        1 => gather_cells::<1>(from, offset, stride, to),
        2 => gather_cells::<2>(from, offset, stride, to),
        4 => gather_cells::<4>(from, offset, stride, to),
        8 => gather_cells::<8>(from, offset, stride, to),
        _ => to.chunks_exact_mut(unit).enumerate().for_each(|(i, to)| from.read(offset + i * stride, to)),
    }
}

#[inline(always)]
fn gather_cells<const N: usize>(from: &In<'_, u8>, offset: usize, stride: usize, to: &mut [u8]) {
    for (i, to) in to.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        *to = from.load(offset + i * stride);
    }
}

#[inline(always)]
fn scatter_run(unit: usize, from: &[u8], offset: usize, stride: usize, to: &mut OutBytes<'_>) {
    match unit {
        1 => scatter_cells::<1>(from, offset, stride, to),
        2 => scatter_cells::<2>(from, offset, stride, to),
        4 => scatter_cells::<4>(from, offset, stride, to),
        8 => scatter_cells::<8>(from, offset, stride, to),
        _ => from.chunks_exact(unit).enumerate().for_each(|(i, from)| to.write(offset + i * stride, from)),
    }
}

#[inline(always)]
fn scatter_cells<const N: usize>(from: &[u8], offset: usize, stride: usize, to: &mut OutBytes<'_>) {
    for (i, from) in from.as_chunks::<N>().0.iter().enumerate() {
        to.store(offset + i * stride, *from);
    }
}

#[cfg(test)]
mod tests {
    use oxcart_tensor::DType;

    use super::*;

    fn extents(axes: &Axes) -> Vec<usize> {
        axes.axes().iter().map(|axis| axis.extent).collect()
    }

    #[test]
    fn packed_tensors_are_one_run() {
        let plain = Layout::packed(DType::F16, [3, 4, 5, 6]).unwrap();
        assert_eq!(extents(&Axes::of(&plain)), [360]);
        let blocks = Layout::packed(DType::Q4_0, [64, 4, 5, 6]).unwrap();
        assert_eq!(extents(&Axes::of(&blocks)), [240]);
        assert_eq!(Axes::of(&blocks).unit, 18);
    }

    #[test]
    fn gaps_and_permutations_keep_axes_apart() {
        let padded = Layout::strided(DType::F32, [3, 4, 5, 1], [4, 20, 80, 999]).unwrap();
        assert_eq!(extents(&Axes::of(&padded)), [3, 20]);
        let transposed = Layout::packed(DType::F32, [3, 4, 5, 6]).unwrap().transposed().unwrap();
        assert_eq!(extents(&Axes::of(&transposed)), [4, 3, 30]);
    }

    #[test]
    fn a_pair_lies_in_the_order_of_the_second() {
        let packed = Layout::packed(DType::F32, [3, 4, 5, 6]).unwrap();
        let turned = packed.permuted([1, 0, 2, 3]).unwrap();
        let (from, to) = Axes::of_pair(&turned, &turned).unwrap();
        assert_eq!((extents(&from), extents(&to)), (vec![360], vec![360]));
        let square = Layout::packed(DType::F32, [4, 3, 5, 6]).unwrap();
        let (from, to) = Axes::of_pair(&square, &turned).unwrap();
        assert_eq!((extents(&from), extents(&to)), (vec![3, 4, 30], vec![3, 4, 30]));
        assert!(to.is_dense() && !from.is_dense());
        assert_eq!(Axes::of_pair(&packed, &turned), None);
    }

    #[test]
    fn a_cursor_visits_units_in_logical_order() {
        let layout = Layout::packed(DType::F32, [3, 4, 2, 2]).unwrap().permuted([2, 0, 3, 1]).unwrap();
        let (ne, nb) = (layout.ne().extents(), layout.nb());
        let mut expected = Vec::new();
        for i3 in 0..ne[3] {
            for i2 in 0..ne[2] {
                for i1 in 0..ne[1] {
                    for i0 in 0..ne[0] {
                        expected.push(i0 * nb[0] + i1 * nb[1] + i2 * nb[2] + i3 * nb[3]);
                    }
                }
            }
        }
        for start in 0..expected.len() {
            let mut cursor = Cursor::new(Axes::of(&layout), start);
            for &offset in &expected[start..] {
                assert_eq!(cursor.offset, offset);
                cursor.advance(1);
            }
        }
    }
}
