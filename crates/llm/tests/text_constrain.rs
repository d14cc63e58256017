//! Two hundred schemas, answered at random and by a real model: whatever ends by itself follows its schema.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod schema_support;

use std::collections::BTreeMap;
use std::sync::Arc;

use oxcart_backend::{Device, StreamOptions};
use oxcart_cpu::CpuDevice;
use oxcart_gguf::{Builder, Gguf, Header};
use oxcart_llm::engine::{End, Engine, EngineOptions, Event, Request};
use oxcart_llm::model::{Model, ModelFile, Placement, PlacementOptions};
use oxcart_llm::runner::{Runner, RunnerOptions};
use oxcart_llm::text::{
    ConstrainError, Constraints, Decode, Encode, Grammar, Sampler, SamplerSettings, Token, TokenMask, Vocab,
};
use schema_support::{Dice, bounded_schema, fault, schema};

/// Single bytes and some pieces that text and JSON are made of.
fn small_vocab() -> Vocab {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).into();
    let mut types = vec![2_i32, 3, 3];
    tokens.extend((0..=255_u8).map(|byte| format!("<0x{byte:02X}>")));
    types.resize(tokens.len(), 6);
    for piece in [
        "{\"", "\":", "\",\"", "\"}", "\"]", "▁\"", "]}", "}}", ",▁", ":▁", "true", "false", "null", "the",
        "▁the", "ing", "tion", "10", "20", "000", "é", "ü", "ö", "grü", "ß", "😀", "\n", "\n▁▁", "▁▁", "a",
        "b", "c", "ab", "name", "value", "kind", "\\u00", "\\n", "-", "0.", "e+", "2024", "-0", ":0",
    ] {
        tokens.push(piece.to_owned());
        types.push(1);
    }
    let mut builder = Builder::new();
    builder
        .set("tokenizer.ggml.model", "llama")
        .set("tokenizer.ggml.scores", vec![0.0_f32; tokens.len()])
        .set("tokenizer.ggml.tokens", tokens)
        .set("tokenizer.ggml.token_type", types)
        .set("tokenizer.ggml.eos_token_id", 2_u32);
    let mut file = Vec::new();
    builder.write(&mut file).unwrap();
    Vocab::from_gguf(&Header::parse(&file).unwrap().metadata()).unwrap()
}

/// What a model might say that has no idea, but would like to come to an end.
struct Babble<'a> {
    vocab: &'a Vocab,
    dice: Dice,
    wishes: Vec<f32>,
}

impl Babble<'_> {
    fn new(vocab: &Vocab, seed: u64) -> Babble<'_> {
        let wish = |token: Token| match vocab.bytes(token).unwrap_or_default() {
            _ if vocab.is_end_of_generation(token) => 9.0,
            [b'"' | b'}' | b']', ..] => 4.0,
            _ => 0.0,
        };
        Babble { vocab, dice: Dice::new(seed), wishes: (0..vocab.len() as Token).map(wish).collect() }
    }

    fn logits(&mut self) -> Vec<f32> {
        self.wishes.iter().map(|wish| wish + 6.0 * self.dice.unit()).collect()
    }

    /// An answer, if it came to an end.
    fn answer(
        &mut self,
        constraints: &Constraints,
        grammar: &Grammar,
        limit: usize,
    ) -> Result<Option<String>, ConstrainError> {
        let mut constraint = constraints.compile(grammar)?;
        let settings = SamplerSettings {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 5,
            ..SamplerSettings::default()
        };
        let mut sampler = Sampler::new(settings).unwrap();
        let (mut tokens, mut mask) = (Vec::new(), TokenMask::default());
        while tokens.len() < limit && !constraint.must_end() {
            constraint.mask(&mut mask)?;
            let token = sampler.sample_masked(&self.logits(), &mask).unwrap().token;
            constraint.accept(token)?;
            if !constraint.is_finished() {
                tokens.push(token);
            }
        }
        let text = self.vocab.decode(&tokens, Decode::default());
        Ok(constraint.must_end().then(|| String::from_utf8(text).unwrap()))
    }
}

/// Answers schemas and says how many came to an end; every one of these is right.
fn answered(vocab: &Vocab, schemas: std::ops::Range<u64>) -> usize {
    let constraints = Constraints::new(vocab).unwrap();
    let mut ended = 0;
    for number in schemas {
        let schema = schema(number);
        let grammar = Grammar::json_schema(schema.clone());
        let answer = Babble::new(vocab, number).answer(&constraints, &grammar, 1024);
        match answer.unwrap_or_else(|error| panic!("schema {number}: {error}\n{schema:#}")) {
            Some(answer) => {
                ended += 1;
                assert_eq!(fault(&schema, &answer), None, "schema {number}: {answer}\n{schema:#}");
            }
            None => eprintln!("schema {number} has no end after 1,024 tokens"),
        }
    }
    ended
}

#[test]
fn two_hundred_schemas() {
    let ended = answered(&small_vocab(), 0..200);
    eprintln!("{ended} of 200 answers came to an end, all of them right");
    assert!(ended >= 195, "only {ended} of 200 answers came to an end");
}

/// The vocabularies of real models, byte pairs and sentence pieces.
#[test]
fn real_vocabularies() {
    let Some(folder) = oxcart_fixtures::golden() else { return };
    for name in ["gpt-2", "llama-spm", "deepseek-llm", "phi-3", "falcon", "starcoder"] {
        let file = Gguf::open(folder.join(format!("vocab/ggml-vocab-{name}.gguf"))).unwrap();
        let vocab = Vocab::from_gguf(&file.metadata()).unwrap();
        let ended = answered(&vocab, 0..12);
        assert!(ended >= 11, "{name}: only {ended} of 12 answers came to an end");
    }
}

/// Through the engine, sixteen at a time, with the sampler's own settings.
#[test]
fn two_hundred_schemas_with_a_real_model() {
    let Some(path) = oxcart_fixtures::smollm2() else { return };
    let file = ModelFile::open(path).unwrap();
    let vocab = Arc::new(Vocab::from_gguf(&file.metadata()).unwrap());
    let device = CpuDevice::new().unwrap();
    let placement = Placement::new(&file, vec![device.clone()], &PlacementOptions::default()).unwrap();
    let model = Model::load(file, placement, &|_| {}).unwrap();
    let stream = device.open(&StreamOptions::threads(2)).unwrap();
    let options = RunnerOptions { context: 1280, sequences: 16, ..RunnerOptions::default() };
    let runner = Runner::new(model, vec![stream], options).unwrap();
    let mut engine = Engine::new(runner, Arc::clone(&vocab), EngineOptions::default());

    let mut open = BTreeMap::new();
    for number in 0..200 {
        let schema = bounded_schema(number);
        let constraint = Some(engine.compile(&Grammar::json_schema(schema.clone())).unwrap());
        let prompt = vocab.encode("Here is an example in JSON, as short as can be:\n", Encode::default());
        let sampler = SamplerSettings { seed: number, ..SamplerSettings::default() };
        let request = Request { constraint, limit: 1024, sampler, ..Request::new(prompt) };
        open.insert(engine.submit(request).unwrap(), (number, schema, String::new()));
    }
    let mut ended = 0;
    while engine.is_busy() {
        engine.step().unwrap();
        while let Some(event) = engine.next_event() {
            match event {
                Event::Token(token) => open.get_mut(&token.request).unwrap().2 += &token.text,
                Event::Finished { request, end, text, .. } => {
                    let (number, schema, answer) = open.remove(&request).unwrap();
                    let answer = answer + &text;
                    if matches!(end, End::Model | End::Complete) {
                        ended += 1;
                        assert_eq!(fault(&schema, &answer), None, "schema {number}: {answer}\n{schema:#}");
                    } else {
                        eprintln!("schema {number} ended by {end:?}: {answer}");
                    }
                }
                event => panic!("{event:?}"),
            }
        }
    }
    eprintln!("{ended} of 200 answers came to an end, all of them right");
    assert!(ended >= 195, "only {ended} of 200 answers came to an end");
}

/// A grammar of llama.cpp's kind for JSON accepts what is JSON and nothing else.
#[test]
fn gbnf_json() {
    let grammar = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x00-\x1f\x7f] | "\\" (["\\bfnrt/] | "u00" [0-9a-fA-F]{2}) ){0,30} "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,2})? ws
ws     ::= | " " | "\n" [ \t]{0,4}
"#;
    let vocab = small_vocab();
    let constraints = Constraints::new(&vocab).unwrap();
    let mut ended = 0;
    for seed in 0..30 {
        if let Some(answer) =
            Babble::new(&vocab, seed).answer(&constraints, &Grammar::Gbnf(grammar.into()), 1024).unwrap()
        {
            ended += 1;
            assert!(serde_json::from_str::<serde_json::Value>(&answer).is_ok(), "{answer}");
        }
    }
    assert!(ended >= 25, "{ended}");
}
