//! Little vocabularies: what they refuse, and what they make of text.

use std::collections::HashMap;

use oxcart_gguf::{Builder, Header, Text};
use proptest::prelude::*;

use super::*;
use crate::text::spelling::spelled;
use crate::text::{Decode, Encode, Streamer};

fn load(fill: impl FnOnce(&mut Builder<'_>)) -> Result<Vocab, VocabError> {
    let mut builder = Builder::new();
    fill(&mut builder);
    let mut file = Vec::new();
    builder.write(&mut file).unwrap();
    Vocab::from_gguf(&Header::parse(&file).unwrap().metadata())
}

/// All bytes, these merges, and `<s>` and `</s>` at the end.
fn byte_pairs(pre: &str, merges: &[(&[u8], &[u8])]) -> Vocab {
    let mut tokens: Vec<String> = (0..=255_u8).map(|byte| spelled(&[byte])).collect();
    for (left, right) in merges {
        let both = spelled(&[*left, *right].concat());
        if !tokens.contains(&both) {
            tokens.push(both);
        }
    }
    tokens.extend(["<s>".into(), "</s>".into()]);
    let mut types = vec![1_i32; tokens.len()];
    let len = types.len();
    types[len - 2..].fill(3);
    let merges: Vec<String> =
        merges.iter().map(|(left, right)| format!("{} {}", spelled(left), spelled(right))).collect();
    load(|builder| {
        builder
            .set("tokenizer.ggml.model", "gpt2")
            .set("tokenizer.ggml.pre", pre)
            .set("tokenizer.ggml.tokens", tokens)
            .set("tokenizer.ggml.token_type", types)
            .set("tokenizer.ggml.merges", merges)
            .set("tokenizer.ggml.bos_token_id", len as u32 - 2)
            .set("tokenizer.ggml.eos_token_id", len as u32 - 1);
    })
    .unwrap()
}

/// Pieces with scores, behind `<unk>`, `<s>`, `</s>` and, if asked for, all bytes.
fn scored(bytes: bool, pieces: &[(&str, f32)]) -> Vocab {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).into();
    let mut types = vec![2_i32, 3, 3];
    if bytes {
        tokens.extend((0..=255_u8).map(|byte| format!("<0x{byte:02X}>")));
        types.resize(tokens.len(), 6);
    }
    let mut scores = vec![0.0_f32; tokens.len()];
    tokens.extend(pieces.iter().map(|(text, _)| (*text).into()));
    scores.extend(pieces.iter().map(|(_, score)| score));
    types.resize(tokens.len(), 1);
    load(|builder| {
        builder
            .set("tokenizer.ggml.model", "llama")
            .set("tokenizer.ggml.tokens", tokens)
            .set("tokenizer.ggml.scores", scores)
            .set("tokenizer.ggml.token_type", types);
    })
    .unwrap()
}

fn word_pieces(pieces: &[&str]) -> Vocab {
    let tokens = [&["[PAD]", "[UNK]", "[CLS]", "[SEP]"], pieces].concat();
    let mut types = vec![1_i32; tokens.len()];
    types[..4].fill(3);
    load(|builder| {
        builder
            .set("tokenizer.ggml.model", "bert")
            .set("tokenizer.ggml.tokens", tokens)
            .set("tokenizer.ggml.token_type", types)
            .set("tokenizer.ggml.unknown_token_id", 1_u32)
            .set("tokenizer.ggml.bos_token_id", 2_u32)
            .set("tokenizer.ggml.seperator_token_id", 3_u32);
    })
    .unwrap()
}

/// The pieces that a text becomes.
fn shown(vocab: &Vocab, text: &str, options: Encode) -> String {
    let tokens = vocab.encode(text, options);
    let texts: Vec<_> =
        tokens.iter().map(|&token| String::from_utf8_lossy(vocab.text(token).unwrap())).collect();
    texts.join("|")
}

const PLAIN: Encode = Encode { add_special: false, parse_special: false };
const SPECIAL: Encode = Encode { add_special: true, parse_special: true };
const WHOLE: Decode = Decode { show_special: false, whole_text: true };

#[test]
fn byte_pair_merges() {
    let vocab =
        byte_pairs("gpt-2", &[(b"l", b"l"), (b"h", b"e"), (b"he", b"ll"), (b" ", b"hell"), (b"hell", b"o")]);
    assert_eq!(shown(&vocab, "hello hell", PLAIN), "hello|Ġhell");
    assert_eq!(shown(&vocab, "lll", PLAIN), "ll|l");
    assert_eq!(shown(&vocab, "<s>he</s>", SPECIAL), "<s>|he|</s>");
    assert_eq!(shown(&vocab, "<s>", PLAIN), "<|s|>");
    assert_eq!(vocab.decode(&[0, 256, u32::MAX], Decode::default()), b"\0ll");
}

#[test]
fn whole_words_may_go_first() {
    let merges: &[(&[u8], &[u8])] = &[(b"b", b"c"), (b"a", b"b"), (b"ab", b"c")];
    assert_eq!(shown(&byte_pairs("gpt-2", merges), "abc", PLAIN), "a|bc");
    assert_eq!(shown(&byte_pairs("llama-bpe", merges), "abc", PLAIN), "abc");
    assert!(byte_pairs("llama-bpe", merges).adds_bos());
}

#[test]
fn scores_decide() {
    let vocab =
        scored(true, &[("▁", -3.0), ("a", -3.0), ("b", -3.0), ("ab", -1.0), ("ba", -0.5), ("▁a", -2.0)]);
    assert_eq!(shown(&vocab, "ab", PLAIN), "▁|ab");
    assert_eq!(shown(&vocab, "aba", PLAIN), "▁a|ba");
    assert_eq!(shown(&vocab, "é<s>a", SPECIAL), "<s>|▁|<0xC3>|<0xA9>|<s>|▁a");
    assert_eq!(vocab.decode(&vocab.encode("a é\n", SPECIAL), WHOLE), "a é\n".as_bytes());
    assert_eq!(vocab.decode(&vocab.encode("a", PLAIN), Decode::default()), b" a");
    let bare = scored(false, &[("▁", 0.0), ("a", 0.0)]);
    assert_eq!(shown(&bare, "aé", PLAIN), "▁|a|<unk>|<unk>");
}

/// The space that encoding adds stands before the first token that is shown, and is there only if that is a word.
#[test]
fn only_the_beginning_of_a_text_loses_its_space() {
    let vocab = scored(false, &[("▁a", -1.0)]);
    let decode = |show_special| vocab.decode(&[1, 3, 3], Decode { show_special, whole_text: true });
    assert_eq!(decode(false), b"a a");
    assert_eq!(decode(true), b"<s> a a");
    assert_eq!(vocab.decode(&[3, 1, 3], Decode { show_special: true, whole_text: true }), b"a<s> a");
}

#[test]
fn words_of_pieces() {
    let vocab = word_pieces(&["▁un", "▁unable", "able", "▁!", "▁e", "▁中", "▁a", "b"]);
    assert_eq!(shown(&vocab, "Unable unab é!中", SPECIAL), "[CLS]|▁unable|[UNK]|▁e|▁!|▁中|[SEP]");
    assert_eq!(shown(&vocab, "unb\u{301}\u{0}\t ab", PLAIN), "▁un|b|▁a|b");
    assert_eq!(shown(&vocab, "", PLAIN), "");
}

#[test]
fn ends_of_answers() {
    let ends = |tokens: &[&str]| {
        let vocab = load(|builder| {
            builder
                .set("tokenizer.ggml.model", "gpt2")
                .set("tokenizer.ggml.pre", "gpt-4o")
                .set("tokenizer.ggml.tokens", tokens)
                .set("tokenizer.ggml.merges", [""; 0])
                .set("tokenizer.ggml.eos_token_id", 0_u32);
        })
        .unwrap();
        (vocab.end_of_generation().to_vec(), vocab.special().eot)
    };
    assert_eq!(ends(&["a", "<|im_end|>", "<|endoftext|>"]), (vec![0, 1, 2], Some(1)));
    assert_eq!(ends(&["<|endoftext|>", "<|im_end|>"]), (vec![0, 1], Some(1)));
    assert_eq!(ends(&["<|return|>", "<|call|>", "<|end|>"]), (vec![0, 1], Some(2)));
    assert_eq!(ends(&["<|plamo:eos|>", "</s>"]), (vec![0], None));
}

/// A vocabulary with one entry more, or another one.
fn broken(fill: impl FnOnce(&mut Builder<'_>)) -> String {
    let result = load(|builder| {
        builder
            .set("tokenizer.ggml.model", "llama")
            .set("tokenizer.ggml.tokens", ["<unk>", "<s>", "</s>", "a"])
            .set("tokenizer.ggml.scores", [0.0_f32; 4]);
        fill(builder);
    });
    result.err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn damaged_vocabularies_are_refused_by_key() {
    assert_eq!(broken(|_| ()), "");
    let expect = |fill: &dyn Fn(&mut Builder<'_>), parts: &[&str]| {
        let error = broken(fill);
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    expect(&|b| _ = b.set("tokenizer.ggml.tokens", [""; 0]), &["tokenizer.ggml.tokens", "empty"]);
    expect(
        &|b| _ = b.set("tokenizer.ggml.tokens", ["a", "b", "a"]),
        &["tokenizer.ggml.tokens[2]", "tokens[0]"],
    );
    let long = "x".repeat(crate::text::limits::MAX_PIECE_BYTES + 1);
    expect(&|b| _ = b.set("tokenizer.ggml.tokens", [long.as_str()]), &["tokenizer.ggml.tokens[0]", "65537"]);
    expect(&|b| _ = b.set("tokenizer.ggml.tokens", 1_u32), &["tokenizer.ggml.tokens"]);
    expect(&|b| _ = b.set("tokenizer.ggml.scores", [0.0_f32; 3]), &["tokenizer.ggml.scores", "3", "4"]);
    expect(&|b| _ = b.set("tokenizer.ggml.scores", ["a"; 4]), &["tokenizer.ggml.scores"]);
    expect(&|b| _ = b.set("tokenizer.ggml.token_type", [1_i32; 3]), &["tokenizer.ggml.token_type", "3"]);
    for role in [
        "bos",
        "eos",
        "eot",
        "eom",
        "unknown",
        "seperator",
        "padding",
        "mask",
        "fim_pre",
        "prefix",
        "fim_sep",
    ] {
        let key = format!("tokenizer.ggml.{role}_token_id");
        for id in [4, i64::from(u32::MAX) - 1, i64::MAX, -2] {
            expect(&|b| _ = b.set(&key, id), &[&key, &id.to_string()]);
        }
        assert_eq!(broken(|b| _ = b.set(&key, u32::MAX)), "");
        assert_eq!(broken(|b| _ = b.set(&key, -1_i32)), "");
        expect(&|b| _ = b.set(&key, "1"), &[&key]);
    }
    expect(&|b| _ = b.set("tokenizer.ggml.suppress_tokens", [1_i32, 4]), &["suppress_tokens", "4"]);
    expect(&|b| _ = b.set("tokenizer.ggml.model", "t6"), &["tokenizer.ggml.model", "t6"]);
    expect(&|b| _ = b.set("tokenizer.ggml.model", "gpt2"), &["tokenizer.ggml.merges"]);
    expect(
        &|b| _ = b.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", "\u{1b}[31m"),
        &["tokenizer.ggml.pre", r"\u{1b}[31m"],
    );
    expect(
        &|b| _ = b.set("tokenizer.ggml.bos_token_id", -1_i32).set("tokenizer.ggml.add_bos_token", true),
        &["add_bos_token", "bos_token_id"],
    );
    expect(&|b| _ = b.set("tokenizer.ggml.add_bos_token", 1_u32), &["add_bos_token"]);
}

#[test]
fn keys_without_a_use_are_named() {
    let (mut file, mut builder) = (Vec::new(), Builder::new());
    for key in ["model", "pre", "bos_token_id", "fim_pad_token_id", "prefix_token_id", "token_type_count"] {
        builder.set(&format!("tokenizer.ggml.{key}"), 1_u32);
    }
    builder
        .set("tokenizer.chat_template", "")
        .set("tokenizer.ggml.surprise", true)
        .set("llama.surprise", true);
    builder.write(&mut file).unwrap();
    let unread = Vocab::unread_keys(&Header::parse(&file).unwrap().metadata());
    assert_eq!(unread, ["tokenizer.ggml.surprise"]);
}

#[test]
fn odd_vocabularies_work() {
    let vocab = load(|builder| {
        builder
            .set("tokenizer.ggml.model", "llama")
            .set("tokenizer.ggml.tokens", [&b"<unk>"[..], b"", b"a", b"aa", b"\xff\xfe", b"b"].map(Text::new))
            .set("tokenizer.ggml.scores", [0.0, 0.0, f32::NAN, f32::NAN, f32::INFINITY, 1.0])
            .set("tokenizer.ggml.token_type", [2_i32, 1, 1, 1, 99, -1])
            .set("tokenizer.ggml.add_space_prefix", false);
    })
    .unwrap();
    assert_eq!(shown(&vocab, "aaab", PLAIN), "aa|a|b");
    assert_eq!(vocab.find("[EMPTY_1]"), Some(1));
    assert_eq!(vocab.score(2), Some(f32::NEG_INFINITY));
    assert_eq!(vocab.encode(b"\xff", PLAIN), [0]);

    let vocab = load(|builder| {
        builder
            .set("tokenizer.ggml.model", "gpt2")
            .set("tokenizer.ggml.pre", "gpt-2")
            .set("tokenizer.ggml.tokens", ["a", "b", "abc"])
            .set("tokenizer.ggml.merges", ["a b", "x y", "", " ", "  ", "ab ", "nospace", "ab c", "中 文"]);
    })
    .unwrap();
    assert_eq!(shown(&vocab, "ab abc", PLAIN), "a|b|abc");
}

#[test]
fn without_a_tokenizer_there_are_numbers_only() {
    let vocab = load(|b| _ = b.set("tokenizer.ggml.model", "none").set("tokenizer.ggml.tokens", ["a", "b"]));
    let vocab = vocab.unwrap();
    assert_eq!((vocab.kind(), vocab.len(), vocab.find("b")), (TokenizerKind::None, 2, Some(1)));
    assert!(vocab.encode("ab", SPECIAL).is_empty());
    assert_eq!(vocab.decode(&[0, 1, 7], Decode::default()), b"ab");

    let nameless = |count: u32| {
        load(|b| {
            b.set("tokenizer.ggml.model", "none")
                .set("general.architecture", "llama")
                .set("llama.vocab_size", count);
        })
    };
    assert_eq!(nameless(3).unwrap().text(2), Some(&b"[EMPTY_2]"[..]));
    for count in [0, u32::MAX] {
        assert!(nameless(count).is_err());
    }
}

/// One mebibyte of anything is done soon.
#[test]
fn hostile_texts_are_quick() {
    let mut merges: Vec<(&[u8], &[u8])> =
        vec![(b"a", b"a"), (b"aa", b"aa"), (b"aaaa", b"aaaa"), (b"b", b"a")];
    merges.extend([(&b" "[..], &b" "[..]), (b"  ", b"  "), (b"1", b"1"), (b"\n", b"\n")]);
    let pairs = byte_pairs("gpt-2", &merges);
    let scored = scored(
        true,
        &[("▁", -1.0), ("▁▁", -2.0), ("▁▁▁▁", -3.0), ("a", -1.0), ("aa", -2.0), ("aaaa", -3.0), ("ba", -4.0)],
    );
    let words = word_pieces(&["▁", "a", "aa", "aaa", "b", "▁a", "aaaaaaaaaaaaaaaab"]);
    for text in ["a", "ab", "aab", " ", "1", "\n", "<s>", "é", "a ", "<"] {
        let text = text.repeat((1 << 20) / text.len());
        for vocab in [&pairs, &scored, &words] {
            let start = std::time::Instant::now();
            let tokens = vocab.encode(&text, SPECIAL);
            vocab.decode(&tokens, WHOLE);
            // Much less than that, but other things may be going on; quadratic time would be minutes.
            assert!(start.elapsed().as_secs() < 60, "{}: {:?}", vocab.kind(), &text[..6]);
        }
    }
}

#[test]
fn sixteen_mebibytes_of_one_letter() {
    let vocab = byte_pairs("gpt-2", &[(b"a", b"a"), (b"aa", b"aa"), (b"aaaa", b"aaaa")]);
    assert_eq!(vocab.encode(vec![b'a'; 16 << 20], PLAIN).len(), 2 << 20);
}

/// Merging as it is defined: the pair with the lowest rank, the leftmost of them, until there is none.
fn merge_by_definition(word: &[u8], ranks: &HashMap<(Vec<u8>, Vec<u8>), usize>) -> Vec<Vec<u8>> {
    let mut parts: Vec<Vec<u8>> = word.iter().map(|&byte| vec![byte]).collect();
    loop {
        let rank = |at: usize| ranks.get(&(parts[at].clone(), parts[at + 1].clone())).map(|rank| (*rank, at));
        let Some((_, at)) = (0..parts.len().saturating_sub(1)).filter_map(rank).min() else { return parts };
        let right = parts.remove(at + 1);
        parts[at].extend(right);
    }
}

proptest! {
    #[test]
    fn byte_pairs_give_back_any_bytes(text in prop::collection::vec(any::<u8>(), 0..200)) {
        for pre in ["gpt-2", "llama-bpe", "deepseek-llm", "tiny_aya"] {
            let vocab = byte_pairs(pre, &[(b"a", b"b"), (b"\xc3", b"\xa9"), (b"\xff", b"\xff"), (b" ", b"a")]);
            let tokens = vocab.encode(&text, PLAIN);
            prop_assert_eq!(vocab.decode(&tokens, Decode::default()), text.clone());
        }
    }

    #[test]
    fn scores_give_back_any_bytes(text in prop::collection::vec(any::<u8>(), 0..200)) {
        let vocab = scored(true, &[("▁", -1.0), ("a", -1.0), ("é", 0.0), ("▁a", 1.0)]);
        // U+2581 itself comes back as a space.
        let text: Vec<u8> = text.into_iter().filter(|&byte| byte != 0x96).collect();
        prop_assert_eq!(vocab.decode(&vocab.encode(&text, SPECIAL), WHOLE), text);
    }

    #[test]
    fn merges_follow_their_definition(word in "[a-c]{0,30}", pairs in prop::collection::vec(("[a-c]{1,3}", "[a-c]{1,3}"), 0..20)) {
        let merges: Vec<(&[u8], &[u8])> = pairs.iter().map(|(l, r)| (l.as_bytes(), r.as_bytes())).collect();
        let vocab = byte_pairs("gpt-2", &merges);
        let mut ranks = HashMap::new();
        for (rank, (left, right)) in merges.iter().enumerate() {
            ranks.entry((left.to_vec(), right.to_vec())).or_insert(rank);
        }
        let found: Vec<Vec<u8>> =
            vocab.encode(&word, PLAIN).iter().map(|&token| vocab.bytes(token).unwrap().to_vec()).collect();
        prop_assert_eq!(found, merge_by_definition(word.as_bytes(), &ranks));
    }

    #[test]
    fn streams_are_texts(tokens in prop::collection::vec(0_u32..300, 0..60), show_special: bool) {
        let vocab = byte_pairs("gpt-2", &[(b"\xe2", b"\x82"), (b"a", b"\xf0")]);
        let mut streamer = Streamer::new().show_special(show_special);
        let mut streamed: String = tokens.iter().map(|&token| streamer.push(&vocab, token).to_owned()).collect();
        streamed.push_str(streamer.finish());
        let decoded = vocab.decode(&tokens, Decode { show_special, whole_text: false });
        prop_assert_eq!(streamed, String::from_utf8_lossy(&decoded));
    }

    #[test]
    fn no_vocabulary_panics(
        model in prop::sample::select(vec!["gpt2", "llama", "bert", "gemma4"]),
        pre in prop::sample::select(vec!["gpt-2", "llama3", "sarvam-moe", "kimi-k2", "default"]),
        tokens in prop::collection::hash_set(prop::collection::vec(any::<u8>(), 0..5), 1..40),
        scores in prop::collection::vec(any::<f32>(), 40),
        types in prop::collection::vec(-1_i32..8, 40),
        merges in prop::collection::vec(prop::collection::vec(prop_oneof![any::<u8>(), Just(b' ')], 0..6), 0..20),
        ids in prop::collection::vec(-1_i32..40, 4),
        flags: [bool; 4],
        text in prop::collection::vec(any::<u8>(), 0..100),
        name in prop::sample::select(vec!["phi-3", "modern-bert", ""]),
    ) {
        let tokens: Vec<Vec<u8>> = tokens.into_iter().collect();
        let texts: Vec<Text<'_>> = tokens.iter().map(|token| Text::new(token)).collect();
        let merges: Vec<Text<'_>> = merges.iter().map(|merge| Text::new(merge)).collect();
        let vocab = load(|builder| {
            builder
                .set("general.name", name)
                .set("tokenizer.ggml.model", model)
                .set("tokenizer.ggml.pre", pre)
                .set("tokenizer.ggml.tokens", texts)
                .set("tokenizer.ggml.scores", scores)
                .set("tokenizer.ggml.token_type", types)
                .set("tokenizer.ggml.merges", merges)
                .set("tokenizer.ggml.add_bos_token", flags[0])
                .set("tokenizer.ggml.add_eos_token", flags[1])
                .set("tokenizer.ggml.add_space_prefix", flags[2]);
            for (role, id) in ["bos", "eos", "unknown", "seperator"].iter().zip(&ids) {
                builder.set(&format!("tokenizer.ggml.{role}_token_id"), *id);
            }
        });
        if let Ok(vocab) = vocab {
            for options in [PLAIN, SPECIAL] {
                let encoded = vocab.encode(&text, options);
                prop_assert!(encoded.iter().all(|&token| (token as usize) < vocab.len()));
                vocab.decode(&encoded, WHOLE);
                vocab.decode(&encoded, Decode::default());
            }
        }
    }
}
