//! Recorded cases, run on the CPU device: within tolerance on every instruction set this processor has, and the same
//! bytes with one thread and with two.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use oxcart_backend::{Device, Stream, StreamOptions};
use oxcart_cases::{Case, read_folder};
use oxcart_cpu::{CpuDevice, Level};

/// The cases of a folder; `OXCART_CASES` may name a part of a case's name, to run those alone.
pub(crate) fn wanted_cases(folder: &Path) -> Vec<Case> {
    let wanted = std::env::var("OXCART_CASES").unwrap_or_default();
    let mut cases = read_folder(folder);
    cases.retain(|case| case.name.contains(&wanted));
    assert!(!cases.is_empty(), "no case of {} is called {wanted:?}", folder.display());
    cases
}

/// What is wrong with each case that fails, level by level.
pub(crate) fn complaints(cases: &[Case]) -> Vec<String> {
    let mut complaints = Vec::new();
    for level in Level::available() {
        let open = |threads| CpuDevice::with_level(level).open(&StreamOptions::threads(threads)).unwrap();
        let (one, two) = (open(1), open(2));
        for case in cases {
            if let Err(why) = check(case, &*one, &*two) {
                complaints.push(format!("{level}: {}: {why}", case.name));
            }
        }
    }
    complaints
}

fn check(case: &Case, one: &dyn Stream, two: &dyn Stream) -> Result<(), String> {
    let found = case.run(one).map_err(|error| error.to_string())?;
    case.judge(&found)?;
    let again = case.run(two).map_err(|error| error.to_string())?;
    if found == again { Ok(()) } else { Err("two threads give another result than one".into()) }
}
