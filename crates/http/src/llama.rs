//! What llama-server offers beside OpenAI's interface.

pub(crate) mod completion;
pub(crate) mod metrics;
pub(crate) mod state;
pub(crate) mod tokens;
