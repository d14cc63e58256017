use serde_json::{Value, json};

use super::*;
use crate::text::{ConstrainError, Constraints, Grammar, Streamer, TokenMask, ToolChoice, ToolError};

/// A vocabulary of bytes and, as control tokens, of markers.
fn vocab(control: &[&str]) -> Vocab {
    let mut tokens: Vec<String> = (0..=255).map(|byte| crate::text::spelling::spelled(&[byte])).collect();
    tokens.extend(control.iter().map(|&text| text.to_owned()));
    tokens.push("</s>".into());
    let types: Vec<i32> = (0..tokens.len()).map(|at| if at < 256 { 1 } else { 3 }).collect();
    let end = tokens.len() as u32 - 1;
    let mut file = Vec::new();
    let mut builder = oxcart_gguf::Builder::new();
    builder
        .set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.tokens", tokens)
        .set("tokenizer.ggml.token_type", types)
        .set("tokenizer.ggml.merges", ["a b"])
        .set("tokenizer.ggml.eos_token_id", end);
    builder.write(&mut file).unwrap();
    Vocab::from_gguf(&oxcart_gguf::Header::parse(&file).unwrap().metadata()).unwrap()
}

fn tools() -> Vec<Tool> {
    let search = json!({
        "name": "search",
        "parameters": {
            "type": "object",
            "properties": { "query": { "type": "string" }, "count": { "type": "integer" } },
            "required": ["query", "count"],
            "additionalProperties": false,
        },
    });
    let now = json!({ "name": "now", "parameters": { "type": "object", "properties": {}, "additionalProperties": false } });
    [search, now].iter().map(|tool| Tool::from_json(tool).unwrap()).collect()
}

/// Ends of what could go on for ever, first those of values.
fn ends(format: &ChatFormat) -> Vec<String> {
    let mut ends = Vec::new();
    for tags in format.syntax.tags {
        if let Some(parameters) = tags.parameters {
            ends.extend([format!("\n{}", parameters.value_end), parameters.value_end.to_owned()]);
        }
        ends.push(tags.close.to_owned());
    }
    ends.extend(format.syntax.literals.map(|literals| literals.quote.to_owned()));
    ends.extend(format.syntax.closes.iter().map(|&close| close.to_owned()));
    ends.extend(format.markers().into_iter().map(str::to_owned));
    ends.extend(["\"", "}", "]", ")", "1", "{"].map(str::to_owned));
    // Markers of channels are text like any other within arguments, and end nothing.
    let is_channel = |end: &str| format.call_syntax() == CallSyntax::Harmony && end.starts_with("<|");
    ends.retain(|end| !end.is_empty() && !is_channel(end));
    ends
}

/// Lets a grammar write: first the wishes that it allows, then what brings it to an end. The text, as a streamer shows it.
fn write(vocab: &Vocab, grammar: &Grammar, format: &ChatFormat, wishes: &str) -> String {
    let constraints = Constraints::new(vocab).unwrap();
    let mut constraint = constraints.compile(grammar).unwrap_or_else(|error| panic!("{error}: {grammar:?}"));
    let mut streamer = Streamer::new().show(format.shown_tokens(vocab));
    let mut mask = TokenMask::default();
    let mut text = String::new();
    let special = crate::text::Encode { add_special: false, parse_special: true };
    let ends: Vec<Vec<Token>> = ends(format).iter().map(|end| vocab.encode(end, special)).collect();
    let mut used = vec![0; ends.len()];
    let mut wishes: std::collections::VecDeque<Token> = vocab.encode(wishes, special).into();
    for _ in 0..500 {
        if constraint.must_end() {
            return text;
        }
        constraint.mask(&mut mask).unwrap();
        let allowed: Vec<Token> = mask.iter().filter(|&token| !vocab.is_end_of_generation(token)).collect();
        if wishes.is_empty() && constraint.may_end().unwrap() || allowed.is_empty() {
            return text;
        }
        let wish = wishes.pop_front().filter(|&token| mask.contains(token)).map(|token| vec![token]);
        let next = match (wish, allowed.as_slice()) {
            (Some(wish), _) => wish,
            (None, [only]) => vec![*only],
            _ => {
                // The one that was tried least: what ends a value elsewhere may be part of this one.
                let mut fitting: Vec<usize> = (0..ends.len())
                    .filter(|&at| constraint.accepts(&ends[at]).unwrap() == ends[at].len())
                    .collect();
                fitting.sort_by_key(|&at| (used[at], at));
                let end = fitting.first().map(|&at| {
                    used[at] += 1;
                    &ends[at]
                });
                // White space could go on for ever.
                let is_shown =
                    |token: Token| u8::try_from(token).map_or(true, |byte| byte.is_ascii_graphic());
                let other = || allowed.iter().copied().find(|&token| is_shown(token)).unwrap_or(allowed[0]);
                end.cloned().unwrap_or_else(|| vec![other()])
            }
        };
        for token in next {
            constraint.accept(token).unwrap();
            text.push_str(streamer.push(vocab, token));
        }
    }
    panic!("no end of {:?} … under {grammar:?}", text.chars().take(300).collect::<String>());
}

/// Lets a grammar force a call, and reads it.
fn check_forced(format: &ChatFormat, tools: &[Tool], expected: &str) {
    let control: Vec<&str> = match format.call_syntax() {
        CallSyntax::Mistral => vec!["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
        CallSyntax::DeepSeek => vec!["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"],
        CallSyntax::Lfm2 => vec!["<|tool_call_start|>", "<|tool_call_end|>"],
        CallSyntax::Gemma => vec!["<|tool_call>", "<tool_call|>", "<|\"|>"],
        _ => vec![],
    };
    let vocab = vocab(&control);
    let prompt = if format.call_syntax() == CallSyntax::Functionary32 { ">>>" } else { "" };
    let choice = ToolChoice::Named(expected.to_owned());
    let grammar = format.grammar(&vocab, prompt, tools, &choice, false).unwrap().unwrap();
    // Reasoning ends only when the model ends it, so there is none.
    let wishes = match format.call_syntax() {
        CallSyntax::Harmony => "<|channel|>commentary".to_owned(),
        CallSyntax::Atem => format!(" to={expected}"),
        _ => String::new(),
    };
    let text = write(&vocab, &grammar, format, &wishes);
    let mut answer = super::super::Answer::default();
    let mut parser = format.parser(prompt, tools);
    parser.push(&text).iter().for_each(|event| answer.add(event));
    parser.finish().iter().for_each(|event| answer.add(event));
    let shown = format!("{:?}: {text:?} under {grammar:?}", format.call_syntax());
    assert_eq!(answer.calls.len(), 1, "{shown}");
    assert_eq!((answer.calls[0].name.as_str(), answer.text.as_str()), (expected, ""), "{shown}");
    let arguments: Value = serde_json::from_str(&answer.calls[0].arguments).expect(&shown);
    if expected == "search" {
        assert!(arguments["query"].is_string() && arguments["count"].is_i64(), "{shown}");
    } else {
        assert_eq!(arguments, json!({}), "{shown}");
    }
}

/// What a grammar forces, the parser reads. All formats are tried, and all that fail are named.
#[test]
fn forced_calls_are_calls() {
    let (tools, mut failed) = (tools(), Vec::new());
    for format in all_formats() {
        for name in ["now", "search"] {
            if std::panic::catch_unwind(|| check_forced(&format, &tools, name)).is_err() {
                failed.push((format.call_syntax(), name));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

/// Where the model decides, text passes, and what follows a marker is a call.
#[test]
fn text_passes_until_a_call_begins() {
    let (tools, vocab) = (tools(), vocab(&[]));
    let format = ChatFormat::of(CallSyntax::Hermes);
    let grammar = format.grammar(&vocab, "", &tools, &ToolChoice::Auto, true).unwrap().unwrap();
    let wishes = "Hello, {\"world\"}!";
    assert_eq!(write(&vocab, &grammar, &format, wishes), wishes);
    let text = write(&vocab, &grammar, &format, "Well. <tool_call>nonsense");
    assert!(text.starts_with("Well. <tool_call>") && !text.contains("nonsense"), "{text:?}");
    // Reasoning may speak of calls.
    let wishes = "<think>a <tool_call> b</think>c";
    assert_eq!(write(&vocab, &grammar, &format, wishes), wishes);
    assert!(format.grammar(&vocab, "", &tools, &ToolChoice::None, true).unwrap().is_none());
    assert!(format.grammar(&vocab, "", &[], &ToolChoice::Auto, true).unwrap().is_none());
    let unknown = ToolChoice::Named("x".into());
    assert!(matches!(format.grammar(&vocab, "", &tools, &unknown, true), Err(ToolError::UnknownTool { .. })));
    assert!(matches!(format.grammar(&vocab, "", &[], &ToolChoice::Required, true), Err(ToolError::NoTools)));
}

/// Where messages have headers, what is not a call passes, too, whether markers are control tokens or text.
#[test]
fn channels_pass_until_a_call_begins() {
    let tools = tools();
    let harmony = [
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Well.",
        "<|channel|>commentary<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>Well.",
        "<|channel|>final<|message|>Well, {\"world\"}!",
    ];
    let atem = [
        " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Well.",
        " to=user<|message|>So.<|eom|><|start|>assistant to=now<|message|><atem:function_calls>\n<atem:invoke name=\"now\">\n</atem:invoke>\n</atem:function_calls>",
        " to=user<|message|>Well.",
    ];
    // With all of these, the end of a message is not the end of an answer.
    let known = ["<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|eom|>", "<|return|>", "<|call|>"];
    let control: [&[&str]; 2] = [&[], &known];
    for (kind, answers) in [(CallSyntax::Harmony, harmony), (CallSyntax::Atem, atem)] {
        for control in control {
            let (format, vocab) = (ChatFormat::of(kind), vocab(control));
            let grammar = format.grammar(&vocab, "", &tools, &ToolChoice::Auto, true).unwrap().unwrap();
            for answer in answers {
                assert_eq!(write(&vocab, &grammar, &format, answer), answer, "{kind:?} with {control:?}");
            }
        }
    }
}

#[test]
fn answers_may_have_to_be_json() -> Result<(), ConstrainError> {
    let vocab = vocab(&[]);
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"], "additionalProperties": false });
    let format = ChatFormat::of(CallSyntax::Hermes);
    let grammar = format.answer_grammar(&vocab, "<think>", Some(&schema))?;
    let text = write(&vocab, &grammar, &format, "Hm.</think>{\"a\": 12}");
    assert_eq!(text, "Hm.</think>{\"a\": 12}");
    Ok(())
}

#[test]
fn tools_are_read() {
    let tool = Tool::from_json(&json!({
        "type": "function",
        "function": { "name": "f", "description": "d", "parameters": { "type": "object" } },
    }));
    let tool = tool.unwrap();
    assert_eq!((tool.name.as_str(), tool.description.as_str()), ("f", "d"));
    assert_eq!(tool.to_json()["function"]["parameters"], json!({ "type": "object" }));
    for (bad, expected) in
        [(json!({}), "NoTool"), (json!({ "name": "" }), "BadName"), (json!({ "name": "a\"b" }), "BadName")]
    {
        assert!(format!("{:?}", Tool::from_json(&bad).unwrap_err()).starts_with(expected));
    }
}

#[test]
fn arguments_are_given_as_templates_want_them() {
    let check = |source: &str, expected: bool| {
        let template = ChatTemplate::new(source).unwrap();
        assert_eq!(messages::arguments_as_text(&template), expected, "{source}");
    };
    let calls = "{% for m in messages %}{% for c in m.tool_calls or [] %}ARGS{% endfor %}{% endfor %}";
    check(&calls.replace("ARGS", "{{ c.function.arguments | tojson }}"), false);
    check(&calls.replace("ARGS", "{{ '{' + c.function.arguments }}"), true);
    check(
        &calls.replace("ARGS", "{% for k, v in c.function.arguments | items %}{{ k }}={{ v }}{% endfor %}"),
        false,
    );
    check("{{ messages[0].content }}", false);
}

#[test]
fn formats_are_told_by_what_is_there() {
    let vocab = vocab(&["<|tool_call_start|>"]);
    let detect = |source: &str| ChatFormat::detect(&ChatTemplate::new(source).unwrap(), &vocab);
    assert_eq!(detect("{{ '<tool_call>' }}").call_syntax(), CallSyntax::Hermes);
    assert_eq!(detect("{{ '<tool_call><arg_key>' }}").call_syntax(), CallSyntax::Glm);
    assert_eq!(detect("{{ 'plain' }}").call_syntax(), CallSyntax::Lfm2);
    assert!(!detect("{{ 'plain' }}").has_reasoning());
    assert!(detect("{{ '<think>' }}{{ '</think>' }}").has_reasoning());
    assert_eq!(detect("plain").shown_tokens(&vocab), [256]);
}
