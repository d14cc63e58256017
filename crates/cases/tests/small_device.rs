//! The example of a device, run through the recorded cases like any other.

#[path = "../../backend/examples/small_device.rs"]
#[expect(unreachable_pub, reason = "an example, read on its own")]
mod small_device;

use oxcart_backend::{Device, StreamOptions};
use oxcart_cases::{RunError, read_folder};
use small_device::Abacus;

#[test]
fn the_example_adds() {
    small_device::main().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn the_example_computes_what_it_says_it_supports() {
    let Some(golden) = oxcart_fixtures::golden() else { return };
    let stream = Abacus::new().open(&StreamOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let (mut passed, mut unsupported, mut complaints) = (0, 0, Vec::new());
    for case in read_folder(&golden.join("graphs")) {
        match case.run(&*stream).map(|found| case.judge(&found)) {
            Ok(Ok(())) => passed += 1,
            Ok(Err(why)) => complaints.push(format!("{}: {why}", case.name)),
            Err(RunError::Unsupported) => unsupported += 1,
            Err(error) => complaints.push(format!("{}: {error}", case.name)),
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    assert!(passed >= 10 && unsupported > passed, "{passed} passed, {unsupported} not supported");
}
