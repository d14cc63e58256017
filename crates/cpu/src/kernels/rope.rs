//! Rotary positions.
//!
//! The cosines and sines of a token are computed once, into a thread's own memory, and used for all of its heads. A row is
//! rotated there too and written whole, so the result may be the memory of the source.
//!
//! Angles are a running product in `f32`, as in the reference: a power per channel would be more exact and different.

use half::f16;
use oxcart_tensor::ops::{Rope, RopeMode};
use oxcart_tensor::{DType, Op, TensorRef};

use super::chunk::CHUNK;
use crate::job::{Fault, Job, Kernel, LONGEST_WHOLE, Run, as_floats};
use crate::simd::{Level, Simd, for_each_level};
use crate::view::{In, Number, Out, Src};

/// The kernel for an op of this family.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let (Op::Rope(rope) | Op::RopeBack(oxcart_tensor::ops::RopeBack(rope))) = node.op() else { return None };
    let run = match node.dtype() {
        DType::F32 => rotate_rows_of::<f32>(level),
        DType::F16 => rotate_rows_of::<f16>(level),
        _ => return None,
    };
    let layout = node.layout();
    let kernel = Kernel::rows(run, layout, layout.elements()).own(scratch(rope, layout.ne()[0]));
    (layout.ne()[0] <= LONGEST_WHOLE).then_some(kernel)
}

/// Bytes of a thread's own memory: for the angles of a token, and for `len` numbers to rotate.
pub(super) const fn scratch(rope: &Rope, len: usize) -> usize {
    (angles(rope) + len) * size_of::<f32>()
}

/// Numbers that the angles of a token are: cosines, then sines, one for each channel that rotates.
pub(super) const fn angles(rope: &Rope) -> usize {
    4 * pairs(rope)
}

fn rotate_rows_of<T: Number>(level: Level) -> Run {
    for_each_level!(rotate_rows[T: Number]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

/// Pairs of channels that rotate.
const fn pairs(rope: &Rope) -> usize {
    match rope.mode {
        RopeMode::Vision => rope.n_dims,
        _ => rope.n_dims / 2,
    }
}

#[inline(always)]
fn rotate_rows<S: Simd, T: Number>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (rope, backwards) = match job.op {
        Op::Rope(rope) => (rope, false),
        Op::RopeBack(back) => (back.0, true),
        _ => unreachable!("the kernel of another op"),
    };
    let a = job.src(0);
    let [len, _, tokens, _] = a.ne();
    let mut rotation = Rotation::new(&rope, backwards, job.src(1), job.may(2), tokens);
    let (angles, row) = as_floats(job.own).split_at_mut(angles(&rope));
    let row = &mut row[..len];
    for (at, mut out) in job.dst.rows::<T>(job.share) {
        if job.stop.after(len) {
            break;
        }
        rotation.turn_to(at[1], angles);
        read(&a.row::<T>(at), row);
        rotation.rotate(row, angles);
        write(row, &mut out);
    }
    Ok(())
}

/// Rotates one token after another; what the angles are is kept by the caller, in memory for [`angles`] numbers.
pub(super) struct Rotation<'t> {
    rope: Rope,
    law: Angles,
    positions: In<'t, i32>,
    factors: Option<Src<'t>>,
    tokens: usize,
    /// The token whose angles are known.
    known: Option<usize>,
}

impl<'t> Rotation<'t> {
    pub(super) fn new(
        rope: &Rope,
        backwards: bool,
        positions: Src<'t>,
        factors: Option<Src<'t>>,
        tokens: usize,
    ) -> Rotation<'t> {
        let law = Angles::new(rope, backwards);
        Rotation { rope: *rope, law, positions: positions.row([0; 3]), factors, tokens, known: None }
    }

    /// Computes the angles of a token, unless they are known.
    #[inline(always)]
    pub(super) fn turn_to(&mut self, token: usize, angles: &mut [f32]) {
        if self.known == Some(token) {
            return;
        }
        let sections = if self.rope.mode.has_sections() { 4 } else { 1 };
        let mut start = [0.0; 4];
        for (section, start) in start[..sections].iter_mut().enumerate() {
            *start = self.positions.get(section * self.tokens + token) as f32;
        }
        let pairs = pairs(&self.rope);
        let (cos, sin) = angles.split_at_mut(2 * pairs);
        self.law.fill(start, self.factors, &mut cos[..pairs], &mut sin[..pairs]);
        if self.rope.mode == RopeMode::Normal {
            spread(cos, sin);
        }
        self.known = Some(token);
    }

    /// Rotates a row by those angles.
    #[inline(always)]
    pub(super) fn rotate(&self, row: &mut [f32], angles: &[f32]) {
        let pairs = pairs(&self.rope);
        let (cos, sin) = angles.split_at(2 * pairs);
        let rotated = &mut row[self.rope.first_channel..][..2 * pairs];
        match self.rope.mode {
            RopeMode::Normal => rotate_neighbours(rotated, cos, sin),
            _ => rotate_halves(rotated, &cos[..pairs], &sin[..pairs]),
        }
    }
}

/// Widens a whole row.
#[inline(always)]
pub(super) fn read<T: Number>(from: &In<'_, T>, row: &mut [f32]) {
    // SAFETY: any bytes make a `T`; see `Plain`.
    let mut raw: [T; CHUNK] = unsafe { std::mem::zeroed() };
    for (i, part) in row.chunks_mut(CHUNK).enumerate() {
        from.read(i * CHUNK, &mut raw[..part.len()]);
        T::widen(&raw[..part.len()], part);
    }
}

/// Narrows a whole row.
#[inline(always)]
fn write<T: Number>(row: &[f32], out: &mut Out<'_, T>) {
    // SAFETY: any bytes make a `T`; see `Plain`.
    let mut raw: [T; CHUNK] = unsafe { std::mem::zeroed() };
    for (i, part) in row.chunks(CHUNK).enumerate() {
        T::narrow(part, &mut raw[..part.len()]);
        out.write(i * CHUNK, &raw[..part.len()]);
    }
}

/// Rotates neighbours; `cos` and `sin` have a number for each channel, see [`spread`].
#[inline(always)]
fn rotate_neighbours(row: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (row, row_end) = row.as_chunks_mut::<16>();
    let ((cos, cos_end), (sin, sin_end)) = (cos.as_chunks::<16>(), sin.as_chunks::<16>());
    for ((x, c), s) in row.iter_mut().zip(cos).zip(sin) {
        let old = *x;
        // All at once, or the compiler fears that writing one changes the others and uses no vectors.
        *x = std::array::from_fn(|i| old[i] * c[i] + old[i ^ 1] * s[i]);
    }
    for ((x, c), s) in row_end.chunks_exact_mut(2).zip(cos_end.chunks_exact(2)).zip(sin_end.chunks_exact(2)) {
        (x[0], x[1]) = (x[0] * c[0] + x[1] * s[0], x[1] * c[1] + x[0] * s[1]);
    }
}

#[inline(always)]
fn rotate_halves(row: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (low, high) = row.split_at_mut(cos.len());
    for (((x, y), &c), &s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        (*x, *y) = (*x * c - *y * s, *x * s + *y * c);
    }
}

/// Makes numbers for pairs of neighbours, in the first half, numbers for channels: in each pair the first sine is negative.
#[inline(always)]
fn spread(cos: &mut [f32], sin: &mut [f32]) {
    for pair in (0..cos.len() / 2).rev() {
        let (c, s) = (cos[pair], sin[pair]);
        (cos[2 * pair], cos[2 * pair + 1]) = (c, c);
        (sin[2 * pair], sin[2 * pair + 1]) = (-s, s);
    }
}

/// How the angles of a token follow from its positions.
struct Angles {
    mode: RopeMode,
    sections: [usize; 4],
    /// From one pair to the next.
    step: f32,
    freq_scale: f32,
    ext_factor: f32,
    /// YaRN: pairs from which and up to which extrapolation fades out.
    fade: (f32, f32),
    /// Factor of cosines.
    size: f32,
    /// Factor of sines: negative to rotate backwards.
    signed_size: f32,
}

impl Angles {
    fn new(rope: &Rope, backwards: bool) -> Angles {
        let dims = rope.n_dims as f32;
        let turning = |rotations: f32| {
            let wanted = rope.n_ctx_orig as f32 / (rotations * 2.0 * std::f32::consts::PI);
            dims * wanted.ln() / (2.0 * rope.freq_base.ln())
        };
        let first = turning(rope.beta_fast).floor().max(0.0);
        let last = turning(rope.beta_slow).ceil().min(dims - 1.0);
        let stretched = 1.0 + 0.1 * (1.0 / rope.freq_scale).ln();
        let size = rope.attn_factor * if rope.ext_factor == 0.0 { 1.0 } else { stretched };
        Angles {
            mode: rope.mode,
            sections: rope.sections.map(|n| n as usize),
            step: rope.freq_base.powf(-2.0 / dims),
            freq_scale: rope.freq_scale,
            ext_factor: rope.ext_factor,
            fade: (first, last),
            size,
            signed_size: if backwards { -size } else { size },
        }
    }

    /// Cosines and sines of all pairs of a token.
    #[inline(always)]
    fn fill(&self, start: [f32; 4], factors: Option<Src<'_>>, cos: &mut [f32], sin: &mut [f32]) {
        let factors = factors.map(|factors| factors.row::<f32>([0; 3]));
        let mut running = start;
        for (pair, (cos, sin)) in cos.iter_mut().zip(sin).enumerate() {
            let which = self.steering(pair, start, &mut running);
            let angle = self.stretch(running[which] / factors.map_or(1.0, |factors| factors.get(pair)), pair);
            let (s, c) = angle.sin_cos();
            (*cos, *sin) = (c * self.size, s * self.signed_size);
            running.iter_mut().for_each(|angle| *angle *= self.step);
        }
    }

    /// Which of a token's positions steers a pair; in vision, angles start anew where their section begins.
    #[inline(always)]
    fn steering(&self, pair: usize, start: [f32; 4], running: &mut [f32; 4]) -> usize {
        if !self.mode.has_sections() {
            return 0;
        }
        let [t, h, w, e] = self.sections;
        let at = pair % (t + h + w + e);
        let begins = [0, t, t + h, t + h + w];
        if self.mode == RopeMode::Imrope {
            return match at % 3 {
                0 if at < 3 * t => 0,
                1 if at < 3 * h => 1,
                2 if at < 3 * w => 2,
                _ => 3,
            };
        }
        if self.mode == RopeMode::Vision
            // Where empty sections make several begin at once, only the first starts anew, as in the reference.
            && let Some(section) = begins.iter().position(|&begin| begin == at)
        {
            running[section] = start[section];
        }
        begins[1..].iter().filter(|&&begin| at >= begin).count()
    }

    /// YaRN: the angle of a pair between interpolation and extrapolation.
    #[inline(always)]
    fn stretch(&self, angle: f32, pair: usize) -> f32 {
        let interpolated = self.freq_scale * angle;
        if self.ext_factor == 0.0 {
            return interpolated;
        }
        let (first, last) = self.fade;
        let along = (pair as f32 - first) / (last - first).max(0.001);
        let ramp = (1.0 - along.clamp(0.0, 1.0)) * self.ext_factor;
        interpolated * (1.0 - ramp) + angle * ramp
    }
}

#[cfg(test)]
mod tests;
