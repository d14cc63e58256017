//! One file per command.

pub(crate) mod devices;
pub(crate) mod inspect;
pub(crate) mod serve;
