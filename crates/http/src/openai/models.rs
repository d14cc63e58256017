//! `/v1/models`: what there is.

use serde::Serialize;

use crate::call::Call;
use crate::error::ApiError;
use crate::ids;
use crate::models::Served;
use crate::reply::{self, Reply};

#[derive(Serialize)]
struct ModelObject {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    meta: Meta,
}

/// What llama-server adds.
#[derive(Serialize)]
struct Meta {
    n_vocab: usize,
    n_ctx: Option<usize>,
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
    fn new(model: &Served) -> ModelObject {
        ModelObject {
            id: model.name().to_owned(),
            object: "model",
            created: ids::unix(model.since),
            owned_by: "oxcart",
            meta: Meta {
                n_vocab: model.vocab.len(),
                n_ctx: model.talker().ok().map(|talker| talker.context),
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
    let data = call.app.models.iter().map(|model| ModelObject::new(model)).collect();
    reply::json(&List { object: "list", data })
}

/// One of them.
pub(crate) fn one(call: &Call, name: &str) -> Result<Reply, ApiError> {
    let model = call.app.models.find(Some(name), |_| true)?;
    reply::json(&ModelObject::new(&model))
}
