//! `/api/tags`, `/api/ps`, `/api/show`, `/api/version` and `/api/pull`: what there is.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::call::Call;
use crate::cluster::Purpose;
use crate::error::ApiError;
use crate::ids;
use crate::models::{About, Listed};
use crate::reply::{self, Reply, StreamKind};

/// The version of Ollama whose interface this is: that with `logprobs`, the latest of its fields that are understood here. Clients refuse
/// servers that are older than they need; GitHub Copilot needs 0.6.4.
const VERSION: &str = "0.12.11";

#[derive(Debug, Deserialize)]
struct Named {
    model: Option<String>,
    /// Its older name; Ollama's own client sends both, one of them empty.
    name: Option<String>,
    stream: Option<bool>,
}

impl Named {
    fn model(&self) -> Option<&str> {
        let names = [&self.model, &self.name].into_iter().flatten();
        names.map(String::as_str).find(|name| !name.is_empty())
    }
}

#[derive(Serialize)]
struct Details {
    parent_model: &'static str,
    format: &'static str,
    family: String,
    families: Vec<String>,
    parameter_size: String,
    quantization_level: String,
}

impl Details {
    fn new(about: &About) -> Details {
        Details {
            parent_model: "",
            format: "gguf",
            family: about.architecture.clone(),
            families: vec![about.architecture.clone()],
            parameter_size: about.parameters.map_or_else(String::new, parameter_size),
            quantization_level: about.quantization.clone().unwrap_or_default(),
        }
    }
}

/// `134.52M`, `8.0B`.
fn parameter_size(parameters: u64) -> String {
    match parameters {
        0..1_000_000 => format!("{:.2}K", parameters as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2}M", parameters as f64 / 1e6),
        _ => format!("{:.1}B", parameters as f64 / 1e9),
    }
}

fn entry(model: &Listed<'_>, more: Value) -> Value {
    let mut entry = json!({
        "name": model.name,
        "model": model.name,
        "modified_at": ids::rfc3339(model.since),
        "size": model.about.bytes,
        "digest": blake3::hash(model.name.as_bytes()).to_hex().as_str(),
        "details": Details::new(model.about),
    });
    if let (Value::Object(entry), Value::Object(more)) = (&mut entry, more) {
        entry.extend(more);
    }
    entry
}

pub(crate) fn tags(call: &Call) -> Result<Reply, ApiError> {
    let models: Vec<Value> = call.app.models.list().iter().map(|model| entry(model, Value::Null)).collect();
    reply::json(&json!({ "models": models }))
}

pub(crate) fn ps(call: &Call) -> Result<Reply, ApiError> {
    let loaded = |model: &Listed<'_>| {
        let served = model.model.as_ref()?;
        let more = json!({
            // The end of a model that is never unloaded is far away.
            "expires_at": model.expires.map_or_else(|| "9999-12-31T23:59:59Z".to_owned(), ids::rfc3339),
            "size_vram": 0,
            "context_length": served.context(),
        });
        Some(entry(model, more))
    };
    let models: Vec<Value> = call.app.models.list().iter().filter_map(loaded).collect();
    reply::json(&json!({ "models": models }))
}

pub(crate) fn version() -> Result<Reply, ApiError> {
    reply::json(&json!({ "version": VERSION, "oxcart": env!("CARGO_PKG_VERSION") }))
}

pub(crate) async fn show(call: Call) -> Result<Reply, ApiError> {
    let (request, context) = call.json::<Named>().await?;
    let model = context.app.models.find(request.model())?;
    let about = model.about;
    let mut info = Map::new();
    info.insert("general.architecture".into(), about.architecture.as_str().into());
    // Some clients show this one; what it is called here will do where the file does not say.
    info.insert("general.basename".into(), about.basename.as_deref().unwrap_or(model.name).into());
    info.insert("general.parameter_count".into(), about.parameters.into());
    // Clients fill it: more than is served would be refused.
    let fills = about.trained_context.min(model.context);
    info.insert(format!("{}.context_length", about.architecture), fills.into());
    info.insert(format!("{}.embedding_length", about.architecture), about.embedding.into());
    let (template, capabilities) = match model.purpose {
        Purpose::Embeddings => (None, vec!["embedding"]),
        Purpose::Chat => {
            let (models, name) = (context.app.models.clone(), model.name.to_owned());
            let features =
                context.work("the model could not be read", move || models.features(&name)).await??;
            let list = [
                ("completion", true),
                ("tools", features.template.is_some()),
                ("insert", features.fills),
                ("thinking", features.reasons),
            ];
            let all = list.into_iter().filter(|(_, has)| *has).map(|(name, _)| name);
            (features.template, all.collect())
        }
    };
    reply::json(&json!({
        "modelfile": format!("FROM {}\n", model.name),
        "parameters": "",
        "template": template.unwrap_or_default(),
        "details": Details::new(about),
        "model_info": info,
        "capabilities": capabilities,
        "modified_at": ids::rfc3339(model.since),
    }))
}

/// What is served is here already; what is not is fetched by the operator, not by clients.
pub(crate) async fn pull(call: Call) -> Result<Reply, ApiError> {
    let (request, context) = call.json::<Named>().await?;
    context.app.models.find(request.model())?;
    if request.stream == Some(false) {
        return reply::json(&json!({ "status": "success" }));
    }
    Ok(reply::stream(StreamKind::Lines, OneLine(Some("{\"status\":\"success\"}\n"))))
}

/// A stream that has one line.
struct OneLine(Option<&'static str>);

impl reply::Pieces for OneLine {
    fn poll_piece(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Option<bytes::Bytes>> {
        std::task::Poll::Ready(self.0.take().map(|line| bytes::Bytes::from_static(line.as_bytes())))
    }
}
