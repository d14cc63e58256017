//! Recorded ops on the emulated card, judged as those of every device are.
//!
//! The data lies outside the repository; `OXCART_GOLDEN` names its folder, `OXCART_DIFFERENTIAL` that of random cases which
//! `tools/differential.sh` makes. `OXCART_CASES` may name a part of a case's name, to run those alone.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use oxcart_backend::{Device, StreamOptions};
use oxcart_cases::{RunError, read_folder};

/// Runs all cases of a folder, and says what is wrong.
fn complaints(folder: &Path) -> Vec<String> {
    let Some((driver, device)) = super::super::device() else { return Vec::new() };
    let stream = Arc::clone(&device).open(&StreamOptions::default()).unwrap();
    let wanted = std::env::var("OXCART_CASES").unwrap_or_default();
    let (mut complaints, mut unsupported, mut passed) = (Vec::new(), BTreeMap::new(), 0);
    for case in read_folder(folder).iter().filter(|case| case.name.contains(&wanted)) {
        if !wanted.is_empty() {
            println!("{}", case.name);
        }
        for backwards in [false, true] {
            driver.run_backwards(backwards);
            match case.run(&*stream).map(|found| case.judge(&found)) {
                Ok(Ok(())) => passed += 1,
                Ok(Err(wrong)) => complaints.push(format!("{}: {wrong}", case.name)),
                Err(RunError::Unsupported) => {
                    let types: Vec<_> = case
                        .sources()
                        .iter()
                        .flatten()
                        .map(|source| source.layout.dtype().name())
                        .chain([case.result().layout.dtype().name()])
                        .collect();
                    *unsupported.entry(format!("{} {}", case.op_name(), types.join(" "))).or_insert(0) += 1;
                }
                Err(error) => complaints.push(format!("{}: {error}", case.name)),
            }
        }
    }
    driver.run_backwards(false);
    println!("{passed} runs passed; not supported:");
    for (what, count) in unsupported {
        println!("  {count:4} {what}");
    }
    complaints
}

fn check(variable: &str, inside: &str) {
    let Some(folder) = oxcart_fixtures::variable(variable) else { return };
    let complaints = complaints(&Path::new(&folder).join(inside));
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

#[test]
fn every_golden_case_is_computed_as_the_reference_does() {
    check("OXCART_GOLDEN", "graphs");
}

#[test]
fn every_random_case_is_computed_as_the_reference_does() {
    check("OXCART_DIFFERENTIAL", "");
}
