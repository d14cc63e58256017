//! Texts as vectors, for every interface.

use std::sync::Arc;

use oxcart_llm::text::{Encode, Token, TooManyTokens, Vocab};

use crate::call::Context;
use crate::cluster::Purpose;
use crate::error::{ApiError, Kind};
use crate::limits::MAX_TEXTS;
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

impl Vectors {
    /// Whether they are as wide as they should be: they are not cut off.
    pub(crate) fn check_width(&self, wanted: Option<usize>) -> Result<(), ApiError> {
        let width = self.vectors.first().map_or(0, Vec::len);
        match wanted {
            Some(wanted) if wanted != width => Err(ApiError::field(
                "dimensions",
                format!("must be {width}, the length of this model's vectors"),
            )),
            _ => Ok(()),
        }
    }
}

/// What becomes of texts that do not fit into the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Long {
    Refused,
    /// The end of the text is left out.
    Cut,
}

/// Leaves out what does not fit, but not the token that closes a text.
fn cut(text: &mut Vec<Token>, most: usize, vocab: &Vocab) {
    let Some(last) = text.last().copied().filter(|_| text.len() > most) else { return };
    text.truncate(most);
    let special = vocab.special();
    if let Some(end) = text.last_mut().filter(|_| [special.eos, special.sep].contains(&Some(last))) {
        *end = last;
    }
}

/// The vectors of some texts.
pub(crate) async fn embed(
    model: Option<&str>,
    passages: Vec<Passage>,
    long: Long,
    context: &Context,
) -> Result<Vectors, ApiError> {
    if passages.is_empty() || passages.len() > MAX_TEXTS {
        return Err(ApiError::field("input", format!("must have between 1 and {MAX_TEXTS} texts")));
    }
    let model = context.app.models.lease(model, Some(Purpose::Embeddings), context.client).await?;
    let vocab = Arc::clone(&model.vocab);
    let most = model.embedder()?.context();
    let encode = move |passage: Passage| {
        let options = Encode { add_special: true, parse_special: false };
        let mut text = match (passage, long) {
            (Passage::Text(text), Long::Refused) => return vocab.encode_within(text, options, most),
            (Passage::Text(text), Long::Cut) => vocab.encode(text, options),
            (Passage::Tokens(tokens), Long::Refused) if tokens.len() > most => {
                return Err(TooManyTokens::exactly(tokens.len()));
            }
            (Passage::Tokens(tokens), _) => tokens,
        };
        cut(&mut text, most, &vocab);
        Ok(text)
    };
    const FAILED: &str = "the texts could not be embedded";
    let encode_all = move || passages.into_iter().map(encode).collect::<Result<Vec<Vec<Token>>, _>>();
    // Before it waits: what is too long shall not take the room.
    let texts = context.work(FAILED, encode_all).await?.map_err(|long| {
        let message = format!("a text has {long}, but the context holds only {most}");
        ApiError::new(Kind::ContextFull, message)
    })?;
    if texts.iter().any(Vec::is_empty) {
        return Err(ApiError::field("input", "must not contain an empty text"));
    }
    let tokens = texts.iter().map(Vec::len).sum();
    let vectors = model.embedder()?.submit(context.client, texts)?.await;
    let vectors = vectors.map_err(|_| ApiError::new(Kind::Internal, FAILED))??;
    Ok(Vectors { model, vectors, tokens })
}
