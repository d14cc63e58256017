//! 7.0.0: what llama-cpp-python 0.3.36 carries. Writes are no longer answered, and the client is asynchronous. With our own
//! operations it is what Oxcart's programs speak among themselves.

use crate::wire::dialect::{Dialect, Version};
use crate::wire::op_code::OpCode;

#[rustfmt::skip]
pub(super) const UNARY: [&str; 22] = [
    "ABS", "SGN", "NEG", "STEP", "TANH", "ELU", "RELU", "SIGMOID", "GELU", "GELU_QUICK", "SILU", "HARDSWISH",
    "HARDSIGMOID", "EXP", "EXPM1", "SOFTPLUS", "GELU_ERF", "XIELU", "FLOOR", "CEIL", "ROUND", "TRUNC",
];

#[rustfmt::skip]
pub(super) const GLU: [&str; 7] = [
    "REGLU", "GEGLU", "SWIGLU", "SWIGLU_OAI", "GEGLU_ERF", "GEGLU_QUICK", "SWIGLU_CLAMP",
];

pub(crate) const V7_0: Dialect = Dialect {
    name: "7.0",
    version: Version { major: 7, minor: 0, patch: 0 },
    ops: OpCode::GGML,
    own_ops: &[],
    type_count: 43,
    unary: &UNARY,
    glu: &GLU,
    has_capabilities: true,
    has_devices: true,
    has_recompute: true,
    has_memset: true,
    has_use_counts: true,
    has_cache_flag: true,
    has_compute_flag: true,
    has_introductions: false,
    has_pulses: false,
    has_takes: false,
    has_kept_graphs: false,
    answers_writes: false,
    is_classic: false,
};

/// As Oxcart's client and worker speak it with each other.
pub(crate) const V7_0_OWN: Dialect = Dialect {
    name: "7.0+",
    own_ops: OpCode::OWN,
    has_introductions: true,
    has_pulses: true,
    has_takes: true,
    has_kept_graphs: true,
    ..V7_0
};
