//! A shared library that is no plug-in: it lacks the entry point.

/// Something else.
#[unsafe(no_mangle)]
pub extern "C" fn answer() -> u32 {
    42
}
