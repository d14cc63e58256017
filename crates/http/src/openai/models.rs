//! `/v1/models`: what there is.

use serde::Serialize;

use crate::call::Call;
use crate::cluster::{Presence, Purpose};
use crate::error::ApiError;
use crate::ids;
use crate::models::Listed;
use crate::reply::{self, Reply};

#[derive(Serialize)]
struct ModelObject {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    status: Status,
    meta: Meta,
}

/// What llama-server says of a model that is loaded on demand.
#[derive(Serialize)]
struct Status {
    value: Presence,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// What llama-server adds.
#[derive(Serialize)]
struct Meta {
    n_vocab: usize,
    /// None while it is not loaded, or where it does not answer.
    n_ctx: Option<usize>,
    /// Whether it answers.
    answers: bool,
    n_ctx_train: usize,
    n_embd: usize,
    n_params: Option<u64>,
    size: u64,
}

#[derive(Serialize)]
struct List {
    object: &'static str,
    data: Vec<ModelObject>,
}

impl ModelObject {
    fn new(model: &Listed<'_>) -> ModelObject {
        let served = model.model.as_ref();
        ModelObject {
            id: model.name.to_owned(),
            object: "model",
            created: ids::unix(model.since),
            owned_by: "oxcart",
            status: Status { value: model.presence, error: model.failure.clone() },
            meta: Meta {
                n_vocab: served.map_or(model.about.vocabulary, |served| served.vocab.len()),
                n_ctx: served.and_then(|served| Some(served.talker().ok()?.context)),
                answers: model.purpose == Purpose::Chat,
                n_ctx_train: model.about.trained_context,
                n_embd: model.about.embedding,
                n_params: model.about.parameters,
                size: model.about.bytes,
            },
        }
    }
}

/// All of them.
pub(crate) fn list(call: &Call) -> Result<Reply, ApiError> {
    let data = call.app.models.list().iter().map(ModelObject::new).collect();
    reply::json(&List { object: "list", data })
}

/// One of them.
pub(crate) fn one(call: &Call, name: &str) -> Result<Reply, ApiError> {
    let model = call.app.models.find(Some(name))?;
    reply::json(&ModelObject::new(&model))
}
