//! Recorded ops on the real card of this machine.
//!
//! Without a card the tests say that they are skipped. `OXCART_GOLDEN` names the folder of reference outputs,
//! `OXCART_DIFFERENTIAL` that of random cases (`tools/differential.sh` makes them), `OXCART_CASES` a part of a case's name, to
//! run those alone.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test may say that it was skipped, and may panic"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use oxcart_backend::{Device, Registry, StreamOptions};
use oxcart_cases::{RunError, read_folder};
use oxcart_cuda::CudaRegistry;

fn card() -> Option<Arc<dyn Device>> {
    let device = match CudaRegistry::new() {
        Ok(registry) => registry.devices().into_iter().next(),
        Err(error) => {
            println!("skipped: {error}");
            return None;
        }
    };
    if device.is_none() {
        println!("skipped: there is no card");
    }
    device
}

fn check(variable: &str, inside: &str) {
    let Some(device) = card() else { return };
    let Some(folder) = std::env::var_os(variable) else {
        println!("skipped: {variable} is not set");
        return;
    };
    println!("{}: {}", device.name(), device.description());
    let stream = device.open(&StreamOptions::default()).unwrap();
    let wanted = std::env::var("OXCART_CASES").unwrap_or_default();
    let (mut complaints, mut unsupported, mut passed) = (Vec::new(), BTreeMap::new(), 0);
    for case in
        read_folder(&Path::new(&folder).join(inside)).iter().filter(|case| case.name.contains(&wanted))
    {
        match case.run(&*stream).map(|found| case.judge(&found)) {
            Ok(Ok(())) => passed += 1,
            Ok(Err(wrong)) => complaints.push(format!("{}: {wrong}", case.name)),
            Err(RunError::Unsupported) => *unsupported.entry(case.op_name().to_owned()).or_insert(0) += 1,
            Err(error) => complaints.push(format!("{}: {error}", case.name)),
        }
        if complaints.len() > 200 {
            break;
        }
    }
    println!("{passed} cases passed; not supported: {unsupported:?}");
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
