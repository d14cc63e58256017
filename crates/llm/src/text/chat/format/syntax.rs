//! How models write calls of tools: the table of all that is known.
//!
//! A syntax is the markers around calls, and what a call may look like between them: an object of JSON, tags, or literals. The
//! parser takes whichever comes; the table says only what may.

use std::fmt;

/// How a model writes calls of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(
    missing_docs,
    reason = "the names that models and their makers have; `Display` shows what calls look like"
)]
pub enum CallSyntax {
    Apertus,
    Atem,
    CommandR,
    CommandR7b,
    DeepSeek,
    DeepSeekMarkup,
    FireFunction,
    Functionary31,
    Functionary32,
    FunctionGemma,
    Gemma,
    GigaChat,
    Glm,
    Granite,
    Harmony,
    Hermes,
    Hunyuan,
    Json,
    KimiK2,
    KimiK3,
    Lfm2,
    Llama3,
    MiniCpm,
    MiniMax,
    MiniMaxM3,
    Mistral,
    Nemotron,
    QwenCoder,
    SeedOss,
    Solar,
    ToolCalls,
}

impl fmt::Display for CallSyntax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(syntax(*self).looks)
    }
}

/// What stands before the arguments of a call in tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// The name.
    Name,
    /// The name, up to a quote.
    Quoted,
    /// The name, a marker, an id.
    NameId(&'static str),
    /// An id, a marker, the name.
    IdName(&'static str),
    /// `functions.NAME:NUMBER`, which is an id, too.
    Numbered,
    /// The name; or `function`, and the name on a line of its own follows.
    Function,
}

/// Arguments as tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameters {
    pub(crate) open: &'static str,
    pub(crate) key_end: &'static str,
    /// What stands before the value, if that is not the end of the key. Attributes may stand between.
    pub(crate) value_open: &'static str,
    pub(crate) value_end: &'static str,
    /// What stands behind the end of a value, after its key.
    pub(crate) tail: &'static str,
    /// A line break at each end of a value is not part of it.
    pub(crate) lines: bool,
    /// A value that is no text may be made of such tags again.
    pub(crate) nested: bool,
    /// What stands around a value, within its tags, that could be taken for markup; the second includes the end of the value.
    pub(crate) quotes: Option<(&'static str, &'static str)>,
}

/// A call in tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tags {
    /// Before the header; nothing where the marker of the section is enough.
    pub(crate) open: &'static str,
    /// Whether it may come without the marker of a section.
    pub(crate) alone: bool,
    pub(crate) header: Header,
    pub(crate) header_end: &'static [&'static str],
    pub(crate) parameters: Option<Parameters>,
    /// Behind the arguments; nothing where they end by themselves.
    pub(crate) close: &'static str,
}

/// Calls as literals: what stands before the name, and what around strings, if not quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Literals {
    pub(crate) before: &'static str,
    pub(crate) quote: &'static str,
}

/// What objects of JSON are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Objects {
    /// `{"name": …, "arguments": …}`
    Named,
    /// `{"name": …, "parameters": …}`
    Parameters,
    /// `{"tool_call_id": "0", "tool_name": …, "parameters": …}`
    Numbered,
    /// `{"tool_name": …, "parameters": …}`
    ToolName,
    /// `{NAME: {…}}`
    Keyed,
}

/// All about one syntax.
#[derive(Debug)]
pub(crate) struct Syntax {
    pub(crate) kind: CallSyntax,
    /// For people.
    pub(crate) looks: &'static str,
    /// A template that has all texts of one of these lists is of this syntax.
    pub(crate) evidence: &'static [&'static [&'static str]],
    /// Tokens of which one is as good as that.
    pub(crate) tokens: &'static [&'static str],
    /// Begin a section of calls.
    pub(crate) opens: &'static [&'static str],
    /// End one; the first is what is written.
    pub(crate) closes: &'static [&'static str],
    pub(crate) objects: Objects,
    /// Objects stand in a list.
    pub(crate) list: bool,
    pub(crate) tags: &'static [Tags],
    pub(crate) literals: Option<Literals>,
    /// Calls may come without any marker, as the whole answer.
    pub(crate) bare: bool,
    /// Markers around text that mean nothing else.
    pub(crate) ignored: &'static [&'static str],
}

const BASE: Syntax = Syntax {
    kind: CallSyntax::Json,
    looks: "",
    evidence: &[],
    tokens: &[],
    opens: &[],
    closes: &[],
    objects: Objects::Named,
    list: false,
    tags: &[],
    literals: None,
    bare: false,
    ignored: &[],
};

const PARAMETERS: Parameters = Parameters {
    open: "<parameter=",
    key_end: ">",
    value_open: "",
    value_end: "</parameter>",
    tail: "",
    lines: true,
    nested: false,
    quotes: None,
};

const FUNCTION: Tags = Tags {
    open: "<function=",
    alone: true,
    header: Header::Name,
    header_end: &[">"],
    parameters: Some(PARAMETERS),
    close: "</function>",
};

const KEYS: Parameters = Parameters {
    open: "<arg_key>",
    key_end: "</arg_key>",
    value_open: "<arg_value>",
    value_end: "</arg_value>",
    tail: "",
    lines: false,
    nested: false,
    quotes: None,
};

/// All that is known, in the order in which templates are asked: the more particular first.
pub(crate) static ALL: &[Syntax] = &[
    Syntax {
        kind: CallSyntax::Harmony,
        looks: "<|channel|>commentary to=functions.NAME<|message|>{…}",
        evidence: &[&["<|channel|>", "<|message|>", "<|start|>"]],
        ..BASE
    },
    Syntax {
        kind: CallSyntax::Atem,
        looks: "<atem:invoke name=\"NAME\"><atem:parameter name=\"KEY\">…",
        evidence: &[&["<atem:function_calls>"]],
        opens: &["<atem:function_calls>"],
        closes: &["</atem:function_calls>"],
        tags: &[Tags {
            open: "<atem:invoke name=\"",
            alone: true,
            header: Header::Name,
            header_end: &["\">"],
            parameters: Some(Parameters {
                open: "<atem:parameter name=\"",
                key_end: "\"",
                value_open: ">",
                value_end: "</atem:parameter>",
                tail: "",
                lines: false,
                nested: false,
                quotes: None,
            }),
            close: "</atem:invoke>",
        }],
        ..BASE
    },
    Syntax {
        kind: CallSyntax::KimiK3,
        looks: "<|open|>call tool=\"NAME\"<|sep|><|open|>argument key=\"KEY\"<|sep|>…",
        evidence: &[&["<|open|>", "<|sep|>", "<|close|>"]],
        opens: &["<|open|>tools<|sep|>"],
        closes: &["<|close|>tools<|sep|>"],
        tags: &[Tags {
            open: "<|open|>call tool=\"",
            alone: true,
            header: Header::Quoted,
            header_end: &["<|sep|>"],
            parameters: Some(Parameters {
                open: "<|open|>argument key=\"",
                key_end: "\"",
                value_open: "<|sep|>",
                value_end: "<|close|>argument<|sep|>",
                tail: "",
                lines: false,
                nested: false,
                quotes: None,
            }),
            close: "<|close|>call<|sep|>",
        }],
        ignored: &["<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"],
        ..BASE
    },
    Syntax {
        kind: CallSyntax::Gemma,
        looks: "<|tool_call>call:NAME{KEY:<|\"|>…<|\"|>}<tool_call|>",
        evidence: &[&["<|tool_call>call:"]],
        tokens: &["<|tool_call>"],
        opens: &["<|tool_call>"],
        closes: &["<tool_call|>"],
        literals: Some(Literals { before: "call:", quote: "<|\"|>" }),
        ..BASE
    },
    Syntax {
        kind: CallSyntax::FunctionGemma,
        looks: "<start_function_call>call:NAME{KEY:<escape>…<escape>}<end_function_call>",
        evidence: &[&["<start_function_call>"]],
        tokens: &["<start_function_call>"],
        opens: &["<start_function_call>"],
        closes: &["<end_function_call>"],
        literals: Some(Literals { before: "call:", quote: "<escape>" }),
        ..BASE
    },
    Syntax {
        kind: CallSyntax::MiniMaxM3,
        looks: "]<]minimax[>[<invoke name=\"NAME\">]<]minimax[>[<KEY>…]<]minimax[>[</KEY>",
        evidence: &[&["]<]minimax[>["]],
        opens: &["]<]minimax[>[<tool_call>"],
        closes: &["]<]minimax[>[</tool_call>"],
        tags: &[Tags {
            open: "]<]minimax[>[<invoke name=\"",
            alone: true,
            header: Header::Name,
            header_end: &["\">"],
            parameters: Some(Parameters {
                open: "]<]minimax[>[<",
                key_end: ">",
                value_open: "",
                value_end: "]<]minimax[>[</",
                tail: ">",
                lines: false,
                nested: true,
                quotes: None,
            }),
            close: "]<]minimax[>[</invoke>",
        }],
        ..BASE
    },
    Syntax {
        kind: CallSyntax::DeepSeekMarkup,
        looks: "<｜DSML｜invoke name=\"NAME\"><｜DSML｜parameter name=\"KEY\" string=\"true\">…",
        evidence: &[&["DSML"]],
        opens: &["<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"],
        closes: &["</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"],
        tags: &[Tags {
            open: "<｜DSML｜invoke name=\"",
            alone: true,
            header: Header::Name,
            header_end: &["\">"],
            parameters: Some(Parameters {
                open: "<｜DSML｜parameter name=\"",
                key_end: "\"",
                value_open: ">",
                value_end: "</｜DSML｜parameter>",
                tail: "",
                lines: false,
                nested: false,
                quotes: None,
            }),
            close: "</｜DSML｜invoke>",
        }],
        ..BASE
    },
    Syntax {
        kind: CallSyntax::DeepSeek,
        looks: "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>",
        evidence: &[&["<｜tool▁calls▁begin｜>"]],
        opens: &["<｜tool▁calls▁begin｜>"],
        closes: &["<｜tool▁calls▁end｜>"],
        tags: &[Tags {
            open: "<｜tool▁call▁begin｜>",
            alone: true,
            header: Header::Function,
            header_end: &["<｜tool▁sep｜>"],
            parameters: None,
            close: "<｜tool▁call▁end｜>",
        }],
        ..BASE
    },
    Syntax {
        kind: CallSyntax::KimiK2,
        looks: "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>",
        evidence: &[&["<|tool_call_begin|>", "<|tool_call_argument_begin|>"]],
        opens: &["<|tool_calls_section_begin|>"],
        closes: &["<|tool_calls_section_end|>"],
        tags: &[Tags {
            open: "<|tool_call_begin|>",
            alone: true,
            header: Header::Numbered,
            header_end: &["<|tool_call_argument_begin|>"],
            parameters: None,
            close: "<|tool_call_end|>",
        }],
        ..BASE
    },
    Syntax {
        kind: CallSyntax::Solar,
        looks: "<|tool_call:begin|>ID<|tool_call:name|>NAME<|tool_call:args|>{…}<|tool_call:end|>",
        evidence: &[&["<|tool_call:begin|>", "<|tool_call:args|>"]],
        opens: &["<|tool_calls|>"],
        closes: &["<|calls|>"],
        tags: &[Tags {
            open: "<|tool_call:begin|>",
            alone: true,
            header: Header::IdName("<|tool_call:name|>"),
            header_end: &["<|tool_call:args|>"],
            parameters: None,
            close: "<|tool_call:end|>",
        }],
        ignored: &["<|begin|>assistant", "<|content|>", "<|end|>"],
        ..BASE
    },
    Syntax {
        kind: CallSyntax::Mistral,
        looks: "[TOOL_CALLS]NAME[ARGS]{…} or [TOOL_CALLS][{\"name\": NAME, \"arguments\": {…}}]",
        evidence: &[&["[TOOL_CALLS]"]],
        tokens: &["[TOOL_CALLS]"],
        opens: &["[TOOL_CALLS]"],
        list: true,
        tags: &[Tags {
            open: "",
            alone: false,
            header: Header::NameId("[CALL_ID]"),
            header_end: &["[ARGS]"],
            parameters: None,
            close: "",
        }],
        ..BASE
    },
    Syntax {
        kind: CallSyntax::CommandR7b,
        looks: "<|START_ACTION|>[{\"tool_call_id\": \"0\", \"tool_name\": NAME, \"parameters\": {…}}]<|END_ACTION|>",
        evidence: &[&["<|START_ACTION|>"]],
        opens: &["<|START_ACTION|>"],
        closes: &["<|END_ACTION|>"],
        objects: Objects::Numbered,
        list: true,
        ignored: &["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"],
        ..BASE
    },
    Syntax {
        kind: CallSyntax::CommandR,
        looks: "Action: ```json [{\"tool_name\": NAME, \"parameters\": {…}}]```",
        evidence: &[&["Action:", "\"tool_name\""]],
        opens: &["Action:"],
        closes: &["```"],
        objects: Objects::ToolName,
        list: true,
        ..BASE
    },
    Syntax {
        kind: CallSyntax::Apertus,
        looks: "<|tools_prefix|>[{NAME: {…}}]<|tools_suffix|>",
        evidence: &[&["<|tools_prefix|>"]],
        opens: &["<|tools_prefix|>"],
        closes: &["<|tools_suffix|>"],
        objects: Objects::Keyed,
        list: true,
        ..BASE
    },
    Syntax {
        kind: CallSyntax::MiniMax,
        looks: "<minimax:tool_call><invoke name=\"NAME\"><parameter name=\"KEY\">…",
        evidence: &[&["<minimax:tool_call>"]],
        opens: &["<minimax:tool_call>"],
        closes: &["</minimax:tool_call>"],
        tags: &[Tags {
            open: "<invoke name=\"",
            alone: false,
            header: Header::Name,
            header_end: &["\">"],
            parameters: Some(Parameters {
                open: "<parameter name=\"",
                key_end: "\">",
                value_open: "",
                value_end: "</parameter>",
                tail: "",
                lines: false,
                nested: false,
                quotes: None,
            }),
            close: "</invoke>",
        }],
        ..BASE
    },
    Syntax {
        kind: CallSyntax::SeedOss,
        looks: "<seed:tool_call><function=NAME><parameter=KEY>…",
        evidence: &[&["<seed:tool_call>"]],
        opens: &["<seed:tool_call>"],
        closes: &["</seed:tool_call>"],
        tags: &[Tags { parameters: Some(Parameters { lines: false, ..PARAMETERS }), ..FUNCTION }],
        ..BASE
    },
    Syntax {
        kind: CallSyntax::MiniCpm,
        looks: "<function name=\"NAME\"><param name=\"KEY\">…",
        evidence: &[&["<function name=\"", "<param name=\""]],
        tags: &[Tags {
            open: "<function name=\"",
            alone: true,
            header: Header::Name,
            header_end: &["\">"],
            parameters: Some(Parameters {
                open: "<param name=\"",
                key_end: "\">",
                value_open: "",
                value_end: "</param>",
                tail: "",
                lines: false,
                nested: false,
                quotes: Some(("<![CDATA[", "]]></param>")),
            }),
            close: "</function>",
        }],
        ..BASE
    },
    Syntax {
        kind: CallSyntax::Functionary32,
        looks: ">>>NAME {…}",
        evidence: &[&[">>>", "recipient"], &[">>>all"]],
        opens: &[">>>"],
        tags: &[Tags {
            open: "",
            alone: false,
            header: Header::Name,
            header_end: &["\n"],
            parameters: None,
            close: "",
        }],
        ..BASE
    },
    Syntax {
        kind: CallSyntax::Hunyuan,
        looks: "<tool_call:opensource>NAME<tool_sep:opensource><arg_key:opensource>KEY…",
        evidence: &[&["tool_sep", "opensource"]],
        opens: &["<tool_calls:opensource>", "<tool_call:opensource>"],
        closes: &["</tool_calls:opensource>"],
        tags: &[Tags {
            open: "",
            alone: false,
            header: Header::Name,
            header_end: &["<tool_sep:opensource>"],
            parameters: Some(Parameters {
                open: "<arg_key:opensource>",
                key_end: "</arg_key:opensource>",
                value_open: "<arg_value:opensource>",
                value_end: "</arg_value:opensource>",
                tail: "",
                lines: false,
                nested: false,
                quotes: None,
            }),
            close: "</tool_call:opensource>",
        }],
        ..BASE
    },
    Syntax {
        kind: CallSyntax::Glm,
        looks: "<tool_call>NAME<arg_key>KEY</arg_key><arg_value>…</arg_value></tool_call>",
        evidence: &[&["<arg_key>", "<tool_call>"]],
        opens: &["<tool_call>"],
        tags: &[Tags {
            open: "",
            alone: false,
            header: Header::Name,
            header_end: &["\n"],
            parameters: Some(KEYS),
            close: "</tool_call>",
        }],
        ..BASE
    },
    Syntax {
        kind: CallSyntax::QwenCoder,
        looks: "<tool_call><function=NAME><parameter=KEY>…",
        evidence: &[&["<function=", "<tool_call>", "<parameter="]],
        opens: &["<tool_call>"],
        closes: &["</tool_call>"],
        tags: &[FUNCTION],
        ..BASE
    },
    Syntax {
        kind: CallSyntax::Functionary31,
        looks: "<function=NAME>{…}</function>",
        evidence: &[&["<function="]],
        tags: &[Tags { parameters: None, ..FUNCTION }],
        ..BASE
    },
    Syntax {
        kind: CallSyntax::Lfm2,
        looks: "<|tool_call_start|>[NAME(KEY=…)]<|tool_call_end|>",
        evidence: &[&["<|tool_call_start|>"], &["<|tool_list_start|>"]],
        tokens: &["<|tool_call_start|>"],
        opens: &["<|tool_call_start|>"],
        closes: &["<|tool_call_end|>"],
        list: true,
        literals: Some(Literals { before: "", quote: "" }),
        ..BASE
    },
    Syntax {
        kind: CallSyntax::Nemotron,
        looks: "<TOOLCALL>[{\"name\": NAME, \"arguments\": {…}}]</TOOLCALL>",
        evidence: &[&["<TOOLCALL>"]],
        opens: &["<TOOLCALL>"],
        closes: &["</TOOLCALL>"],
        list: true,
        ..BASE
    },
    Syntax {
        kind: CallSyntax::Granite,
        looks: "<|tool_call|>[{\"name\": NAME, \"arguments\": {…}}]",
        evidence: &[&["<|tool_call|>"]],
        tokens: &["<|tool_call|>"],
        opens: &["<|tool_call|>"],
        list: true,
        ignored: &["<response>", "</response>"],
        ..BASE
    },
    Syntax {
        kind: CallSyntax::GigaChat,
        looks: "<|function_call|>{\"name\": NAME, \"arguments\": {…}}",
        evidence: &[&["<|function_call|>"], &["function call", "<|role_sep|>"]],
        opens: &["<|function_call|>", "function call<|role_sep|>\n"],
        ignored: &["<|message_sep|>"],
        ..BASE
    },
    Syntax {
        kind: CallSyntax::ToolCalls,
        looks: "<tool_calls>[{\"name\": NAME, \"arguments\": {…}}]</tool_calls>",
        evidence: &[&["<tool_calls>"]],
        opens: &["<tool_calls>", "<tool_call>"],
        closes: &["</tool_calls>", "</tool_call>"],
        list: true,
        ..BASE
    },
    Syntax {
        kind: CallSyntax::Hermes,
        looks: "<tool_call>{\"name\": NAME, \"arguments\": {…}}</tool_call>",
        evidence: &[&["<tool_call>"]],
        opens: &["<tool_call>"],
        closes: &["</tool_call>"],
        tags: &[FUNCTION],
        ..BASE
    },
    Syntax {
        kind: CallSyntax::FireFunction,
        looks: "functools[{\"name\": NAME, \"arguments\": {…}}]",
        evidence: &[&["functools["]],
        opens: &["functools["],
        closes: &["]"],
        ..BASE
    },
    Syntax {
        kind: CallSyntax::Llama3,
        looks: "{\"name\": NAME, \"parameters\": {…}} or <|python_tag|>NAME.call(KEY=…)",
        evidence: &[
            &["<|python_tag|>"],
            &["<|start_header_id|>", "\"parameters\""],
            &["<|header_start|>", "\"parameters\""],
        ],
        tokens: &["<|python_tag|>"],
        opens: &["<|python_tag|>", "<|python_start|>"],
        closes: &["<|python_end|>"],
        objects: Objects::Parameters,
        literals: Some(Literals { before: "", quote: "" }),
        bare: true,
        ..BASE
    },
    Syntax { kind: CallSyntax::Json, looks: "{\"name\": NAME, \"arguments\": {…}}", bare: true, ..BASE },
];

/// What is known of a syntax.
pub(crate) fn syntax(kind: CallSyntax) -> &'static Syntax {
    // All kinds are in the table, as a test says; the last has no markers.
    ALL.iter().find(|syntax| syntax.kind == kind).unwrap_or(&BASE)
}

/// Markers around reasoning: before and behind it.
pub(crate) static REASONING: &[(&str, &str)] = &[
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),
    ("<|think|>", "<|end|>"),
];
