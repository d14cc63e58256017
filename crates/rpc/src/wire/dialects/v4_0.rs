//! 4.0.x: HELLO carries capability bytes. The patch number tells which operations there are.

use super::v5_1::V5_1;
use super::without;
use crate::wire::dialect::{Dialect, Version};
use crate::wire::op_code::OpCode;

use OpCode::{Col2im1d, Dsv4HcComb, Dsv4HcPost, Dsv4HcPre, LightningIndexer};

const OPS_98: [OpCode; 98] = without(OpCode::GGML, &[Dsv4HcComb, Dsv4HcPre, Dsv4HcPost]);
const OPS_97: [OpCode; 97] = without(&OPS_98, &[LightningIndexer]);
pub(super) const OPS_96: [OpCode; 96] = without(&OPS_97, &[Col2im1d]);

pub(crate) const V4_0_3: Dialect = Dialect {
    name: "4.0.3",
    version: Version { major: 4, minor: 0, patch: 3 },
    has_memset: false,
    has_use_counts: false,
    type_count: 43,
    ..V5_1
};

pub(crate) const V4_0_2: Dialect =
    Dialect { name: "4.0.2", version: Version { patch: 2, ..V4_0_3.version }, ops: &OPS_98, ..V4_0_3 };

pub(crate) const V4_0_1: Dialect =
    Dialect { name: "4.0.1", version: Version { patch: 1, ..V4_0_3.version }, ops: &OPS_97, ..V4_0_3 };

pub(crate) const V4_0_0: Dialect = Dialect {
    name: "4.0.0",
    version: Version { patch: 0, ..V4_0_3.version },
    ops: &OPS_96,
    type_count: 42,
    ..V4_0_3
};
