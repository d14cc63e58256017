//! Arbitrary bytes as the body of a request, for every interface. See `edges` for what must hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| oxcart_http::edges::body(bytes));
