//! Why an answer cannot be given the form that is asked for.

use super::GrammarKind;
use crate::text::vocab::Token;

/// Why an answer cannot be given the form that is asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConstrainError {
    /// The vocabulary is larger than any that is in use.
    #[error("the vocabulary has {size} {what}, but for constraints at most {limit} are supported")]
    Vocabulary {
        /// Of what.
        what: &'static str,
        /// How many.
        size: usize,
        /// How many there may be.
        limit: usize,
    },
    /// The grammar is larger than is supported.
    #[error("the {kind} has {size} {what}, but at most {limit} are supported")]
    TooLarge {
        /// What kind of grammar it is.
        kind: GrammarKind,
        /// Of what.
        what: &'static str,
        /// How many.
        size: usize,
        /// How many there may be.
        limit: usize,
    },
    /// A number in a schema that is out of range.
    #[error("the JSON schema is not supported: \"{keyword}\" is {value}, but should be {wanted}")]
    Number {
        /// The keyword.
        keyword: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        wanted: &'static str,
    },
    /// The grammar is none, or asks for something that is not supported, or for too much.
    #[error("the {kind} is not supported: {reason}")]
    Grammar {
        /// What kind of grammar it is.
        kind: GrammarKind,
        /// Why.
        reason: String,
    },
    /// The system would not start a thread.
    #[error("no thread to compile the {kind} could be started: {reason}")]
    NoThread {
        /// What kind of grammar it is.
        kind: GrammarKind,
        /// Why.
        reason: String,
    },
    /// A token that may not come here.
    #[error("token {token} is not allowed here by the {kind}")]
    Refused {
        /// What kind of grammar it is.
        kind: GrammarKind,
        /// The token.
        token: Token,
    },
    /// Something has to follow, but the vocabulary has no token for it.
    #[error("no token of the vocabulary goes on from here as the {kind} demands")]
    DeadEnd {
        /// What kind of grammar it is.
        kind: GrammarKind,
    },
    /// Finding out what may follow takes too long.
    #[error("the {kind} is too complex to go on from here: {reason}")]
    TooComplex {
        /// What kind of grammar it is.
        kind: GrammarKind,
        /// Why.
        reason: String,
    },
    /// More tokens are to be taken back than were accepted.
    #[error("{asked} tokens are to be taken back, but only {accepted} were accepted")]
    Rollback {
        /// How many are asked for.
        asked: usize,
        /// How many there are.
        accepted: usize,
    },
}
