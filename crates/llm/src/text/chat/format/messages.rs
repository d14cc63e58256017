//! What was said before, as a template wants it: calls and their results.

use serde_json::{Map, Value, json};

use super::{ChatFormat, ChatTemplate, Message};
use crate::text::chat::ChatOptions;
use crate::text::chat::tools::ToolCall;

impl ChatFormat {
    /// What an assistant has said, with its reasoning and the calls that it made.
    pub fn assistant_message(&self, content: &str, reasoning: Option<&str>, calls: &[ToolCall]) -> Message {
        let mut more = Map::new();
        if let Some(reasoning) = reasoning.filter(|reasoning| !reasoning.is_empty()) {
            more.insert("reasoning_content".into(), reasoning.into());
        }
        if !calls.is_empty() {
            let calls: Vec<Value> = calls.iter().map(|call| call.to_json(self.arguments_as_text)).collect();
            more.insert("tool_calls".into(), calls.into());
        }
        Message { role: "assistant".into(), content: content.into(), more }
    }

    /// What a call came to. Of the call, its id and its name count.
    pub fn tool_message(&self, call: &ToolCall, content: &str) -> Message {
        let mut more = Map::new();
        more.insert("name".into(), call.name.as_str().into());
        if let Some(id) = &call.id {
            more.insert("tool_call_id".into(), id.as_str().into());
        }
        Message { role: "tool".into(), content: content.into(), more }
    }
}

/// Whether a template wants the arguments of calls as text: where an object is refused, or shown in another way than as JSON, and
/// text is not.
pub(super) fn arguments_as_text(template: &ChatTemplate) -> bool {
    const VALUE: &str = "needle-value";
    let render = |arguments: Value| {
        let call = json!({
            "id": "call00001",
            "type": "function",
            "function": { "name": "needle", "arguments": arguments },
        });
        let mut more = Map::new();
        more.insert("tool_calls".into(), json!([call]));
        let messages =
            [Message::new("user", "Go."), Message { role: "assistant".into(), content: String::new(), more }];
        let tool = json!({
            "type": "function",
            "function": { "name": "needle", "description": "", "parameters": { "type": "object", "properties": {} } },
        });
        let options =
            ChatOptions { add_generation_prompt: false, tools: vec![tool], ..ChatOptions::default() };
        template.render(&messages, &options).ok()
    };
    let object = render(json!({ "needle-key": VALUE }));
    // Python's way to show an object is not JSON.
    if object.is_some_and(|text| text.contains(VALUE) && !text.contains("'needle-key'")) {
        return false;
    }
    let text = format!("{{\"needle-key\": \"{VALUE}\"}}");
    render(text.as_str().into()).is_some_and(|shown| shown.contains(&text))
}
