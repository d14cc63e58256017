//! The single-op graphs of the reference, computed by a live worker through the client.
//!
//! `OXCART_GOLDEN` names the folder of the data, `OXCART_WORKER` where a worker listens; without both there is nothing to
//! do. `OXCART_CASES` may name a part of a case's name, to run those alone.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use oxcart_backend::{Backend, Registry};
use oxcart_cases::{RunError, read_folder};
use oxcart_rpc::client::{Options, RemoteRegistry};

/// A worker that crashed may be started again by whoever runs the test.
fn connect(endpoint: &str) -> (Arc<RemoteRegistry>, Box<dyn Backend>) {
    let connect = || RemoteRegistry::connect(endpoint, &Options::default());
    let again = |_| {
        std::thread::sleep(Duration::from_secs(5));
        connect()
    };
    let registry = connect().or_else(again).unwrap();
    let stream = registry.devices().remove(0).open("").unwrap();
    (registry, stream)
}

#[test]
fn every_case_is_computed_by_the_worker() {
    let (Some(golden), Ok(endpoint)) = (std::env::var_os("OXCART_GOLDEN"), std::env::var("OXCART_WORKER"))
    else {
        println!("skipped: OXCART_GOLDEN or OXCART_WORKER is not set");
        return;
    };
    let wanted = std::env::var("OXCART_CASES").unwrap_or_default();
    let (mut registry, mut stream) = connect(&endpoint);
    let (mut passed, mut complaints) = (0, Vec::new());
    let mut unsupported = BTreeMap::<String, usize>::new();
    for case in read_folder(&Path::new(&golden).join("graphs")) {
        if !case.name.contains(&wanted) {
            continue;
        }
        let outcome = match case.run(&*stream) {
            Ok(found) => case.judge(&found),
            Err(RunError::Unsupported) => {
                *unsupported.entry(case.op_name().to_owned()).or_default() += 1;
                continue;
            }
            Err(error) => Err(error.to_string()),
        };
        match outcome {
            Ok(()) => passed += 1,
            Err(why) => complaints.push(format!("{}: {why}", case.name)),
        }
        if registry.failure().is_some() {
            (registry, stream) = connect(&endpoint);
        }
    }
    println!("{}: {passed} passed, not in the dialect: {unsupported:?}", registry.dialect());
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}
