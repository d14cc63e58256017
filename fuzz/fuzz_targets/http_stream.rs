//! Arbitrary answers as streams: server-sent events and lines of JSON. See `edges` for what must hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| oxcart_http::edges::stream(bytes));
