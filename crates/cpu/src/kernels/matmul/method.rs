//! How quantized weights of a type are multiplied on an instruction set.

use oxcart_tensor::DType;

use super::few::{MAX_FEW, MultiplyFew, is_by_eight, multiply_few, offset};
use super::format::Format;
use super::micro::{Multiply, code_shape, multiply_codes};
use super::pack::{PackColumn, PackWeights, pack_blocks, pack_codes};
use super::scales::Scaled;
use super::types::{Visit, visit};
use crate::simd::Level;

/// Everything that tiles of a weight type need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Method {
    pub(super) format: Format,
    pub(super) pack_weights: PackWeights,
    pub(super) pack_column: PackColumn,
    pub(super) multiply: Multiply,
    /// Up to this many columns, weights are multiplied where they lie.
    pub(super) few: usize,
    /// The form of each column then.
    pub(super) few_format: Format,
    pub(super) multiply_few: MultiplyFew,
}

impl Method {
    /// The method for weights of a type; `None` if it is not a quantized one.
    pub(super) fn of(dtype: DType, level: Level) -> Option<Method> {
        visit(dtype, Make(level))?
    }

    /// The same for activations whose codes were not made here: they may be -128, which few columns do not expect.
    pub(super) const fn for_any_codes(self) -> Method {
        Method { few: 0, ..self }
    }
}

struct Make(Level);

impl Visit for Make {
    type Answer = Option<Method>;

    fn float(self, _: DType) -> Option<Method> {
        None
    }

    fn quantized<B: Scaled>(self) -> Option<Method> {
        let partner = B::DTYPE.dot_partner()?;
        let shape = code_shape(self.0, B::LEAST, B::MOST, B::GROUP);
        let (group, run) = (B::GROUP, B::RUN);
        assert_eq!(run, partner.block_len(), "{partner}");
        let format = Format {
            rows: shape.rows,
            cols: shape.cols,
            code: if shape.bytes { 1 } else { 2 },
            step: shape.step,
            reach: shape.reach,
            group,
            run,
            mins: B::MINS,
            offset: i32::from(shape.offset),
        };
        Some(Method {
            format,
            pack_weights: pack_blocks::<B>(self.0),
            pack_column: pack_codes(partner, self.0),
            multiply: multiply_codes(group, run, shape.bytes, self.0),
            few: few(B::DTYPE, self.0),
            few_format: Format { cols: 1, code: 1, step: 32, offset: offset::<B>(self.0), ..format },
            multiply_few: multiply_few::<B>(self.0),
        })
    }
}

/// Up to how many columns weights of a type are multiplied where they lie: more are faster packed, as measured.
const fn few(dtype: DType, level: Level) -> usize {
    match level {
        _ if is_by_eight(dtype, level) => MAX_FEW,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512(_) => MAX_FEW,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(_) => 4,
        #[cfg(target_arch = "aarch64")]
        Level::Neon => 2,
        Level::Scalar => 0,
    }
}
