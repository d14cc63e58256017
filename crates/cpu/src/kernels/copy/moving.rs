//! Copies within a type: bytes move, nothing is converted.
//!
//! Between tensors of the same extents the order of copying is free, so it follows the target's memory; a source that
//! lies the other way is copied in square tiles, which keeps both sides in the cache. Between different extents unit
//! `n` in logical order goes to unit `n`; quantized blocks are units, so shapes that cut rows differently cost nothing.

use std::ops::Range;

use oxcart_tensor::Layout;

use super::axes::{Axes, Axis, Cursor};
use crate::job::{Fault, Job};
use crate::view::{In, OutBytes, Share};

/// Copies source 0 to the result, which has the same type and number of elements.
pub(super) fn run(job: Job<'_>) -> Result<(), Fault> {
    let src = job.src(0);
    // A tensor copied onto itself.
    if src.is_aliased() {
        return Ok(());
    }
    // SAFETY: threads write units of their own share.
    let mut to = unsafe { job.dst.bytes() };
    move_units((src.layout(), src.bytes()), (job.dst.layout(), 0, &mut to), job.share);
    Ok(())
}

/// Copies this thread's share of the units of `from` to those of `to`, a layout that begins at a byte of the target.
pub(in super::super) fn move_units(
    (from, source): (&Layout, In<'_, u8>),
    (to, start, target): (&Layout, usize, &mut OutBytes<'_>),
    share: Share,
) {
    let units = from.elements() / from.dtype().block_len();
    if units == 0 {
        return;
    }
    let (from, to) = Axes::of_pair(from, to).unwrap_or_else(|| (Axes::of(from), Axes::of(to)));
    match Tiles::of(&from, &to) {
        Some(tiles) => tiles.run(&source, start, target, share),
        None => {
            // Threads meet at whole cache lines, if the target starts at one.
            let chunks = share.of(units.div_ceil(GRAIN));
            let units = chunks.start * GRAIN..(chunks.end * GRAIN).min(units);
            move_runs(from, to, &source, start, target, units);
        }
    }
}

/// Units that go to the same thread.
const GRAIN: usize = 64;

/// Copies runs that are one on both sides.
fn move_runs(
    from: Axes,
    to: Axes,
    source: &In<'_, u8>,
    start: usize,
    target: &mut OutBytes<'_>,
    units: Range<usize>,
) {
    if units.is_empty() {
        return;
    }
    let unit = from.unit;
    let (mut read, mut write) = (Cursor::new(from, units.start), Cursor::new(to, units.start));
    let dense = from.is_dense() && to.is_dense();
    let mut left = units.len();
    while left > 0 {
        let count = left.min(read.run()).min(write.run());
        let (at, place) = (read.offset, start + write.offset);
        if dense {
            target.write(place, source.part(at..at + count * unit).slice());
        } else {
            let (step, pace) = (read.stride(), write.stride());
            match unit {
                1 => move_cells::<1>(source, at, step, target, place, pace, count),
                2 => move_cells::<2>(source, at, step, target, place, pace, count),
                4 => move_cells::<4>(source, at, step, target, place, pace, count),
                8 => move_cells::<8>(source, at, step, target, place, pace, count),
                _ => (0..count).for_each(|i| {
                    let at = at + i * step;
                    target.write(place + i * pace, source.part(at..at + unit).slice());
                }),
            }
        }
        read.advance(count);
        write.advance(count);
        left -= count;
    }
}

fn move_cells<const N: usize>(
    source: &In<'_, u8>,
    at: usize,
    step: usize,
    target: &mut OutBytes<'_>,
    place: usize,
    pace: usize,
    count: usize,
) {
    for i in 0..count {
        target.store::<N>(place + i * pace, source.load::<N>(at + i * step));
    }
}

/// Rows and columns of a tile: a line of one is a cache line or two of 4-byte units.
const TILE: usize = 32;

/// A transposition: the target is dense along the innermost axis, the source along another one.
#[derive(Debug)]
struct Tiles {
    unit: usize,
    /// Dense in the target: its axis there and in the source.
    along: (Axis, Axis),
    /// Dense in the source.
    across: (Axis, Axis),
    /// All others.
    outer: [(Axis, Axis); 2],
}

impl Tiles {
    fn of(from: &Axes, to: &Axes) -> Option<Tiles> {
        let unit = from.unit;
        let same = from.axes().len() == to.axes().len()
            && from.axes().iter().zip(to.axes()).all(|(a, b)| a.extent == b.extent);
        if !same || !matches!(unit, 1 | 2 | 4 | 8) || !to.is_dense() || from.is_dense() {
            return None;
        }
        let across = from.axes().iter().position(|axis| axis.stride == unit)?;
        let pair = |i: usize| (to.axes()[i], from.axes()[i]);
        let once = Axis { extent: 1, stride: 0 };
        let mut outer = [(once, once); 2];
        let others = (1..to.axes().len()).filter(|&i| i != across);
        others.zip(&mut outer).for_each(|(i, outer)| *outer = pair(i));
        Some(Tiles { unit, along: pair(0), across: pair(across), outer })
    }

    fn run(&self, source: &In<'_, u8>, start: usize, target: &mut OutBytes<'_>, share: Share) {
        match self.unit {
            1 => self.run_cells::<1>(source, start, target, share),
            2 => self.run_cells::<2>(source, start, target, share),
            4 => self.run_cells::<4>(source, start, target, share),
            _ => self.run_cells::<8>(source, start, target, share),
        }
    }

    fn run_cells<const N: usize>(
        &self,
        source: &In<'_, u8>,
        start: usize,
        target: &mut OutBytes<'_>,
        share: Share,
    ) {
        let tiles = |axis: Axis| axis.extent.div_ceil(TILE);
        let (wide, high) = (tiles(self.along.0), tiles(self.across.0));
        let [first, second] = self.outer.map(|(axis, _)| axis.extent);
        for tile in share.of(wide * high * first * second) {
            // Along the target first, so that one thread writes whole lines of it.
            let (x, rest) = (tile % wide * TILE, tile / wide);
            let (y, rest) = (rest % high * TILE, rest / high);
            let (i, j) = (rest % first, rest / first);
            let offset = |side: fn(&(Axis, Axis)) -> Axis| {
                side(&self.along).stride * x
                    + side(&self.across).stride * y
                    + side(&self.outer[0]).stride * i
                    + side(&self.outer[1]).stride * j
            };
            let columns = (self.along.0.extent - x).min(TILE);
            let rows = (self.across.0.extent - y).min(TILE);
            let mut cells = [[[0; N]; TILE]; TILE];
            let at = offset(|pair| pair.1);
            for (column, line) in cells[..columns].iter_mut().enumerate() {
                let at = at + column * self.along.1.stride;
                source.read(at, line[..rows].as_flattened_mut());
            }
            let place = start + offset(|pair| pair.0);
            for row in 0..rows {
                let line: [[u8; N]; TILE] = std::array::from_fn(|column| cells[column][row]);
                target.write(place + row * self.across.0.stride, line[..columns].as_flattened());
            }
        }
    }
}
