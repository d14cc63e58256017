//! Characters: vocabularies, tokenizers, chat templates, sampling.
//!
//! | to | use |
//! |---|---|
//! | read a vocabulary from a file | [`Vocab::from_gguf`] |
//! | turn text into tokens | [`Vocab::encode`] |
//! | turn a conversation into tokens | [`ChatTemplate::prompt`], [`Vocab::encode_prompt`] |
//! | choose the next token | [`Sampler`] |
//! | turn tokens into text as they come | [`Streamer`] |
//! | end an answer at certain words | [`StopStrings`] |
//! | turn tokens into text at once | [`Vocab::decode`] |
//!
//! Vocabularies and templates come from files that are not trusted, text from users who may be hostile. Both are refused
//! with an error or handled; neither panics, and neither takes long for its size.

mod bpe;
mod chat;
mod decode;
mod encode;
pub mod limits;
mod merge;
mod pieces;
mod pretokenize;
mod sample;
mod specials;
mod spelling;
mod spm;
mod stop;
mod stream;
mod vocab;
mod wpm;

pub use chat::{ChatOptions, ChatTemplate, Message, Prompt, TemplateError};
pub use decode::Decode;
pub use encode::Encode;
pub use sample::{Choice, SampleError, Sampler, SamplerSettings, logprob, top_logprobs};
pub use stop::{Passed, StopStrings};
pub use stream::Streamer;
pub use vocab::{SpecialTokens, Token, TokenizerKind, Vocab, VocabError};
