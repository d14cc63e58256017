//! Arbitrary bytes as a GGUF file: see `check` for what must hold.
#![no_main]

#[path = "../../crates/gguf/tests/common/mod.rs"]
mod common;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| common::check(bytes));
