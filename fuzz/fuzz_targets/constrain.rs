//! Arbitrary text as a grammar of every kind, then arbitrary tokens: it is compiled or refused, and what a
//! mask allows is taken.
#![no_main]

use std::sync::LazyLock;

use oxcart_gguf::{Builder, Header};
use oxcart_llm::text::{ConstrainError, Constraint, Constraints, Grammar, TokenMask, Vocab};

/// All bytes, a few pieces and an end.
static CONSTRAINTS: LazyLock<Constraints> = LazyLock::new(|| {
    let mut tokens: Vec<String> = (0..=255_u8).map(|byte| format!("<0x{byte:02X}>")).collect();
    let mut types = vec![6_i32; 256];
    tokens.extend(["{\"", "\":", "\",\"", "true", "ab", "00", "</s>"].map(String::from));
    types.extend([1, 1, 1, 1, 1, 1, 3]);
    let mut builder = Builder::new();
    builder
        .set("tokenizer.ggml.model", "llama")
        .set("tokenizer.ggml.scores", vec![0.0_f32; tokens.len()])
        .set("tokenizer.ggml.eos_token_id", tokens.len() as u32 - 1)
        .set("tokenizer.ggml.tokens", tokens)
        .set("tokenizer.ggml.token_type", types);
    let mut file = Vec::new();
    builder.write(&mut file).unwrap();
    let vocab = Vocab::from_gguf(&Header::parse(&file).unwrap().metadata()).unwrap();
    Constraints::new(&vocab).unwrap()
});

/// Takes tokens as long as there are masks.
fn walk(mut answer: Constraint, tokens: &[u8]) {
    let mut mask = TokenMask::default();
    for &token in tokens {
        if answer.mask(&mut mask).is_err() {
            break;
        }
        // A byte as a token, or the next one that is allowed.
        let token = u32::from(token);
        let token = if mask.contains(token) { token } else { mask.iter().find(|&other| other > token).unwrap_or(token) };
        let before = answer.len();
        let refused = matches!(answer.accept(token), Err(ConstrainError::Refused { .. }));
        assert!(!refused || !mask.contains(token));
        if token % 3 == 0 && answer.len() > before {
            answer.rollback(1).unwrap();
        }
    }
}

libfuzzer_sys::fuzz_target!(|input: (u8, String, Vec<u8>)| {
    let (kind, text, tokens) = input;
    let grammar = match kind % 4 {
        0 => match serde_json::from_str(&text) {
            Ok(schema) => Grammar::json_schema(schema),
            Err(_) => return,
        },
        1 => Grammar::Regex(text),
        2 => Grammar::Lark(text),
        _ => Grammar::Gbnf(text),
    };
    if let Ok(answer) = CONSTRAINTS.compile(&grammar) {
        walk(answer, &tokens[..tokens.len().min(64)]);
    }
});
