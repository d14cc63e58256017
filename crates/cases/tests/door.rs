//! The single-op graphs of the reference, rebuilt through the door: each must be accepted, with exactly the type,
//! extents, strides and sharing that the reference gave its result.
//!
//! The data lies outside the repository: `OXCART_GOLDEN` names the folder of recorded graphs, `OXCART_DIFFERENTIAL` one of
//! random cases made by `tools/differential`.

use std::path::Path;

use oxcart_cases::{Case, read_folder};
use oxcart_tensor::graph::ViewOf;

#[test]
fn the_door_agrees_with_the_reference() {
    if let Some(golden) = oxcart_fixtures::golden() {
        check_folder(&golden.join("graphs"));
    }
}

#[test]
#[ignore = "tools/differential.sh makes its cases and runs it"]
fn the_door_accepts_random_cases() {
    if let Some(folder) = oxcart_fixtures::variable("OXCART_DIFFERENTIAL") {
        check_folder(Path::new(&folder));
    }
}

fn check_folder(folder: &Path) {
    let cases = read_folder(folder);
    let complaints: Vec<_> = cases
        .iter()
        .filter_map(|case| check(case).err().map(|why| format!("{}: {why}", case.name)))
        .collect();
    assert!(!cases.is_empty());
    assert!(
        complaints.is_empty(),
        "{} of {} cases:\n{}",
        complaints.len(),
        cases.len(),
        complaints.join("\n")
    );
}

fn check(case: &Case) -> Result<(), String> {
    let built = case.build().map_err(|error| error.to_string())?;
    let made = built.graph.tensor(built.node).map_err(|error| error.to_string())?;
    let want = case.result().layout;
    let view = case.aliased().and_then(|slot| built.sources[slot]).map(|root| ViewOf { root, offset: 0 });
    if *made.layout() == want && made.view() == view {
        return Ok(());
    }
    let (found, strides) = (made.layout(), [made.layout().nb(), want.nb()]);
    Err(format!("made {found}, {:?}, wanted {want}, {view:?}; strides {strides:?}", made.view()))
}
