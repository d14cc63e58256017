//! Copies, with conversion between types.
//!
//! Element `n` of the source in logical order becomes element `n` of the result, whatever the shapes of the two.

mod axes;
mod element;
mod moving;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod threads;
mod tiles;

use half::{bf16, f16};
use oxcart_tensor::{DType, TensorRef};

use self::axes::{Axes, Cursor};
pub(super) use self::element::{Blocks, Decode, Encode, RUN, Raw, Values, after, stored_bytes};
pub(super) use self::moving::move_units;
use self::tiles::Tiles;
use crate::job::{self, Fault, Job, Kernel, PACKING, Run};
use crate::simd::{Level, Scalar, Simd, for_each_level};

/// The kernel for a copy.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    use DType::{BF16, F16, F32, I32};
    let (from, to) = (node.source(0)?.dtype(), node.dtype());
    let elements = node.layout().elements();
    if from == to {
        let bytes = elements / to.block_len() * to.block_bytes();
        return Some(Kernel::units(moving::run, usize::MAX, job::bytes_moved(bytes)));
    }
    let run = match (from, to) {
        (F32, F16) => numbers::<f32, f16>(level),
        (F32, BF16) => numbers::<f32, bf16>(level),
        (F16, F32) => numbers::<f16, f32>(level),
        (F16, BF16) => numbers::<f16, bf16>(level),
        (BF16, F32) => numbers::<bf16, f32>(level),
        (BF16, F16) => numbers::<bf16, f16>(level),
        (F32, I32) => numbers::<f32, i32>(level),
        (I32, F32) => numbers::<i32, f32>(level),
        (from, F32) if from.is_quantized() && from.decodes() => blocks::<Blocks, f32>,
        (F32, to) if to.is_quantized() && to.encodes_at_run_time() => blocks::<f32, Blocks>,
        (F16, to) if to.is_quantized() && to.encodes_at_run_time() => blocks::<f16, Blocks>,
        (BF16, to) if to.is_quantized() && to.encodes_at_run_time() => blocks::<bf16, Blocks>,
        _ => return None,
    };
    let cost = if to.is_quantized() { PACKING } else { 1 };
    Some(Kernel::units(run, usize::MAX, elements.saturating_mul(cost)))
}

fn numbers<D: Decode, E: Encode>(level: Level) -> Run {
    for_each_level!(convert[D: Decode, E: Encode]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

/// Rows of blocks are converted by functions of their own, which no token changes.
fn blocks<D: Decode, E: Encode>(job: Job<'_>) -> Result<(), Fault> {
    convert::<Scalar, D, E>(Scalar, job)
}

#[inline(always)]
fn convert<S: Simd, D: Decode, E: Encode>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (from, to) = (job.src(0).layout(), job.dst.layout());
    if from.is_empty() {
        return Ok(());
    }
    match Axes::of_pair(from, to) {
        // Element by element: the order is free.
        Some((from, to)) => match Tiles::of(&from, &to) {
            Some(tiles) => convert_tiles::<D, E>(&job, &tiles),
            None => convert_runs::<D, E>(&job, from, to),
        },
        None => convert_runs::<D, E>(&job, Axes::of(from), Axes::of(to)),
    }
}

#[inline(always)]
fn convert_tiles<D: Decode, E: Encode>(job: &Job<'_>, tiles: &Tiles) -> Result<(), Fault> {
    let (from, to) = (job.src(0).dtype(), job.dst.dtype());
    // SAFETY: threads write lines of their own tiles.
    let mut target = unsafe { job.dst.bytes() };
    let (mut values, mut packed) = (Values::new(), Raw::new());
    let mut done = Ok(());
    tiles.each_line(&job.src(0).bytes(), job.share, job.stop, |place, line| {
        let values = D::decode(from, line, &mut values.0[..line.len() / from.block_bytes()]);
        match E::encode(to, values, &mut packed) {
            Ok(packed) => target.write(place, packed),
            Err(fault) => done = Err(fault),
        }
    });
    done
}

#[inline(always)]
fn convert_runs<D: Decode, E: Encode>(job: &Job<'_>, from_axes: Axes, to_axes: Axes) -> Result<(), Fault> {
    let (src, dst) = (job.src(0), &job.dst);
    let (from, to) = (src.dtype(), dst.dtype());
    let elements = src.layout().elements();
    let runs = job.share.of(elements.div_ceil(RUN));
    if runs.is_empty() {
        return Ok(());
    }
    let first = runs.start * RUN;
    let mut read = Cursor::new(from_axes, first / from.block_len());
    let mut write = Cursor::new(to_axes, first / to.block_len());
    let source = src.bytes();
    // SAFETY: threads write elements of their own runs; runs are whole blocks.
    let mut target = unsafe { dst.bytes() };
    let (mut stored, mut values, mut packed) = (Raw::new(), Values::new(), Raw::new());
    for run in runs {
        let len = (elements - run * RUN).min(RUN);
        if job.stop.after(len) {
            break;
        }
        let (units, bytes) = (len / from.block_len(), stored_bytes(from, len));
        let raw = if read.is_dense() && read.run() >= units {
            let raw = source.part(read.offset..read.offset + bytes).slice();
            read.advance(units);
            raw
        } else {
            read.gather(&source, stored.bytes(bytes));
            stored.bytes(bytes)
        };
        let values = D::decode(from, raw, &mut values.0[..len]);
        let packed = E::encode(to, values, &mut packed).map_err(|fault| after(run * RUN, fault))?;
        write.scatter(packed, &mut target);
    }
    Ok(())
}
