//! `/v1/embeddings`.

use serde::{Deserialize, Serialize};

use crate::base64;
use crate::call::{Call, Output};
use crate::embed::{Long, Passage, embed};
use crate::error::ApiError;
use crate::json;
use crate::reply::Reply;

#[derive(Debug, Deserialize)]
struct EmbeddingRequest {
    model: Option<String>,
    input: Input,
    encoding_format: Option<EncodingFormat>,
    dimensions: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "input must be text, a list of tokens, or a list of either")]
enum Input {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    ManyTokens(Vec<Vec<u32>>),
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum EncodingFormat {
    #[default]
    Float,
    Base64,
}

#[derive(Serialize)]
struct EmbeddingList {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: Usage,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Numbers(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl Input {
    fn into_passages(self) -> Vec<Passage> {
        match self {
            Input::Text(text) => vec![Passage::Text(text)],
            Input::Tokens(tokens) => vec![Passage::Tokens(tokens)],
            Input::Texts(texts) => texts.into_iter().map(Passage::Text).collect(),
            Input::ManyTokens(all) => all.into_iter().map(Passage::Tokens).collect(),
        }
    }
}

/// What a body asks for.
pub(crate) fn read(body: &[u8]) -> Result<Vec<Passage>, ApiError> {
    Ok(json::parse::<EmbeddingRequest>(body)?.input.into_passages())
}

pub(crate) async fn create(call: Call) -> Result<Reply, ApiError> {
    let (request, context) = call.json::<EmbeddingRequest>().await?;
    let passages = request.input.into_passages();
    let made = embed(request.model.as_deref(), passages, Long::Refused, &context).await?;
    made.check_width(request.dimensions)?;
    let as_base64 = request.encoding_format == Some(EncodingFormat::Base64);
    let output = context.output();
    // The texts are of no more use.
    drop(context);
    let list = move |output: &Output| {
        let vectors = made.vectors.into_iter().enumerate();
        let data = vectors.map(|(index, vector)| Embedding {
            object: "embedding",
            index,
            embedding: match as_base64 {
                true => Vector::Base64(base64::encode(&bytes(&vector))),
                false => Vector::Numbers(vector),
            },
        });
        output.json(&EmbeddingList {
            object: "list",
            data: data.collect(),
            model: made.model.name().to_owned(),
            usage: Usage { prompt_tokens: made.tokens, total_tokens: made.tokens },
        })
    };
    output.reply(list).await
}

/// The bytes of numbers, least significant first: what OpenAI's own library asks for.
fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_base64() {
        let text = |numbers: &[f32]| base64::encode(&bytes(numbers));
        assert_eq!(text(&[1.0]), "AACAPw==");
        assert_eq!(text(&[1.0, -2.5]), "AACAPwAAIMA=");
        assert_eq!(text(&[0.0, 0.5, 3.0]), "AAAAAAAAAD8AAEBA");
    }
}
