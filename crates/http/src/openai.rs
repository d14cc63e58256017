//! OpenAI's interface.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod fields;
pub(crate) mod models;
pub(crate) mod responses;
pub(crate) mod shared;
