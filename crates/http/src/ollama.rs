//! Ollama's interface.

pub(crate) mod embed;
pub(crate) mod generate;
pub(crate) mod models;
mod options;
