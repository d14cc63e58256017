//! Arbitrary bytes as the answers of a worker to our client: see `check` for what must hold.
#![no_main]

#[path = "../../crates/rpc/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzed::client::check(bytes));
