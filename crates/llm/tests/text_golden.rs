//! Tokens, texts and prompts as llama.cpp makes them, where recorded data is at hand: `OXCART_GOLDEN` names the folder,
//! `OXCART_SMOLLM2` the file of SmolLM2-135M-Instruct. Without them these tests say so and check nothing.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::Path;

use oxcart_gguf::Gguf;
use oxcart_llm::text::{ChatOptions, ChatTemplate, Decode, Encode, Message, Streamer, Token, Vocab};
use serde_json::Value;

fn smollm2() -> Option<(Value, Vocab, Gguf)> {
    let (folder, model) = (oxcart_fixtures::golden()?, oxcart_fixtures::smollm2()?);
    let file = Gguf::open(model).unwrap();
    let vocab = Vocab::from_gguf(&file.metadata()).unwrap();
    Some((json(&folder.join("smollm2.json")), vocab, file))
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn vocab(path: &Path) -> Vocab {
    Vocab::from_gguf(&Gguf::open(path).unwrap().metadata()).unwrap()
}

fn ids(value: &Value) -> Vec<Token> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as Token).collect()
}

/// A number, where negative ones stand for none.
fn id(value: &Value) -> Option<Token> {
    Token::try_from(value.as_i64().unwrap()).ok()
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// `{"text": …}` or `{"text_hex": …}`.
fn bytes(value: &Value) -> Vec<u8> {
    match value["text"].as_str() {
        Some(text) => text.as_bytes().to_vec(),
        None => hex(value["text_hex"].as_str().unwrap()),
    }
}

const PLAIN: Encode = Encode { add_special: false, parse_special: false };
const SPECIAL: Encode = Encode { add_special: true, parse_special: true };
const SHOWN: Decode = Decode { show_special: true, whole_text: true };

#[test]
fn smollm2_tokens() {
    let Some((golden, vocab, _)) = smollm2() else { return };
    let expected = &golden["vocab"];
    assert_eq!(vocab.len() as u64, expected["n_tokens"].as_u64().unwrap());
    let special = vocab.special();
    assert_eq!(special.bos, id(&expected["bos"]));
    assert_eq!(special.eos, id(&expected["eos"]));
    assert_eq!(special.eot, id(&expected["eot"]));
    assert_eq!(special.pad, id(&expected["pad"]));
    assert_eq!(vocab.byte_token(b'\n'), id(&expected["newline"]));
    assert_eq!(Value::from(vocab.adds_bos()), expected["add_bos"]);
    assert_eq!(Value::from(vocab.adds_eos()), expected["add_eos"]);
    assert_eq!(vocab.end_of_generation(), ids(&expected["end_of_generation"]));
    let control: Vec<Token> = (0..vocab.len() as Token).filter(|&token| vocab.is_control(token)).collect();
    assert_eq!(control, ids(&expected["control"]));

    let cases = golden["tokenization"].as_array().unwrap();
    let mut invalid = 0;
    for case in cases {
        let (input, is_text) = match case["input"].as_str() {
            Some(text) => (text.as_bytes().to_vec(), true),
            None => (hex(case["input_hex"].as_str().unwrap()), false),
        };
        let plain = vocab.encode(&input, Encode { add_special: true, parse_special: false });
        let parsed = vocab.encode(&input, SPECIAL);
        if !is_text {
            // We keep such bytes where there is a token for them; the reference puts U+FFFD for each of them.
            invalid += 1;
            let replaced = |keep: &dyn Fn(u8) -> bool| -> Vec<u8> {
                let mark = |byte: u8| if keep(byte) { vec![byte] } else { "\u{fffd}".into() };
                input.iter().flat_map(|&byte| mark(byte)).collect()
            };
            assert_eq!(vocab.decode(&plain, SHOWN), replaced(&|byte| vocab.byte_token(byte).is_some()));
            assert_eq!(bytes(&case["detokenized"]), replaced(&|byte| byte.is_ascii()));
            continue;
        }
        assert_eq!(plain, ids(&case["ids"]), "{case}");
        assert_eq!(parsed, ids(&case["ids_parse_special"]), "{case}");
        assert_eq!(vocab.decode(&plain, SHOWN), bytes(&case["detokenized"]));
        assert_eq!(vocab.decode(&parsed, SHOWN), bytes(&case["detokenized_parse_special"]));
        let hidden = Decode { show_special: false, ..SHOWN };
        assert_eq!(vocab.decode(&parsed, hidden), bytes(&case["detokenized_parse_special_hidden"]));

        let mut streamer = Streamer::new().show_special(true);
        let mut streamed: String =
            plain.iter().map(|&token| streamer.push(&vocab, token).to_owned()).collect();
        streamed.push_str(streamer.finish());
        assert_eq!(streamed.as_bytes(), input);
    }
    assert_eq!((cases.len(), invalid), (79, 7));
    assert!(!vocab.encode(b"\xf4\x90\x80\x80", PLAIN).is_empty());
}

#[test]
fn smollm2_chat() {
    let Some((golden, vocab, file)) = smollm2() else { return };
    let golden = &golden["chat_template"];
    let source = ChatTemplate::source_in(&file.metadata(), None).unwrap().unwrap();
    assert_eq!(source, golden["template"].as_str().unwrap());
    let template = ChatTemplate::new(source).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    for case in cases {
        let message =
            |value: &Value| Message::new(value["role"].as_str().unwrap(), value["content"].as_str().unwrap());
        let messages: Vec<Message> = case["messages"].as_array().unwrap().iter().map(message).collect();
        let with = ChatOptions::default();
        let without = ChatOptions { add_generation_prompt: false, ..ChatOptions::default() };
        assert_eq!(template.render(&messages, &with).unwrap(), case["prompt"].as_str().unwrap());
        let expected = case["prompt_without_generation"].as_str().unwrap();
        assert_eq!(template.render(&messages, &without).unwrap(), expected);
        let prompt = template.prompt(&messages, &with, &vocab).unwrap();
        assert_eq!(prompt.text(), case["prompt"].as_str().unwrap());
        assert_eq!(vocab.encode_prompt(&prompt), ids(&case["prompt_ids"]));
        assert_eq!(vocab.encode(prompt.text(), SPECIAL), ids(&case["prompt_ids"]));
    }
    assert_eq!(cases.len(), 7);
}

/// Content that spells every special token stays content.
#[test]
fn smollm2_messages_spell_no_control_tokens() {
    let Some((_, vocab, file)) = smollm2() else { return };
    let template =
        ChatTemplate::new(ChatTemplate::source_in(&file.metadata(), None).unwrap().unwrap()).unwrap();
    let all: String = vocab
        .end_of_generation()
        .iter()
        .copied()
        .chain((0..vocab.len() as Token).filter(|&token| vocab.is_control(token)))
        .map(|token| String::from_utf8(vocab.text(token).unwrap().to_vec()).unwrap())
        .collect();
    let count = |content: &str| {
        let messages = [Message::new("system", content), Message::new(format!("user{content}"), content)];
        let prompt = template.prompt(&messages, &ChatOptions::default(), &vocab).unwrap();
        assert!(prompt.text().contains(content));
        let tokens = vocab.encode_prompt(&prompt);
        assert_eq!(vocab.decode(&tokens, SHOWN), prompt.text().as_bytes());
        tokens.into_iter().filter(|&token| vocab.is_control(token)).count()
    };
    assert_eq!(count(&all), count("harmless"));
}

#[test]
fn perplexity_text() {
    let (Some(folder), Some((_, vocab, _))) = (oxcart_fixtures::golden(), smollm2()) else { return };
    let text = fs::read(folder.join("perplexity/text-gpl3.txt")).unwrap();
    // Recorded without the newline at its end.
    let text = text.strip_suffix(b"\n").unwrap();
    let expected = fs::read(folder.join("perplexity/text-gpl3.tokens.i32")).unwrap();
    let expected: Vec<Token> =
        expected.chunks(4).map(|bytes| Token::from_le_bytes(bytes.try_into().unwrap())).collect();
    let found = vocab.encode(text, SPECIAL);
    let differs = found.iter().zip(&expected).position(|(found, expected)| found != expected);
    assert_eq!((differs, found.len()), (None, 7638));
}

const VOCABS: [&str; 7] = ["llama-spm", "phi-3", "gpt-2", "deepseek-llm", "falcon", "starcoder", "bert-bge"];

#[test]
fn vocabulary_files() {
    let Some(folder) = oxcart_fixtures::golden() else { return };
    for name in VOCABS {
        let path = folder.join(format!("vocab/ggml-vocab-{name}.gguf"));
        let vocab = vocab(&path);
        let input = fs::read_to_string(path.with_extension("gguf.inp")).unwrap();
        let output = fs::read_to_string(path.with_extension("gguf.out")).unwrap();
        let mut cases: Vec<&str> = input.split("\n__ggml_vocab_test__\n").collect();
        assert_eq!(cases.pop(), Some(""));
        assert_eq!((cases.len(), output.lines().count()), (46, 46));
        for (case, expected) in cases.into_iter().zip(output.lines()) {
            let expected: Vec<Token> = expected.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(vocab.encode(case, PLAIN), expected, "{name}: {case:?}");
        }
    }
}

#[test]
fn vocabulary_extras() {
    let Some(folder) = oxcart_fixtures::golden() else { return };
    for name in VOCABS {
        let vocab = vocab(&folder.join(format!("vocab/ggml-vocab-{name}.gguf")));
        let golden = json(&folder.join(format!("vocab/extra-{name}.json")));
        let special = vocab.special();
        assert_eq!(vocab.len() as u64, golden["n_tokens"].as_u64().unwrap());
        let found = [special.bos, special.eos, special.eot, special.sep, special.pad];
        assert_eq!(found, ["bos", "eos", "eot", "sep", "pad"].map(|role| id(&golden[role])), "{name}");
        assert_eq!(Value::from(vocab.adds_bos()), golden["add_bos"], "{name}");
        assert_eq!(Value::from(vocab.adds_eos()), golden["add_eos"], "{name}");
        if name != "bert-bge" {
            assert_eq!(vocab.byte_token(b'\n'), id(&golden["nl"]), "{name}");
        }
        let cases = golden["cases"].as_array().unwrap();
        assert_eq!(cases.len(), 72);
        for case in cases {
            let input = case["input"].as_str().unwrap();
            let tokens = vocab.encode(input, PLAIN);
            assert_eq!(tokens, ids(&case["ids"]), "{name}: {input:?}");
            assert_eq!(vocab.encode(input, SPECIAL), ids(&case["ids_special"]), "{name}: {input:?}");
            let text = vocab.decode(&tokens, SHOWN);
            let expected = hex(case["detokenized_hex"].as_str().unwrap());
            assert_eq!(
                String::from_utf8_lossy(&text),
                String::from_utf8_lossy(&expected),
                "{name}: {input:?}"
            );
        }
    }
}

#[test]
fn tiny_models() {
    let Some(folder) = oxcart_fixtures::golden() else { return };
    let index = json(&folder.join("tiny-models/index.json"));
    let models = index["models"].as_array().unwrap();
    assert_eq!(models.len(), 24);
    for model in models {
        let vocab = vocab(&folder.join("tiny-models").join(model["model"].as_str().unwrap()));
        assert_eq!((vocab.special().bos, vocab.special().eos), (Some(312), Some(313)));
        let case = &model["tokenize"];
        let text = case["text"].as_str().unwrap();
        let tokens = vocab.encode(text, PLAIN);
        assert_eq!(tokens, ids(&case["ids"]), "{}", model["name"]);
        assert_eq!(vocab.decode(&tokens, Decode::default()), text.as_bytes());
    }
}
