//! What constraints allow, with little vocabularies.

use oxcart_gguf::{Builder, Header};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::text::mask::TokenMask;
use crate::text::spelling::spelled;
use crate::text::vocab::Token;

/// Pieces of text behind all bytes, then `<|name|>`, `[X]` and two ends.
const PIECES: &[&str] = &[
    "{\"", "\":", "\", \"", "true", "false", "null", " the", "the", "12", "000", "ab", "abc", "],", "é",
    "\n  ", "  ",
];

fn load(model: &str, tokens: &[String], types: &[i32], ends: Option<Token>) -> Vocab {
    let mut builder = Builder::new();
    builder
        .set("tokenizer.ggml.model", model)
        .set("tokenizer.ggml.tokens", tokens.to_vec())
        .set("tokenizer.ggml.token_type", types.to_vec())
        .set("tokenizer.ggml.scores", vec![0.0_f32; tokens.len()])
        .set("tokenizer.ggml.merges", ["a b"])
        .set("tokenizer.ggml.eos_token_id", ends.map_or(-1, |token| token as i32));
    let mut file = Vec::new();
    builder.write(&mut file).unwrap();
    Vocab::from_gguf(&Header::parse(&file).unwrap().metadata()).unwrap()
}

fn byte_pairs() -> Vocab {
    let mut tokens: Vec<String> = (0..=255_u8).map(|byte| spelled(&[byte])).collect();
    tokens.extend(PIECES.iter().map(|piece| spelled(piece.as_bytes())));
    let mut types = vec![1; tokens.len()];
    tokens.extend(["<|name|>", "[X]", "<|im_end|>", "<|endoftext|>"].map(String::from));
    types.resize(tokens.len(), 3);
    let end = tokens.len() as Token - 1;
    load("gpt2", &tokens, &types, Some(end))
}

fn constraints() -> Constraints {
    Constraints::new(&byte_pairs()).unwrap()
}

fn token(vocab: &Vocab, text: &str) -> Token {
    (0..vocab.len() as Token).rev().find(|&token| vocab.bytes(token).unwrap() == text.as_bytes()).unwrap()
}

/// Accepts a text byte by byte, and says how far that went and whether it may end there.
fn run(constraint: &mut Constraint, text: &str) -> (usize, bool) {
    let accepted = text.bytes().take_while(|&byte| constraint.accept(byte.into()).is_ok()).count();
    (accepted, constraint.may_end().unwrap())
}

#[track_caller]
fn check(constraints: &Constraints, grammar: &Grammar, texts: &[(&str, bool)]) {
    let begin = constraints.compile(grammar).unwrap();
    for &(text, expected) in texts {
        let found = run(&mut begin.clone(), text);
        assert_eq!(found == (text.len(), true), expected, "{text:?} as {}: {found:?}", begin.kind());
    }
}

fn mask(constraint: &mut Constraint) -> TokenMask {
    let mut mask = TokenMask::default();
    constraint.mask(&mut mask).unwrap();
    mask
}

#[test]
fn kinds_of_grammars() {
    let constraints = constraints();
    check(
        &constraints,
        &Grammar::Regex(r"a/(b|\d{2,3})+".into()),
        &[("a/b", true), ("a/12b123", true), ("a/1", false), ("a/", false), ("b", false), ("a/b ", false)],
    );
    check(
        &constraints,
        &Grammar::Lark("start: e\ne: e \"+\" t | t\nt: /[0-9]+/ | \"(\" e \")\"\n%ignore \" \"".into()),
        &[("1", true), ("(1 + 2)+3", true), ("(1", false), ("1+", false), (")", false)],
    );
    let gbnf = "root ::= \"[\" (item (\",\" item)*)? \"]\"\nitem ::= root | [0-9]+ | \"é\"{1,2} .\n";
    check(
        &constraints,
        &Grammar::Gbnf(gbnf.into()),
        &[
            ("[]", true),
            ("[12,[[3],4]]", true),
            ("[éé!]", true),
            ("[,]", false),
            ("[1", false),
            ("[é]", false),
        ],
    );
    check(
        &constraints,
        &Grammar::JsonObject,
        &[("{}", true), ("{\"a\": [1, null, {\"b\": \"é\\n\"}]}", true), ("[]", false), ("{\"a\"}", false)],
    );
    let schema = json!({
        "type": "object",
        "properties": { "name": { "type": "string", "maxLength": 3 }, "age": { "type": "integer", "minimum": 0 } },
        "required": ["name", "age"],
        "additionalProperties": false,
    });
    check(
        &constraints,
        &Grammar::json_schema(schema),
        &[
            ("{\"name\":\"Bob\",\"age\":7}", true),
            ("{ \"name\": \"B\\u0000\", \"age\": 70 }", true),
            ("{\n  \"name\": \"Bob\",\n  \"age\": 7\n}", true),
            ("{\"name\":\"Bobs\",\"age\":7}", false),
            ("{\"age\":7,\"name\":\"Bob\"}", false),
            ("{\"name\":\"Bob\",\"age\":-7}", false),
            ("{\"name\":\"Bob\"}", false),
        ],
    );
}

#[test]
fn references_and_alternatives() {
    let constraints = constraints();
    let tree = json!({
        "$defs": { "tree": { "type": "array", "items": { "$ref": "#/$defs/tree" }, "maxItems": 2 } },
        "$ref": "#/$defs/tree",
    });
    let texts = [("[[],[[]]]", true), ("[[],[],[]]", false), ("[1]", false)];
    check(&constraints, &Grammar::json_schema(tree), &texts);
    check(
        &constraints,
        &Grammar::json_schema(json!({ "$ref": "#/$defs/n", "$defs": { "n": { "type": "null" } } })),
        &[("null", true)],
    );
    check(&constraints, &Grammar::json_schema(json!(true)), &[("{}", true), ("1.5e3", true), ("x", false)]);

    let overlapping = json!({ "oneOf": [{ "type": "integer" }, { "type": "number", "minimum": 5 }] });
    let error = constraints.compile(&Grammar::json_schema(overlapping.clone())).unwrap_err();
    assert!(error.to_string().contains("oneOf"), "{error}");
    let options = JsonOptions { one_of_is_any_of: true, ..JsonOptions::default() };
    let texts = [("3", true), ("5.5", true), ("4.5", false)];
    check(&constraints, &Grammar::JsonSchema { schema: overlapping, options }, &texts);
}

#[test]
fn white_space_is_bounded() {
    let constraints = constraints();
    let schema = json!({ "type": "array", "items": { "type": "null" } });
    let with = |whitespace| Grammar::JsonSchema {
        schema: schema.clone(),
        options: JsonOptions { whitespace, ..JsonOptions::default() },
    };
    let blanks = format!("[\n{}null]", " ".repeat(16));
    let too_many = format!("[\n{}null]", " ".repeat(17));
    let texts = [
        ("[null,null]", true, true, true),
        ("[null, null ]", false, true, true),
        ("[\n\t\tnull\n]", false, true, true),
        (&blanks, false, true, true),
        (&too_many, false, false, true),
        ("[  null]", false, false, true),
        ("[\n\nnull]", false, false, true),
        (" [null]", false, false, false),
    ];
    for (text, none, short, any) in texts {
        check(&constraints, &with(JsonWhitespace::None), &[(text, none)]);
        check(&constraints, &with(JsonWhitespace::Short), &[(text, short)]);
        check(&constraints, &with(JsonWhitespace::Any), &[(text, any)]);
    }
    // A schema's own options have no say, nor can they spoil anything.
    let mut schema = json!({ "type": "array", "x-guidance": { "whitespace_pattern": "(((", "lenient": 5 } });
    check(&constraints, &Grammar::json_schema(schema.clone()), &[("[ ]", true), ("[  ]", false)]);
    schema["x-guidance"] = json!([]);
    check(&constraints, &Grammar::json_schema(schema), &[("[ ]", true)]);
}

#[test]
fn numbers_come_to_an_end() {
    let constraints = constraints();
    let vocab = byte_pairs();
    let digits =
        |constraint: &mut Constraint| mask(constraint).iter().filter(|&t| (48..58).contains(&t)).count();
    let array = json!({ "type": "array", "items": { "type": ["number", "string"] } });
    for (text, expected) in [
        ("[1234567890123456789", 10),
        ("[12345678901234567890", 0),
        ("[0.1234567890123456789", 0),
        ("[0.000", 10),
        ("[1.5,12345678901234567890", 0),
        ("[12345678901234567890,", 10),
        ("[\"12345678901234567890", 10),
        ("[\"\\\"12345678901234567890", 10),
    ] {
        let mut constraint = constraints.compile(&Grammar::json_schema(array.clone())).unwrap();
        assert_eq!(run(&mut constraint, text).0, text.len());
        assert_eq!(digits(&mut constraint), expected, "{text}");
        assert_eq!(mask(&mut constraint).contains(token(&vocab, "12")), expected > 0, "{text}");
        // Taking tokens back brings digits back.
        constraint.rollback(2).unwrap();
        assert!(digits(&mut constraint) > 0);
    }
    // Where nothing else may follow, digits do, and outside of JSON they always may.
    let long = json!({ "type": "string", "pattern": "^[0-9]{30}$" });
    let mut long =
        constraints.compile(&Grammar::json_schema(json!({ "anyOf": [long, { "const": 1e24 }] }))).unwrap();
    let number = "1000000000000000000000000";
    assert_eq!(run(&mut long, number), (number.len(), true));
    let regex = Grammar::Regex("[0-9]+".into());
    let mut regex = constraints.compile(&regex).unwrap();
    run(&mut regex, "123456789012345678901234567890");
    assert_eq!(digits(&mut regex), 10);
}

#[test]
fn ends() {
    let (constraints, vocab) = (constraints(), byte_pairs());
    let (end, other_end) = (token(&vocab, "<|endoftext|>"), token(&vocab, "<|im_end|>"));
    let mut constraint = constraints.compile(&Grammar::Regex("ab?c*".into())).unwrap();
    assert!(!constraint.may_end().unwrap() && !constraint.must_end() && constraint.is_empty());
    assert_eq!(constraint.accept(end), Err(ConstrainError::Refused { kind: GrammarKind::Regex, token: end }));
    constraint.accept(token(&vocab, "ab")).unwrap();
    assert!(constraint.may_end().unwrap() && !constraint.must_end() && !constraint.is_finished());
    assert_eq!(mask(&mut constraint).iter().collect::<Vec<_>>(), [b'c'.into(), other_end, end]);
    assert_eq!(constraint.accepts(&[b'c'.into(), b'c'.into(), end, b'c'.into()]).unwrap(), 3);
    for end in [end, other_end] {
        let mut ended = constraint.clone();
        ended.accept(end).unwrap();
        assert!(ended.is_finished() && ended.must_end() && ended.may_end().unwrap());
        assert!(mask(&mut ended).is_empty());
        assert_eq!(ended.accepts(&[b'c'.into()]), Ok(0));
        assert!(matches!(ended.accept(b'c'.into()), Err(ConstrainError::Refused { .. })));
        assert_eq!(ended.len(), 2);
        ended.rollback(1).unwrap();
        assert!(!ended.is_finished());
        ended.accept(b'c'.into()).unwrap();
    }

    let mut fixed = constraints.compile(&Grammar::Regex("abc".into())).unwrap();
    assert_eq!(fixed.forced(), b"abc");
    fixed.accept(token(&vocab, "ab")).unwrap();
    assert_eq!(fixed.forced(), b"c");
    assert_eq!(mask(&mut fixed).iter().collect::<Vec<_>>(), [u32::from(b'c')]);
    fixed.accept(b'c'.into()).unwrap();
    assert!(fixed.must_end() && fixed.may_end().unwrap() && fixed.forced().is_empty());
    assert_eq!(mask(&mut fixed).iter().collect::<Vec<_>>(), [other_end, end]);
    assert_eq!(fixed.accepts(&[end]), Ok(1));
    assert_eq!(fixed.accepts(&[b'c'.into()]), Ok(0));
    fixed.rollback(2).unwrap();
    assert!(!fixed.must_end());
    assert_eq!(mask(&mut fixed), mask(&mut constraints.compile(&Grammar::Regex("abc".into())).unwrap()));
    assert_eq!(fixed.rollback(1), Err(ConstrainError::Rollback { asked: 1, accepted: 0 }));

    let mut empty = constraints.compile(&Grammar::Gbnf("root ::= \"\"".into())).unwrap();
    assert!(empty.may_end().unwrap());
    assert_eq!(mask(&mut empty).iter().collect::<Vec<_>>(), [other_end, end]);
}

#[test]
fn control_tokens_are_no_text() {
    let (constraints, vocab) = (constraints(), byte_pairs());
    let (name, unnamed) = (token(&vocab, "<|name|>"), token(&vocab, "[X]"));
    let mut anything = constraints.compile(&Grammar::Regex("(?s:.)*".into())).unwrap();
    let allowed = mask(&mut anything);
    assert!(!allowed.contains(name) && !allowed.contains(unnamed) && allowed.contains(b'<'.into()));
    // Bytes that are in no UTF-8.
    assert!([0xff, 0xc0, 0xf8].iter().all(|&byte| !allowed.contains(byte)));
    assert!(anything.accept(name).is_err() && anything.accept(unnamed).is_err());
    assert!(anything.accept(vocab.len() as Token).is_err() && anything.accept(Token::MAX).is_err());

    // By name and by number.
    let grammar = format!("start: \"a\" <|name|> \"b\" <[{unnamed}]> <|im_end|> \"c\"");
    let mut named = constraints.compile(&Grammar::Lark(grammar)).unwrap();
    let end = token(&vocab, "<|im_end|>");
    for token in [b'a'.into(), name, b'b'.into(), unnamed, end, b'c'.into()] {
        assert_eq!(mask(&mut named).iter().collect::<Vec<_>>(), [token]);
        named.accept(token).unwrap();
        assert!(!named.is_finished());
    }
    assert!(named.must_end());
    let gbnf = constraints.compile(&Grammar::Gbnf("root ::= <|name|> \"x\"".into())).unwrap();
    assert_eq!(mask(&mut gbnf.clone()).iter().collect::<Vec<_>>(), [name]);
    let unknown = constraints.compile(&Grammar::Lark("start: <|nobody|>".into())).unwrap_err();
    assert!(unknown.to_string().contains("nobody"), "{unknown}");
}

#[test]
fn sentence_pieces_and_word_pieces() {
    // Spaces are U+2581, and bytes have tokens of their own beside pieces of the same meaning.
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).into();
    let mut types = vec![2, 3, 3];
    tokens.extend((0..=255_u8).map(|byte| format!("<0x{byte:02X}>")));
    types.resize(tokens.len(), 6);
    tokens.extend(["▁", "a", "▁a", "b", "▁▁b"].map(String::from));
    types.resize(tokens.len(), 1);
    let vocab = load("llama", &tokens, &types, Some(2));
    let constraints = Constraints::new(&vocab).unwrap();
    let mut constraint = constraints.compile(&Grammar::Regex("a  [ab]|é".into())).unwrap();
    let find = |text: &str| vocab.find(text).unwrap();
    let (byte, piece) = (find("<0x61>"), find("a"));
    assert_eq!(mask(&mut constraint).iter().collect::<Vec<_>>(), [byte, find("<0xC3>"), piece]);
    constraint.clone().accept(piece).unwrap();
    constraint.accept(byte).unwrap();
    assert_eq!(mask(&mut constraint).iter().collect::<Vec<_>>(), [find("<0x20>"), find("▁"), find("▁▁b")]);
    constraint.accept(find("▁")).unwrap();
    assert_eq!(mask(&mut constraint).iter().collect::<Vec<_>>(), [find("<0x20>"), find("▁"), find("▁a")]);
    constraint.accept(find("▁a")).unwrap();
    assert_eq!(mask(&mut constraint).iter().collect::<Vec<_>>(), [2]);

    // Files spell words of WordPiece with a space in front, and have no bytes: what has no piece cannot follow.
    let tokens = ["[A]", "[B]", "[C]", "[D]", "▁yes", "▁no", "s", "o"].map(String::from);
    let vocab = load("bert", &tokens, &[3, 3, 3, 3, 1, 1, 1, 1], None);
    let constraints = Constraints::new(&vocab).unwrap();
    let mut constraint = constraints.compile(&Grammar::Regex(" (yess|no|maybe)".into())).unwrap();
    assert_eq!(mask(&mut constraint).iter().collect::<Vec<_>>(), [4, 5]);
    constraint.accept(4).unwrap();
    constraint.accept(6).unwrap();
    // There is no token that ends an answer, but it has to end.
    assert!(constraint.must_end() && mask(&mut constraint).is_empty());
    let dead = constraints.compile(&Grammar::Regex(" maybe".into())).unwrap_err();
    assert!(matches!(dead, ConstrainError::Grammar { .. } | ConstrainError::DeadEnd { .. }), "{dead}");
    let mut dead = constraints.compile(&Grammar::Regex(" yes!".into())).unwrap();
    dead.accept(4).unwrap();
    let found = dead.mask(&mut TokenMask::default());
    assert_eq!(found, Err(ConstrainError::DeadEnd { kind: GrammarKind::Regex }));
    // The answer is as it was.
    dead.rollback(1).unwrap();
    assert_eq!(mask(&mut dead).iter().collect::<Vec<_>>(), [4]);
}

#[test]
fn tokens_that_are_never_allowed() {
    let long = "a".repeat(2000);
    let mut tokens: Vec<String> = ["a", "b", "</s>"].map(String::from).into();
    tokens.push(long);
    let mut builder = Builder::new();
    builder
        .set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.tokens", tokens)
        .set("tokenizer.ggml.token_type", [1, 1, 3, 1])
        .set("tokenizer.ggml.merges", ["a b"])
        .set("tokenizer.ggml.suppress_tokens", [1])
        .set("tokenizer.ggml.eos_token_id", 2);
    let mut file = Vec::new();
    builder.write(&mut file).unwrap();
    let vocab = Vocab::from_gguf(&Header::parse(&file).unwrap().metadata()).unwrap();
    let constraints = Constraints::new(&vocab).unwrap();
    let mut constraint = constraints.compile(&Grammar::Regex("[ab]+".into())).unwrap();
    assert_eq!(mask(&mut constraint).iter().collect::<Vec<_>>(), [0]);
    assert!(constraint.accept(1).is_err() && constraint.accept(3).is_err());
}

#[test]
fn grammars_are_compiled_once() {
    let constraints = constraints();
    let grammar = |n: usize| Grammar::Regex(format!("a{{{n}}}"));
    let first = constraints.compile(&grammar(1)).unwrap();
    assert!(Arc::ptr_eq(&first.compiled, &constraints.compile(&grammar(1)).unwrap().compiled));
    // The order of properties is a difference.
    let schema = |text: &str| Grammar::json_schema(serde_json::from_str(text).unwrap());
    let one = constraints.compile(&schema(r#"{"properties": {"a": true, "b": true}}"#)).unwrap();
    let other = constraints.compile(&schema(r#"{"properties": {"b": true, "a": true}}"#)).unwrap();
    assert!(!Arc::ptr_eq(&one.compiled, &other.compiled));
    // Those used longest ago go first.
    for n in 2..crate::text::limits::MAX_CACHED_GRAMMARS + 2 {
        constraints.compile(&grammar(n)).unwrap();
        constraints.compile(&grammar(1)).unwrap();
    }
    assert_eq!(constraints.0.cache.len(), crate::text::limits::MAX_CACHED_GRAMMARS);
    assert!(Arc::ptr_eq(&first.compiled, &constraints.compile(&grammar(1)).unwrap().compiled));
    assert!(!Arc::ptr_eq(
        &one.compiled,
        &constraints.compile(&schema(r#"{"properties": {"a": true, "b": true}}"#)).unwrap().compiled
    ));
    // A failure is no entry.
    constraints.compile(&Grammar::Regex("(".into())).unwrap_err();
}

/// One answer's panic inside the parser spoils what all answers of the grammar share. The others go on.
#[test]
fn a_failure_stays_with_one_answer() {
    let constraints = constraints();
    let grammar = Grammar::Lark("start: \"a\" start \"b\" | \"c\"".into());
    let mut good = constraints.compile(&grammar).unwrap();
    run(&mut good, "aa");
    let expected = mask(&mut good.clone());
    let mut bad = constraints.compile(&grammar).unwrap();
    bad.spoil();
    assert_eq!(mask(&mut good), expected);
    assert_eq!(run(&mut good, "cbb"), (3, true));
    // So does the one that failed, and a new one.
    assert_eq!(run(&mut bad, "acb"), (3, true));
    assert_eq!(run(&mut constraints.compile(&grammar).unwrap(), "acb"), (3, true));
    let mut other = constraints.compile(&grammar).unwrap();
    run(&mut other, "aac");
    other.spoil();
    other.rollback(1).unwrap();
    assert_eq!(mask(&mut other), expected);
}

/// Others wait while an answer is begun anew, so that happens once.
#[test]
fn an_answer_is_begun_anew_once() {
    let constraints = constraints();
    let grammar = Grammar::Lark("start: \"a\" start \"b\" | \"c\"".into());
    let mut constraint = constraints.compile(&grammar).unwrap();
    run(&mut constraint, "a");
    constraint.spoil();
    assert_eq!(run(&mut constraint, "a"), (1, false));
    constraint.spoil();
    let again = token(&byte_pairs(), "a");
    for _ in 0..2 {
        let error = constraint.accept(again).unwrap_err();
        assert!(matches!(error, ConstrainError::TooComplex { .. }), "{error}");
        constraint.mask(&mut TokenMask::default()).unwrap_err();
    }
    assert_eq!(constraint.len(), 2, "what was accepted stays so");
    // A new answer has nothing to do with that.
    assert_eq!(run(&mut constraints.compile(&grammar).unwrap(), "acb"), (3, true));
}

#[test]
fn grammars_that_cannot_go_back_are_begun_anew() {
    let constraints = constraints();
    let grammar = Grammar::Lark("start: x \"!\"\nx[max_tokens=3]: /[a-z]*/".into());
    let mut constraint = constraints.compile(&grammar).unwrap();
    run(&mut constraint, "ab");
    let expected = mask(&mut constraint);
    run(&mut constraint, "c");
    constraint.rollback(1).unwrap();
    assert_eq!(mask(&mut constraint), expected);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Whatever is in a mask is accepted, and nothing else; taking tokens back leads to where they were accepted.
    #[test]
    fn masks_say_what_is_accepted(
        which in 0_usize..8,
        choices in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..4), 1..25),
    ) {
        thread_local! {
            static CONSTRAINTS: Constraints = constraints();
        }
        let constraints = CONSTRAINTS.with(Clone::clone);
        let grammars = [
            Grammar::JsonObject,
            Grammar::json_schema(json!({ "type": "array", "items": { "enum": ["ab", 12, null] }, "maxItems": 3 })),
            Grammar::json_schema(json!({ "type": "string", "pattern": "^(ab|é)*$", "maxLength": 5 })),
            Grammar::Regex("(abc|the the|é12){1,3}".into()),
            Grammar::Regex("(?s:.)*".into()),
            Grammar::Lark("start: (<|name|> | \"the\" | \" the\")* <[272]>?".into()),
            Grammar::Gbnf("root ::= \"ab\" root \"c\" | \"12\"".into()),
            Grammar::Lark("start: x \"!\"\nx[max_tokens=3]: /[a-z]*/".into()),
        ];
        let mut constraint = constraints.compile(&grammars[which]).unwrap();
        let mut masks = vec![mask(&mut constraint)];
        for (choice, back) in choices {
            let current = masks.last().unwrap().clone();
            prop_assert_eq!(&mask(&mut constraint), &current);
            for token in 0..current.len() as Token {
                // Byte by byte would take long.
                if token % 7 == 0 || current.contains(token) {
                    let accepted = constraint.clone().accept(token).is_ok();
                    prop_assert_eq!(accepted, current.contains(token), "{} after {:?}", token, constraint);
                }
            }
            let forced = constraint.forced();
            let allowed: Vec<Token> = current.iter().collect();
            if constraint.is_finished() || allowed.is_empty() {
                break;
            }
            let token = allowed[choice.index(allowed.len())];
            prop_assert_eq!(constraint.accepts(&[token]).unwrap(), 1);
            constraint.accept(token).unwrap();
            if let (Some(first), Some(piece)) = (forced.first(), byte_pairs().bytes(token).and_then(<[u8]>::first)) {
                prop_assert_eq!(first, piece);
            }
            masks.push(mask(&mut constraint));
            if back == 0 {
                let back = masks.len() / 2;
                constraint.rollback(back).unwrap();
                masks.truncate(masks.len() - back);
                prop_assert_eq!(constraint.len(), masks.len() - 1);
            }
        }
    }

    #[test]
    fn any_grammar_is_compiled_or_an_error(text in "[a-z:=|(){}*+?\\[\\]\"/<>0-9,%&~# \n\\\\.$^-]{0,80}", kind in 0_u8..3) {
        thread_local! {
            static CONSTRAINTS: Constraints = constraints();
        }
        let grammar = match kind {
            0 => Grammar::Regex(text),
            1 => Grammar::Lark(format!("start: {text}")),
            _ => Grammar::Gbnf(format!("root ::= {text}")),
        };
        if let Ok(mut constraint) = CONSTRAINTS.with(|constraints| constraints.compile(&grammar)) {
            for _ in 0..5 {
                let mut mask = TokenMask::default();
                let Ok(()) = constraint.mask(&mut mask) else { break };
                let Some(token) = mask.iter().next() else { break };
                constraint.accept(token).unwrap();
            }
        }
    }

    #[test]
    fn any_schema_is_compiled_or_an_error(schema in any_schema()) {
        thread_local! {
            static CONSTRAINTS: Constraints = constraints();
        }
        let _ = CONSTRAINTS.with(|constraints| constraints.compile(&Grammar::json_schema(schema)));
    }
}

/// Keywords with values of the right type and of others.
fn any_schema() -> impl Strategy<Value = Value> {
    let keyword = prop::sample::select(vec![
        "type",
        "enum",
        "const",
        "anyOf",
        "allOf",
        "oneOf",
        "$ref",
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "minProperties",
        "maxProperties",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "multipleOf",
        "$defs",
        "not",
        "default",
        "x-guidance",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (-5_i64..50).prop_map(Value::from),
        prop::sample::select(vec![
            "string",
            "number",
            "integer",
            "object",
            "array",
            "null",
            "#",
            "#/$defs/a",
            "(a|b)*",
            "uuid"
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 30, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((keyword.clone(), inner), 0..5).prop_map(|members| members
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect()),
        ]
    })
}

/// What is larger than the limits is refused before anything is done with it.
#[test]
fn limits_hold() {
    use crate::text::limits::*;
    let constraints = constraints();
    let compile = |grammar: Grammar| constraints.compile(&grammar).unwrap_err();
    let schema = |schema: Value| compile(Grammar::json_schema(schema));
    let check = |error: ConstrainError, expected: &str| match error {
        ConstrainError::TooLarge { what, size, limit, .. } => {
            assert!(what == expected && size > limit, "{what} {size} {limit}");
        }
        error => panic!("{error}"),
    };
    let long = "a".repeat(MAX_GRAMMAR_BYTES + 1);
    check(compile(Grammar::Regex(long.clone())), "bytes");
    check(compile(Grammar::Lark(long.clone())), "bytes");
    check(compile(Grammar::Gbnf(long)), "bytes");
    check(schema(json!({ "const": "a".repeat(MAX_SCHEMA_BYTES + 1) })), "bytes of text");
    check(schema(json!({ "enum": vec![0; MAX_SCHEMA_VALUES] })), "values");
    let names = |count: usize| (0..count).map(|n| (format!("^{n}$"), json!(true))).collect::<Value>();
    check(schema(json!({ "properties": names(MAX_SCHEMA_PROPERTIES + 1) })), "properties");
    check(schema(json!({ "items": { "required": vec!["a"; MAX_SCHEMA_PROPERTIES + 1] } })), "properties");
    check(schema(json!({ "patternProperties": names(MAX_PATTERN_PROPERTIES + 1) })), "pattern properties");
    // Values that are nested so deeply can only be made and dropped where there is room for it.
    let nested = std::thread::Builder::new().stack_size(512 << 20).spawn({
        let constraints = constraints.clone();
        move || {
            let wrap = |inner, _| Value::Object([("items".to_owned(), inner)].into_iter().collect());
            let deep = Grammar::json_schema((0..50_000).fold(json!({}), wrap));
            std::thread::scope(|scope| {
                scope.spawn(|| constraints.compile(&deep).unwrap_err()).join().unwrap()
            })
        }
    });
    check(nested.unwrap().join().unwrap(), "levels");

    for (member, value) in [
        ("minimum", json!(1e300)),
        ("maximum", json!(-1e300)),
        ("minLength", json!(MAX_SCHEMA_COUNT + 1)),
        ("minItems", json!(u64::MAX)),
        ("multipleOf", json!(0)),
        ("multipleOf", json!(-2)),
        ("multipleOf", json!(123_456_789)),
        ("multipleOf", json!(1e-9)),
        ("multipleOf", json!(0.123_456_789)),
    ] {
        match schema(json!({ "items": { member: value } })) {
            ConstrainError::Number { keyword, .. } => assert_eq!(keyword, member),
            error => panic!("{error}"),
        }
    }
    // Each alone would do.
    let both = json!({ "allOf": [{ "multipleOf": 9973 }, { "multipleOf": 9967 }] });
    assert!(matches!(schema(both), ConstrainError::Number { keyword: "multipleOf", .. }));
    for reference in
        ["#/$defs/missing", "#/default", "http://example.org/x", "#/$defs/a/const", "x", "#/properties"]
    {
        let error = schema(json!({ "$ref": reference, "default": {}, "$defs": { "a": { "const": {} } } }));
        assert!(error.to_string().contains("leads to no schema"), "{error}");
    }
    // In a grammar, too; there nothing is changed.
    for schema in
        [json!({ "multipleOf": 123_456_789 }), json!({ "maximum": i64::MAX }), json!({ "$ref": "#/default" })]
    {
        compile(Grammar::Lark(format!("start: %json {schema}")));
    }
}

/// Bounds that nothing reaches are kept in a way that can be computed with.
#[test]
fn bounds_beyond_reach() {
    let constraints = constraints();
    for (schema, good, bad) in [
        (json!({ "type": "integer", "minimum": i64::MIN, "maximum": u64::MAX }), "-123", "1.5"),
        (json!({ "type": "integer", "minimum": i64::MIN, "exclusiveMaximum": 5 }), "4", "5"),
        (json!({ "type": "number", "minimum": -1e300, "maximum": 1e300 }), "-1.5", "\"\""),
        (json!({ "type": "string", "maxLength": u64::MAX }), "\"abc\"", "1"),
        (json!({ "type": "array", "maxItems": 1e18 }), "[1,2]", "1"),
        (json!({ "type": "number", "multipleOf": 0.01 }), "1.25", "1.255"),
        (json!({ "type": "integer", "multipleOf": 15, "minimum": -100 }), "-45", "-46"),
        // Names of properties are no keywords, and values that are compared with are no schemas.
        (
            json!({ "type": "object", "properties": { "minimum": { "const": { "minimum": 1e17 } } } }),
            "{\"minimum\":{\"minimum\":100000000000000000}}",
            "1",
        ),
    ] {
        check(&constraints, &Grammar::json_schema(schema), &[(good, true), (bad, false)]);
    }
}

/// Grammars at the limits, of the kinds that were found to take the compiler longest: each is compiled or refused within
/// seconds, and the first mask is there.
#[test]
fn hostile_grammars_take_bounded_time() {
    use crate::text::limits::*;
    let constraints = constraints();
    let fill = |piece: &dyn Fn(usize) -> String, bytes: usize, separator: &str| {
        let mut text = String::new();
        for n in 0.. {
            let piece = piece(n);
            if text.len() + piece.len() + separator.len() > bytes {
                break;
            }
            text.push_str(&piece);
            text.push_str(separator);
        }
        text.truncate(text.len() - separator.len());
        text
    };
    let lark = MAX_GRAMMAR_BYTES - 100;
    let values = MAX_SCHEMA_VALUES;
    let names = |count: usize| (0..count).map(|n| format!("w{n}")).collect::<Vec<_>>();
    let chain = |letter: char, last: usize| {
        let rules = fill(&|n| format!("{letter}{n}: \"a\" {letter}{}", n + 1), lark, "\n");
        let last = rules.lines().count().min(last);
        format!(
            "{}\n{letter}{last}: \"a\"\nstart: {letter}0\n",
            rules.lines().take(last).collect::<Vec<_>>().join("\n")
        )
    };
    let doubling = |letter: char| {
        let rules: String =
            (0..60).map(|n| format!("{letter}{n}: {letter}{} {letter}{}\n", n + 1, n + 1)).collect();
        format!("{rules}{letter}60: \"a\"\nstart: {letter}0\n")
    };
    let nested = |depth: usize, wrap: &dyn Fn(Value) -> Value| {
        (0..depth).fold(json!({ "type": "integer" }), |inner, _| wrap(inner))
    };
    let definitions: Value = (0..60)
        .map(|n| {
            let next = json!({ "$ref": format!("#/$defs/d{}", n + 1) });
            (format!("d{n}"), json!({ "allOf": [next.clone(), next] }))
        })
        .chain([("d60".to_owned(), json!({ "type": "string" }))])
        .collect();
    let any_of = json!({ "anyOf": (0..30).map(|n| json!({ "properties": { format!("a{n}"): { "const": n } } })).collect::<Value>() });
    let cases: Vec<(&str, Grammar)> = vec![
        ("parentheses", Grammar::Regex("(".repeat(lark / 2) + &")".repeat(lark / 2))),
        ("alternatives", Grammar::Regex(fill(&|n| format!("w{n}x"), lark, "|"))),
        ("optional ones", Grammar::Regex("a?".repeat(lark / 3) + &"a".repeat(lark / 3))),
        ("repetitions of repetitions", Grammar::Regex("((((a?){1000}b?){1000}c?){1000}d?){1000}".into())),
        ("many states", Grammar::Regex("(a|b)*a(a|b){40}(.*x.{200}){9}".into())),
        ("classes", Grammar::Regex(fill(&|_| r"\p{L}\w\P{Greek}".into(), lark, ""))),
        ("alternatives in Lark", Grammar::Lark(format!("start: {}", fill(&|n| format!("\"w{n}\""), lark, "|")))),
        ("groups", Grammar::Lark(format!("start: {}", "(".repeat(lark)))),
        ("a chain of rules", Grammar::Lark(chain('r', usize::MAX))),
        ("a chain of terminals", Grammar::Lark(chain('T', usize::MAX))),
        ("doubling rules", Grammar::Lark(doubling('r'))),
        ("doubling terminals", Grammar::Lark(doubling('T'))),
        ("ambiguity", Grammar::Lark("start: start start start | start start | \"a\"?".into())),
        ("nested Lark", Grammar::Lark(format!("start: {}", "%lark { start: ".repeat(lark / 15)))),
        ("nested JSON", Grammar::Lark(format!("start: %json {}", "{\"a\":".repeat(lark / 5)))),
        ("a long substring", Grammar::Lark(format!("start: A\nA: %regex {{\"substring_chars\": \"{}\"}}", "abcde".repeat(lark / 6)))),
        ("an empty intersection", Grammar::Lark("start: A\nA: /x.*/ | /y/ B\nB: /(a|b)*a(a|b){25}/ & /(a|b)*b(a|b){25}/ & /(a|b)*(aa|bb)c?/ & ~/(?s:.*)a(a|b){25}/".into())),
        ("a million alternatives", Grammar::Gbnf(format!("root ::= {}", fill(&|n| format!("\"{n}\""), 10 << 20, "|")))),
        ("alternatives in GBNF", Grammar::Gbnf(format!("root ::= {}", fill(&|n| format!("\"w{n}\""), lark, "|")))),
        ("alternatives that recurse", Grammar::Gbnf(format!("root ::= {}", fill(&|n| format!("\"w{n}\" root"), lark, "|")))),
        ("a million characters", Grammar::Gbnf("root ::= [a-z]{1000000}".into())),
        ("a million of what recurses", Grammar::Gbnf("root ::= (\"a\" root){0,1000000} \"b\"".into())),
        ("empty alternatives", Grammar::Gbnf(format!("root ::= (root {})*", "|".repeat(lark / 2)))),
        ("references to each other", Grammar::json_schema(json!({ "$ref": "#/$defs/d0", "$defs": definitions }))),
        ("a reference to itself", Grammar::json_schema(json!({ "$ref": "#" }))),
        ("an enum", Grammar::json_schema(json!({ "enum": names(values - 10) }))),
        ("alternatives in a schema", Grammar::json_schema(json!({ "anyOf": (0..values / 3).map(|n| json!({ "const": n })).collect::<Value>() }))),
        ("exclusive alternatives", Grammar::json_schema(json!({ "oneOf": (0..values / 12).map(|n| json!({ "type": "object", "properties": { "k": { "const": n } }, "required": ["k"] })).collect::<Value>() }))),
        ("properties", Grammar::json_schema(json!({ "properties": names(MAX_SCHEMA_PROPERTIES).into_iter().map(|name| (name, json!({ "type": "integer" }))).collect::<Value>() }))),
        ("required properties", Grammar::json_schema(json!({ "type": "object", "required": names(MAX_SCHEMA_PROPERTIES) }))),
        ("intersections of alternatives", Grammar::json_schema(json!({ "allOf": vec![any_of; 10] }))),
        ("a long constant", Grammar::json_schema(json!({ "const": "é".repeat(MAX_SCHEMA_BYTES / 2 - 10) }))),
        ("depth", Grammar::json_schema(nested(MAX_GRAMMAR_DEPTH / 2 - 1, &|inner| json!({ "anyOf": [inner.clone(), { "type": "null" }] })))),
        ("many items", Grammar::json_schema(nested(20, &|inner| json!({ "type": "array", "items": inner, "minItems": 1000, "maxItems": 1_000_000 })))),
        ("a long string", Grammar::json_schema(json!({ "type": "string", "minLength": 1_000_000, "maxLength": 1_000_000 }))),
        ("multiples", Grammar::json_schema((0..500).map(|n| (format!("p{n}"), json!({ "type": "integer", "multipleOf": 49_999, "minimum": n }))).collect::<Value>().as_object().map(|properties| json!({ "properties": properties })).unwrap())),
        ("patterns", Grammar::json_schema(json!({ "patternProperties": (0..MAX_PATTERN_PROPERTIES).map(|n| (format!("^(a|b)*x{n}(a|b){{20}}$"), json!(true))).collect::<Value>() }))),
        ("a pattern and a length", Grammar::json_schema(json!({ "type": "string", "pattern": "^(x.*|y(a|b){0,25}a(a|b){25})$", "minLength": 100, "maxLength": 1000 }))),
        ("intersected patterns", Grammar::json_schema(json!({ "allOf": (5..15).map(|n| json!({ "pattern": format!("^(x.*|(a|b)*a(a|b){{{n}}})$") })).collect::<Value>() }))),
    ];
    let (mut slowest, mut all) = (("", std::time::Duration::ZERO), String::new());
    for (name, grammar) in cases {
        let start = std::time::Instant::now();
        let compiled = constraints.compile(&grammar);
        let took = start.elapsed();
        let outcome = match compiled {
            Ok(mut constraint) => format!("allows {}", mask(&mut constraint).count()),
            Err(error) => error.to_string().chars().take(120).collect(),
        };
        all.push_str(&format!("{:8.1} ms  {name}: {outcome}\n", took.as_secs_f64() * 1e3));
        if took > slowest.1 {
            slowest = (name, took);
        }
    }
    println!("{all}");
    // A quiet machine takes two seconds at most; this one may be busy.
    assert!(slowest.1.as_secs() < 60, "{slowest:?}\n{all}");
}
