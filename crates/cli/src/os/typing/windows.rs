//! Windows: consoles keep what is typed as keys, and show it when it is read.

pub(super) fn begin() {}

pub(crate) fn mark_pastes() {}

pub(crate) fn restore() {}
