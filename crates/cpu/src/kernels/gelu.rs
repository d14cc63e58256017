//! The Gaussian error unit and its quick relative.
//!
//! On `f32` and f16 both are tables of f16 results by f16 argument, as in the reference; the formulas themselves differ
//! from the tables by more than models tolerate. Tables are computed with functions that are the same on every
//! machine, so their contents are too.

use std::sync::LazyLock;

use half::f16;
use oxcart_tensor::DType;
use oxcart_tensor::quant::to_f16;

use super::chunk::CHUNK;
use crate::float16::{narrow_f16, widen_f16};

/// Results by the bits of the argument.
type Table = Box<[f16; 1 << 16]>;

static GELU: LazyLock<Table> = LazyLock::new(|| table(tanh_formula));
static GELU_QUICK: LazyLock<Table> = LazyLock::new(|| table(quick_formula));

fn table(f: fn(f32) -> f32) -> Table {
    let results: Box<[f16]> = (0..=u16::MAX).map(|bits| to_f16(f(f16::from_bits(bits).to_f32()))).collect();
    results.try_into().unwrap_or_else(|_| unreachable!("there are as many f16 numbers"))
}

/// The square root of 2 / π.
const SQRT_2_OVER_PI: f32 = 0.797_884_6;

/// `x / 2 * (1 + tanh(√(2/π) x (1 + 0.044715 x²)))`. One step is fused, as it was where the recorded tables come from.
fn tanh_formula(x: f32) -> f32 {
    let square = (0.044_715 * x).mul_add(x, 1.0);
    0.5 * x * (1.0 + libm::tanhf(SQRT_2_OVER_PI * x * square))
}

/// `x * sigmoid(1.702 x)`.
fn quick_formula(x: f32) -> f32 {
    x * (1.0 / (1.0 + libm::expf(-1.702 * x)))
}

/// The Gaussian error unit of at most a chunk of numbers that a tensor of type `dtype` holds.
#[inline(always)]
pub(super) fn gelu(dtype: DType, values: &mut [f32]) {
    match dtype {
        DType::F32 => {
            let mut looked_up = [0.0; CHUNK];
            let looked_up = &mut looked_up[..values.len()];
            look_up(&GELU, values, looked_up);
            for (x, &y) in values.iter_mut().zip(&*looked_up) {
                *x = match *x {
                    x if x <= -10.0 => 0.0,
                    x if x >= 10.0 => x,
                    _ => y,
                };
            }
        }
        DType::F16 => look_up_in_place(&GELU, values),
        _ => values.iter_mut().for_each(|x| *x = tanh_formula(*x)),
    }
}

/// The quick Gaussian error unit of at most a chunk of numbers that a tensor of type `dtype` holds.
#[inline(always)]
pub(super) fn gelu_quick(dtype: DType, values: &mut [f32]) {
    match dtype {
        DType::F32 | DType::F16 => look_up_in_place(&GELU_QUICK, values),
        _ => values.iter_mut().for_each(|x| *x = quick_formula(*x)),
    }
}

/// The Gaussian error unit by its definition.
pub(super) fn gelu_erf(values: &mut [f32]) {
    for x in values {
        *x = 0.5 * *x * (1.0 + libm::erff(*x * std::f32::consts::FRAC_1_SQRT_2));
    }
}

#[inline(always)]
fn look_up_in_place(table: &Table, values: &mut [f32]) {
    let mut looked_up = [0.0; CHUNK];
    let looked_up = &mut looked_up[..values.len()];
    look_up(table, values, looked_up);
    values.copy_from_slice(looked_up);
}

#[inline(always)]
fn look_up(table: &Table, values: &[f32], results: &mut [f32]) {
    let mut halves = [f16::ZERO; CHUNK];
    let halves = &mut halves[..values.len()];
    narrow_f16(values, halves);
    for half in halves.iter_mut() {
        *half = table[usize::from(half.to_bits())];
    }
    widen_f16(halves, results);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FNV-1a over the bytes of a table, NaN having one sign.
    fn fingerprint(table: &Table) -> u64 {
        let one_nan = |x: &f16| if x.is_nan() { 0x7E00 } else { x.to_bits() };
        let bytes = table.iter().map(one_nan).flat_map(u16::to_le_bytes);
        bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        })
    }

    #[test]
    fn tables_are_those_of_the_reference() {
        assert_eq!(fingerprint(&GELU), 0xD101_F521_207D_200C);
        assert_eq!(fingerprint(&GELU_QUICK), 0xD7B3_8CF9_879F_6A5D);
    }

    #[test]
    fn only_f32_is_cut_off() {
        let run = |f: fn(DType, &mut [f32]), dtype, x| {
            let mut values = [x];
            f(dtype, &mut values);
            values[0]
        };
        assert_eq!(run(gelu, DType::F32, f32::NEG_INFINITY).to_bits(), 0);
        assert_eq!(run(gelu, DType::F32, 1e6), 1e6);
        assert_eq!(run(gelu, DType::F32, 12.003), 12.003);
        assert!(run(gelu, DType::F32, f32::NAN).is_nan());
        assert!(run(gelu, DType::F16, f32::NEG_INFINITY).is_nan());
        assert_eq!(run(gelu, DType::F16, -10.0).to_bits(), (-0f32).to_bits());
        assert_eq!(run(gelu_quick, DType::F32, 1e6), f32::INFINITY);
        assert_eq!(run(gelu_quick, DType::BF16, 1e6), 1e6);
    }
}
