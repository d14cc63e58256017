//! Rotations against their definition in double precision, for every mode and wherever rows lie.

use oxcart_tensor::Layout;
use oxcart_tensor::ops::RopeBack;

use super::*;
use crate::kernels::testing::{Level, Tensor, Trial, nmse, numbers};

const NE: [usize; 4] = [48, 41, 5, 2];
const MODES: [RopeMode; 5] =
    [RopeMode::Normal, RopeMode::Neox, RopeMode::Mrope, RopeMode::Vision, RopeMode::Imrope];

fn sample(dtype: DType) -> Tensor {
    Tensor::of(dtype, NE, numbers(1, NE.iter().product()))
}

fn positions(mode: RopeMode) -> Tensor {
    let count = if mode.has_sections() { 20 } else { 5 };
    let values: Vec<_> = (0..count).map(|i| i * i * 7 - 30).collect();
    Tensor::i32([count as usize, 1, 1, 1], &values)
}

fn rope(mode: RopeMode) -> Rope {
    let n_dims = if mode == RopeMode::Vision { 24 } else { 32 };
    Rope {
        n_ctx_orig: 512,
        freq_scale: 0.5,
        ext_factor: 1.0,
        // More in total than the 16 pairs of most modes.
        sections: [7, 5, 9, 3],
        first_channel: if mode == RopeMode::Vision { 0 } else { 6 },
        ..Rope::new(n_dims, mode, 10_000.0)
    }
}

/// What the op means, pair by pair, in `f64` from the angles on.
fn exact(values: &[f32], positions: &[f32], factors: &[f32], rope: &Rope) -> Vec<f64> {
    let mut all: Vec<_> = values.iter().map(|&x| f64::from(x)).collect();
    for (row, out) in all.chunks_mut(NE[0]).enumerate() {
        let token = row / NE[1] % NE[2];
        let pairs = if rope.mode == RopeMode::Vision { rope.n_dims } else { rope.n_dims / 2 };
        let [t, h, w, _] = rope.sections.map(|n| n as usize);
        let total: usize = rope.sections.iter().sum::<u32>() as usize;
        for (i, &factor) in factors.iter().enumerate().take(pairs) {
            let at = i % total.max(1);
            let (which, since) = match rope.mode {
                RopeMode::Normal | RopeMode::Neox => (0, i),
                RopeMode::Imrope => match at % 3 {
                    0 if at < 3 * t => (0, i),
                    1 if at < 3 * h => (1, i),
                    2 if at < 3 * w => (2, i),
                    _ => (3, i),
                },
                mode => {
                    let begin = [0, t, t + h, t + h + w];
                    let which = (0..4).rev().find(|&section| at >= begin[section]).unwrap();
                    (which, if mode == RopeMode::Vision { at - begin[which] } else { i })
                }
            };
            let frequency = f64::from(rope.freq_base).powf(-2.0 * since as f64 / rope.n_dims as f64);
            let plain = f64::from(positions[which * NE[2] + token]) * frequency / f64::from(factor);
            let turning = |rotations: f64| {
                let dims = rope.n_dims as f64;
                dims * (rope.n_ctx_orig as f64 / (rotations * std::f64::consts::TAU)).ln()
                    / (2.0 * f64::from(rope.freq_base).ln())
            };
            let first = turning(f64::from(rope.beta_fast)).floor().max(0.0);
            let last = turning(f64::from(rope.beta_slow)).ceil().min(rope.n_dims as f64 - 1.0);
            let ramp = 1.0 - ((i as f64 - first) / (last - first).max(0.001)).clamp(0.0, 1.0);
            let ramp = ramp * f64::from(rope.ext_factor);
            let angle = plain * f64::from(rope.freq_scale) * (1.0 - ramp) + plain * ramp;
            let size = 1.0
                + if rope.ext_factor == 0.0 { 0.0 } else { 0.1 * (1.0 / f64::from(rope.freq_scale)).ln() };
            let (x, y) = match rope.mode {
                RopeMode::Normal => (rope.first_channel + 2 * i, rope.first_channel + 2 * i + 1),
                RopeMode::Vision => (i, i + rope.n_dims),
                _ => (rope.first_channel + i, rope.first_channel + i + rope.n_dims / 2),
            };
            let (a, b) = (out[x], out[y]);
            let (sin, cos) = angle.sin_cos();
            (out[x], out[y]) = ((a * cos - b * sin) * size, (a * sin + b * cos) * size);
        }
    }
    all
}

#[test]
fn every_mode_and_type_in_place_or_not() {
    let factors: Vec<_> = numbers(3, 24).iter().map(|x| 1.5 + x).collect();
    let given_factors = Tensor::of(DType::F32, [24, 1, 1, 1], &factors);
    for level in Level::available() {
        for mode in MODES {
            for (dtype, most) in [(DType::F32, 1e-9), (DType::F16, 1e-6)] {
                let (a, positions) = (sample(dtype), positions(mode));
                for ext_factor in [0.0, 1.0] {
                    let rope = Rope { ext_factor, ..rope(mode) };
                    let sources = [Some(&a), Some(&positions), Some(&given_factors)];
                    let found = Trial::with(rope, &sources).over(&[0]).on(level).values();
                    let error = nmse(&found, &exact(&a.values(), &positions.values(), &factors, &rope));
                    assert!(error < most, "{level} {mode:?} {dtype} {ext_factor}: {error}");
                }
            }
        }
    }
}

#[test]
fn backwards_undoes_forwards() {
    for level in Level::available() {
        for mode in MODES {
            // Without YaRN's factor of the result, which is the same in both directions.
            let rope = Rope { ext_factor: 0.0, ..rope(mode) };
            let (a, positions) = (sample(DType::F32), positions(mode));
            let there = Trial::of(rope, &[&a, &positions]).on(level);
            let back = Trial::of(RopeBack(rope), &[&there, &positions]).over(&[0]).on(level).values();
            assert!(nmse(&back, &a.exact()) < 1e-12, "{level} {mode:?}");
        }
    }
}

#[test]
fn rows_may_lie_anywhere() {
    // Heads and tokens swapped in memory, rows padded.
    let plain = sample(DType::F32);
    let layout = Layout::strided(DType::F32, NE, [4, 5 * 208, 208, 41 * 5 * 208]).unwrap();
    let spread = Tensor::with_layout(layout, plain.values());
    for level in Level::available() {
        let positions = positions(RopeMode::Neox);
        let found = Trial::of(rope(RopeMode::Neox), &[&spread, &positions]).over(&[0]).on(level).values();
        assert_eq!(found, Trial::of(rope(RopeMode::Neox), &[&plain, &positions]).on(level).values());
    }
}

#[test]
fn no_training_context_is_defined() {
    let rope = Rope { n_ctx_orig: 0, ..rope(RopeMode::Neox) };
    let (a, positions) = (sample(DType::F32), positions(RopeMode::Neox));
    for level in Level::available() {
        let found = Trial::of(rope, &[&a, &positions]).on(level).values();
        assert!(found.iter().all(|x| x.is_finite()));
    }
}
