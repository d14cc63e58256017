//! Arbitrary bytes as a vocabulary and a text: loading refuses or works, and any text goes through and, where every byte
//! has a token, comes back.
#![no_main]

use oxcart_gguf::{Builder, Header, Text};
use oxcart_llm::text::{Decode, Encode, StopStrings, Streamer, Vocab};

const MODELS: [&str; 4] = ["gpt2", "llama", "bert", "gemma4"];
const PRES: [&str; 10] = [
    "default", "llama3", "gpt-2", "qwen35", "deepseek-llm", "deepseek-v3", "gpt-4o", "tiny_aya", "superbpe", "kimi-k2",
];

libfuzzer_sys::fuzz_target!(|input: (u8, u8, Vec<(Vec<u8>, f32, u8)>, Vec<Vec<u8>>, [i32; 4], Vec<u8>)| {
    let (model, pre, tokens, merges, ids, text) = input;
    let mut builder = Builder::new();
    let texts: Vec<Text<'_>> = tokens.iter().map(|(text, ..)| Text::new(text)).collect();
    builder
        .set("tokenizer.ggml.model", MODELS[usize::from(model) % MODELS.len()])
        .set("tokenizer.ggml.pre", PRES[usize::from(pre) % PRES.len()])
        .set("tokenizer.ggml.tokens", texts)
        .set("tokenizer.ggml.scores", tokens.iter().map(|(_, score, _)| *score).collect::<Vec<f32>>())
        .set("tokenizer.ggml.token_type", tokens.iter().map(|(.., kind)| i32::from(*kind)).collect::<Vec<i32>>())
        .set("tokenizer.ggml.merges", merges.iter().map(|merge| Text::new(merge)).collect::<Vec<_>>());
    for (role, id) in ["bos", "eos", "unknown", "seperator"].iter().zip(ids) {
        builder.set(&format!("tokenizer.ggml.{role}_token_id"), id);
    }
    let mut file = Vec::new();
    if builder.write(&mut file).is_err() {
        return;
    }
    let Ok(header) = Header::parse(&file) else { return };
    let Ok(vocab) = Vocab::from_gguf(&header.metadata()) else { return };
    for (add_special, parse_special) in [(false, false), (true, true)] {
        let encoded = vocab.encode(&text, Encode { add_special, parse_special });
        assert!(encoded.iter().all(|&token| (token as usize) < vocab.len()));
        let decoded = vocab.decode(&encoded, Decode::default());
        let mut streamer = Streamer::new();
        let mut stop = StopStrings::new(["\u{fffd}\u{fffd}", "ab"]).unwrap();
        let mut streamed = String::new();
        for &token in &encoded {
            let piece = streamer.push(&vocab, token);
            streamed.push_str(piece);
            stop.push(piece);
        }
        streamed.push_str(streamer.finish());
        assert_eq!(streamed, String::from_utf8_lossy(&decoded));
    }
});
