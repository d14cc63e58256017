//! Copies within a type: bytes move, nothing is converted.
//!
//! Between tensors of the same extents the order of copying is free, so it follows the target's memory; a source that
//! lies the other way is copied in square tiles, which keeps both sides in the cache. Between different extents unit
//! `n` in logical order goes to unit `n`; quantized blocks are units, so shapes that cut rows differently cost nothing.

use std::ops::Range;

use oxcart_tensor::Layout;

use super::axes::{Axes, Cursor};
use super::tiles::Tiles;
use crate::job::{Fault, Job, Stop};
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
    move_units((src.layout(), src.bytes()), (job.dst.layout(), 0, &mut to), job.share, job.stop);
    Ok(())
}

/// Copies this thread's share of the units of `from` to those of `to`, a layout that begins at a byte of the target.
pub(in super::super) fn move_units(
    (from, source): (&Layout, In<'_, u8>),
    (to, start, target): (&Layout, usize, &mut OutBytes<'_>),
    share: Share,
    stop: Stop<'_>,
) {
    let units = from.elements() / from.dtype().block_len();
    if units == 0 {
        return;
    }
    let block = from.dtype().block_len();
    let (from, to) = Axes::of_pair(from, to).unwrap_or_else(|| (Axes::of(from), Axes::of(to)));
    match Tiles::of(&from, &to) {
        Some(tiles) => tiles.each_line(&source, share, stop, |place, line| target.write(start + place, line)),
        None => {
            // Threads meet at whole cache lines, if the target starts at one.
            let chunks = share.of(units.div_ceil(GRAIN));
            let units = chunks.start * GRAIN..(chunks.end * GRAIN).min(units);
            move_runs((from, to), (&source, start), target, units, (stop, block));
        }
    }
}

/// Units that go to the same thread.
const GRAIN: usize = 64;

/// Units that are copied between two looks.
const RUN: usize = 1 << 14;

/// Copies runs that are one on both sides; a unit has `block` elements.
fn move_runs(
    (from, to): (Axes, Axes),
    (source, start): (&In<'_, u8>, usize),
    target: &mut OutBytes<'_>,
    units: Range<usize>,
    (stop, block): (Stop<'_>, usize),
) {
    if units.is_empty() {
        return;
    }
    let unit = from.unit;
    let (mut read, mut write) = (Cursor::new(from, units.start), Cursor::new(to, units.start));
    let dense = from.is_dense() && to.is_dense();
    let mut left = units.len();
    while left > 0 {
        let count = left.min(read.run()).min(write.run()).min(RUN);
        if stop.after(count * block) {
            return;
        }
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
