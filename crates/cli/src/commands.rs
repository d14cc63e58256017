//! One file per command.

pub(crate) mod inspect;
pub(crate) mod serve;
