//! One file per command.

pub(crate) mod devices;
pub(crate) mod inspect;
pub(crate) mod pull;
pub(crate) mod quantize;
pub(crate) mod serve;
