//! 3.6.1: several devices, stored graphs, the COMPUTE flag; HELLO without capability bytes.

use super::v4_0::V4_0_0;
use crate::wire::dialect::{Dialect, Version};

pub(crate) const V3_6: Dialect = Dialect {
    name: "3.6",
    version: Version { major: 3, minor: 6, patch: 1 },
    type_count: 41,
    has_capabilities: false,
    ..V4_0_0
};
