//! Any bytes as a client's script, played to a worker in memory.

use std::cell::RefCell;

use oxcart_rpc::wire::Dialect;
use oxcart_rpc::worker::DialectChoice;

use super::rig::Rig;
use super::script::{End, Script};

/// Nothing panics, answers have the right length, no other client's bytes are seen or changed, and nothing stays.
pub fn check(bytes: &[u8]) {
    graphs(bytes);
}

/// The same; says how many graphs were computed.
pub fn graphs(bytes: &[u8]) -> u64 {
    let Some((&choice, rest)) = bytes.split_first() else { return 0 };
    Rig::host().play(|rig| play(rig, choice, rest))
}

/// A client comes, does what its script says, and goes.
pub(super) fn play(rig: &Rig, choice: u8, script: &[u8]) {
    let dialect = Dialect::all()[usize::from(choice) % Dialect::all().len()];
    let script = RefCell::new(Script::new(dialect, script));
    rig.worker.serve_client(End(&script), End(&script), DialectChoice::Fixed(dialect));
    Rig::assert_not_seen(&script.into_inner().received);
}
