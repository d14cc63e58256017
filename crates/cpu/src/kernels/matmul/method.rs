//! How weights of a type are multiplied on an instruction set, once there are enough columns to pack them.

use oxcart_tensor::DType;

use super::format::{Columns, Weights};
use super::format::{Format, Groups};
use super::micro::{Multiply, code_shape, float_shape, multiply_codes, multiply_floats};
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
    /// Up to this many columns weights are not worth packing; measured.
    pub(super) few: usize,
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
            format: Format { rows, cols, code: 4, step: 1, reach: 1, groups: None },
            k_block: 256,
            few: 11,
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
        let shape = code_shape(self.0, B::LEAST, B::MOST);
        let (group, run) = (B::GROUP, partner.block_len());
        let groups = Groups { group, run, mins: B::MINS, offset: i32::from(shape.offset) };
        Method {
            format: Format {
                rows: shape.rows,
                cols: shape.cols,
                code: if shape.bytes { 1 } else { 2 },
                step: shape.step,
                reach: shape.reach,
                groups: Some(groups),
            },
            few: 5,
            k_block: if shape.bytes { 4096 } else { 1024 },
            pack_weights: pack_blocks::<B>(self.0),
            pack_column: pack_codes(partner, self.0),
            multiply: multiply_codes(group, run, shape.bytes, self.0),
        }
    }
}
