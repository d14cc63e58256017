//! `/tokenize`, `/detokenize` and `/apply-template`.

use oxcart_llm::text::{Decode, Encode, Token, Vocab};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::ask::{Conversation, render_chat};
use crate::call::{Call, Output};
use crate::error::{ApiError, Kind};
use crate::limits::MAX_LISTED_TOKENS;
use crate::openai::chat::{ChatMessage, tools, turns};
use crate::reply::Reply;

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

/// The tokens of a text.
#[derive(Serialize)]
struct TokenList<T> {
    tokens: Vec<T>,
}

/// A token with its text.
#[derive(Serialize)]
struct TokenPiece {
    id: Token,
    piece: Piece,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Piece {
    Text(String),
    /// What is no text by itself.
    Bytes(Vec<u8>),
}

impl TokenPiece {
    fn new(vocab: &Vocab, id: Token) -> TokenPiece {
        let bytes = vocab.decode(&[id], Decode { show_special: true, whole_text: false });
        let piece =
            String::from_utf8(bytes).map_or_else(|error| Piece::Bytes(error.into_bytes()), Piece::Text);
        TokenPiece { id, piece }
    }
}

pub(crate) async fn tokenize(call: Call) -> Result<Reply, ApiError> {
    let (request, context) = call.json::<TokenizeRequest>().await?;
    let model = context.app.models.lease(request.model.as_deref(), None, context.client).await?;
    let options = Encode { add_special: request.add_special, parse_special: request.parse_special };
    let list = move |output: &Output| {
        let tokens = model.vocab.encode(&request.content, options);
        if tokens.len() > MAX_LISTED_TOKENS {
            let message = format!(
                "the text has {} tokens, and no more than {MAX_LISTED_TOKENS} are listed",
                tokens.len()
            );
            return Err(ApiError::new(Kind::TooLarge, message));
        }
        match request.with_pieces {
            false => output.json(&TokenList { tokens }),
            true => {
                let pieces = tokens.into_iter().map(|token| TokenPiece::new(&model.vocab, token));
                output.json(&TokenList { tokens: pieces.collect() })
            }
        }
    };
    context.output().reply(list).await
}

pub(crate) async fn detokenize(call: Call) -> Result<Reply, ApiError> {
    let (request, context) = call.json::<DetokenizeRequest>().await?;
    let model = context.app.models.lease(request.model.as_deref(), None, context.client).await?;
    if let Some(token) = request.tokens.iter().find(|token| **token as usize >= model.vocab.len()) {
        return Err(ApiError::field("tokens", format!("{token} is not a token of the vocabulary")));
    }
    let text = move |output: &Output| {
        let bytes = model.vocab.decode(&request.tokens, Decode { show_special: true, whole_text: false });
        output.json(&json!({ "content": String::from_utf8_lossy(&bytes) }))
    };
    context.output().reply(text).await
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
    let render = move |output: &Output| {
        let prompt = render_chat(&model, model.talker()?, &conversation)?;
        output.json(&json!({ "prompt": prompt.text() }))
    };
    context.output().reply(render).await
}
