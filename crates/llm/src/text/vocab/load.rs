//! A vocabulary out of a file's metadata.
//!
//! Invariant: nothing is believed. Every array has an entry for each token, every special token exists, texts are unique;
//! what does not hold is an error that names the key.

use oxcart_gguf::{Metadata, Name};

use super::{Attributes, Flags, SpecialTokens, Token, Tokenizer, Vocab, VocabError};
use crate::text::bpe::{Bpe, Dialect, Dna, without_mark};
use crate::text::decode::meaning;
use crate::text::fit::Fit;
use crate::text::limits::{MAX_NAMELESS_TOKENS, MAX_PIECE_BYTES, MAX_TOKENS};
use crate::text::pieces::{Arena, Pieces};
use crate::text::plamo2::Plamo2;
use crate::text::pretokenize::{self, Named, Spelling};
use crate::text::rwkv::Rwkv;
use crate::text::specials::Specials;
use crate::text::spm::Spm;
use crate::text::ugm::{CharMap, Ugm, UgmSpaces};
use crate::text::wpm::Wpm;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
const ADD_SEP: &str = "tokenizer.ggml.add_sep_token";
const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
const BOS_ID: &str = "tokenizer.ggml.bos_token_id";
const EOS_ID: &str = "tokenizer.ggml.eos_token_id";
/// Spelled so in files.
const SEP_ID: &str = "tokenizer.ggml.seperator_token_id";
const LOWERCASE: &str = "tokenizer.ggml.normalizer.lowercase";
const STRIP_ACCENTS: &str = "tokenizer.ggml.normalizer.strip_accents";
const CHARS_MAP: &str = "tokenizer.ggml.precompiled_charsmap";
const MERGE_SPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";
const SUPPRESS: &str = "tokenizer.ggml.suppress_tokens";

/// All keys above begin so.
const PREFIX: &str = "tokenizer.ggml.";

/// Keys that are read, but for those of tokens with a role.
const READ: [&str; 17] = [
    MODEL,
    PRE,
    TOKENS,
    SCORES,
    TYPES,
    MERGES,
    ADD_BOS,
    ADD_EOS,
    ADD_SEP,
    ADD_SPACE_PREFIX,
    LOWERCASE,
    STRIP_ACCENTS,
    CHARS_MAP,
    MERGE_SPACES,
    SUPPRESS,
    // Of the model rather than of its text.
    "tokenizer.ggml.token_type_count",
    // The same as the first token of a text, wherever files have it.
    "tokenizer.ggml.cls_token_id",
];

/// What the file says about its tokenizer before any token is read.
enum Kind {
    Bpe(Named, Model),
    Spm,
    Wpm,
    Ugm,
    Rwkv,
    Plamo2,
    None,
}

/// Models of byte-pair encoding.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Model {
    Usual,
    /// Drops white space.
    Spaceless,
    /// Knows groups of letters.
    Dna,
}

impl Vocab {
    /// Keys about the tokenizer that nothing here has a use for: names of a file's own, or of later times.
    pub fn unread_keys(metadata: &Metadata<'_>) -> Vec<String> {
        let mut special = SpecialTokens::default();
        let roles = roles(&mut special).map(|(name, _)| name);
        let ids: Vec<String> = OLD_ROLES.iter().chain(&roles).map(|role| id_key(role)).collect();
        let is_read = |key: &str| READ.contains(&key) || ids.iter().any(|id| id == key);
        let keys = metadata.iter().map(|entry| entry.key());
        keys.filter(|key| key.starts_with(PREFIX) && !is_read(key)).map(str::to_owned).collect()
    }

    /// The vocabulary that a file's metadata describe. Special tokens that the file gives as -1 are taken as absent.
    pub fn from_gguf(metadata: &Metadata<'_>) -> Result<Vocab, VocabError> {
        let kind = Kind::read(metadata)?;
        let texts = match (&kind, metadata.get(TOKENS)) {
            (Kind::None, None) => nameless_texts(metadata)?,
            _ => read_texts(metadata)?,
        };
        let scores = read_scores(metadata, texts.len())?;
        let mut attributes = read_attributes(metadata, texts.len())?;

        let mut special = kind.default_special(texts.len());
        read_special(metadata, texts.len(), &mut special)?;
        special.find(&texts, &mut attributes);
        for (token, own) in attributes.iter_mut().enumerate() {
            let text = texts.get(token as Token);
            if own.intersects(Attributes::CONTROL) && memchr::memmem::find(text, b"unused").is_some() {
                own.insert(Attributes::UNUSED);
            }
        }
        let end_of_generation = special.end_of_generation(&texts, &mut attributes);
        add_strips(metadata, &texts, &mut attributes)?;

        let flags = kind.flags(metadata, &special)?;
        let suppressed = read_suppressed(metadata, texts.len())?;
        let specials = Specials::new(&texts, &attributes)
            .map_err(|bytes| VocabError::SpecialTokensTooLong { key: TOKENS, bytes })?;

        let spelling = kind.spelling();
        let mut meanings = Arena::with_capacity(texts.len(), texts.len().saturating_mul(6));
        let mut buffer = Vec::new();
        for (token, own) in attributes.iter().enumerate() {
            let text = texts.get(token as Token);
            let text = if kind.is_dna() { without_mark(text) } else { text };
            meaning(text, *own, spelling, &mut buffer);
            meanings.push(&buffer);
        }
        let tokenizer = kind.tokenizer(metadata, (&texts, &scores, &attributes), &flags, special.unk)?;
        let fit = Fit::new(&tokenizer, &specials);
        Ok(Vocab {
            texts,
            meanings,
            attributes,
            scores,
            special,
            end_of_generation,
            suppressed,
            flags,
            specials,
            tokenizer,
            fit,
        })
    }
}

impl Kind {
    fn read(metadata: &Metadata<'_>) -> Result<Kind, VocabError> {
        let model = metadata.require(MODEL)?.text()?.as_bytes();
        let pre = || -> Result<Named, VocabError> {
            let Some(pre) = metadata.get(PRE) else { return Ok(pretokenize::DEFAULT) };
            let name = pre.text()?;
            let known = name.to_str().and_then(pretokenize::by_name);
            known
                .ok_or_else(|| VocabError::UnknownPreTokenizer { key: PRE, pre: Name::from(name.as_bytes()) })
        };
        match model {
            b"gpt2" => pre().map(|named| Kind::Bpe(named, Model::Usual)),
            b"whitespace" => pre().map(|named| Kind::Bpe(named, Model::Spaceless)),
            b"hybriddna" => pre().map(|named| Kind::Bpe(named, Model::Dna)),
            b"gemma4" => Ok(Kind::Bpe(pretokenize::GEMMA4, Model::Usual)),
            b"llama" => Ok(Kind::Spm),
            b"bert" => Ok(Kind::Wpm),
            b"t5" => Ok(Kind::Ugm),
            b"rwkv" => Ok(Kind::Rwkv),
            b"plamo2" => Ok(Kind::Plamo2),
            // The last is of files that the reference makes for its own tests.
            b"none" | b"no_vocab" | b"test" => Ok(Kind::None),
            _ => Err(VocabError::UnknownModel { key: MODEL, model: Name::from(model) }),
        }
    }

    /// Roles where the file names no tokens. Those outside the vocabulary are not there.
    fn default_special(&self, len: usize) -> SpecialTokens {
        let token = |token: Token| Some(token).filter(|&token| (token as usize) < len);
        let none = SpecialTokens::default();
        match self {
            Kind::Bpe(named, _) => {
                SpecialTokens { bos: token(11).filter(|_| named.default_bos), eos: token(11), ..none }
            }
            Kind::Spm => SpecialTokens { bos: token(1), eos: token(2), unk: token(0), ..none },
            Kind::Ugm => SpecialTokens { eos: token(1), unk: token(2), pad: token(0), ..none },
            Kind::Plamo2 => {
                SpecialTokens { bos: token(1), eos: token(2), unk: token(0), pad: token(3), ..none }
            }
            Kind::Rwkv | Kind::None => none,
            Kind::Wpm => SpecialTokens {
                bos: token(101),
                unk: token(100),
                sep: token(102),
                pad: token(0),
                mask: token(103),
                ..none
            },
        }
    }

    fn flags(&self, metadata: &Metadata<'_>, special: &SpecialTokens) -> Result<Flags, VocabError> {
        let mut flags = match self {
            Kind::Bpe(named, _) => Flags {
                add_bos: named.add_bos,
                add_sep: named.add_sep,
                clean_spaces: named.clean_spaces,
                ..Flags::default()
            },
            Kind::Spm => Flags { add_bos: true, add_space_prefix: true, ..Flags::default() },
            Kind::Ugm => Flags { add_eos: true, ..Flags::default() },
            // These add nothing, whatever the file says.
            Kind::Rwkv | Kind::Plamo2 | Kind::None => return Ok(Flags::default()),
            Kind::Wpm => Flags { add_bos: true, add_sep: true, clean_spaces: true, ..Flags::default() },
        };
        let read = |flag: &mut bool, key: &str| -> Result<(), VocabError> {
            if let Some(entry) = metadata.get(key) {
                *flag = entry.bool()?;
            }
            Ok(())
        };
        let asked_for_bos = metadata.get(ADD_BOS).is_some();
        if !self.forces_bos() {
            read(&mut flags.add_bos, ADD_BOS)?;
        }
        if !matches!(self, Kind::Wpm) {
            read(&mut flags.add_eos, ADD_EOS)?;
            read(&mut flags.add_sep, ADD_SEP)?;
        }
        read(&mut flags.add_space_prefix, ADD_SPACE_PREFIX)?;

        // A file that asks for a token must have one; a default that cannot be followed is none.
        let asked = |key| metadata.get(key).is_some();
        for (flag, asked, token, key, id) in [
            (&mut flags.add_bos, asked_for_bos, special.bos, ADD_BOS, BOS_ID),
            (&mut flags.add_eos, asked(ADD_EOS), special.eos, ADD_EOS, EOS_ID),
            (&mut flags.add_sep, asked(ADD_SEP), special.sep, ADD_SEP, SEP_ID),
        ] {
            if *flag && token.is_none() {
                if asked {
                    return Err(VocabError::NothingToAdd { flag: key, key: id });
                }
                *flag = false;
            }
        }
        Ok(flags)
    }

    fn forces_bos(&self) -> bool {
        match self {
            Kind::Bpe(named, _) => matches!(named.spelling, Spelling::Plain { newlines: true }),
            Kind::Spm | Kind::Ugm | Kind::Rwkv | Kind::Plamo2 | Kind::None => false,
            Kind::Wpm => true,
        }
    }

    fn spelling(&self) -> Spelling {
        match self {
            Kind::Bpe(named, _) => named.spelling,
            Kind::Spm | Kind::Wpm | Kind::Ugm | Kind::None => Spelling::Plain { newlines: false },
            Kind::Rwkv => Spelling::Escaped,
            Kind::Plamo2 => Spelling::Verbatim,
        }
    }

    fn is_dna(&self) -> bool {
        matches!(self, Kind::Bpe(_, Model::Dna))
    }

    fn tokenizer(
        &self,
        metadata: &Metadata<'_>,
        (texts, scores, attributes): (&Pieces, &[f32], &[Attributes]),
        flags: &Flags,
        unk: Option<Token>,
    ) -> Result<Tokenizer, VocabError> {
        let flag = |key, default| metadata.get(key).map_or(Ok(default), |entry| entry.bool());
        Ok(match self {
            Kind::Bpe(named, model) => {
                let merges = match metadata.get(MERGES) {
                    None if named.merges_optional => None,
                    None => Some(metadata.require(MERGES)?.strings()?),
                    Some(entry) => Some(entry.strings()?),
                };
                let merges = merges.into_iter().flatten().map(|text| text.as_bytes());
                let dialect = match model {
                    Model::Usual => Dialect::Plain,
                    Model::Spaceless => Dialect::Spaceless {
                        lowercase: flag(LOWERCASE, named.spelling != Spelling::Verbatim)?,
                    },
                    Model::Dna => Dna::new(texts).map_or(Dialect::Plain, |dna| Dialect::Dna(Box::new(dna))),
                };
                Tokenizer::Bpe(Box::new(Bpe::new(*named, dialect, texts, merges)))
            }
            Kind::Spm => Tokenizer::Spm(Box::new(Spm::new(texts, unk))),
            Kind::None => Tokenizer::None,
            Kind::Ugm => {
                let all = (0..).zip(scores).zip(attributes);
                let tokens = all.map(|((token, &score), &own)| (texts.get(token), score, own));
                let spaces = UgmSpaces { prefix: flags.add_space_prefix, merge: flag(MERGE_SPACES, false)? };
                Tokenizer::Ugm(Box::new(Ugm::new(tokens, unk, read_char_map(metadata)?, spaces)))
            }
            Kind::Rwkv => Tokenizer::Rwkv(Rwkv::new(texts, unk)),
            Kind::Plamo2 => {
                let plamo2 = Plamo2::new(texts, scores, attributes);
                let plamo2 = plamo2.map_err(|byte| VocabError::NoByteToken { key: TOKENS, byte })?;
                Tokenizer::Plamo2(Box::new(plamo2))
            }
            Kind::Wpm => {
                let lowercase = flag(LOWERCASE, true)?;
                Tokenizer::Wpm(Wpm::new(texts, unk, lowercase, flag(STRIP_ACCENTS, lowercase)?))
            }
        })
    }
}

fn read_texts(metadata: &Metadata<'_>) -> Result<Pieces, VocabError> {
    let strings = metadata.require(TOKENS)?.strings()?;
    let count = strings.len();
    if count == 0 {
        return Err(VocabError::Empty { key: TOKENS });
    }
    if count > MAX_TOKENS {
        return Err(VocabError::TooManyTokens { key: TOKENS, count });
    }
    let mut texts = Pieces::with_capacity(count, count.saturating_mul(6));
    for (index, text) in strings.enumerate() {
        let text = text.as_bytes();
        if text.len() > MAX_PIECE_BYTES {
            return Err(VocabError::TokenTooLong { key: TOKENS, index, bytes: text.len() });
        }
        let (first, new) = match text {
            b"" => texts.intern(format!("[EMPTY_{index}]").as_bytes()),
            _ => texts.intern(text),
        };
        if !new {
            return Err(VocabError::Duplicate { key: TOKENS, index, first, text: Name::from(text) });
        }
    }
    Ok(texts)
}

fn read_char_map(metadata: &Metadata<'_>) -> Result<Option<CharMap>, VocabError> {
    let Some(entry) = metadata.get(CHARS_MAP) else { return Ok(None) };
    let bytes: Vec<u8> = match entry.array::<u8>() {
        Ok(bytes) => bytes.collect(),
        Err(_) => entry.array::<i8>()?.map(i8::cast_unsigned).collect(),
    };
    CharMap::new(&bytes).map(Some).map_err(|_| VocabError::CharMap { key: CHARS_MAP })
}

/// Texts of tokens of which there is only a number.
fn nameless_texts(metadata: &Metadata<'_>) -> Result<Pieces, VocabError> {
    let architecture = metadata.require("general.architecture")?.str()?;
    let count = metadata.require(&format!("{architecture}.vocab_size"))?.usize()?;
    if count == 0 {
        return Err(VocabError::Empty { key: TOKENS });
    }
    if count > MAX_NAMELESS_TOKENS {
        return Err(VocabError::TooManyTokens { key: TOKENS, count });
    }
    let mut texts = Pieces::with_capacity(count, count.saturating_mul(12));
    for index in 0..count {
        texts.intern(format!("[EMPTY_{index}]").as_bytes());
    }
    Ok(texts)
}

/// Scores that are no numbers count as the lowest.
fn read_scores(metadata: &Metadata<'_>, tokens: usize) -> Result<Vec<f32>, VocabError> {
    let Some(entry) = metadata.get(SCORES) else { return Ok(vec![0.0; tokens]) };
    let scores: Vec<f32> = match entry.integers() {
        Ok(integers) => integers.map(|score| score as f32).collect(),
        Err(_) => entry.array::<f32>()?.collect(),
    };
    check_len(SCORES, scores.len(), tokens)?;
    Ok(scores
        .into_iter()
        .take(tokens)
        .map(|score| if score.is_nan() { f32::NEG_INFINITY } else { score })
        .collect())
}

fn read_attributes(metadata: &Metadata<'_>, tokens: usize) -> Result<Vec<Attributes>, VocabError> {
    let Some(entry) = metadata.get(TYPES) else { return Ok(vec![Attributes::NORMAL; tokens]) };
    let attributes: Vec<Attributes> = entry.integers()?.map(Attributes::from_file).take(tokens).collect();
    check_len(TYPES, attributes.len(), tokens)?;
    Ok(attributes)
}

fn check_len(key: &'static str, len: usize, tokens: usize) -> Result<(), VocabError> {
    if len < tokens { Err(VocabError::WrongLength { key, len, tokens }) } else { Ok(()) }
}

/// Old names of the first three tokens that fill in the middle of a text.
const OLD_ROLES: [&str; 3] = ["prefix", "suffix", "middle"];

fn read_special(
    metadata: &Metadata<'_>,
    tokens: usize,
    special: &mut SpecialTokens,
) -> Result<(), VocabError> {
    // The names of old files count where the new ones are missing.
    let old = [&mut special.fim_pre, &mut special.fim_suf, &mut special.fim_mid];
    for (name, role) in OLD_ROLES.into_iter().zip(old) {
        read_id(metadata, name, tokens, role)?;
    }
    for (name, role) in roles(special) {
        read_id(metadata, name, tokens, role)?;
    }
    Ok(())
}

/// Names of roles in files, and who has them.
fn roles(special: &mut SpecialTokens) -> [(&'static str, &mut Option<Token>); 14] {
    [
        ("bos", &mut special.bos),
        ("eos", &mut special.eos),
        ("eot", &mut special.eot),
        ("eom", &mut special.eom),
        ("unknown", &mut special.unk),
        ("seperator", &mut special.sep),
        ("padding", &mut special.pad),
        ("mask", &mut special.mask),
        ("fim_pre", &mut special.fim_pre),
        ("fim_suf", &mut special.fim_suf),
        ("fim_mid", &mut special.fim_mid),
        ("fim_pad", &mut special.fim_pad),
        ("fim_rep", &mut special.fim_rep),
        ("fim_sep", &mut special.fim_sep),
    ]
}

/// The key of a token with a role.
fn id_key(role: &str) -> String {
    format!("{PREFIX}{role}_token_id")
}

fn read_id(
    metadata: &Metadata<'_>,
    name: &str,
    tokens: usize,
    role: &mut Option<Token>,
) -> Result<(), VocabError> {
    let key = id_key(name);
    let Some(entry) = metadata.get(&key) else { return Ok(()) };
    let id = i128::from(entry.i64()?);
    // Converters write "none" so.
    if id == -1 || id == i128::from(u32::MAX) {
        *role = None;
        return Ok(());
    }
    *role = Some(check_id(&key, id, tokens)?);
    Ok(())
}

fn check_id(key: &str, id: i128, tokens: usize) -> Result<Token, VocabError> {
    let token = Token::try_from(id).ok().filter(|&token| (token as usize) < tokens);
    token.ok_or_else(|| VocabError::IdOutOfRange { key: key.to_owned(), id, tokens })
}

fn read_suppressed(metadata: &Metadata<'_>, tokens: usize) -> Result<Vec<Token>, VocabError> {
    let Some(entry) = metadata.get(SUPPRESS) else { return Ok(Vec::new()) };
    let ids = entry.integers()?;
    let mut suppressed =
        ids.map(|id| check_id(SUPPRESS, id, tokens)).collect::<Result<Vec<Token>, VocabError>>()?;
    suppressed.sort_unstable();
    suppressed.dedup();
    Ok(suppressed)
}

/// Some models eat the white space around their special tokens. Files do not say so, names do.
fn add_strips(
    metadata: &Metadata<'_>,
    texts: &Pieces,
    attributes: &mut [Attributes],
) -> Result<(), VocabError> {
    let value = |key: &str| -> Result<String, VocabError> {
        let text = metadata.get(key).map(|entry| entry.text()).transpose()?;
        Ok(text.map_or_else(String::new, |text| String::from_utf8_lossy(text.as_bytes()).to_lowercase()))
    };
    let (name, architecture, pre) = (value("general.name")?, value("general.architecture")?, value(PRE)?);
    if name.contains("phi-3") || name.contains("phi3") {
        for (token, own) in attributes.iter_mut().enumerate() {
            let kept = matches!(texts.get(token as Token), b"<unk>" | b"<s>" | b"<|endoftext|>");
            if own.intersects(Attributes::SPECIAL) && !kept {
                own.insert(Attributes::STRIP_RIGHT);
            }
        }
    }
    let mut strip_left = |text: &str| {
        if let Some(own) = texts.find(text.as_bytes()).and_then(|token| attributes.get_mut(token as usize)) {
            own.insert(Attributes::STRIP_LEFT);
        }
    };
    if matches!(pre.as_str(), "jina-v2-de" | "jina-v2-es" | "jina-v2-code")
        || matches!(architecture.as_str(), "nomic-bert-moe" | "jina-bert-v3")
    {
        strip_left("<mask>");
    }
    if name.contains("modern-bert") {
        strip_left("[MASK]");
    }
    Ok(())
}
