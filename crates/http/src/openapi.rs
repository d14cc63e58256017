//! `/openapi.json`: a description of all routes, for programs that make clients and tests of it.
//!
//! Paths and methods come from the table of routes itself, so that neither has one that the other lacks; what an endpoint is, is said here
//! in one line each. Schemas of requests and answers are in `openapi/schemas.json`, written by hand: a test sends the examples of
//! all requests to a server and holds the answers against them.

use serde_json::{Map, Value, json};

use crate::error::{ApiError, Dialect, Kind};
use crate::page::PageFile;
use crate::reply::{self, Reply};
use crate::route::{Endpoint, MODEL, PATHS};

/// Requests and answers.
const SCHEMAS: &str = include_str!("openapi/schemas.json");

/// What a client gets.
#[derive(Clone, Copy)]
enum Answer {
    /// JSON of a schema.
    Json(&'static str),
    /// JSON of a schema, or if the request says so, server-sent events.
    OrEvents(&'static str),
    /// JSON of a schema, once or line by line.
    OrLines(&'static str),
    /// A file of that kind.
    File(&'static str),
    /// A file of that kind for those who accept it, a line of text for others.
    OrText(&'static str),
}

/// What an endpoint is.
struct Operation {
    id: &'static str,
    tag: &'static str,
    summary: &'static str,
    /// The schema of what is sent, if anything is.
    request: Option<&'static str>,
    answer: Answer,
}

const OPENAI: &str = "OpenAI";
const ANTHROPIC: &str = "Anthropic";
const OLLAMA: &str = "Ollama";
const LLAMA: &str = "llama-server";
const OXCART: &str = "Oxcart";

fn operation(endpoint: Endpoint) -> Operation {
    use Answer::{File, Json, OrEvents, OrLines, OrText};
    let get = |id, tag, summary, answer| Operation { id, tag, summary, request: None, answer };
    let post =
        |id, tag, summary, request, answer| Operation { id, tag, summary, request: Some(request), answer };
    match endpoint {
        Endpoint::Root => {
            get("page", OXCART, "The page for browsers, one line for programs", OrText("text/html"))
        }
        Endpoint::Page(PageFile::Document) => get("document", OXCART, "The page", File("text/html")),
        Endpoint::Page(PageFile::Script) => {
            get("pageScript", OXCART, "The page's script", File("text/javascript"))
        }
        Endpoint::Page(PageFile::Style) => get("pageStyle", OXCART, "The page's style", File("text/css")),
        Endpoint::Page(PageFile::Icon) => get("pageIcon", OXCART, "The page's icon", File("image/svg+xml")),
        Endpoint::Cluster => {
            get("cluster", OXCART, "Show machines, plans and what is being computed", Json("Cluster"))
        }
        Endpoint::OpenApi => get("openApi", OXCART, "This description", Json("Description")),
        Endpoint::Health => get("health", LLAMA, "Check whether requests would be answered", Json("Health")),
        Endpoint::Props => get("props", LLAMA, "Show what is served by default", Json("Props")),
        Endpoint::Slots => get("slots", LLAMA, "Show what is being computed", Json("Slots")),
        Endpoint::Metrics => get("metrics", LLAMA, "Counters for Prometheus", File("text/plain")),
        Endpoint::Tokenize => {
            post("tokenize", LLAMA, "Turn text into tokens", "TokenizeRequest", Json("Tokens"))
        }
        Endpoint::Detokenize => {
            post("detokenize", LLAMA, "Turn tokens into text", "DetokenizeRequest", Json("Detokenized"))
        }
        Endpoint::ApplyTemplate => post(
            "applyTemplate",
            LLAMA,
            "Turn a conversation into a prompt",
            "TemplateRequest",
            Json("Prompt"),
        ),
        Endpoint::Completion => {
            post("complete", LLAMA, "Continue a text", "LlamaCompletionRequest", OrEvents("LlamaCompletion"))
        }
        Endpoint::Infill => {
            post("infill", LLAMA, "Fill in between two texts", "InfillRequest", OrEvents("LlamaCompletion"))
        }
        Endpoint::Models => get("listModels", OPENAI, "List all models", Json("ModelList")),
        Endpoint::Model => get("getModel", OPENAI, "Describe one model", Json("Model")),
        Endpoint::Chat => post(
            "createChatCompletion",
            OPENAI,
            "Answer a conversation",
            "ChatRequest",
            OrEvents("ChatCompletion"),
        ),
        Endpoint::Completions => {
            post("createCompletion", OPENAI, "Continue a text", "CompletionRequest", OrEvents("Completion"))
        }
        Endpoint::Embeddings => {
            post("createEmbedding", OPENAI, "Embed texts", "EmbeddingRequest", Json("EmbeddingList"))
        }
        Endpoint::Responses => {
            post("createResponse", OPENAI, "Answer a conversation", "ResponsesRequest", OrEvents("Response"))
        }
        Endpoint::Messages => post(
            "createMessage",
            ANTHROPIC,
            "Answer a conversation",
            "MessagesRequest",
            OrEvents("MessageObject"),
        ),
        Endpoint::CountTokens => post(
            "countTokens",
            ANTHROPIC,
            "Count the tokens of a conversation",
            "MessagesRequest",
            Json("InputTokens"),
        ),
        Endpoint::OllamaChat => post(
            "ollamaChat",
            OLLAMA,
            "Answer a conversation",
            "OllamaChatRequest",
            OrLines("OllamaChatAnswer"),
        ),
        Endpoint::OllamaGenerate => post(
            "ollamaGenerate",
            OLLAMA,
            "Answer a prompt",
            "OllamaGenerateRequest",
            OrLines("OllamaGenerateAnswer"),
        ),
        Endpoint::OllamaTags => get("ollamaTags", OLLAMA, "List all models", Json("OllamaModels")),
        Endpoint::OllamaPs => {
            get("ollamaPs", OLLAMA, "List the models that are loaded", Json("OllamaModels"))
        }
        Endpoint::OllamaShow => {
            post("ollamaShow", OLLAMA, "Describe one model", "OllamaNamed", Json("OllamaModel"))
        }
        Endpoint::OllamaVersion => {
            get("ollamaVersion", OLLAMA, "The version of the interface", Json("OllamaVersion"))
        }
        Endpoint::OllamaPull => post(
            "ollamaPull",
            OLLAMA,
            "Check whether a model is on this machine",
            "OllamaNamed",
            OrLines("OllamaStatus"),
        ),
        Endpoint::OllamaEmbed => {
            post("ollamaEmbed", OLLAMA, "Embed texts", "OllamaEmbedRequest", Json("OllamaEmbedded"))
        }
        Endpoint::OllamaEmbeddings => post(
            "ollamaEmbeddings",
            OLLAMA,
            "Embed one text (older form)",
            "OllamaOldEmbedRequest",
            Json("OllamaOldEmbedded"),
        ),
    }
}

fn schema(name: &str) -> Value {
    json!({ "schema": { "$ref": format!("#/components/schemas/{name}") } })
}

fn content(answer: Answer) -> Value {
    let text = json!({ "schema": { "type": "string" } });
    match answer {
        Answer::Json(name) => json!({ "application/json": schema(name) }),
        Answer::OrEvents(name) => json!({ "application/json": schema(name), "text/event-stream": text }),
        Answer::OrLines(name) => json!({ "application/json": schema(name), "application/x-ndjson": text }),
        Answer::File(kind) => json!({ kind: text }),
        Answer::OrText(kind) => json!({ kind: text, "text/plain": text }),
    }
}

/// One method of one path. `at` tells paths apart that lead to the same endpoint.
fn described(path: &str, endpoint: Endpoint, at: usize) -> Value {
    let about = operation(endpoint);
    let id = match at {
        0 => about.id.to_owned(),
        _ => format!("{}{}", about.id, at + 1),
    };
    let error = match Dialect::of(path) {
        Dialect::OpenAi => "Error",
        Dialect::Anthropic => "AnthropicError",
        Dialect::Ollama => "OllamaError",
    };
    let mut described = json!({
        "operationId": id,
        "tags": [about.tag],
        "summary": about.summary,
        "responses": {
            "200": { "description": about.summary, "content": content(about.answer) },
            "default": { "description": "Why there is no answer", "content": { "application/json": schema(error) } },
        },
    });
    if let Some(request) = about.request {
        described["requestBody"] =
            json!({ "required": true, "content": { "application/json": schema(request) } });
    }
    if endpoint.is_open() {
        described["security"] = json!([]);
    }
    if endpoint == Endpoint::Model {
        described["parameters"] =
            json!([{ "name": "model", "in": "path", "required": true, "schema": { "type": "string" } }]);
    }
    described
}

/// The whole description.
fn document() -> Result<Value, ApiError> {
    let schemas: Value = serde_json::from_str(SCHEMAS).map_err(|error| {
        ApiError::new(Kind::Internal, format!("the description could not be read as JSON: {error}"))
    })?;
    let tags = [OPENAI, ANTHROPIC, OLLAMA, LLAMA, OXCART].map(|name| json!({ "name": name }));
    let one = format!("{MODEL}{{model}}");
    let mut paths = Map::new();
    for (at, (path, endpoint)) in PATHS.iter().enumerate() {
        let before = PATHS[..at].iter().filter(|(_, other)| other == endpoint).count();
        let method = if endpoint.is_get() { "get" } else { "post" };
        paths.insert((*path).to_owned(), json!({ method: described(path, *endpoint, before) }));
    }
    paths.insert(one.clone(), json!({ "get": described(&one, Endpoint::Model, 0) }));
    Ok(json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Oxcart",
            "summary": "A model behind HTTP: the interfaces of OpenAI, Anthropic, Ollama and llama-server",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "security": [{}, { "bearer": [] }, { "header": [] }],
        "tags": tags,
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "header": { "type": "apiKey", "in": "header", "name": "x-api-key" },
            },
        },
    }))
}

pub(crate) fn openapi() -> Result<Reply, ApiError> {
    reply::json(&document()?)
}
