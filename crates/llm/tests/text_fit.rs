//! Texts that fit, and texts that are refused for their length: what fits is never refused, whatever the vocabulary, and what cannot
//! fit is refused before it is counted.
#![allow(clippy::unwrap_used, reason = "tests")]

use oxcart_gguf::{Builder, Header};
use oxcart_llm::text::{Encode, TooManyTokens, Vocab, VocabError};
use proptest::prelude::*;

const PLAIN: Encode = Encode { add_special: false, parse_special: false };
const SPECIAL: Encode = Encode { add_special: true, parse_special: true };

fn load(fill: impl FnOnce(&mut Builder<'_>)) -> Result<Vocab, VocabError> {
    let mut builder = Builder::new();
    fill(&mut builder);
    let mut file = Vec::new();
    builder.write(&mut file).unwrap();
    Vocab::from_gguf(&Header::parse(&file).unwrap().metadata())
}

/// A byte as files of byte-pair encodings spell it: printable ones of Latin-1 as themselves, the others from U+0100 on.
fn spelled(byte: u8) -> char {
    let is_itself = |byte: &u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..byte).filter(|byte| !is_itself(byte)).count();
    if is_itself(&byte) { char::from(byte) } else { char::from_u32(0x100 + others as u32).unwrap() }
}

/// A text of any kind of vocabulary that has no chance to fit is not counted.
#[test]
fn what_cannot_fit_is_refused_before_the_work() {
    let bytes: Vec<String> = (0..=255).map(|byte| spelled(byte).to_string()).collect();
    for (model, text) in
        [("gpt2", "a"), ("llama", "a"), ("bert", "a b "), ("t5", "a"), ("rwkv", "a"), ("plamo2", "a")]
    {
        let mut tokens: Vec<String> =
            ["<pad>", "</s>", "<unk>", "▁", "a", "aa", "▁a"].map(String::from).into();
        let mut types = vec![3, 3, 2, 1, 1, 1, 1];
        if model == "gpt2" {
            tokens = bytes.iter().cloned().chain(["aa".into(), "longer".into()]).collect();
            types = vec![1; tokens.len()];
        } else if model == "plamo2" {
            tokens.extend((0..=255_u8).map(|byte| format!("<0x{byte:02X}>")));
            types.resize(tokens.len(), 6);
        }
        let vocab = load(|builder| {
            builder
                .set("tokenizer.ggml.model", model)
                .set("tokenizer.ggml.pre", "gpt-2")
                .set("tokenizer.ggml.scores", vec![-1.0_f32; tokens.len()])
                .set("tokenizer.ggml.tokens", tokens)
                .set("tokenizer.ggml.token_type", types)
                .set("tokenizer.ggml.merges", ["a a"])
                .set("tokenizer.ggml.bos_token_id", 0_u32)
                .set("tokenizer.ggml.eos_token_id", 1_u32)
                .set("tokenizer.ggml.seperator_token_id", 1_u32)
                .set("tokenizer.ggml.unknown_token_id", 2_u32);
        })
        .unwrap();
        let long = text.repeat((8 << 20) / text.len());
        let refused = vocab.encode_within(&long, SPECIAL, 100).unwrap_err();
        assert!(refused.count > 100 && !refused.is_exact, "{}: {refused}", vocab.kind());
        // What is somewhat too long is counted, so that a message can say by how much.
        let short = text.repeat(200 / text.len());
        let count = vocab.encode(&short, SPECIAL).len();
        assert_eq!(vocab.encode_within(&short, SPECIAL, count - 1), Err(TooManyTokens::exactly(count)));
        assert_eq!(vocab.encode_within(&short, SPECIAL, count), Ok(vocab.encode(&short, SPECIAL)));
    }
}

/// Letters, white space, names of tokens, characters of several bytes and some that have fewer in lower case.
const PIECE: &str = "[abAB \\n]{1,4}|[aé▁K中\u{feff}\u{85}\u{301}]{1,2}|<mask>|<s>|<dna>|</dna>|acgt";

/// Of which some tokenizers make few tokens, or none, for their length.
const EXTREMES: [&str; 9] =
    ["    <mask>", "\u{feff}<mask>", "<dna>", "</dna><dna>", "K", " ", "\u{85}\u{301}", "aéA", "中\u{feff}"];

proptest! {
    /// Nothing that fits is refused, and nothing that does not fit is let through.
    #[test]
    fn texts_fit_by_their_tokens(
        (model, pre) in prop::sample::select(vec![
            ("gpt2", "gpt-2"), ("gpt2", "llama3"), ("gpt2", "default"), ("gemma4", ""), ("whitespace", "gpt-2"),
            ("whitespace", "default"), ("hybriddna", "gpt-2"), ("llama", ""), ("bert", ""), ("t5", ""), ("rwkv", ""),
            ("plamo2", ""),
        ]),
        has_bytes: bool,
        pieces in prop::collection::hash_set(PIECE, 1..20),
        scores in prop::collection::vec(prop_oneof![8 => -9_f32..1.0, 1 => any::<f32>()], 300),
        types in prop::collection::vec(prop_oneof![8 => Just(1), 4 => 0..8], 300),
        merges in prop::collection::vec(("[abA]{1,2}", "[abA]{1,2}"), 0..10),
        (unknown, strips, flags) in (-1_i32..30, any::<bool>(), any::<[bool; 4]>()),
        text in prop::collection::vec(PIECE, 0..40),
        ends in prop::collection::vec(any::<u8>(), 0..4),
    ) {
        let mut tokens: Vec<String> = ["<s>", "</s>", "<unk>", "<mask>", "<dna>", "</dna>", "<oov>"].map(String::from).into();
        let mut all_types = vec![3, 3, 2, 4, 3, 3, 3];
        if has_bytes || model == "plamo2" {
            let is_spelled = matches!(model, "gpt2" | "whitespace" | "hybriddna");
            let spelling = |byte: u8| if is_spelled { spelled(byte).to_string() } else { format!("<0x{byte:02X}>") };
            tokens.extend((0..=255_u8).map(spelling));
            all_types.resize(tokens.len(), if is_spelled { 1 } else { 6 });
        }
        for (piece, kind) in pieces.into_iter().zip(&types) {
            let piece = piece.replace(' ', if model == "rwkv" { " " } else if tokens.len() > 99 { "Ġ" } else { "▁" });
            if !tokens.contains(&piece) {
                tokens.push(piece);
                all_types.push(*kind);
            }
        }
        let count = tokens.len();
        let vocab = load(|builder| {
            builder
                .set("general.architecture", if strips { "nomic-bert-moe" } else { "bert" })
                .set("tokenizer.ggml.model", model)
                .set("tokenizer.ggml.pre", if pre.is_empty() { "default" } else { pre })
                .set("tokenizer.ggml.tokens", tokens)
                .set("tokenizer.ggml.scores", scores[..count].to_vec())
                .set("tokenizer.ggml.token_type", all_types)
                .set("tokenizer.ggml.merges", merges.iter().map(|(l, r)| format!("{l} {r}")).collect::<Vec<_>>())
                .set("tokenizer.ggml.unknown_token_id", unknown)
                .set("tokenizer.ggml.bos_token_id", 0_u32)
                .set("tokenizer.ggml.eos_token_id", 1_u32)
                .set("tokenizer.ggml.add_bos_token", flags[0])
                .set("tokenizer.ggml.add_eos_token", flags[1])
                .set("tokenizer.ggml.add_space_prefix", flags[2])
                .set("tokenizer.ggml.remove_extra_whitespaces", flags[3]);
        });
        let Ok(vocab) = vocab else { return Ok(()) };
        let mut bytes = text.concat().into_bytes();
        bytes.extend(ends);
        let extremes = EXTREMES.iter().map(|text| text.repeat(12).into_bytes());
        for text in extremes.chain([bytes]) {
            for options in [PLAIN, SPECIAL] {
                let tokens = vocab.encode(&text, options);
                prop_assert_eq!(vocab.encode_within(&text, options, tokens.len()), Ok(tokens.clone()));
                for most in [0, tokens.len() / 3, tokens.len().saturating_sub(1)] {
                    match vocab.encode_within(&text, options, most) {
                        Ok(within) => prop_assert!(within.len() <= most && within == tokens),
                        Err(long) => {
                            prop_assert!(most < long.count && long.count <= tokens.len(), "{long} of {}", tokens.len());
                            prop_assert!(!long.is_exact || long.count == tokens.len());
                        }
                    }
                }
            }
        }
    }
}
