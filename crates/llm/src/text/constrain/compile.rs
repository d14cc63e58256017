//! Grammars into what answers are checked with.
//!
//! Invariant: time and memory are bounded by the size of the grammar, which is bounded, and by the counters that llguidance
//! keeps. It has two gaps, which are closed here: it recurses, so it gets a stack that is large enough for all we let in; and it
//! looks at the first byte of an answer without counting, so that is done here before, with a count.

use std::panic::AssertUnwindSafe;
use std::thread;

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::{Matcher, ParserFactory, panic_utils};

use super::bounds::one_line;
use super::grammar::Source;
use super::tokens::Tokens;
use super::{ConstrainError, GrammarKind};
use crate::text::limits::{
    MAX_GRAMMAR_FUEL, MAX_GRAMMAR_STACK, MAX_GRAMMAR_SYMBOLS, MAX_LEXER_STATES, MAX_MASK_FUEL,
    MAX_MASK_ITEMS, MAX_ROW_ITEMS, MAX_START_FUEL,
};
use crate::text::vocab::Vocab;

/// What llguidance says where no token may follow, though the answer is not complete.
pub(super) const NO_TOKEN: &str = "NoExtension";

pub(super) struct Compiler {
    pub(super) tokens: Tokens,
    factory: ParserFactory,
}

impl Compiler {
    pub(super) fn new(vocab: &Vocab) -> Result<Compiler, ConstrainError> {
        let tokens = Tokens::new(vocab)?;
        let factory = ParserFactory::new_simple(&tokens.env);
        // Its expressions are its own; only a vocabulary could be at fault.
        let mut factory =
            factory.map_err(|_| ConstrainError::Vocabulary { what: "tokens", size: tokens.len, limit: 0 })?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Compiler { tokens, factory })
    }

    /// What an answer under this grammar begins with.
    pub(super) fn compile(&self, source: &Source) -> Result<Matcher, ConstrainError> {
        let kind = source.kind;
        thread::scope(|scope| {
            let thread = thread::Builder::new().name("grammar".into()).stack_size(MAX_GRAMMAR_STACK);
            let thread = thread
                .spawn_scoped(scope, || quietly(|| self.build(source)))
                .map_err(|error| ConstrainError::NoThread { kind, reason: error.to_string() })?;
            let ended = thread.join().unwrap_or_else(|_| Err("the compiler panicked".to_owned()));
            ended.map_err(|message| failure(kind, &message))
        })
    }

    fn build(&self, source: &Source) -> Result<Matcher, String> {
        let text = &source.text;
        let grammar = match source.kind {
            GrammarKind::JsonSchema => TopLevelGrammar::from_json_schema(
                serde_json::from_str(text).map_err(|error| error.to_string())?,
            ),
            GrammarKind::Regex => TopLevelGrammar::from_regex(text),
            GrammarKind::Lark | GrammarKind::Gbnf => TopLevelGrammar::from_lark(text.clone()),
        };
        let limits = self.factory.limits();
        let (grammar, lexer) = GrammarInit::Serialized(grammar)
            .to_internal(Some(self.tokens.env.clone()), limits.clone())
            .map_err(|error| error.to_string())?;
        self.try_first_bytes(&lexer)?;
        let parser = self.factory.create_parser_from_init_default(GrammarInit::Internal(grammar, lexer));
        let mut matcher = Matcher::new(parser);
        // Finds out whether nothing can follow, and what can; copies need not do it again.
        matcher.consume_tokens(&[]).map_err(|error| error.to_string())?;
        if !matcher.is_stopped() {
            matcher.compute_mask().map_err(|error| error.to_string())?;
        }
        Ok(matcher)
    }

    /// Does what making a parser will do, but stops when it takes too long.
    fn try_first_bytes(&self, lexer: &LexerSpec) -> Result<(), String> {
        let mut lexer = lexer.clone();
        lexer.add_extra_lexemes(&self.factory.extra_lexemes());
        let expressions = lexer.to_regex_vec(&mut self.factory.limits().clone());
        let mut expressions = expressions.map_err(|error| error.to_string())?;
        expressions.set_fuel(MAX_START_FUEL);
        let start = expressions.initial_state(&lexer.all_lexemes());
        for byte in 0..=u8::MAX {
            expressions.transition(start, byte);
            if let Some(error) = expressions.get_error() {
                return Err(format!("it takes too long to find out what it allows: {error}"));
            }
        }
        Ok(())
    }
}

fn failure(kind: GrammarKind, message: &str) -> ConstrainError {
    if message.starts_with(NO_TOKEN) {
        return ConstrainError::DeadEnd { kind };
    }
    let reason = match message.contains("coerce_one_of") {
        true => "the alternatives of \"oneOf\" are not known to exclude each other".to_owned(),
        false => one_line(message),
    };
    ConstrainError::Grammar { kind, reason }
}

/// The bounds on what is left to llguidance. Its defaults allow for half a gigabyte of states.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: MAX_ROW_ITEMS,
        initial_lexer_fuel: MAX_GRAMMAR_FUEL,
        step_lexer_fuel: MAX_MASK_FUEL,
        step_max_items: MAX_MASK_ITEMS,
        max_lexer_states: MAX_LEXER_STATES,
        max_grammar_size: MAX_GRAMMAR_SYMBOLS,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

/// Makes an error of a panic, without printing it.
fn quietly<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let ended = panic_utils::catch_unwind(AssertUnwindSafe(|| Ok(work())));
    ended.unwrap_or_else(|panic| Err(panic.to_string()))
}
