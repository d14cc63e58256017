//! Images cut into windows and given relative positions; resampling is in [`resample`].

mod resample;

use half::f16;
use oxcart_tensor::ops::{GetRelPos, WinPart, WinUnpart};
use oxcart_tensor::{Op, TensorRef};

use super::chunk::{Chunk, chunks};
use crate::job::{Fault, Job, Kernel, Stop};
use crate::simd::{Level, Simd, for_each_level};
use crate::view::{In, Out, Plain};

/// The kernel for an op of this family.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    if node.layout().is_empty() {
        return Some(Kernel::NOTHING);
    }
    let run = match node.op() {
        Op::Upscale(op) => return resample::choose(node, *op, level),
        Op::WinPart(_) => for_each_level!(cut: fn(job: Job<'_>) -> Result<(), Fault>).at(level),
        Op::WinUnpart(_) => for_each_level!(join: fn(job: Job<'_>) -> Result<(), Fault>).at(level),
        Op::GetRelPos(_) => for_each_level!(get_positions: fn(job: Job<'_>) -> Result<(), Fault>).at(level),
        Op::AddRelPos(_) => for_each_level!(add_positions: fn(job: Job<'_>) -> Result<(), Fault>).at(level),
        _ => return None,
    };
    Some(Kernel::elementwise(run, node.layout()))
}

/// Copies a row; says whether to give up.
#[inline(always)]
fn copy<T: Plain>(stop: Stop<'_>, from: In<'_, T>, to: &mut Out<'_, T>) -> bool {
    for part in stop.stretches(from.len()) {
        to.write(part.start, from.part(part).slice());
    }
    stop.after(0)
}

/// Square windows of an image, row by row, zero where they stick out.
#[inline(always)]
fn cut<S: Simd>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let WinPart { window } = job.op();
    let (a, stop) = (job.src(0), job.stop);
    let [_, width, height, _] = a.ne();
    let across = width.div_ceil(window);
    for ([i1, i2, i3], mut row) in job.dst.rows::<f32>(job.share) {
        let (x, y) = (i3 % across * window + i1, i3 / across * window + i2);
        if x < width && y < height {
            copy::<f32>(stop, a.row([x, y, 0]), &mut row);
        } else {
            let row = row.slice();
            stop.stretches(row.len()).for_each(|part| row[part].fill(0.0));
        }
        if stop.after(0) {
            break;
        }
    }
    Ok(())
}

/// The image that windows were cut from.
#[inline(always)]
fn join<S: Simd>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let WinUnpart { width, window, .. } = job.op();
    let a = job.src(0);
    let across = width.div_ceil(window);
    for ([x, y, _], mut row) in job.dst.rows::<f32>(job.share) {
        let from = a.row::<f32>([x % window, y % window, y / window * across + x / window]);
        if copy(job.stop, from, &mut row) {
            break;
        }
    }
    Ok(())
}

/// `y[:, i, j] = a[:, (size - 1 - i) + j]`.
#[inline(always)]
fn get_positions<S: Simd>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let GetRelPos { size } = job.op();
    let a = job.src(0);
    for ([i, j, _], mut row) in job.dst.rows::<f16>(job.share) {
        if copy(job.stop, a.row::<f16>([size - 1 - i + j, 0, 0]), &mut row) {
            break;
        }
    }
    Ok(())
}

/// `y[h k + w, r] = a + ph[h, r] + pw[w, r]`. The smaller of `h` and `w` is added first, because that is how all peers
/// round. May run in place.
#[inline(always)]
fn add_positions<S: Simd>(_s: S, job: Job<'_>) -> Result<(), Fault> {
    let (a, pw, ph) = (job.src(0), job.src(1).packed::<f32>(), job.src(2).packed::<f32>());
    let (size, rows) = (job.src(1).ne()[0], a.ne()[1]);
    let (mut values, mut widths) = (Chunk::new(), Chunk::new());
    for (at, mut out) in job.dst.rows::<f32>(job.share) {
        let (from, positions) = (a.row::<f32>(at), (at[1] * rows + at[0]) * size);
        for h in 0..size {
            let height = ph.get(positions + h);
            for (start, len) in chunks(size) {
                if job.stop.after(len) {
                    return Ok(());
                }
                values.load(&from, h * size + start, len);
                widths.load(&pw, positions + start, len);
                let split = h.clamp(start, start + len) - start;
                for (i, (value, width)) in values.0[..len].iter_mut().zip(&widths.0).enumerate() {
                    let (first, second) = if i < split { (*width, height) } else { (height, *width) };
                    *value = *value + first + second;
                }
                out.write(h * size + start, &values.0[..len]);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::chunk::CHUNK;
    use crate::kernels::testing::{Tensor, Trial, run};
    use oxcart_tensor::DType;
    use oxcart_tensor::ops::AddRelPos;

    #[test]
    fn windows_join_to_what_was_cut() {
        for (window, [c, w, h]) in [(3, [37, 20, 31]), (7, [130, 7, 14]), (40, [5, 9, 11]), (1, [1, 2, 3])] {
            let image = Tensor::noise(DType::F32, [c, w, h, 1], 1);
            for windows in run(WinPart { window }, &[&image]) {
                let across = w.div_ceil(window);
                windows.assert_near(0.0, |[i, x, y, n]| {
                    let (x, y) = (n % across * window + x, n / across * window + y);
                    if x < w && y < h { image.at([i, x, y, 0]) } else { 0.0 }
                });
                for joined in run(WinUnpart { width: w, height: h, window }, &[&windows]) {
                    assert_eq!(joined.values(), image.values());
                }
            }
        }
    }

    #[test]
    fn positions_are_relative() {
        for size in [1, 2, 17] {
            let a = Tensor::noise(DType::F16, [50, 2 * size - 1, 1, 1], 1);
            for y in run(GetRelPos { size }, &[&a]) {
                y.assert_near(0.0, |[c, i, j, _]| a.at([c, size - 1 - i + j, 0, 0]));
            }
        }
    }

    #[test]
    fn positions_are_added_in_place_and_elsewhere() {
        // One side of a window longer than a chunk.
        for (k, rows) in [(1, [2, 3, 2]), (14, [4, 3, 5]), (CHUNK + 5, [1, 2, 1])] {
            let [n1, n2, n3] = rows;
            let a = Tensor::noise(DType::F32, [k * k, n1 * n2, n3, 1], 1);
            let pw = Tensor::noise(DType::F32, [k, n1, n2, n3], 2);
            let ph = Tensor::noise(DType::F32, [k, n1, n2, n3], 3);
            for y in Trial::of(AddRelPos, &[&a, &pw, &ph]).over(&[0]).each_level() {
                y.assert_near(1e-6, |[i, r, n, _]| {
                    let at = |i: usize| [i, r % n1, r / n1, n];
                    a.at([i, r, n, 0]) + ph.at(at(i / k)) + pw.at(at(i % k))
                });
            }
        }
    }
}
