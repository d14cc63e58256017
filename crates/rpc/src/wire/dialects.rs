//! The dialects, one file per version.

mod v2_0;
mod v3_6;
mod v4_0;
mod v5_1;
mod v7_0;

pub(super) use v2_0::V2_0;
pub(super) use v7_0::{V7_0, V7_0_OWN};

use super::dialect::Dialect;
use super::op_code::OpCode;

/// Those of ggml, newest first; of those that share a version number, the newest carrier first. Then our own.
pub(super) const ALL: &[&Dialect] = &[
    &V7_0,
    &v5_1::V5_1,
    &v4_0::V4_0_3,
    &v4_0::V4_0_2,
    &v4_0::V4_0_1,
    &v4_0::V4_0_0,
    &v3_6::V3_6,
    &V2_0,
    &v2_0::V2_0_OF_0_3_14,
    &v2_0::V2_0_OF_0_3_9,
    &V7_0_OWN,
];

/// `ops` less some; `N` is how many are left.
const fn without<const N: usize>(ops: &[OpCode], absent: &[OpCode]) -> [OpCode; N] {
    let mut left = [OpCode::None; N];
    let (mut from, mut to) = (0, 0);
    while from < ops.len() {
        let (mut i, mut is_absent) = (0, false);
        while i < absent.len() {
            is_absent |= ops[from] as u8 == absent[i] as u8;
            i += 1;
        }
        if !is_absent {
            left[to] = ops[from];
            to += 1;
        }
        from += 1;
    }
    assert!(to == N, "the table has another length");
    left
}
