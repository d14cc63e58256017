//! Text to tokens.

use super::bpe::Work;
use super::chat::Prompt;
use super::fit::TooManyTokens;
use super::specials::{Fragment, Parse};
use super::vocab::{Token, Tokenizer, Vocab};

/// How a text is turned into tokens. The default takes it as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encode {
    /// Adds the tokens that a whole text begins and ends with, as far as the vocabulary asks for them.
    pub add_special: bool,
    /// Takes the names of special tokens in the text for these tokens. Never for text from another source: see
    /// [`Vocab::encode_prompt`].
    pub parse_special: bool,
}

impl Vocab {
    /// The tokens of a text, which may be any bytes.
    ///
    /// Byte-pair and SentencePiece vocabularies keep bytes that are no UTF-8 as far as they have tokens for them, and the
    /// former put U+FFFD for the others (llama.cpp puts it for all); unigram vocabularies put U+FFFD, WordPiece drops them along
    /// with everything else that its normalization drops. Without a tokenizer, no text has tokens: see [`Vocab::kind`].
    pub fn encode(&self, text: impl AsRef<[u8]>, options: Encode) -> Vec<Token> {
        let parse = if options.parse_special { Parse::Special } else { Parse::Text };
        self.encode_with(text.as_ref(), parse, options.add_special)
    }

    /// As [`encode`](Vocab::encode), unless there would be more than `most` tokens. What has no chance to fit is refused before it takes
    /// the time and memory that its length asks for; texts that are somewhat too long are counted.
    pub fn encode_within(
        &self,
        text: impl AsRef<[u8]>,
        options: Encode,
        most: usize,
    ) -> Result<Vec<Token>, TooManyTokens> {
        let parse = if options.parse_special { Parse::Special } else { Parse::Text };
        self.check_len(text.as_ref(), parse, options.add_special, most)
    }

    /// The tokens of a conversation. Control tokens come from the template alone: where a message spells one, it stays
    /// text.
    ///
    /// Where the vocabulary adds a beginning (or an end) of its own, the template's is taken away, so that there is one.
    pub fn encode_prompt(&self, prompt: &Prompt) -> Vec<Token> {
        let (text, guards) = self.without_added(prompt);
        self.encode_with(text, Parse::Guarded(&guards), true)
    }

    /// As [`encode_prompt`](Vocab::encode_prompt), unless there would be more than `most` tokens; see
    /// [`encode_within`](Vocab::encode_within).
    pub fn encode_prompt_within(&self, prompt: &Prompt, most: usize) -> Result<Vec<Token>, TooManyTokens> {
        let (text, guards) = self.without_added(prompt);
        self.check_len(text, Parse::Guarded(&guards), true, most)
    }

    /// A conversation without the beginning and the end that the vocabulary adds to it, and its guards.
    fn without_added<'p>(&self, prompt: &'p Prompt) -> (&'p [u8], Vec<usize>) {
        let mut text = prompt.text().as_bytes();
        let mut guards = prompt.guards().to_vec();
        let written = |token: Option<Token>| token.map_or(&b""[..], |token| self.texts.get(token));
        if self.adds_bos() {
            let bos = written(self.special().bos);
            if guards.first().is_none_or(|&guard| guard >= bos.len())
                && let Some(rest) = text.strip_prefix(bos)
            {
                text = rest;
                guards.iter_mut().for_each(|guard| *guard -= bos.len());
            }
        }
        if self.adds_eos() {
            let eos = written(self.special().eos);
            if guards.last().is_none_or(|&guard| guard < text.len().saturating_sub(eos.len())) {
                text = text.strip_suffix(eos).unwrap_or(text);
            }
        }
        (text, guards)
    }

    fn encode_with(&self, text: &[u8], parse: Parse<'_>, add_special: bool) -> Vec<Token> {
        self.encode_until(text, parse, add_special, usize::MAX).tokens
    }

    fn check_len(
        &self,
        text: &[u8],
        parse: Parse<'_>,
        add_special: bool,
        most: usize,
    ) -> Result<Vec<Token>, TooManyTokens> {
        let least = self.fit.least(text);
        if least > most {
            return Err(TooManyTokens::at_least(least));
        }
        let until = if self.fit.is_worth_counting(text, most) { usize::MAX } else { most };
        let Encoded { tokens, is_whole } = self.encode_until(text, parse, add_special, until);
        match (is_whole, tokens.len() > most) {
            (true, false) => Ok(tokens),
            (true, true) => Err(TooManyTokens::exactly(tokens.len())),
            (false, _) => Err(TooManyTokens::at_least(tokens.len().max(most + 1))),
        }
    }

    /// Encodes a text to its end, or until there certainly are more tokens than `most`.
    fn encode_until(&self, text: &[u8], parse: Parse<'_>, add_special: bool, most: usize) -> Encoded {
        let mut tokens = Vec::with_capacity(text.len() / 4 + 2);
        let add = |tokens: &mut Vec<Token>, wanted: bool, token: Option<Token>| {
            if add_special && wanted {
                tokens.extend(token);
            }
        };
        let special = self.special();
        add(&mut tokens, self.flags.add_bos, special.bos);
        let mut work = Work::default();
        let mut after_special = true;
        for fragment in self.specials.split(text, parse) {
            match fragment {
                Fragment::Token(token) => {
                    tokens.push(token);
                    after_special = true;
                }
                Fragment::Raw(range) => {
                    let raw = text.get(range).unwrap_or_default();
                    let space_prefix = self.flags.add_space_prefix && after_special;
                    match &self.tokenizer {
                        Tokenizer::Bpe(bpe) => bpe.encode(raw, &mut work, &mut tokens),
                        Tokenizer::Spm(spm) => {
                            let pieces = (&self.texts, self.scores.as_slice());
                            spm.encode(pieces, raw, space_prefix, &mut work, &mut tokens);
                        }
                        Tokenizer::Wpm(wpm) => wpm.encode(raw, most, &mut tokens),
                        Tokenizer::Ugm(ugm) => {
                            if !ugm.encode(raw, most.saturating_sub(tokens.len()), &mut tokens) {
                                return Encoded { tokens, is_whole: false };
                            }
                        }
                        Tokenizer::Rwkv(rwkv) => rwkv.encode(raw, &mut tokens),
                        Tokenizer::Plamo2(plamo2) => plamo2.encode(raw, &mut tokens),
                        Tokenizer::None => {}
                    }
                    after_special = false;
                }
            }
            if tokens.len() > most {
                return Encoded { tokens, is_whole: false };
            }
        }
        add(&mut tokens, self.flags.add_sep, special.sep);
        add(&mut tokens, self.flags.add_eos, special.eos);
        Encoded { tokens, is_whole: true }
    }
}

/// The tokens of a text, or of its beginning.
struct Encoded {
    tokens: Vec<Token>,
    is_whole: bool,
}
