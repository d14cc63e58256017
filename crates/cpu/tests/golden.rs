//! The single-op graphs of the reference, computed: within tolerance on every instruction set this processor has, and
//! the same bytes with one thread and with two.
//!
//! The data lies outside the repository; `OXCART_GOLDEN` names its folder. `OXCART_CASES` may name a part of a case's
//! name, to run those alone.

use std::path::Path;

use oxcart_backend::{Backend, Device};
use oxcart_cases::{Case, read_folder};
use oxcart_cpu::{CpuDevice, Level};

#[test]
fn every_case_is_computed_as_the_reference_does() {
    let Some(golden) = std::env::var_os("OXCART_GOLDEN") else {
        println!("skipped: OXCART_GOLDEN is not set");
        return;
    };
    let wanted = std::env::var("OXCART_CASES").unwrap_or_default();
    let mut cases = read_folder(&Path::new(&golden).join("graphs"));
    cases.retain(|case| case.name.contains(&wanted));
    assert!(!cases.is_empty());
    let mut complaints = Vec::new();
    for level in Level::available() {
        let open = |threads| CpuDevice::with_level(level).open(&format!("threads={threads}")).unwrap();
        let (one, two) = (open(1), open(2));
        for case in &cases {
            if let Err(why) = check(case, &*one, &*two) {
                complaints.push(format!("{level}: {}: {why}", case.name));
            }
        }
    }
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

fn check(case: &Case, one: &dyn Backend, two: &dyn Backend) -> Result<(), String> {
    let found = case.run(one).map_err(|error| error.to_string())?;
    case.judge(&found)?;
    let again = case.run(two).map_err(|error| error.to_string())?;
    if found == again { Ok(()) } else { Err("two threads give another result than one".into()) }
}
