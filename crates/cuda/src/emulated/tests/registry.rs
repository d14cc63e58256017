//! Cards and drivers that are too old.

use std::sync::Arc;

use super::super::Emulated;
use crate::registry::{CudaRegistry, Unavailable};

fn find(driver: Emulated) -> Result<usize, Unavailable> {
    CudaRegistry::with_driver(Arc::new(driver)).map(|found| found.cuda_devices().len())
}

#[test]
fn a_driver_that_is_too_old_is_refused_with_the_version_that_is_needed() {
    let card = || Emulated::paper((9, 0), 132, 227 << 10);
    let error = find(card().with_version(12_010)).unwrap_err();
    assert_eq!(error.to_string(), "the NVIDIA driver is for CUDA 12.1; 535 or newer (CUDA 12.2) is needed");
    assert_eq!(find(card().with_version(12_020)), Ok(1));
}

#[test]
fn a_card_that_is_too_old_is_left_out() {
    assert_eq!(find(Emulated::paper((7, 0), 80, 96 << 10)), Ok(0));
    assert_eq!(find(Emulated::paper((7, 5), 40, 64 << 10)), Ok(1));
}
