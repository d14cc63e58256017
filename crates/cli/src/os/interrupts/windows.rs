//! Windows: Ctrl-C and Ctrl-Break.

use std::io;

pub(super) fn watch(interrupt: impl Fn() + Send + 'static) -> io::Result<()> {
    ctrlc::set_handler(interrupt).map_err(io::Error::other)
}
