//! Transpositions in square tiles, so that both sides stay in the cache.
//!
//! A tile is read along the axis on which the source is dense, turned on the stack, and handed on as lines along the axis
//! on which the target is dense.

use super::axes::{Axes, Axis};
use crate::job::Stop;
use crate::view::{In, Share};

/// Rows and columns of a tile: lines of a few cache lines, tiles that fit the first cache.
pub(super) const TILE: usize = 32;

/// One axis in the target and in the source.
#[derive(Clone, Copy, Debug)]
struct Both {
    to: Axis,
    from: Axis,
}

/// A transposition: the target is dense along the innermost axis, the source along another one.
#[derive(Debug)]
pub(super) struct Tiles {
    unit: usize,
    /// Dense in the target.
    along: Both,
    /// Dense in the source.
    across: Both,
    /// All others.
    outer: [Both; 2],
}

impl Tiles {
    /// The tiles between axes of the same extents; `None` if this is no transposition of plain elements.
    pub(super) fn of(from: &Axes, to: &Axes) -> Option<Tiles> {
        let unit = from.unit;
        let same = from.axes().len() == to.axes().len()
            && from.axes().iter().zip(to.axes()).all(|(a, b)| a.extent == b.extent);
        if !same || !matches!(unit, 1 | 2 | 4 | 8) || !to.is_dense() || from.is_dense() {
            return None;
        }
        let across = from.axes().iter().position(|axis| axis.stride == unit)?;
        let both = |i: usize| Both { to: to.axes()[i], from: from.axes()[i] };
        let once = Axis { extent: 1, stride: 0 };
        let mut outer = [Both { to: once, from: once }; 2];
        let others = (1..to.axes().len()).filter(|&i| i != across);
        others.zip(&mut outer).for_each(|(i, outer)| *outer = both(i));
        Some(Tiles { unit, along: both(0), across: both(across), outer })
    }

    /// Hands on the lines of this thread's tiles: the byte of the target where it starts, and its units, at most
    /// [`TILE`], as bytes aligned for elements. Each unit of the source is in one line of one thread.
    #[inline(always)]
    pub(super) fn each_line(
        &self,
        source: &In<'_, u8>,
        share: Share,
        stop: Stop<'_>,
        line: impl FnMut(usize, &[u8]),
    ) {
        match self.unit {
            1 => self.each_line_of::<1>(source, share, stop, line),
            2 => self.each_line_of::<2>(source, share, stop, line),
            4 => self.each_line_of::<4>(source, share, stop, line),
            _ => self.each_line_of::<8>(source, share, stop, line),
        }
    }

    #[inline(always)]
    fn each_line_of<const N: usize>(
        &self,
        source: &In<'_, u8>,
        share: Share,
        stop: Stop<'_>,
        mut hand_on: impl FnMut(usize, &[u8]),
    ) {
        let [first, second] = self.outer.map(|both| both.to.extent);
        let (wide, high) = (self.along.to.extent.div_ceil(TILE), self.across.to.extent.div_ceil(TILE));
        let mut cells = Tile([[[0; N]; TILE]; TILE]);
        for tile in share.of(wide * high * first * second) {
            let (x, rest) = (tile % wide * TILE, tile / wide);
            let (y, rest) = (rest % high * TILE, rest / high);
            let (i, j) = (rest % first, rest / first);
            let offset = |side: fn(&Both) -> Axis| {
                side(&self.along).stride * x
                    + side(&self.across).stride * y
                    + side(&self.outer[0]).stride * i
                    + side(&self.outer[1]).stride * j
            };
            let columns = (self.along.to.extent - x).min(TILE);
            let rows = (self.across.to.extent - y).min(TILE);
            if stop.after(rows * columns) {
                return;
            }
            let at = offset(|both| both.from);
            for (column, cells) in cells.0[..columns].iter_mut().enumerate() {
                let at = at + column * self.along.from.stride;
                source.read(at, cells[..rows].as_flattened_mut());
            }
            let place = offset(|both| both.to);
            for row in 0..rows {
                let line = Tile(cells.0.each_ref().map(|column| column[row]));
                hand_on(place + row * self.across.to.stride, line.0[..columns].as_flattened());
            }
        }
    }
}

/// Bytes on the stack, aligned for any element.
#[repr(C, align(64))]
struct Tile<T>(T);
