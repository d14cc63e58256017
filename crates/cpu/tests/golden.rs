//! The single-op graphs of the reference, computed.
//!
//! The data lies outside the repository; `OXCART_GOLDEN` names its folder. `OXCART_CASES` may name a part of a case's
//! name, to run those alone.

mod common;

use common::{complaints, wanted_cases};

#[test]
fn every_case_is_computed_as_the_reference_does() {
    let Some(golden) = oxcart_fixtures::golden() else { return };
    let complaints = complaints(&wanted_cases(&golden.join("graphs")));
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}
