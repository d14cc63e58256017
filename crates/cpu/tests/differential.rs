//! Random single ops beside what the reference made of them. `tools/differential.sh` makes the cases and calls this.
//!
//! `OXCART_DIFFERENTIAL` names the folder of cases, `OXCART_CASES` a part of a case's name, to run those alone.
#![allow(clippy::print_stdout, reason = "a test may print figures")]

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;

use common::{complaints, wanted_cases};
use oxcart_cases::read_folder;
use oxcart_tensor::Op;

/// Ops that cannot be compared, because no builder of the reference makes them or they are our own.
const NOT_COMPARED: &[&str] = &["FLASH_ATTN_BACK", "PAGED_ATTN"];

fn folder() -> Option<PathBuf> {
    oxcart_fixtures::variable("OXCART_DIFFERENTIAL").map(PathBuf::from)
}

#[test]
#[ignore = "tools/differential.sh makes its cases and runs it"]
fn every_case_is_computed_as_the_reference_does() {
    let Some(folder) = folder() else { return };
    let complaints = complaints(&wanted_cases(&folder));
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

#[test]
#[ignore = "tools/differential.sh makes its cases and runs it"]
fn every_op_is_among_the_cases() {
    let Some(folder) = folder() else { return };
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for case in read_folder(&folder) {
        *counts.entry(case.op().name()).or_default() += 1;
    }
    let total: usize = counts.values().sum();
    let list: Vec<_> = counts.iter().map(|(op, count)| format!("{op} {count}")).collect();
    println!("{total} cases of {} ops: {}", counts.len(), list.join(", "));
    let missing: Vec<_> = Op::ALL
        .iter()
        .filter(|op| op.computes && !counts.contains_key(op.name) && !NOT_COMPARED.contains(&op.name))
        .map(|op| op.name)
        .collect();
    assert!(missing.is_empty(), "no case has {missing:?}");
}
