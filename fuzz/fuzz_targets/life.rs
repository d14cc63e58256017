//! Arbitrary bytes as the lives of several connections, each of which ends at some byte: see `check` for what must hold.
#![no_main]

#[path = "../../crates/rpc/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzed::life::check(bytes));
