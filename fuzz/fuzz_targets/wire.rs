//! Arbitrary bytes as a graph on the wire, in every dialect: see `check` for what must hold.
#![no_main]

#[path = "../../crates/rpc/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzed::wire::check(bytes));
