//! The same bits, whatever else is in the batch.
#![allow(clippy::unwrap_used, reason = "tests")]

mod model_support;

use std::path::PathBuf;

use model_support::Golden;
use model_support::together::{Count, check};
use oxcart_tensor::DType;

#[test]
fn sequences_do_not_notice_each_other() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/data/tiny.gguf");
    for cache_type in [DType::F32, DType::F16, DType::Q8_0] {
        check(&path, Count { of_all: 64, scalar: 64 }, cache_type, 5);
    }
}

#[test]
fn sequences_of_all_architectures_do_not_notice_each_other() {
    let Some(models) = Golden::all() else { return };
    for golden in models.iter().filter(|golden| !golden.is_encoder()) {
        check(&golden.path(), Count { of_all: 12, scalar: 4 }, DType::F16, 9);
    }
}
