//! `/v1/embeddings`.

use serde::{Deserialize, Serialize};

use crate::call::Call;
use crate::embed::{Passage, embed};
use crate::error::ApiError;
use crate::json;
use crate::reply::{self, Reply};

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
    let made = embed(request.model.as_deref(), passages, &context).await?;
    made.check_width(request.dimensions)?;
    let as_base64 = request.encoding_format == Some(EncodingFormat::Base64);
    let vectors = made.vectors.into_iter().enumerate();
    let data = vectors.map(|(index, vector)| Embedding {
        object: "embedding",
        index,
        embedding: match as_base64 {
            true => Vector::Base64(base64(&vector)),
            false => Vector::Numbers(vector),
        },
    });
    reply::json(&EmbeddingList {
        object: "list",
        data: data.collect(),
        model: made.model.name().to_owned(),
        usage: Usage { prompt_tokens: made.tokens, total_tokens: made.tokens },
    })
}

/// The bytes of numbers, least significant first, as text (RFC 4648): what OpenAI's own library asks for.
fn base64(numbers: &[f32]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group =
            chunk.iter().fold(0_u32, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            match at <= chunk.len() {
                true => text.push(char::from(DIGITS[(group >> (18 - 6 * at)) as usize & 63])),
                false => text.push('='),
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_base64() {
        assert_eq!(base64(&[]), "");
        assert_eq!(base64(&[1.0]), "AACAPw==");
        assert_eq!(base64(&[1.0, -2.5]), "AACAPwAAIMA=");
        assert_eq!(base64(&[0.0, 0.5, 3.0]), "AAAAAAAAAD8AAEBA");
    }
}
