//! Anthropic's interface.

pub(crate) mod messages;
