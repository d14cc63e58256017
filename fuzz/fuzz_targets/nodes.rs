//! Arbitrary bytes as a node of any op, drawn as they say, and sent to a worker: see `check` for what must hold.
#![no_main]

#[path = "../../crates/rpc/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzed::nodes::check(bytes));
