//! One answer of every format, cut at every place and at random.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::text::chat::format::{ChatFormat, all_formats};
use crate::text::{CallSyntax, Tool};

fn tools() -> Vec<Tool> {
    let weather = json!({
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": { "type": "string" },
                "days": { "type": "integer" },
                "where": { "type": "object" },
                "exact": { "type": "boolean" },
            },
            "required": ["city"],
        },
    });
    let time = json!({ "name": "now", "parameters": { "type": "object", "properties": {} } });
    [weather, time].iter().map(|tool| Tool::from_json(tool).unwrap()).collect()
}

fn read(mut parser: AnswerParser, pieces: &[&str]) -> (Answer, Vec<AnswerEvent>) {
    let mut answer = Answer::default();
    let mut events = Vec::new();
    for piece in pieces {
        events.extend(parser.push(piece));
    }
    events.extend(parser.finish());
    events.iter().for_each(|event| answer.add(event));
    (answer, events)
}

/// Calls begin, have arguments and end, one after the other.
fn check_order(events: &[AnswerEvent]) {
    let (mut open, mut next) = (None, 0);
    for event in events {
        match event {
            AnswerEvent::ToolCallStart { index, .. } => {
                assert_eq!((open, *index), (None, next));
                (open, next) = (Some(*index), next + 1);
            }
            AnswerEvent::ToolCallArguments { index, .. } => assert_eq!(open, Some(*index)),
            AnswerEvent::ToolCallEnd { index } => {
                assert_eq!(open, Some(*index));
                open = None;
            }
            AnswerEvent::Text(text) | AnswerEvent::Reasoning(text) => {
                assert!(open.is_none() && !text.is_empty());
            }
        }
    }
    assert_eq!(open, None);
}

const PARIS: &str = r#"{"city":"Paris","days":3}"#;
const ROME: &str = r#"{"city":"Rome \"x\"","days":1}"#;

struct Sample {
    syntax: CallSyntax,
    prompt: &'static str,
    answer: &'static str,
    reasoning: &'static str,
    text: &'static str,
    /// Ids, of calls of the weather in Paris and in Rome.
    ids: [Option<&'static str>; 2],
}

const fn sample(syntax: CallSyntax, prompt: &'static str, answer: &'static str) -> Sample {
    Sample { syntax, prompt, answer, reasoning: "", text: "", ids: [None, None] }
}

/// Answers as templates write them, and as models do.
fn samples() -> Vec<Sample> {
    use CallSyntax as S;
    vec![
        Sample {
            reasoning: "Think.",
            text: "Well.",
            ..sample(
                S::Hermes,
                "<|im_start|>assistant\n",
                "<think>\nThink.\n</think>\n\nWell.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n</tool_call>\n<tool_call>\n{\"arguments\": {\"city\": \"Rome \\\"x\\\"\", \"days\": 1}, \"name\": \"get_weather\"}\n</tool_call>",
            )
        },
        Sample {
            reasoning: "Think.",
            ..sample(
                S::Hermes,
                "<|im_start|>assistant\n<think>\n",
                "Think.\n</think>\n\n<tool_call>{\"name\": \"get_weather\", \"arguments\": \"{\\\"city\\\": \\\"Paris\\\", \\\"days\\\": 3}\"}</tool_call><tool_call>{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome \\\"x\\\"\", \"days\": 1}}}</tool_call>",
            )
        },
        Sample {
            reasoning: "Think.",
            ..sample(
                S::QwenCoder,
                "<think>\n",
                "Think.\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=get_weather>\n<parameter=city>\nRome \"x\"\n</parameter>\n<parameter=days>\n1\n</parameter>\n</function>\n</tool_call>",
            )
        },
        Sample {
            reasoning: "Think.",
            ..sample(
                S::SeedOss,
                "assistant\n",
                "<seed:think>Think.</seed:think>\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n<parameter=days>3</parameter>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>Rome \"x\"</parameter>\n<parameter=days>1</parameter>\n</function>\n</seed:tool_call>",
            )
        },
        Sample {
            reasoning: "Think.",
            ..sample(
                S::Glm,
                "<|assistant|>",
                "\n<think>Think.</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome \"x\"</arg_value><arg_key>days</arg_key><arg_value>1</arg_value></tool_call>",
            )
        },
        sample(
            S::Hunyuan,
            "<think:opensource></think:opensource>",
            "<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Paris</arg_value:opensource>\n<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>3</arg_value:opensource>\n</tool_call:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Rome \"x\"</arg_value:opensource>\n<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>1</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
        ),
        Sample {
            reasoning: "Think.",
            ..sample(
                S::MiniMax,
                "]~b]ai\n<think>\n",
                "Think.\n</think>\n\n\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Paris</parameter>\n<parameter name=\"days\">3</parameter>\n</invoke>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Rome \"x\"</parameter>\n<parameter name=\"days\">1</parameter>\n</invoke>\n</minimax:tool_call>",
            )
        },
        Sample {
            reasoning: "Think.",
            ..sample(
                S::MiniMaxM3,
                "]~b]ai\n",
                "<mm:think>Think.</mm:think>]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"get_weather\">]<]minimax[>[<city>Paris]<]minimax[>[</city>]<]minimax[>[<days>3]<]minimax[>[</days>]<]minimax[>[</invoke>\n]<]minimax[>[<invoke name=\"get_weather\">]<]minimax[>[<city>Rome \"x\"]<]minimax[>[</city>]<]minimax[>[<days>1]<]minimax[>[</days>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
            )
        },
        sample(
            S::DeepSeekMarkup,
            "<think></think>",
            "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Paris</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Rome \"x\"</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        ),
        Sample {
            text: "Well.",
            ..sample(
                S::DeepSeek,
                "<｜Assistant｜></think>",
                "Well.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Paris\", \"days\": 3}<｜tool▁call▁end｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Rome \\\"x\\\"\", \"days\": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            )
        },
        Sample {
            ids: [Some("functions.get_weather:0"), Some("functions.get_weather:1")],
            ..sample(
                S::KimiK2,
                "<|im_middle|>",
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Paris\", \"days\": 3}<|tool_call_end|><|tool_call_begin|>functions.get_weather:1<|tool_call_argument_begin|>{\"city\": \"Rome \\\"x\\\"\", \"days\": 1}<|tool_call_end|><|tool_calls_section_end|>",
            )
        },
        Sample {
            reasoning: "Think.",
            text: "Well.",
            ..sample(
                S::KimiK3,
                "<|open|>think<|sep|>",
                "Think.<|close|>think<|sep|><|open|>response<|sep|>Well.<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"get_weather\" index=\"1\"<|sep|><|open|>argument key=\"city\" type=\"string\"<|sep|>Paris<|close|>argument<|sep|><|open|>argument key=\"days\" type=\"number\"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool=\"get_weather\" index=\"2\"<|sep|><|open|>argument key=\"city\" type=\"string\"<|sep|>Rome \"x\"<|close|>argument<|sep|><|open|>argument key=\"days\" type=\"number\"<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
            )
        },
        Sample {
            ids: [Some("call00001"), Some("call00002")],
            ..sample(
                S::Solar,
                "<|begin|>assistant",
                "<|tool_calls|><|tool_call:begin|>call00001<|tool_call:name|>get_weather<|tool_call:args|>{\"city\": \"Paris\", \"days\": 3}<|tool_call:end|><|tool_call:begin|>call00002<|tool_call:name|>get_weather<|tool_call:args|>{\"city\": \"Rome \\\"x\\\"\", \"days\": 1}<|tool_call:end|>",
            )
        },
        Sample {
            ids: [Some("abc"), None],
            ..sample(
                S::Mistral,
                "[/INST]",
                "[TOOL_CALLS]get_weather[CALL_ID]abc[ARGS]{\"city\": \"Paris\", \"days\": 3}[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Rome \\\"x\\\"\", \"days\": 1}",
            )
        },
        Sample {
            reasoning: "Think.",
            text: "Well.",
            ..sample(
                S::Mistral,
                "[/INST]",
                "[THINK]Think.[/THINK]Well.[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}, \"id\": \"a\"}, {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome \\\"x\\\"\", \"days\": 1}}]",
            )
        },
        Sample {
            reasoning: "Think.",
            ids: [Some("0"), Some("1")],
            ..sample(
                S::CommandR7b,
                "<|START_THINKING|>",
                "Think.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\", \"days\": 3}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"get_weather\", \"parameters\": {\"city\": \"Rome \\\"x\\\"\", \"days\": 1}}\n]<|END_ACTION|>",
            )
        },
        sample(
            S::CommandR,
            "<|CHATBOT_TOKEN|>",
            "Action:\n```json\n[\n    {\n        \"tool_name\": \"get_weather\",\n        \"parameters\": {\"city\": \"Paris\", \"days\": 3}\n    },\n    {\n        \"tool_name\": \"get_weather\",\n        \"parameters\": {\"city\": \"Rome \\\"x\\\"\", \"days\": 1}\n    }\n]```",
        ),
        sample(
            S::Apertus,
            "<|assistant_start|>",
            "<|tools_prefix|>[{\"get_weather\": {\"city\": \"Paris\", \"days\": 3}}, {\"get_weather\": {\"city\": \"Rome \\\"x\\\"\", \"days\": 1}}]<|tools_suffix|>",
        ),
        Sample {
            text: "Well.",
            ..sample(
                S::MiniCpm,
                "assistant\n",
                "Well.\n<function name=\"get_weather\"><param name=\"city\">Paris</param><param name=\"days\">3</param></function>\n<function name=\"get_weather\"><param name=\"city\">Rome \"x\"</param><param name=\"days\">1</param></function>",
            )
        },
        Sample {
            text: "Well.",
            ..sample(
                S::Functionary32,
                "<|end_header_id|>\n\n>>>",
                "all\nWell.>>>get_weather\n{\"city\": \"Paris\", \"days\": 3}>>>get_weather\n{\"city\": \"Rome \\\"x\\\"\", \"days\": 1}",
            )
        },
        Sample {
            text: "Well.",
            ..sample(
                S::Functionary31,
                "<|end_header_id|>\n\n",
                "Well. <function=get_weather>{\"city\": \"Paris\", \"days\": 3}</function><function=get_weather>{\"city\": \"Rome \\\"x\\\"\", \"days\": 1}</function>",
            )
        },
        sample(
            S::Lfm2,
            "assistant\n",
            "<|tool_call_start|>[get_weather(city='Paris', days=3), get_weather(city=\"Rome \\\"x\\\"\", days=1)]<|tool_call_end|>",
        ),
        sample(
            S::Gemma,
            "<|turn>model\n",
            "<|tool_call>call:get_weather{city:<|\"|>Paris<|\"|>,days:3}<tool_call|><|tool_call>call:get_weather{city:<|\"|>Rome \"x\"<|\"|>,days:1}<tool_call|>",
        ),
        sample(
            S::FunctionGemma,
            "model\n",
            "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:3}<end_function_call><start_function_call>call:get_weather{city:<escape>Rome \"x\"<escape>,days:1}<end_function_call>",
        ),
        Sample {
            reasoning: "Think.",
            ..sample(
                S::Nemotron,
                "<think>\n",
                "Think.\n</think>\n<TOOLCALL>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}, {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome \\\"x\\\"\", \"days\": 1}}]</TOOLCALL>",
            )
        },
        sample(
            S::Granite,
            "<|end_of_role|>",
            "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}, {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome \\\"x\\\"\", \"days\": 1}}]",
        ),
        sample(
            S::GigaChat,
            "<|role_sep|>\n",
            "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}<|message_sep|>\n\n<|function_call|>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome \\\"x\\\"\", \"days\": 1}}<|message_sep|>",
        ),
        sample(
            S::ToolCalls,
            "ai\n",
            "<tool_calls>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome \\\"x\\\"\", \"days\": 1}}\n</tool_calls>",
        ),
        sample(
            S::FireFunction,
            "assistant\n",
            " functools[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}, {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome \\\"x\\\"\", \"days\": 1}}]",
        ),
        sample(
            S::Llama3,
            "<|end_header_id|>\n\n",
            "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\", \"days\": 3}}; {\"name\": \"get_weather\", \"parameters\": {\"city\": \"Rome \\\"x\\\"\", \"days\": 1}}",
        ),
        sample(
            S::Llama3,
            "<|end_header_id|>\n\n",
            "<|python_tag|>get_weather.call(city=\"Paris\", days=3); get_weather.call(city=\"Rome \\\"x\\\"\", days=1)",
        ),
        sample(
            S::Json,
            "assistant:",
            "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome \\\"x\\\"\", \"days\": 1}}",
        ),
        Sample {
            reasoning: "Think.",
            text: "Well.",
            ..sample(
                S::Harmony,
                "<|start|>assistant",
                "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>commentary<|message|>Well.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Paris\", \"days\": 3}<|call|><|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{\"city\": \"Rome \\\"x\\\"\", \"days\": 1}",
            )
        },
        Sample {
            reasoning: "Think.",
            ..sample(
                S::Atem,
                "<|start|>assistant",
                " to=self<|message|>Think.<|eom|><|start|>assistant to=get_weather<|message|><atem:function_calls>\n<atem:invoke name=\"get_weather\">\n<atem:parameter name=\"city\">Paris</atem:parameter>\n<atem:parameter name=\"days\">3</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant to=get_weather<|message|><atem:function_calls>\n<atem:invoke name=\"get_weather\">\n<atem:parameter name=\"city\">Rome \"x\"</atem:parameter>\n<atem:parameter name=\"days\">1</atem:parameter>\n</atem:invoke>\n</atem:function_calls>",
            )
        },
    ]
}

fn compact(arguments: &str) -> String {
    serde_json::from_str::<serde_json::Value>(arguments)
        .map_or_else(|_| arguments.to_owned(), |json| json.to_string())
}

#[test]
fn every_format_is_read_wherever_it_is_cut() {
    let tools = tools();
    for sample in samples() {
        let format = ChatFormat::of(sample.syntax);
        let parser = format.parser(sample.prompt, &tools);
        let (whole, events) = read(parser.clone(), &[sample.answer]);
        check_order(&events);
        let shown = format!("{:?}: {:?}", sample.syntax, sample.answer);
        assert_eq!(
            (whole.reasoning.as_str(), whole.text.as_str()),
            (sample.reasoning, sample.text),
            "{shown}"
        );
        let calls: Vec<(&str, String)> =
            whole.calls.iter().map(|call| (call.name.as_str(), compact(&call.arguments))).collect();
        assert_eq!(calls, [("get_weather", PARIS.to_owned()), ("get_weather", ROME.to_owned())], "{shown}");
        let ids: Vec<Option<&str>> = whole.calls.iter().map(|call| call.id.as_deref()).collect();
        assert_eq!(ids, sample.ids, "{shown}");
        for at in (0..=sample.answer.len()).filter(|&at| sample.answer.is_char_boundary(at)) {
            let (head, tail) = sample.answer.split_at(at);
            let (cut, events) = read(parser.clone(), &[head, tail]);
            check_order(&events);
            assert_eq!(cut, whole, "cut at {at}: {shown}");
        }
        let letters: Vec<&str> = sample.answer.split("").collect();
        assert_eq!(read(parser, &letters).0, whole, "{shown}");
    }
}

#[test]
fn every_syntax_has_a_sample() {
    let sampled: Vec<CallSyntax> = samples().iter().map(|sample| sample.syntax).collect();
    for format in all_formats() {
        assert!(sampled.contains(&format.call_syntax()), "{:?}", format.call_syntax());
        assert!(!format.call_syntax().to_string().is_empty());
    }
}

#[track_caller]
fn check(
    syntax: CallSyntax,
    prompt: &str,
    answer: &str,
    reasoning: &str,
    text: &str,
    calls: &[(&str, &str)],
) {
    let (found, events) = read(ChatFormat::of(syntax).parser(prompt, &tools()), &[answer]);
    check_order(&events);
    assert_eq!((found.reasoning.as_str(), found.text.as_str()), (reasoning, text));
    let found: Vec<(&str, &str)> =
        found.calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
    assert_eq!(found, calls);
}

#[test]
fn text_is_left_alone() {
    let json = "{\"name\": \"Ann\", \"age\": 3} is Ann.";
    check(CallSyntax::Json, "", json, "", json, &[]);
    check(CallSyntax::Json, "", " {\"a\": [1, 2]}", "", " {\"a\": [1, 2]}", &[]);
    check(CallSyntax::Json, "", "{", "", "{", &[]);
    check(CallSyntax::Hermes, "", "a < b && c <tool", "", "a < b && c <tool", &[]);
    check(CallSyntax::Hermes, "", "  Hi.\n\n ", "", "  Hi.\n\n ", &[]);
    check(CallSyntax::Hermes, "", "", "", "", &[]);
    check(CallSyntax::Harmony, "<|start|>assistant", "Hi.", "", "Hi.", &[]);
    // Without tools, nothing is a call.
    let (answer, _) = read(
        ChatFormat::of(CallSyntax::Hermes).parser("", &[]),
        &["<think>a</think><tool_call>{\"name\":1}"],
    );
    assert_eq!((answer.reasoning.as_str(), answer.text.as_str()), ("a", "<tool_call>{\"name\":1}"));
}

#[test]
fn calls_that_are_cut_off_or_broken_end() {
    let hermes =
        |answer, text, calls: &[(&str, &str)]| check(CallSyntax::Hermes, "", answer, "", text, calls);
    hermes("<tool_call>{\"name\": \"now\"}</tool_call>", "", &[("now", "{}")]);
    hermes("<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": \"b", "", &[("now", "{\"a\": \"b")]);
    hermes("<tool_call>{\"name\": \"no", "{\"name\": \"no", &[]);
    hermes("<tool_call>{\"arguments\": {}}</tool_call> Sorry.", "{\"arguments\": {}} Sorry.", &[]);
    hermes("<tool_call>I do not know.</tool_call>", "I do not know.", &[]);
    hermes("<tool_call></tool_call>Done.", "Done.", &[]);
    hermes("</think>Hi.</tool_call>", "Hi.", &[]);
    check(
        CallSyntax::QwenCoder,
        "",
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "",
        "",
        &[("now", "{}")],
    );
    check(
        CallSyntax::QwenCoder,
        "",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nPa",
        "",
        "",
        &[("get_weather", "{\"city\":\"Pa\"}")],
    );
    check(CallSyntax::Mistral, "", "[TOOL_CALLS]now", "", "", &[("now", "{}")]);
    check(CallSyntax::Mistral, "", "[TOOL_CALLS]never mind", "", "never mind", &[]);
    check(CallSyntax::Hermes, "<think>\n", "Hm", "Hm", "", &[]);
}

#[test]
fn values_get_the_types_of_the_schema() {
    let call = |values: &str| format!("<tool_call>get_weather\n{values}</tool_call>");
    let pair = |key: &str, value: &str| format!("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n");
    for (values, expected) in [
        (pair("city", "12"), r#"{"city":"12"}"#),
        (pair("city", ""), r#"{"city":""}"#),
        (pair("city", "a\nb\"\\"), r#"{"city":"a\nb\"\\"}"#),
        (pair("days", "12"), r#"{"days":12}"#),
        (pair("days", "many"), r#"{"days":"many"}"#),
        (pair("where", "{\"x\": [1]}"), r#"{"where":{"x": [1]}}"#),
        (
            pair("exact", "true") + &pair("other", "1.5") + &pair("more", "é"),
            r#"{"exact":true,"other":1.5,"more":"é"}"#,
        ),
    ] {
        check(CallSyntax::Glm, "", &call(&values), "", "", &[("get_weather", expected)]);
    }
}

#[test]
fn literals_become_json() {
    let call = |arguments: &str| format!("<|tool_call_start|>[get_weather({arguments})]<|tool_call_end|>");
    for (arguments, expected) in [
        ("", "{}"),
        ("exact=True, days=None", r#"{"exact":true,"days":null}"#),
        ("where={'x': [1, -2.5e3, (3,)], \"y\": {}}", r#"{"where":{"x":[1,-2.5e3,[3]],"y":{}}}"#),
        ("city='it\\'s \\x41\\n'", r#"{"city":"it's A\n"}"#),
        ("city=Paris", r#"{"city":"Paris"}"#),
    ] {
        check(CallSyntax::Lfm2, "", &call(arguments), "", "", &[("get_weather", expected)]);
    }
    let gemma =
        "<|tool_call>call:get_weather{where:{x:[<|\"|>a<b<|\"|>,true],<|\"|>y z<|\"|>:1}}<tool_call|>";
    check(
        CallSyntax::Gemma,
        "",
        gemma,
        "",
        "",
        &[("get_weather", r#"{"where":{"x":["a<b",true],"y z":1}}"#)],
    );
}

/// What could be taken for markup stands in quotes.
#[test]
fn values_may_stand_in_quotes() {
    let call =
        |city: &str| format!("<function name=\"get_weather\"><param name=\"city\">{city}</param></function>");
    for (city, expected) in [
        ("<![CDATA[<é> \"x\" </param>]]>", r#"{"city":"<é> \"x\" </param>"}"#),
        ("<![CDATA[]]>", r#"{"city":""}"#),
        ("<![CDAT", r#"{"city":"<![CDAT"}"#),
        ("a<![CDATA[b]]>", r#"{"city":"a<![CDATA[b]]>"}"#),
    ] {
        check(CallSyntax::MiniCpm, "", &call(city), "", "", &[("get_weather", expected)]);
    }
}

/// As the template of MiniMax M3 writes them.
#[test]
fn values_may_be_tags_within_tags() {
    let tool = json!({
        "name": "plan",
        "parameters": {
            "type": "object",
            "properties": {
                "stops": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": { "city": { "type": "string" }, "days": { "type": "integer" } },
                    },
                },
                "names": { "type": "array", "items": { "type": "string" } },
                "none": { "type": "array" },
                "empty": { "type": "object" },
                "item": { "type": "object", "properties": { "item": { "type": "boolean" } } },
            },
        },
    });
    let tools = [Tool::from_json(&tool).unwrap()];
    let tags = |text: &str| text.replace('<', "]<]minimax[>[<");
    let parser = || ChatFormat::of(CallSyntax::MiniMaxM3).parser("", &tools);
    let check = |arguments: &str, expected: serde_json::Value| {
        let text = tags(&format!("<tool_call>\n<invoke name=\"plan\">{arguments}</invoke>\n</tool_call>"));
        let whole = read(parser(), &[&text]);
        check_order(&whole.1);
        assert_eq!((whole.0.calls.len(), whole.0.text.as_str()), (1, ""), "{arguments}");
        let found: serde_json::Value = serde_json::from_str(&whole.0.calls[0].arguments).unwrap();
        assert_eq!(found, expected, "{arguments}");
        let letters: Vec<&str> = text.split("").collect();
        assert_eq!(read(parser(), &letters).0, whole.0, "{arguments}");
    };
    let stop = |city: &str, days: &str| format!("<item><city>{city}</city><days>{days}</days></item>");
    check(
        &format!("<stops>{}{}</stops>", stop("Paris", "3"), stop("12", "1")),
        json!({ "stops": [{ "city": "Paris", "days": 3 }, { "city": "12", "days": 1 }] }),
    );
    check("<names>\n<item>1</item>\n<item> a b</item>\n</names>", json!({ "names": ["1", " a b"] }));
    check("<none></none><empty></empty>", json!({ "none": [], "empty": {} }));
    check("<names>[\"a\"]</names>", json!({ "names": ["a"] }));
    check("<item><item>true</item></item>", json!({ "item": { "item": true } }));
    // Nothing is known of these.
    check("<x><y>1</y><z>a</z></x><w><item>1</item></w>", json!({ "x": { "y": 1, "z": "a" }, "w": [1] }));
    // What is cut off is closed; what is too deep ends the call.
    let (answer, _) = read(parser(), &[&tags("<tool_call><invoke name=\"plan\"><stops><item><city>Pa")]);
    assert_eq!(answer.calls[0].arguments, r#"{"stops":[{"city":"Pa"}]}"#);
    let deep = tags(&format!("<tool_call><invoke name=\"plan\">{}", "<stops>".repeat(100_000)));
    let (answer, events) = read(parser(), &[&deep]);
    check_order(&events);
    assert!(serde_json::from_str::<serde_json::Value>(&answer.calls[0].arguments).is_ok());
}

/// Pieces that formats are made of, in any order.
fn pieces() -> impl Strategy<Value = Vec<String>> {
    let mut markers: Vec<String> = all_formats()
        .iter()
        .flat_map(|format| format.all_markers())
        .chain([
            "{\"name\": \"now\"",
            ", \"arguments\": {",
            "\"a\": 1}",
            "}",
            "]",
            "[",
            "\"",
            "\\",
            "\n",
            " ",
            "é",
            "now",
            "a=1",
            "(",
        ])
        .chain(["to=functions.now", "all\n", "'", ",", ":", "```json", "```", "<", "<|", "x"])
        .map(str::to_owned)
        .collect();
    markers.sort();
    markers.dedup();
    prop::collection::vec(prop_oneof![4 => prop::sample::select(markers), 1 => ".{0,3}"], 0..24)
}

proptest! {
    #[test]
    fn cuts_do_not_matter(pieces in pieces(), which in 0_usize..31, begun in any::<bool>(), seed in any::<u64>()) {
        let formats = all_formats();
        let format = &formats[which % formats.len()];
        // Some of a format's own markers, so that something happens.
        let own = format.all_markers();
        let mut state = seed | 1;
        let mut draw = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below.max(1) as u64) as usize
        };
        let text: String = pieces
            .iter()
            .map(|piece| if draw(2) == 0 && !own.is_empty() { own[draw(own.len())].to_owned() } else { piece.clone() })
            .collect();
        let prompt = if begun { own.first().copied().unwrap_or("<think>") } else { "" };
        let parser = format.parser(prompt, &tools());
        let (whole, events) = read(parser.clone(), &[&text]);
        check_order(&events);
        let mut cut = Vec::new();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let mut at = 1 + draw(6);
            while at < rest.len() && !rest.is_char_boundary(at) {
                at += 1;
            }
            let (head, tail) = rest.split_at(at.min(rest.len()));
            cut.push(head);
            rest = tail;
        }
        let (found, events) = read(parser, &cut);
        check_order(&events);
        prop_assert_eq!(found, whole, "{:?} {:?}", format.call_syntax(), text);
    }
}

/// A test of seconds if work grew with the square of the length: answers that never become anything, in pieces and at once.
#[test]
fn long_answers_are_read_in_pieces() {
    for (syntax, unit) in [
        (CallSyntax::Hermes, "<tool_cal"),
        (CallSyntax::Hermes, "<tool_call>{\"a\": "),
        (CallSyntax::QwenCoder, "<tool_call><function=a><parameter=b>\n\n"),
        (CallSyntax::Glm, "<tool_call>a"),
        (CallSyntax::Lfm2, "<|tool_call_start|>[f(a=["),
        (CallSyntax::Harmony, "<|channel|>analysis<|message|>"),
        // Each of these begins something whose end is looked for and never comes.
        (CallSyntax::Harmony, "<|start|>assistant"),
        (CallSyntax::QwenCoder, "<function="),
        (CallSyntax::QwenCoder, "<function=a><parameter="),
        (CallSyntax::KimiK3, "<|open|>call tool=\"a\"<|sep|><|open|>argument key=\"a\""),
        (CallSyntax::DeepSeek, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>x"),
        (CallSyntax::MiniMaxM3, "]<]minimax[>[<invoke name=\"now\">]<]minimax[>[<a>"),
    ] {
        let text = unit.repeat(20_000);
        let mut parser = ChatFormat::of(syntax).parser("", &tools());
        let mut events = 0;
        for piece in text.as_bytes().chunks(64) {
            events += parser.push(&String::from_utf8_lossy(piece)).len();
        }
        events += parser.finish().len();
        assert!(events > 0, "{syntax:?}");
        // At once, too.
        let mut parser = ChatFormat::of(syntax).parser("", &tools());
        assert!(parser.push(&text).len() + parser.finish().len() > 0, "{syntax:?}");
    }
}
