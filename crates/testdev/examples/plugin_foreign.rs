//! A plug-in of the right version that was built elsewhere: its entry is written out by hand, with a description of
//! another build. Its functions must not be called, because their types may mean something else.

/// The layout of version 1, byte by byte.
#[derive(Debug)]
#[repr(C)]
pub struct Entry {
    magic: u64,
    api_version: u32,
    build_start: *const u8,
    build_len: usize,
    score: extern "C" fn() -> u32,
    init: extern "C" fn(),
}

// SAFETY: its pointer is that of a constant, and nothing can be changed.
unsafe impl Sync for Entry {}

extern "C" fn score() -> u32 {
    std::process::abort()
}

extern "C" fn init() {
    std::process::abort()
}

const BUILD: &str = "another build";

static ENTRY: Entry = Entry {
    magic: u64::from_le_bytes(*b"oxcart\0\x01"),
    api_version: 1,
    build_start: BUILD.as_ptr(),
    build_len: BUILD.len(),
    score,
    init,
};

/// The one symbol of this plug-in.
#[unsafe(no_mangle)]
pub extern "C" fn oxcart_backend_entry() -> *const Entry {
    &ENTRY
}
