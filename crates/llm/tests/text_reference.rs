//! Tokens and texts as the reference makes them, for every vocabulary: `tools/tokenizers.sh` has it make them and runs this.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use oxcart_gguf::Gguf;
use oxcart_llm::text::{Decode, Encode, Token, Vocab};
use serde_json::Value;

const PLAIN: Encode = Encode { add_special: false, parse_special: false };
const SPECIAL: Encode = Encode { add_special: true, parse_special: true };
const SHOWN: Decode = Decode { show_special: true, whole_text: true };
const HIDDEN: Decode = Decode { show_special: false, whole_text: true };

/// Vocabularies whose tokens the reference does not turn back into the text that they stand for: it reads their texts, which are
/// spelled as they are, as if they were bytes spelled as characters.
const NO_TEXT: [&str; 2] = ["made-whitespace", "made-whitespace-lower"];

fn ids(value: &Value) -> Vec<Token> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as Token).collect()
}

fn hex(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap();
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// What is not as the reference has it, by what it is.
#[derive(Default)]
struct Differences {
    found: BTreeMap<&'static str, (usize, String)>,
    compared: usize,
    /// Texts whose tokens the archive itself gives.
    pairs: u64,
}

impl Differences {
    fn compare<T: PartialEq>(
        &mut self,
        what: &'static str,
        ours: &T,
        theirs: &T,
        show: impl FnOnce() -> String,
    ) {
        self.compared += 1;
        if ours != theirs {
            let entry = self.found.entry(what).or_insert_with(|| (0, show()));
            entry.0 += 1;
        }
    }
}

/// How many comparisons there are, and how many of the archive's pairs are among them.
fn compare(name: &str, path: &Path) -> Result<(usize, u64), String> {
    let cases = fs::read_to_string(path).unwrap();
    let mut cases = cases.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let facts = cases.next().unwrap();
    let file = Gguf::open(facts["path"].as_str().unwrap()).unwrap();
    let vocab = Vocab::from_gguf(&file.metadata()).map_err(|error| error.to_string())?;
    let mut differences = Differences::default();
    let special = vocab.special();
    let role = |name: &str| Token::try_from(facts[name].as_i64().unwrap()).ok();
    for (name, token) in [
        ("bos", special.bos),
        ("eos", special.eos),
        ("eot", special.eot),
        ("sep", special.sep),
        ("pad", special.pad),
    ] {
        differences
            .compare("roles", &token, &role(name), || format!("{name}: {token:?}, not {:?}", role(name)));
    }
    let ends = vocab.end_of_generation();
    differences
        .compare("ends", &ends.to_vec(), &ids(&facts["ends"]), || format!("{ends:?}, not {}", facts["ends"]));
    assert_eq!(vocab.len() as u64, facts["tokens"].as_u64().unwrap());

    for case in cases {
        let show = |found: &dyn std::fmt::Debug| format!("{found:?} for {case}");
        let mut texts = |tokens: [&[Token]; 2]| {
            if NO_TEXT.contains(&name) {
                return;
            }
            // Behind special tokens that are not shown, the reference leaves the space that encoding has added.
            let leaves_space =
                vocab.adds_space_prefix() && tokens[1].first().is_some_and(|&token| vocab.is_control(token));
            for (what, tokens, options) in [("shown", tokens[0], SHOWN), ("hidden", tokens[1], HIDDEN)] {
                let found = vocab.decode(tokens, options);
                let text = String::from_utf8_lossy(&found).into_owned();
                let expected = hex(&case[what]);
                // What the reference says of tokens that are spelled in no alphabet.
                if String::from_utf8_lossy(&expected).contains("[UNK_BYTE_0x") {
                    continue;
                }
                let expected = match expected.strip_prefix(b" ") {
                    Some(rest) if what == "hidden" && leaves_space && found == rest => rest.to_vec(),
                    _ => expected,
                };
                let shown =
                    || format!("{text:?}, not {:?}, {}", String::from_utf8_lossy(&expected), show(&()));
                differences.compare(what, &found, &expected, shown);
            }
        };
        if let Some(tokens) = case.get("tokens") {
            let tokens = ids(tokens);
            texts([&tokens, &tokens]);
            continue;
        }
        let text = case["text"].as_str().unwrap();
        let plain = vocab.encode(text, PLAIN);
        if let Some(expected) = case.get("expected") {
            differences.pairs += 1;
            differences.compare("archive", &plain, &ids(expected), || show(&plain));
            continue;
        }
        let parsed = vocab.encode(text, SPECIAL);
        texts([&ids(&case["plain"]), &ids(&case["special"])]);
        differences.compare("plain", &plain, &ids(&case["plain"]), || show(&plain));
        differences.compare("special", &parsed, &ids(&case["special"]), || show(&parsed));
    }
    assert_eq!(differences.pairs, facts["pairs"].as_u64().unwrap(), "{name}: the archive's pairs");
    if differences.found.is_empty() {
        return Ok((differences.compared, differences.pairs));
    }
    let told = differences
        .found
        .iter()
        .map(|(what, (count, first))| format!("\n  {what}: {count}, such as {first}"));
    Err(format!("of {} comparisons:{}", differences.compared, told.collect::<String>()))
}

#[test]
#[ignore = "tools/tokenizers.sh runs it with what the reference has made"]
fn every_vocabulary() {
    let folder = std::env::var_os("OXCART_TOKENIZERS").expect("OXCART_TOKENIZERS names the folder");
    let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    names.sort();
    assert!(!names.is_empty(), "there is nothing to compare");
    let (mut compared, mut pairs, mut failed) = (0, 0, Vec::new());
    for path in &names {
        let name = path.file_stem().unwrap().to_str().unwrap();
        match compare(name, path) {
            Ok(counts) => {
                compared += counts.0;
                pairs += counts.1;
            }
            Err(error) => failed.push(format!("{name}: {error}")),
        }
    }
    println!("{} vocabularies, {compared} comparisons, {pairs} with the archive's own tokens", names.len());
    assert!(failed.is_empty(), "{} vocabularies differ\n{}", failed.len(), failed.join("\n"));
}
