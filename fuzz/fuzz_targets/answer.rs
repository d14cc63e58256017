//! Arbitrary answers in every format of calls, made of its markers and of anything else, whole and cut: calls begin, have arguments
//! and end, one after the other, and cuts change nothing.
#![no_main]

use std::sync::LazyLock;

use oxcart_gguf::{Builder, Header};
use oxcart_llm::text::{Answer, AnswerEvent, ChatFormat, ChatTemplate, Tool, Vocab};

/// What templates of each format have in them.
const TEMPLATES: [&str; 31] = [
    "<|channel|><|message|><|start|>",
    "<atem:function_calls>",
    "<|open|><|sep|><|close|>",
    "<|tool_call>call:",
    "<start_function_call>",
    "]<]minimax[>[ <mm:think></mm:think>",
    "DSML <think></think>",
    "<｜tool▁calls▁begin｜> <think></think>",
    "<|tool_call_begin|><|tool_call_argument_begin|>",
    "<|tool_call:begin|><|tool_call:args|><|think|><|end|>",
    "[TOOL_CALLS] [THINK][/THINK]",
    "<|START_ACTION|> <|START_THINKING|><|END_THINKING|>",
    "Action: \"tool_name\"",
    "<|tools_prefix|> <|inner_prefix|><|inner_suffix|>",
    "<minimax:tool_call> <think></think>",
    "<seed:tool_call> <seed:think></seed:think>",
    "<function name=\"<param name=\"",
    ">>>all",
    "tool_sep opensource",
    "<arg_key><tool_call> <think></think>",
    "<function=<tool_call><parameter= <think></think>",
    "<function=",
    "<|tool_call_start|>",
    "<TOOLCALL> <think></think>",
    "<|tool_call|> <think></think>",
    "<|function_call|>",
    "<tool_calls>",
    "<tool_call> <think></think>",
    "functools[",
    "<|python_tag|>",
    "plain",
];

/// Formats, and pieces that their answers are made of.
static FORMATS: LazyLock<Vec<(ChatFormat, Vec<String>)>> = LazyLock::new(|| {
    let mut file = Vec::new();
    let mut builder = Builder::new();
    builder
        .set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.tokens", ["a", "</s>"])
        .set("tokenizer.ggml.merges", ["a a"]);
    builder.write(&mut file).unwrap();
    let vocab = Vocab::from_gguf(&Header::parse(&file).unwrap().metadata()).unwrap();
    let formats = TEMPLATES.iter().map(|source| {
        let format = ChatFormat::detect(&ChatTemplate::new(source).unwrap(), &vocab);
        let looks = format.call_syntax().to_string();
        let looks = ["NAME", "KEY", "…", " or "].iter().fold(looks, |looks, word| looks.replace(word, "\n"));
        let own: Vec<String> = looks.lines().chain(source.split(' ')).map(str::to_owned).collect();
        let closed = own.iter().map(|piece| piece.replace('<', "</")).collect();
        let parts = own.iter().flat_map(|piece| piece.split_inclusive('>')).map(str::to_owned).collect();
        (format, [own.clone(), closed, parts].concat())
    });
    formats.collect()
});

/// What stands between markers.
const OTHERS: [&str; 24] = [
    "now", "get", "a", "{\"name\": \"now\"", "\"arguments\": ", "{\"a\": 1}", "{", "}", "[", "]", "(", ")", "\"", "'", ",", ":", "=", "\\",
    "\n", " ", "<", ">", "```json\n", "to=functions.now",
];

fn tools() -> Vec<Tool> {
    let get = serde_json::json!({
        "name": "get",
        "parameters": {
            "type": "object",
            "properties": { "a": { "type": "string" }, "b": { "type": "array", "items": { "type": "object" } } },
        },
    });
    [get, serde_json::json!({ "name": "now" })].iter().map(|tool| Tool::from_json(tool).unwrap()).collect()
}

/// What an answer comes to, its calls one after the other.
fn add(answer: &mut Answer, open: &mut Option<usize>, events: &[AnswerEvent]) {
    for event in events {
        match event {
            AnswerEvent::ToolCallStart { index, .. } => {
                assert_eq!((*open, *index), (None, answer.calls.len()));
                *open = Some(*index);
            }
            AnswerEvent::ToolCallArguments { index, .. } => assert_eq!(*open, Some(*index)),
            AnswerEvent::ToolCallEnd { index } => assert_eq!(open.take(), Some(*index)),
            AnswerEvent::Text(text) | AnswerEvent::Reasoning(text) => assert!(open.is_none() && !text.is_empty()),
        }
        answer.add(event);
    }
}

libfuzzer_sys::fuzz_target!(|input: (u8, Vec<(u8, String)>, Vec<u8>)| {
    let (which, pieces, cuts) = input;
    let (format, markers) = &FORMATS[usize::from(which) % FORMATS.len()];
    let mut text = String::new();
    for (piece, other) in &pieces {
        let piece = usize::from(*piece);
        text.push_str(match piece.checked_sub(markers.len()) {
            None => &markers[piece],
            Some(piece) => OTHERS.get(piece).copied().unwrap_or(other),
        });
    }
    let prompt = if which > 128 { markers[0].as_str() } else { "" };
    let parser = format.parser(prompt, &tools());
    let read = |mut cuts: Box<dyn Iterator<Item = usize>>| {
        let (mut parser, mut answer, mut open, mut rest) = (parser.clone(), Answer::default(), None, text.as_str());
        while !rest.is_empty() {
            let at = cuts.next().unwrap_or(rest.len()).clamp(1, rest.len());
            let at = (at..=rest.len()).find(|&at| rest.is_char_boundary(at)).unwrap_or(rest.len());
            let (head, tail) = rest.split_at(at);
            add(&mut answer, &mut open, &parser.push(head));
            rest = tail;
        }
        add(&mut answer, &mut open, &parser.finish());
        assert_eq!(open, None);
        answer
    };
    let whole = read(Box::new(std::iter::empty()));
    assert_eq!(read(Box::new(cuts.into_iter().map(usize::from))), whole, "{text:?}");
});
