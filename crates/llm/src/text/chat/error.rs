//! Why a conversation could not be rendered.

use crate::text::limits::{MAX_TEMPLATE_BYTES, MAX_TEMPLATE_OUTPUT, MAX_TEMPLATE_STEPS, MAX_TEMPLATE_WORK};

/// Why a conversation could not be rendered. Texts out of templates are escaped, fit for a terminal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The source is longer than any template is.
    #[error("the chat template has {bytes} bytes, but at most {MAX_TEMPLATE_BYTES} are supported")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The source is no template.
    #[error("the chat template is invalid{}: {reason}", at_line(*.line))]
    Invalid {
        /// Where, if that is known; the first line is 1.
        line: Option<usize>,
        /// Why.
        reason: String,
    },
    /// The template itself refuses the conversation.
    #[error("the chat template refuses the conversation: {message}")]
    Refused {
        /// What it says.
        message: String,
    },
    /// The template failed.
    #[error("the chat template failed{}: {reason}", at_line(*.line))]
    Failed {
        /// Where, if that is known; the first line is 1.
        line: Option<usize>,
        /// Why.
        reason: String,
    },
    /// The template takes too long.
    #[error("the chat template was stopped after {MAX_TEMPLATE_STEPS} steps")]
    OutOfSteps,
    /// The template works on too much.
    #[error("the chat template was stopped after working on {MAX_TEMPLATE_WORK} bytes")]
    OutOfBudget,
    /// The template writes too much.
    #[error("the chat template was stopped after {MAX_TEMPLATE_OUTPUT} bytes of text")]
    OutputTooLong,
    /// Messages hold all the code points that could mark places in them.
    #[error(
        "the conversation holds all 32 of the code points U+FDD0 to U+FDEF, which stand for no characters"
    )]
    NoMarker,
    /// The template engine has a fault that the template has found.
    #[error("the template engine failed at the chat template, which is a fault of this program")]
    Broken,
    /// The system would not start a thread.
    #[error("no thread for the chat template could be started: {reason}")]
    NoThread {
        /// Why.
        reason: String,
    },
}

fn at_line(line: Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!(" at line {line}"))
}
