//! Arbitrary bytes as what is said on a pulse, and as what happens to who listens to it: see `check` for what must hold.
#![no_main]

#[path = "../../crates/rpc/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzed::pulse::check(bytes));
