//! `/health`, `/props` and `/slots`: how things are.

use hyper::StatusCode;
use serde_json::{Value, json};

use crate::call::Call;
use crate::error::ApiError;
use crate::reply::{self, Reply};

/// Whether requests would be answered. No key is needed, so it says no more.
pub(crate) fn health(call: &Call) -> Result<Reply, ApiError> {
    let models = call.app.models.list();
    // One that makes way for another takes no requests, and that is as it should be.
    let served = models.iter().filter(|model| !model.is_leaving).filter_map(|model| model.model.as_ref());
    let talkers = served.filter_map(|model| model.talker().ok());
    let is_well =
        talkers.map(|talker| talker.service.snapshot()).all(|now| now.is_open && now.trouble.is_none());
    match is_well {
        true => reply::json(&json!({ "status": "ok" })),
        false => reply::json_with(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "error" })),
    }
}

/// What is served by default, and with which settings; it is loaded for that.
pub(crate) async fn props(call: &Call) -> Result<Reply, ApiError> {
    let model = call.app.models.talking(None, call.client).await?;
    let talker = model.talker()?;
    let special = model.vocab.special();
    let text = |token: Option<u32>| {
        let bytes = token.and_then(|token| model.vocab.text(token)).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    };
    let usual = oxcart_llm::text::SamplerSettings::default();
    reply::json(&json!({
        "default_generation_settings": {
            "n_ctx": talker.context,
            "params": {
                "temperature": usual.temperature,
                "top_k": usual.top_k,
                "top_p": usual.top_p,
                "min_p": usual.min_p,
                "typical_p": usual.typical_p,
                "repeat_penalty": usual.repeat_penalty,
                "repeat_last_n": usual.penalty_window,
                "presence_penalty": usual.presence_penalty,
                "frequency_penalty": usual.frequency_penalty,
            },
        },
        "total_slots": talker.slots,
        "model_alias": model.name(),
        "model_path": call.app.models.find(Some(model.name()))?.about.source,
        "modalities": { "vision": false, "audio": false },
        "chat_template": talker.features.template,
        "bos_token": text(special.bos),
        "eos_token": text(special.eos),
        "build_info": format!("oxcart {}", env!("CARGO_PKG_VERSION")),
        "uptime_seconds": call.app.started.elapsed().as_secs(),
    }))
}

/// What is computed now; nothing of what is said.
pub(crate) fn slots(call: &Call) -> Result<Reply, ApiError> {
    let mut slots: Vec<Value> = Vec::new();
    for model in call.app.models.list().iter().filter_map(|listed| listed.model.as_ref()) {
        let Ok(talker) = model.talker() else { continue };
        let now = talker.service.snapshot();
        for at in 0..talker.slots {
            let running = now.running.get(at);
            slots.push(json!({
                "id": slots.len(),
                "model": model.name(),
                "n_ctx": talker.context,
                "is_processing": running.is_some(),
                "id_task": running.map(|running| running.ticket.number()),
                "n_prompt_tokens": running.map(|running| running.prompt_tokens),
                "n_decoded": running.map(|running| running.answer_tokens),
            }));
        }
    }
    reply::json(&slots)
}
