//! Answers that have a form: JSON schemas, regular expressions and grammars as masks over tokens.
//!
//! [`Constraints`] belong to a vocabulary and compile a [`Grammar`], once for each; a [`Constraint`] is one answer under it.
//! What a token may be follows from the bytes that it stands for; parsing is `llguidance`'s.
//!
//! Invariant: a [`Constraint`] takes every token of its mask, and an answer that ends by itself is in the language of its
//! grammar. What a grammar may ask for is bounded before it is looked at (`limits`), and what is left to llguidance by
//! counters of its own: a bad one is an error, in bounded time and memory. A sequence is not affected by what others do with
//! the same grammar: where they share what llguidance has worked out and that has failed, it is done anew for this one alone.

mod bounds;
mod cache;
mod compile;
mod error;
mod gbnf;
mod grammar;
pub(in crate::text) mod schema;
mod state;
mod tokens;

use std::fmt;
use std::sync::Arc;

pub use error::ConstrainError;
pub use grammar::{Grammar, GrammarKind, JsonOptions, JsonWhitespace};
pub use state::Constraint;

use super::vocab::Vocab;
use cache::{Cache, Compiled};
use compile::Compiler;
use grammar::Source;

/// What a vocabulary needs for answers that have a form: made once, cheap to clone, used by any number of threads.
///
/// ```
/// use oxcart_llm::text::{Constraints, Grammar, TokenMask};
/// # use oxcart_gguf::{Builder, Header};
/// # let mut file = Vec::new();
/// # let mut builder = Builder::new();
/// # builder
/// #     .set("tokenizer.ggml.model", "gpt2")
/// #     .set("tokenizer.ggml.tokens", ["y", "e", "s", "n", "o", "yes", "</s>"])
/// #     .set("tokenizer.ggml.token_type", [1, 1, 1, 1, 1, 1, 3])
/// #     .set("tokenizer.ggml.merges", ["y e"])
/// #     .set("tokenizer.ggml.eos_token_id", 6u32);
/// # builder.write(&mut file)?;
/// # let vocab = oxcart_llm::text::Vocab::from_gguf(&Header::parse(&file)?.metadata())?;
/// // Tokens: y, e, s, n, o, yes and an end.
/// let constraints = Constraints::new(&vocab)?;
/// let mut answer = constraints.compile(&Grammar::Regex("yes|no".into()))?;
/// let mut mask = TokenMask::default();
/// answer.mask(&mut mask)?;
/// assert_eq!(mask.iter().collect::<Vec<_>>(), [0, 3, 5]);
/// answer.accept(3)?;
/// answer.accept(4)?;
/// assert!(answer.must_end());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Constraints(Arc<SharedCompiler>);

/// What all clones use.
struct SharedCompiler {
    compiler: Compiler,
    cache: Cache,
}

impl Constraints {
    /// Prepares a vocabulary, which takes about a second for a large one.
    pub fn new(vocab: &Vocab) -> Result<Constraints, ConstrainError> {
        Ok(Constraints(Arc::new(SharedCompiler { compiler: Compiler::new(vocab)?, cache: Cache::default() })))
    }

    /// The beginning of an answer under a grammar, which is compiled unless it was among the last few.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint, ConstrainError> {
        let source = Source::new(grammar)?;
        let compiled = match self.0.cache.find(&source) {
            Some(compiled) => compiled,
            None => {
                let matcher = self.0.compiler.compile(&source)?;
                self.0.cache.insert(Arc::new(Compiled::new(source, matcher)))
            }
        };
        Ok(Constraint::new(self.clone(), compiled))
    }
}

impl fmt::Debug for Constraints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraints").field("cached", &self.0.cache.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
