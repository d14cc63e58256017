//! Arbitrary bytes as a join line, as messages and as a history of two machines that meet: see `check` for what must hold.
#![no_main]

#[path = "../../crates/rpc/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzed::pairing::check(bytes));
