//! How weights of a type are multiplied on an instruction set, once there are enough columns to pack them.

use oxcart_tensor::DType;

use super::format::{Columns, Weights};
use super::format::{Format, Groups};
use super::micro::{CODE_ROWS, Multiply, code_shape, float_shape, multiply_codes, multiply_floats};
use super::pack::{PackColumn, PackWeights, pack_blocks, pack_codes, pack_floats};
use super::types::{Visit, visit};
use super::unpack::Unpack;
use crate::simd::{Level, for_each_level};

/// Everything that tiles of a weight type need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Method {
    pub(super) format: Format,
    /// Elements of each row that are packed and multiplied at a time; a multiple of every block length.
    pub(super) k_block: usize,
    pub(super) pack_weights: PackWeights,
    pub(super) pack_column: PackColumn,
    pub(super) multiply: Multiply,
}

impl Method {
    /// The method for weights of a type; `None` if it cannot be a weight.
    pub(super) fn of(dtype: DType, level: Level) -> Option<Method> {
        visit(dtype, Make(level))
    }
}

struct Make(Level);

impl Visit for Make {
    type Answer = Method;

    fn float(self, dtype: DType) -> Method {
        let (rows, cols) = float_shape(self.0);
        let (pack_weights, pack_column) = pack_floats(dtype, self.0);
        Method {
            format: Format { rows, cols, code: 4, groups: None },
            k_block: 256,
            pack_weights,
            pack_column,
            multiply: for_each_level!(
                multiply_floats: fn(weights: Weights<'_>, columns: Columns<'_>, tile: &mut [f32])
            )
            .at(self.0),
        }
    }

    fn quantized<B: Unpack>(self) -> Method {
        let Some(partner) = B::DTYPE.dot_partner() else { unreachable!("every weight type has a partner") };
        let shape = code_shape(self.0);
        let (group, run) = (B::GROUP, partner.block_len());
        let groups = Groups { group, run, mins: B::MINS, corrections: shape.bytes };
        Method {
            format: Format {
                rows: CODE_ROWS,
                cols: shape.cols,
                code: if shape.bytes { 1 } else { 2 },
                groups: Some(groups),
            },
            k_block: if shape.bytes { 2048 } else { 1024 },
            pack_weights: pack_blocks::<B>(self.0),
            pack_column: pack_codes(partner, self.0),
            multiply: multiply_codes(group, run, self.0),
        }
    }
}
