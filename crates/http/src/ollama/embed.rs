//! `/api/embed`, and `/api/embeddings`, its older form.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::options::KeepAlive;
use crate::call::{Call, Output};
use crate::embed::{Long, Passage, embed};
use crate::error::ApiError;
use crate::reply::{self, Reply};

#[derive(Debug, Deserialize)]
struct EmbedRequest {
    model: Option<String>,
    input: Input,
    dimensions: Option<usize>,
    /// Whether texts that are too long are cut off. They are, unless it is false.
    truncate: Option<bool>,
    keep_alive: Option<KeepAlive>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
enum Input {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Deserialize)]
struct OldRequest {
    model: Option<String>,
    prompt: String,
    keep_alive: Option<KeepAlive>,
}

#[derive(Serialize)]
struct Embeddings<'a> {
    model: &'a str,
    embeddings: &'a [Vec<f32>],
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

#[derive(Serialize)]
struct OldEmbedding<'a> {
    embedding: Option<&'a Vec<f32>>,
}

pub(crate) async fn create(call: Call) -> Result<Reply, ApiError> {
    let (request, context) = call.json::<EmbedRequest>().await?;
    let start = Instant::now();
    let texts = match request.input {
        Input::One(text) => vec![text],
        Input::Many(texts) => texts,
    };
    let keep = KeepAlive::wanted(request.keep_alive.as_ref())?;
    let passages = texts.into_iter().map(Passage::Text).collect();
    let long = if request.truncate == Some(false) { Long::Refused } else { Long::Cut };
    let made = embed(request.model.as_deref(), passages, long, &context).await?;
    made.check_width(request.dimensions)?;
    context.keep(&made.model, keep);
    let output = context.output();
    // The texts are of no more use.
    drop(context);
    let list = move |output: &Output| {
        output.json(&Embeddings {
            model: made.model.name(),
            embeddings: &made.vectors,
            total_duration: u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX),
            load_duration: 0,
            prompt_eval_count: made.tokens,
        })
    };
    output.reply(list).await
}

pub(crate) async fn create_old(call: Call) -> Result<Reply, ApiError> {
    let (request, context) = call.json::<OldRequest>().await?;
    let keep = KeepAlive::wanted(request.keep_alive.as_ref())?;
    let passages = vec![Passage::Text(request.prompt)];
    let made = embed(request.model.as_deref(), passages, Long::Cut, &context).await?;
    context.keep(&made.model, keep);
    reply::json(&OldEmbedding { embedding: made.vectors.first() })
}
