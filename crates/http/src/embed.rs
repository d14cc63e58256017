//! Texts as vectors, for every interface.

use std::sync::Arc;

use oxcart_llm::text::{Encode, Token};

use crate::call::Context;
use crate::cluster::Purpose;
use crate::error::{ApiError, Kind};
use crate::limits::MAX_PROMPTS;
use crate::models::Lease;

/// A text, or its tokens.
#[derive(Clone, Debug)]
pub(crate) enum Passage {
    Text(String),
    Tokens(Vec<Token>),
}

/// Vectors of length 1, and how many tokens the texts had.
pub(crate) struct Vectors {
    pub(crate) model: Lease,
    pub(crate) vectors: Vec<Vec<f32>>,
    pub(crate) tokens: usize,
}

/// The vectors of some texts.
pub(crate) async fn embed(
    model: Option<&str>,
    passages: Vec<Passage>,
    context: &Context,
) -> Result<Vectors, ApiError> {
    let model = context.app.models.lease(model, Some(Purpose::Embeddings)).await?;
    if passages.is_empty() || passages.len() > MAX_PROMPTS {
        return Err(ApiError::field("input", format!("there must be 1 to {MAX_PROMPTS} texts")));
    }
    let vocab = Arc::clone(&model.vocab);
    let encode = move |passage: Passage| match passage {
        Passage::Text(text) => vocab.encode(text, Encode { add_special: true, parse_special: false }),
        Passage::Tokens(tokens) => tokens,
    };
    let most = model.embedder()?.context();
    const FAILED: &str = "the texts could not be embedded";
    let encode_all = move || passages.into_iter().map(encode).collect::<Vec<Vec<Token>>>();
    let texts = context.work(FAILED, encode_all).await?;
    if texts.iter().any(Vec::is_empty) {
        return Err(ApiError::field("input", "a text is empty"));
    }
    // Before it waits: what is too long shall not take the room.
    if let Some(long) = texts.iter().map(Vec::len).find(|len| *len > most) {
        let message = format!("a text has {long} tokens, but the context holds only {most}");
        return Err(ApiError::new(Kind::ContextFull, message));
    }
    let tokens = texts.iter().map(Vec::len).sum();
    let vectors = model.embedder()?.submit(texts)?.await;
    let vectors = vectors.map_err(|_| ApiError::new(Kind::Internal, FAILED))??;
    Ok(Vectors { model, vectors, tokens })
}
