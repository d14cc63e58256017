//! Direct convolutions over planes and volumes.
//!
//! A *panel* is the unfolded image at [`PANEL`] neighbouring positions, one line per tap, in scratch memory of the
//! thread. Positions are the lanes of vectors, so a tap of a filter is multiplied with many positions at once and no sum
//! crosses lanes; each sum runs over taps in order, whatever the vectors' length.

use std::ops::Range;

use half::f16;
use oxcart_tensor::{DType, Op, TensorRef};

use super::geometry::Volume;
use super::{Weight, multiply_adds, product};
use crate::job::{Fault, Job, Kernel, Run, Stop, as_floats};
use crate::simd::{Level, MAX_LANES, Simd, for_each_level};
use crate::view::Src;

/// Positions of a panel.
const PANEL: usize = 2 * MAX_LANES;

/// Filters whose sums are kept in registers side by side.
const FILTERS: usize = 4;

/// Filters that make a unit of work together with some panels; units of the same panels follow each other, so that a
/// thread rarely makes panels for fewer filters than there are.
const UNIT: usize = 8 * FILTERS;

/// Panels are made several at a time, so that weights are loaded for many positions: as many as fit here, because they
/// should stay in the cache of a core.
const PANELS_BYTES: usize = 512 * 1024;

/// Above so many taps filters are multiplied one by one, so that none takes long.
const MANY_TAPS: usize = 1 << 16;

/// The most taps: what all of them are multiplied with is done in one go.
const MOST_TAPS: usize = 1 << 18;

/// The most panels at a time.
const MAX_PANELS: usize = 8;

pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let (kernel, image) = (node.source(0)?, node.source(1)?);
    let (run, weights) = match kernel.dtype() {
        DType::F32 => (run::<f32>(level), 0),
        DType::F16 => (run::<f16>(level), FILTERS),
        _ => return None,
    };
    let sizes = Sizes::new(node.op(), kernel.ne().extents(), image.ne().extents(), node.ne().extents())?;
    let taps = sizes.volume.taps();
    let work = multiply_adds(product(&[taps, node.layout().elements()]));
    let own = product(&[taps, sizes.panels() * PANEL + weights, size_of::<f32>()]);
    (taps <= MOST_TAPS).then(|| Kernel::units(run, sizes.units(), work).own(own))
}

fn run<A: Weight>(level: Level) -> Run {
    for_each_level!(convolve[A: Weight]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    volume: Volume,
    filters: usize,
    batch: usize,
}

impl Sizes {
    fn new(op: &Op, kernel: [usize; 4], image: [usize; 4], result: [usize; 4]) -> Option<Sizes> {
        let [x, y, z, batch] = result;
        Some(match op {
            Op::Conv2d(op) => {
                Sizes { volume: Volume::plane(&op.geometry, kernel, image, [x, y]), filters: z, batch }
            }
            Op::Conv3d(op) => Sizes {
                volume: Volume::new(&op.geometry, kernel, image, [x, y, z], op.channels),
                filters: op.filters,
                batch: op.batch,
            },
            _ => return None,
        })
    }

    /// Positions in one image.
    fn positions(&self) -> usize {
        product(&self.volume.axes.map(|axis| axis.positions))
    }

    /// Panels that are made at a time.
    fn panels(&self) -> usize {
        let panel = product(&[self.volume.taps(), PANEL * size_of::<f32>()]);
        let fit = PANELS_BYTES.checked_div(panel).unwrap_or(1).clamp(1, MAX_PANELS);
        fit.min(self.positions().div_ceil(PANEL)).max(1)
    }

    fn units(&self) -> usize {
        let together = self.panels() * PANEL;
        product(&[self.positions().div_ceil(together), self.filters.div_ceil(UNIT), self.batch])
    }
}

#[inline(always)]
fn convolve<S: Simd, A: Weight>(s: S, job: Job<'_>) -> Result<(), Fault> {
    let (kernel, image) = (job.src(0), job.src(1));
    let sizes = Sizes::new(&job.op, kernel.ne(), image.ne(), job.dst.ne())
        .unwrap_or_else(|| unreachable!("the kernel of another op"));
    let Sizes { volume, filters, .. } = sizes;
    let (taps, positions) = (volume.taps(), sizes.positions());
    let together = sizes.panels() * PANEL;
    let (blocks, groups) = (positions.div_ceil(together), filters.div_ceil(UNIT));
    let weights = kernel.packed::<A>().slice();
    let stop = job.stop;
    let (panels, room) = as_floats(job.own).split_at_mut(taps * together);
    let mut in_panels = None;
    for unit in job.share.of(sizes.units()) {
        let (group, unit) = (unit % groups, unit / groups);
        let (block, batch) = (unit % blocks * together, unit / blocks);
        let firsts = (block..positions.min(block + together)).step_by(PANEL);
        if in_panels != Some(unit) {
            for (i, first) in firsts.clone().enumerate() {
                let panel = &mut panels[i * taps * PANEL..(i + 1) * taps * PANEL];
                let here = first..(first + PANEL).min(positions);
                if fill_panel(stop, &volume, &image, batch, here, panel) {
                    return Ok(());
                }
                A::round(panel);
            }
            in_panels = Some(unit);
        }
        let mut filter = group * UNIT;
        let end = (filter + UNIT).min(filters);
        while filter < end {
            let abreast = if end - filter < FILTERS || taps > MANY_TAPS { 1 } else { FILTERS };
            let weights = A::expand(s, &weights[filter * taps..(filter + abreast) * taps], room);
            for (i, first) in firsts.clone().enumerate() {
                let panel = &panels[i * taps * PANEL..(i + 1) * taps * PANEL];
                let mut sums = [[0f32; PANEL]; FILTERS];
                match abreast {
                    FILTERS => multiply::<S, FILTERS>(s, weights, panel, &mut sums),
                    _ => multiply::<S, 1>(s, weights, panel, &mut sums),
                }
                let len = PANEL.min(positions - first);
                if stop.after(taps * len * abreast) {
                    return Ok(());
                }
                for (i, sums) in sums[..abreast].iter().enumerate() {
                    let at = (batch * filters + filter + i) * positions + first;
                    // SAFETY: only these positions of this filter are touched; no other unit has them.
                    let y = unsafe { job.dst.packed::<f32>() };
                    y.part(at..at + len).write(0, &sums[..len]);
                }
            }
            filter += abreast;
        }
    }
    Ok(())
}

/// Sums of `F` filters at all positions of a panel.
#[inline(always)]
fn multiply<S: Simd, const F: usize>(
    s: S,
    weights: &[f32],
    panel: &[f32],
    sums: &mut [[f32; PANEL]; FILTERS],
) {
    let taps = weights.len() / F;
    let filters: [&[f32]; F] = std::array::from_fn(|f| &weights[f * taps..(f + 1) * taps]);
    let (lines, _) = panel[..taps * PANEL].as_chunks::<PANEL>();
    for at in (0..PANEL).step_by(2 * S::LANES) {
        let mut totals = [[s.splat(0.0); 2]; F];
        for (tap, line) in lines.iter().enumerate() {
            let low = s.load(&line[at..at + S::LANES]);
            let high = s.load(&line[at + S::LANES..at + 2 * S::LANES]);
            for (total, filter) in totals.iter_mut().zip(&filters) {
                let weight = s.splat(filter[tap]);
                *total = [s.mul_add(weight, low, total[0]), s.mul_add(weight, high, total[1])];
            }
        }
        for (sums, total) in sums.iter_mut().zip(totals) {
            s.store(total[0], &mut sums[at..at + S::LANES]);
            s.store(total[1], &mut sums[at + S::LANES..at + 2 * S::LANES]);
        }
    }
}

/// A stretch of positions of a panel that lie in one row.
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    /// Where it starts in the panel.
    start: usize,
    len: usize,
    /// Its first position.
    at: [usize; 3],
}

/// Unfolds the image at some positions; the rest of the panel is zero. Says whether to give up.
#[inline(always)]
fn fill_panel(
    stop: Stop<'_>,
    volume: &Volume,
    image: &Src<'_>,
    batch: usize,
    positions: Range<usize>,
    panel: &mut [f32],
) -> bool {
    let ([width, height, depth], first, len) = (&volume.axes, positions.start, positions.len());
    let (lines, _) = panel.as_chunks_mut::<PANEL>();
    let mut stretches = [Stretch::default(); PANEL];
    let (mut count, mut start) = (0, 0);
    while start < len {
        let position = first + start;
        let (x, row) = (position % width.positions, position / width.positions);
        let here = (width.positions - x).min(len - start);
        stretches[count] =
            Stretch { start, len: here, at: [x, row % height.positions, row / height.positions] };
        count += 1;
        start += here;
    }
    if len < PANEL {
        lines.iter_mut().for_each(|line| line[len..].fill(0.0));
    }
    let contiguous = image.layout().has_contiguous_rows();
    for line in 0..lines.len().checked_div(width.kernel).unwrap_or(0) {
        let (ky, rest) = (line % height.kernel, line / height.kernel);
        let (kz, channel) = (rest % depth.kernel, rest / depth.kernel);
        if stop.after(width.kernel * len) {
            return true;
        }
        for &Stretch { start, len, at: [x, y, z] } in &stretches[..count] {
            let lines = lines[line * width.kernel..(line + 1) * width.kernel].iter_mut();
            let lines = lines.map(|line| &mut line[start..start + len]);
            let (Some(y), Some(z)) = (height.pixel(y, ky), depth.pixel(z, kz)) else {
                lines.for_each(|line| line.fill(0.0));
                continue;
            };
            let at = volume.row(channel, z, y, batch);
            for (kx, line) in lines.enumerate() {
                let inside = width.positions_inside(kx);
                let from = inside.start.clamp(x, x + len) - x;
                let to = inside.end.clamp(x + from, x + len) - x;
                line[..from].fill(0.0);
                line[to..].fill(0.0);
                let Some(pixel) = width.pixel(x + from, kx) else { continue };
                let line = &mut line[from..to];
                match contiguous {
                    true if width.stride == 1 => {
                        let row = image.row::<f32>(at).slice();
                        line.copy_from_slice(&row[pixel..pixel + line.len()]);
                    }
                    true => {
                        let row = &image.row::<f32>(at).slice()[pixel..];
                        for (i, to) in line.iter_mut().enumerate() {
                            *to = row[i * width.stride];
                        }
                    }
                    false => {
                        let row = image.line::<f32>(at);
                        for (i, to) in line.iter_mut().enumerate() {
                            *to = row.get(pixel + i * width.stride);
                        }
                    }
                }
            }
        }
    }
    false
}
