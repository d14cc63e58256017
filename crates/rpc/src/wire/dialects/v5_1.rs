//! 5.1.0: records carry use counts, MEMSET_TENSOR exists.

use super::v7_0::{GLU, V7_0};
use crate::wire::dialect::{Dialect, Version};

/// The last gated unit came later.
const GLU_5_1: &[&str] = GLU.split_at(6).0;

pub(crate) const V5_1: Dialect = Dialect {
    name: "5.1",
    version: Version { major: 5, minor: 1, patch: 0 },
    glu: GLU_5_1,
    has_cache_flag: false,
    answers_writes: true,
    ..V7_0
};
