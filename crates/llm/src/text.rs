//! Characters: vocabularies, tokenizers, chat templates, sampling.
//!
//! | to | use |
//! |---|---|
//! | read a vocabulary from a file | [`Vocab::from_gguf`] |
//! | turn text into tokens | [`Vocab::encode`] |
//! | turn it into no more tokens than there is room for | [`Vocab::encode_within`], [`Vocab::encode_prompt_within`] |
//! | turn a conversation into tokens | [`ChatTemplate::prompt`], [`Vocab::encode_prompt`] |
//! | tell reasoning, text and calls of tools apart in an answer | [`ChatFormat`], [`AnswerParser`] |
//! | choose the next token | [`Sampler`] |
//! | make an answer JSON, or follow a grammar | [`Constraints`] |
//! | guess the next tokens from what was said before | [`Lookup`] |
//! | turn tokens into text as they come | [`Streamer`] |
//! | end an answer at certain words | [`StopStrings`] |
//! | turn tokens into text at once | [`Vocab::decode`] |
//!
//! Vocabularies and templates come from files that are not trusted, text from users who may be hostile. Both are refused
//! with an error or handled; neither panics, and neither takes long for its size.

mod bpe;
mod chat;
mod constrain;
mod decode;
mod encode;
mod fit;
pub mod limits;
mod lookup;
mod lowercase;
mod mask;
mod merge;
mod pieces;
mod plamo2;
mod prefixes;
mod pretokenize;
mod rwkv;
mod sample;
mod specials;
mod spelling;
mod spm;
mod stop;
mod stream;
mod ugm;
mod vocab;
mod wpm;

pub use chat::{
    Answer, AnswerEvent, AnswerParser, CallSyntax, ChatFormat, ChatOptions, ChatTemplate, Message, Prompt,
    TemplateError, Tool, ToolCall, ToolChoice, ToolError,
};
pub use constrain::{
    ConstrainError, Constraint, Constraints, Grammar, GrammarKind, JsonOptions, JsonWhitespace,
};
pub use decode::Decode;
pub use encode::Encode;
pub use fit::TooManyTokens;
pub use lookup::{Lookup, LookupSettings};
pub use mask::TokenMask;
pub use sample::{
    Choice, Dry, Mirostat, SampleError, Sampler, SamplerSettings, SavedSamplerError, logprob, top_logprobs,
};
pub use stop::{Passed, StopError, StopStrings};
pub use stream::Streamer;
pub use vocab::{SpecialTokens, Token, TokenizerKind, Vocab, VocabError};
