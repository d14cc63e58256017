//! How quantized weights of a type are multiplied on an instruction set.

use oxcart_tensor::DType;

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
}

impl Method {
    /// The method for weights of a type; `None` if it is not a quantized one.
    pub(super) fn of(dtype: DType, level: Level) -> Option<Method> {
        visit(dtype, Make(level))?
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
        let (group, run) = (B::GROUP, partner.block_len());
        Some(Method {
            format: Format {
                rows: shape.rows,
                cols: shape.cols,
                code: if shape.bytes { 1 } else { 2 },
                step: shape.step,
                reach: shape.reach,
                group,
                run,
                mins: B::MINS,
                offset: i32::from(shape.offset),
            },
            pack_weights: pack_blocks::<B>(self.0),
            pack_column: pack_codes(partner, self.0),
            multiply: multiply_codes(group, run, shape.bytes, self.0),
        })
    }
}
