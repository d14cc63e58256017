//! Arbitrary bytes as the script of a client, played to a worker in memory: see `check` for what must hold.
#![no_main]

#[path = "../../crates/rpc/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzed::session::check(bytes));
