//! 2.0.0: one device, every graph answered with a status. Three carriers number operations in three ways.

use super::v3_6::V3_6;
use super::v4_0::OPS_96;
use super::without;
use crate::wire::dialect::{Dialect, Version};
use crate::wire::op_code::OpCode;

use OpCode::{
    AddId, Conv2d, Conv3d, Cumsum, Fill, GatedDeltaNet, Glu, Im2col3d, OptStepSgd, Roll, SetRows, SolveTri,
    TopK, Tri,
};

const OPS_88: [OpCode; 88] =
    without(&OPS_96, &[Cumsum, Im2col3d, Conv3d, TopK, Tri, Fill, SolveTri, GatedDeltaNet]);
const OPS_86: [OpCode; 86] = without(&OPS_88, &[AddId, OptStepSgd]);
const OPS_82: [OpCode; 82] = without(&OPS_86, &[SetRows, Conv2d, Roll, Glu]);

#[rustfmt::skip]
const UNARY_15: [&str; 15] = [
    "ABS", "SGN", "NEG", "STEP", "TANH", "ELU", "RELU", "SIGMOID", "GELU", "GELU_QUICK", "SILU", "HARDSWISH",
    "HARDSIGMOID", "EXP", "GELU_ERF",
];

/// As llama-cpp-python 0.3.16 speaks it.
pub(crate) const V2_0: Dialect = Dialect {
    name: "2.0",
    version: Version { major: 2, minor: 0, patch: 0 },
    ops: &OPS_88,
    type_count: 40,
    unary: &UNARY_15,
    has_devices: false,
    has_recompute: false,
    has_compute_flag: false,
    is_classic: true,
    ..V3_6
};

/// As llama-cpp-python 0.3.14 speaks it.
pub(crate) const V2_0_OF_0_3_14: Dialect = Dialect {
    name: "2.0-0.3.14",
    ops: &OPS_86,
    type_count: 39,
    glu: &["REGLU", "GEGLU", "SWIGLU", "GEGLU_ERF", "GEGLU_QUICK"],
    ..V2_0
};

/// As llama-cpp-python 0.3.9 speaks it.
pub(crate) const V2_0_OF_0_3_9: Dialect =
    Dialect { name: "2.0-0.3.9", ops: &OPS_82, unary: UNARY_15.split_at(14).0, glu: &[], ..V2_0_OF_0_3_14 };
