//! One answer under a grammar.
//!
//! Invariant: a call that fails leaves the answer as it was. What llguidance holds is always the state after the tokens
//! that were accepted, without the end; where that is lost, it is made anew from them, once: this happens between the steps of an engine, and
//! all its other answers wait. Nothing is compiled here.

use std::fmt;
use std::sync::Arc;

use llguidance::Matcher;

use super::bounds::one_line;
use super::cache::Compiled;
use super::compile::NO_TOKEN;
use super::{ConstrainError, Constraints, GrammarKind};
use crate::text::limits::MAX_NUMBER_DIGITS;
use crate::text::mask::TokenMask;
use crate::text::vocab::Token;

/// An answer that is being made under a grammar; clones go their own ways.
pub struct Constraint {
    constraints: Constraints,
    pub(super) compiled: Arc<Compiled>,
    matcher: Matcher,
    /// Whether it shares nothing any more with the answers of others.
    is_alone: bool,
    /// Without the end.
    accepted: Vec<Step>,
    end: Option<Token>,
}

/// A token that was accepted, and where in JSON it has led to.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Step {
    token: Token,
    after: JsonPlace,
}

/// Just enough about JSON to tell a number from a string.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct JsonPlace {
    in_string: bool,
    escaped: bool,
    /// Digits of the number that ends here.
    digits: u8,
}

impl JsonPlace {
    fn after(mut self, bytes: &[u8]) -> JsonPlace {
        for &byte in bytes {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'0'..=b'9' => {
                    self.digits = self.digits.saturating_add(1);
                    continue;
                }
                b'.' | b'e' | b'E' | b'+' | b'-' if self.digits > 0 => continue,
                _ => {}
            }
            self.digits = 0;
        }
        self
    }
}

impl Constraint {
    pub(super) fn new(constraints: Constraints, compiled: Arc<Compiled>) -> Constraint {
        let matcher = compiled.matcher.clone();
        Constraint { constraints, compiled, matcher, is_alone: false, accepted: Vec::new(), end: None }
    }

    /// What kind of grammar it is.
    pub fn kind(&self) -> GrammarKind {
        self.compiled.source.kind
    }

    /// How many tokens the vocabulary has that it was made for.
    pub fn vocabulary(&self) -> usize {
        self.constraints.0.compiler.tokens.len
    }

    /// Fills in which tokens may come next. Those that end an answer are among them where it may end; after the end there are
    /// none.
    ///
    /// In JSON, a number of 20 digits gets no more of them where anything else may follow: small models are apt to go on for
    /// ever.
    pub fn mask(&mut self, mask: &mut TokenMask) -> Result<(), ConstrainError> {
        let shared = self.constraints.clone();
        let tokens = &shared.0.compiler.tokens;
        if self.end.is_some() {
            *mask = TokenMask::none(tokens.len);
            return Ok(());
        }
        let words: Vec<u32> = self.attempt(|matcher| matcher.compute_mask_or_eos())?.into();
        *mask = TokenMask::from_words(words, tokens.len);
        for &(token, twin) in &tokens.twins {
            if mask.contains(twin) {
                mask.allow(token);
            }
        }
        if self.kind() == GrammarKind::JsonSchema && self.place().digits >= MAX_NUMBER_DIGITS {
            mask.subtract_unless_all(&tokens.digits);
        }
        Ok(())
    }

    /// Takes a token, or refuses it.
    pub fn accept(&mut self, token: Token) -> Result<(), ConstrainError> {
        let refused = ConstrainError::Refused { kind: self.kind(), token };
        if self.end.is_some() || token as usize >= self.constraints.0.compiler.tokens.len {
            return Err(refused);
        }
        self.revive()?;
        if self.constraints.0.compiler.tokens.ends.binary_search(&token).is_ok() {
            if self.may_end()? {
                self.end = Some(token);
                return Ok(());
            }
            // A grammar can also name such a token where the answer goes on.
            let mut mask = TokenMask::default();
            self.mask(&mut mask)?;
            if !mask.contains(token) {
                return Err(refused);
            }
            self.attempt(|matcher| matcher.consume_token(token))?;
        } else if self.matcher.is_stopped()
            || self.attempt(|matcher| matcher.try_consume_tokens(&[token]))? == 0
        {
            return Err(refused);
        }
        let trie = self.constraints.0.compiler.tokens.env.tok_trie();
        let after = self.place().after(trie.token(token));
        self.accepted.push(Step { token, after });
        Ok(())
    }

    /// How many of these tokens could be accepted one after another, for guesses that are not worth computing.
    pub fn accepts(&mut self, tokens: &[Token]) -> Result<usize, ConstrainError> {
        self.revive()?;
        let len = self.constraints.0.compiler.tokens.len;
        let known = tokens.iter().take_while(|&&token| (token as usize) < len).count();
        let tokens = tokens.get(..known).unwrap_or_default();
        match (self.end, tokens.first()) {
            (Some(_), _) | (_, None) => Ok(0),
            (None, Some(first)) if self.matcher.is_stopped() => {
                Ok(self.constraints.0.compiler.tokens.ends.binary_search(first).is_ok().into())
            }
            _ => self.attempt(|matcher| matcher.validate_tokens(tokens)),
        }
    }

    /// Bytes that must come next, whatever the model says; empty where it has a choice, or where the answer may end.
    pub fn forced(&mut self) -> Vec<u8> {
        if self.end.is_some() || self.matcher.is_stopped() {
            return Vec::new();
        }
        // Asking changes what the matcher expects, though not what it accepts.
        self.matcher.clone().compute_ff_bytes()
    }

    /// Takes back the tokens accepted last, the end included.
    pub fn rollback(&mut self, count: usize) -> Result<(), ConstrainError> {
        let accepted = self.len();
        if count > accepted {
            return Err(ConstrainError::Rollback { asked: count, accepted });
        }
        if count == 0 {
            return Ok(());
        }
        let count = count - usize::from(self.end.take().is_some());
        self.accepted.truncate(self.accepted.len() - count);
        if self.matcher.rollback(count).is_err() {
            // Some grammars cannot go back.
            let shared = || self.replayed(self.compiled.matcher.clone()).ok();
            match if self.is_alone { None } else { shared() } {
                Some(matcher) => self.matcher = matcher,
                None => self.begin_alone()?,
            }
        }
        Ok(())
    }

    /// How many tokens were accepted, the end included.
    pub fn len(&self) -> usize {
        self.accepted.len() + usize::from(self.end.is_some())
    }

    /// Whether no token was accepted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the answer is complete as it is, so that it may end.
    pub fn may_end(&mut self) -> Result<bool, ConstrainError> {
        Ok(self.must_end() || self.attempt(Matcher::is_accepting)?)
    }

    /// Whether the answer is complete and nothing can follow, so that there is no need to ask the model.
    pub fn must_end(&self) -> bool {
        self.end.is_some() || self.matcher.stop_reason() == llguidance::api::StopReason::NoExtension
    }

    /// Whether a token that ends the answer was accepted.
    pub fn is_finished(&self) -> bool {
        self.end.is_some()
    }

    /// Makes the parser panic, with what all answers of the grammar share in its hands.
    #[cfg(test)]
    pub(super) fn spoil(&mut self) {
        self.matcher.test_trigger_lexer_error().unwrap_err();
    }

    /// Where in JSON the answer is.
    fn place(&self) -> JsonPlace {
        self.accepted.last().map_or_else(JsonPlace::default, |step| step.after)
    }

    /// Asks the matcher. Where it fails, another answer may have spoiled what both share, or have used up what there is room
    /// for; so it is asked once more, alone. What fails alone is too much by itself.
    fn attempt<T, E: fmt::Display>(
        &mut self,
        ask: impl Fn(&mut Matcher) -> Result<T, E>,
    ) -> Result<T, ConstrainError> {
        match ask(&mut self.matcher) {
            Ok(answer) => return Ok(answer),
            Err(error) if self.is_alone => return Err(self.failure(&error.to_string())),
            Err(_) => {}
        }
        self.constraints.0.cache.remove(&self.compiled);
        self.begin_alone()?;
        let before = self.matcher.clone();
        ask(&mut self.matcher).map_err(|error| {
            // A matcher that has failed is of no use; this one is for what else may be asked.
            self.matcher = before;
            self.failure(&error.to_string())
        })
    }

    /// Makes the matcher anew where it has failed before.
    fn revive(&mut self) -> Result<(), ConstrainError> {
        match self.matcher.get_error() {
            None => Ok(()),
            Some(error) if self.is_alone => Err(self.failure(&error)),
            Some(_) => self.begin_alone(),
        }
    }

    /// Goes on with a matcher that shares nothing with those of other answers, at the place of this one.
    fn begin_alone(&mut self) -> Result<(), ConstrainError> {
        self.matcher = self.replayed(self.compiled.alone())?;
        self.is_alone = true;
        Ok(())
    }

    /// A fresh matcher brought to the place of this answer.
    fn replayed(&self, mut matcher: Matcher) -> Result<Matcher, ConstrainError> {
        let tokens: Vec<Token> = self.accepted.iter().map(|step| step.token).collect();
        matcher.consume_tokens(&tokens).map_err(|error| self.failure(&error.to_string()))?;
        Ok(matcher)
    }

    fn failure(&self, message: &str) -> ConstrainError {
        let kind = self.kind();
        match message.starts_with(NO_TOKEN) {
            true => ConstrainError::DeadEnd { kind },
            false => ConstrainError::TooComplex { kind, reason: one_line(message) },
        }
    }
}

impl Clone for Constraint {
    fn clone(&self) -> Constraint {
        Constraint {
            constraints: self.constraints.clone(),
            compiled: self.compiled.clone(),
            matcher: self.matcher.clone(),
            is_alone: self.is_alone,
            accepted: self.accepted.clone(),
            end: self.end,
        }
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint")
            .field("kind", &self.kind())
            .field("accepted", &self.accepted.len())
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}
