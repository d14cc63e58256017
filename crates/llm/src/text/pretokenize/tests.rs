//! What the patterns cut, as tables.

use super::*;

fn pieces<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
    let mut pieces = Vec::new();
    Splitter::default()
        .split(text.as_bytes(), by_name(name).unwrap().stages, |range| pieces.push(&text[range]));
    pieces
}

#[track_caller]
fn check(name: &str, text: &str, expected: &[&str]) {
    assert_eq!(pieces(name, text), expected, "{name}: {text:?}");
}

#[test]
fn words_keep_the_space_before_them() {
    check("gpt-2", "Hello  world!\n", &["Hello", " ", " world", "!", "\n"]);
    check("gpt-2", "it's I'LL 12 a1", &["it", "'s", " I", "'", "LL", " 12", " a", "1"]);
    check("gpt-2", "  ", &["  "]);
    check("gpt-2", "", &[]);
    check("smollm", " 123", &[" ", "1", "2", "3"]);
    check(
        "llama3",
        "I'LL be\r\n\r\n  12345 (x)",
        &["I", "'LL", " be", "\r\n\r\n", " ", " ", "123", "45", " (", "x", ")"],
    );
    check("qwen2", "12 \n \n a!\n\nb", &["1", "2", " \n \n", " a", "!\n\n", "b"]);
    check("seed-coder", "a!\n\nb", &["a", "!", "\n\n", "b"]);
}

#[test]
fn case_and_digits() {
    check("gpt-4o", "HTTPServer's ÄÖü éA 1234", &["HTTPServer's", " ÄÖü", " é", "A", " ", "123", "4"]);
    check("tekken", "camelCase's", &["camel", "Case", "'s"]);
    check("falcon", "12345 a`b", &["123", "45", " a", "`", "b"]);
    check("default", "1234567", &["123", "456", "7"]);
    check("tiny_aya", "a1234567b12", &["a", "1", "234", "567", "b", "12"]);
    check("superbpe", "1234567 123456", &["1", "234", "567", " ", "123", "456"]);
}

#[test]
fn other_scripts() {
    check("kimi-k2", "中文abc中", &["中文", "abc", "中"]);
    check("deepseek-llm", "ab 中文  ", &["ab", " ", "中文", "  "]);
    check("qwen35", "e\u{301}x", &["e\u{301}x"]);
    check("qwen2", "e\u{301}x", &["e", "\u{301}x"]);
    check("gemma4", "a b\n\n c", &["a b", "\n\n", " c"]);
}

const NAMES: &[&str] = &[
    "default",
    "llama3",
    "dbrx",
    "chatglm-bpe",
    "glm4",
    "gpt-2",
    "roberta-bpe",
    "trillion",
    "smollm",
    "starcoder",
    "falcon",
    "qwen2",
    "stablelm2",
    "qwen35",
    "ufakzeka",
    "laguna",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
    "tekken",
    "gpt-4o",
    "seed-coder",
    "bailingmoe",
    "minicpm5",
    "bloom",
    "poro-chat",
    "viking",
    "tiny_aya",
    "superbpe",
    "kimi-k2",
    "gemma4",
    "sarvam-moe",
];

/// Hostile texts must not take more than linear time; a quadratic pattern would take minutes here.
#[test]
fn a_mebibyte_of_anything_is_quick() {
    let texts = [
        "a",
        "A",
        "1",
        " ",
        "\n",
        " \n",
        "é",
        "éA",
        "Aa1 ",
        "'",
        "!",
        "! ",
        "中",
        "\u{301}",
        "/",
        "\t\u{3000}",
        "'s",
    ];
    for text in texts {
        let mut text = text.repeat((1 << 20) / text.len());
        text.push('x');
        for name in NAMES {
            let start = std::time::Instant::now();
            let mut bytes = 0;
            Splitter::default()
                .split(text.as_bytes(), by_name(name).unwrap().stages, |range| bytes += range.len());
            assert_eq!(bytes, text.len());
            assert!(start.elapsed().as_secs() < 60, "{name}: {:?}", &text[..8]);
        }
    }
}

proptest::proptest! {
    #[test]
    fn pieces_put_together_are_the_text(text in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64)) {
        for name in NAMES {
            let mut end = 0;
            Splitter::default().split(&text, by_name(name).unwrap().stages, |range| {
                assert_eq!(range.start, end);
                assert!(!range.is_empty());
                end = range.end;
            });
            assert_eq!(end, text.len());
        }
    }

    #[test]
    fn pieces_of_characters_too(text in r"[a-cA-C\p{L}\p{N}\p{M}\p{P} \n\r'/é中]{0,40}") {
        for name in NAMES {
            assert_eq!(pieces(name, &text).concat(), text);
        }
    }
}
