//! `/tokenize`, `/detokenize` and `/apply-template`.

use oxcart_llm::text::{Decode, Encode, Token};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::ask::{Conversation, render_chat};
use crate::call::Call;
use crate::error::ApiError;
use crate::openai::chat::{ChatMessage, tools, turns};
use crate::reply::{self, Reply};

#[derive(Debug, Deserialize)]
struct TokenizeRequest {
    model: Option<String>,
    content: String,
    #[serde(default)]
    add_special: bool,
    #[serde(default = "yes")]
    parse_special: bool,
    #[serde(default)]
    with_pieces: bool,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Deserialize)]
struct DetokenizeRequest {
    model: Option<String>,
    tokens: Vec<Token>,
}

#[derive(Debug, Deserialize)]
struct TemplateRequest {
    model: Option<String>,
    messages: Vec<ChatMessage>,
    tools: Option<Vec<Value>>,
    #[serde(default)]
    chat_template_kwargs: serde_json::Map<String, Value>,
}

const FAILED: &str = "the text could not be processed";

pub(crate) async fn tokenize(call: Call) -> Result<Reply, ApiError> {
    let (request, context) = call.json::<TokenizeRequest>().await?;
    let model = context.app.models.lease(request.model.as_deref(), None, context.client).await?;
    let options = Encode { add_special: request.add_special, parse_special: request.parse_special };
    let made = context.work(FAILED, move || {
        let tokens = model.vocab.encode(&request.content, options);
        if !request.with_pieces {
            return json!({ "tokens": tokens });
        }
        let piece = |token: &Token| {
            let bytes = model.vocab.decode(&[*token], Decode { show_special: true, whole_text: false });
            // What is no text by itself is shown as its bytes.
            let piece =
                String::from_utf8(bytes).map_or_else(|error| json!(error.into_bytes()), Value::String);
            json!({ "id": token, "piece": piece })
        };
        json!({ "tokens": tokens.iter().map(piece).collect::<Vec<_>>() })
    });
    reply::json(&made.await?)
}

pub(crate) async fn detokenize(call: Call) -> Result<Reply, ApiError> {
    let (request, context) = call.json::<DetokenizeRequest>().await?;
    let model = context.app.models.lease(request.model.as_deref(), None, context.client).await?;
    if let Some(token) = request.tokens.iter().find(|token| **token as usize >= model.vocab.len()) {
        return Err(ApiError::field("tokens", format!("{token} is not a token of the vocabulary")));
    }
    let bytes = model.vocab.decode(&request.tokens, Decode { show_special: true, whole_text: false });
    reply::json(&json!({ "content": String::from_utf8_lossy(&bytes) }))
}

pub(crate) async fn apply_template(call: Call) -> Result<Reply, ApiError> {
    let (request, context) = call.json::<TemplateRequest>().await?;
    let conversation = Conversation {
        turns: turns(request.messages)?,
        tools: tools(request.tools)?,
        variables: request.chat_template_kwargs,
        ..Conversation::default()
    };
    let model = context.app.models.talking(request.model.as_deref(), context.client).await?;
    let rendering = context.work(FAILED, move || {
        let prompt = render_chat(&model, model.talker()?, &conversation)?;
        Ok::<_, ApiError>(prompt.text().to_owned())
    });
    let prompt = rendering.await??;
    reply::json(&json!({ "prompt": prompt }))
}
