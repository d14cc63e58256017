//! From a request to a response: who may ask, what for, and by which handler.
//!
//! Invariant: a request passes the same checks in the same order whatever it asks for: its form, the page it comes from, its key, its path,
//! its method. What it is refused by is told in the format of the interface that its path belongs to.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{
    ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, TRANSFER_ENCODING,
    WWW_AUTHENTICATE,
};
use hyper::{Method, Request, Response, StatusCode};

use crate::app::App;
use crate::call::Call;
use crate::error::{ApiError, Dialect, Kind};
use crate::limits::MAX_TARGET_BYTES;
use crate::page::PageFile;
use crate::reply::{Reply, ReplyBody};
use crate::{anthropic, cluster, llama, ollama, openai, openapi, origin, page};

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Health,
    Props,
    Slots,
    Metrics,
    Tokenize,
    Detokenize,
    ApplyTemplate,
    Completion,
    Infill,
    Models,
    Model,
    Chat,
    Completions,
    Embeddings,
    Responses,
    Messages,
    CountTokens,
    Cluster,
    OpenApi,
    Root,
    Page(PageFile),
    OllamaChat,
    OllamaGenerate,
    OllamaTags,
    OllamaPs,
    OllamaShow,
    OllamaVersion,
    OllamaPull,
    OllamaEmbed,
    OllamaEmbeddings,
}

/// Where to ask for it.
pub(crate) const PATHS: [(&str, Endpoint); 37] = [
    ("/", Endpoint::Root),
    ("/page.js", Endpoint::Page(PageFile::Script)),
    ("/page.css", Endpoint::Page(PageFile::Style)),
    ("/icon.svg", Endpoint::Page(PageFile::Icon)),
    ("/cluster", Endpoint::Cluster),
    ("/openapi.json", Endpoint::OpenApi),
    ("/health", Endpoint::Health),
    ("/v1/health", Endpoint::Health),
    ("/props", Endpoint::Props),
    ("/slots", Endpoint::Slots),
    ("/metrics", Endpoint::Metrics),
    ("/tokenize", Endpoint::Tokenize),
    ("/detokenize", Endpoint::Detokenize),
    ("/apply-template", Endpoint::ApplyTemplate),
    ("/completion", Endpoint::Completion),
    ("/infill", Endpoint::Infill),
    ("/v1/models", Endpoint::Models),
    ("/models", Endpoint::Models),
    ("/v1/chat/completions", Endpoint::Chat),
    ("/chat/completions", Endpoint::Chat),
    ("/v1/completions", Endpoint::Completions),
    ("/completions", Endpoint::Completions),
    ("/v1/embeddings", Endpoint::Embeddings),
    ("/embeddings", Endpoint::Embeddings),
    ("/v1/responses", Endpoint::Responses),
    ("/responses", Endpoint::Responses),
    ("/v1/messages", Endpoint::Messages),
    ("/v1/messages/count_tokens", Endpoint::CountTokens),
    ("/api/chat", Endpoint::OllamaChat),
    ("/api/generate", Endpoint::OllamaGenerate),
    ("/api/tags", Endpoint::OllamaTags),
    ("/api/ps", Endpoint::OllamaPs),
    ("/api/show", Endpoint::OllamaShow),
    ("/api/version", Endpoint::OllamaVersion),
    ("/api/pull", Endpoint::OllamaPull),
    ("/api/embed", Endpoint::OllamaEmbed),
    ("/api/embeddings", Endpoint::OllamaEmbeddings),
];

/// What precedes the name of one model.
pub(crate) const MODEL: &str = "/v1/models/";

impl Endpoint {
    fn find(path: &str) -> Option<Endpoint> {
        let known = PATHS.iter().find(|(known, _)| *known == path).map(|(_, endpoint)| *endpoint);
        known.or(path.strip_prefix(MODEL).filter(|name| !name.is_empty()).map(|_| Endpoint::Model))
    }

    /// Whether it is asked for, rather than told something.
    pub(crate) fn is_get(self) -> bool {
        matches!(
            self,
            Endpoint::Health
                | Endpoint::Props
                | Endpoint::Slots
                | Endpoint::Metrics
                | Endpoint::Models
                | Endpoint::Model
                | Endpoint::Cluster
                | Endpoint::OpenApi
                | Endpoint::Root
                | Endpoint::Page(_)
                | Endpoint::OllamaTags
                | Endpoint::OllamaPs
                | Endpoint::OllamaVersion
        )
    }

    /// Whether it may be asked for without a key.
    pub(crate) fn is_open(self) -> bool {
        matches!(self, Endpoint::Health | Endpoint::Root | Endpoint::Page(_))
    }
}

/// Answers a request, whatever it is.
pub(crate) async fn answer(app: Arc<App>, request: Request<Incoming>) -> Reply {
    let dialect = Dialect::of(request.uri().path());
    let endpoint = Endpoint::find(request.uri().path());
    let preflight = origin::is_preflight(request.method(), request.headers());
    let has_keys = !app.keys.is_empty();
    let is_open = endpoint.is_some_and(Endpoint::is_open);
    let allowed = check_form(&request).and_then(|()| app.origins.check(request.headers(), has_keys, is_open));
    let (origin, outcome) = match allowed {
        Err(error) => (None, Err(error)),
        Ok(Some(origin)) if preflight => (Some(origin), Ok(empty(StatusCode::NO_CONTENT))),
        Ok(origin) => (origin, handle(app, request).await),
    };
    let mut reply = outcome.unwrap_or_else(|error| refusal(&error, dialect, endpoint));
    if let Some(origin) = origin {
        origin::allow(origin, preflight, reply.headers_mut());
    }
    // Nothing is to be taken for a page that does not say so.
    let nosniff = HeaderName::from_static("x-content-type-options");
    reply.headers_mut().insert(nosniff, HeaderValue::from_static("nosniff"));
    reply
}

/// What HTTP allows and we do not.
fn check_form(request: &Request<Incoming>) -> Result<(), ApiError> {
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    if target > MAX_TARGET_BYTES {
        let message = format!("the path has more than {MAX_TARGET_BYTES} bytes");
        return Err(ApiError::new(Kind::TargetTooLong, message));
    }
    let headers = request.headers();
    // Proxies disagree about which of the two counts, which is how requests are smuggled through them.
    if headers.contains_key(TRANSFER_ENCODING) && headers.contains_key(CONTENT_LENGTH) {
        return Err(ApiError::bad("Content-Length and Transfer-Encoding cannot be given together"));
    }
    Ok(())
}

async fn handle(app: Arc<App>, request: Request<Incoming>) -> Result<Reply, ApiError> {
    let path = request.uri().path();
    let endpoint = Endpoint::find(path);
    let client = match endpoint {
        Some(endpoint) if endpoint.is_open() => Default::default(),
        // What there is, is not told without a key either.
        _ => app.keys.client(request.headers())?,
    };
    let Some(endpoint) = endpoint else {
        let shown: String = path.chars().take(100).collect();
        return Err(ApiError::new(Kind::NotFound, format!("there is nothing at {shown}")));
    };
    let method = request.method();
    let is_right = match endpoint.is_get() {
        true => matches!(*method, Method::GET | Method::HEAD),
        false => *method == Method::POST,
    };
    if !is_right {
        let right = if endpoint.is_get() { "GET" } else { "POST" };
        return Err(ApiError::new(Kind::MethodNotAllowed, format!("{path} takes {right} requests only")));
    }
    let (parts, body) = request.into_parts();
    let call = Call { app, client, parts, body };
    match endpoint {
        Endpoint::Health => llama::state::health(&call),
        Endpoint::Props => llama::state::props(&call).await,
        Endpoint::Slots => llama::state::slots(&call),
        Endpoint::Metrics => llama::metrics::metrics(&call),
        Endpoint::Tokenize => llama::tokens::tokenize(call).await,
        Endpoint::Detokenize => llama::tokens::detokenize(call).await,
        Endpoint::ApplyTemplate => llama::tokens::apply_template(call).await,
        Endpoint::Completion => llama::completion::create(call).await,
        Endpoint::Infill => llama::completion::infill(call).await,
        Endpoint::Models => openai::models::list(&call),
        Endpoint::Model => {
            let name = call.parts.uri.path().strip_prefix(MODEL).unwrap_or_default();
            openai::models::one(&call, &unescaped(name))
        }
        Endpoint::Chat => openai::chat::create(call).await,
        Endpoint::Completions => openai::completions::create(call).await,
        Endpoint::Embeddings => openai::embeddings::create(call).await,
        Endpoint::Responses => openai::responses::create(call).await,
        Endpoint::Messages => anthropic::messages::create(call).await,
        Endpoint::CountTokens => anthropic::messages::count_tokens(call).await,
        Endpoint::Cluster => cluster::cluster(&call),
        Endpoint::OpenApi => openapi::openapi(),
        Endpoint::Root => Ok(page::root(&call.parts.headers)),
        Endpoint::Page(file) => Ok(file.reply()),
        Endpoint::OllamaChat => ollama::generate::chat(call).await,
        Endpoint::OllamaGenerate => ollama::generate::generate(call).await,
        Endpoint::OllamaTags => ollama::models::tags(&call),
        Endpoint::OllamaPs => ollama::models::ps(&call),
        Endpoint::OllamaShow => ollama::models::show(call).await,
        Endpoint::OllamaVersion => ollama::models::version(),
        Endpoint::OllamaPull => ollama::models::pull(call).await,
        Endpoint::OllamaEmbed => ollama::embed::create(call).await,
        Endpoint::OllamaEmbeddings => ollama::embed::create_old(call).await,
    }
}

/// A name as it was before a client put it into a path: `owner%2Fname`. What is no escape stays as it is.
fn unescaped(name: &str) -> String {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let (name, mut bytes, mut at) = (name.as_bytes(), Vec::new(), 0);
    while let Some(&byte) = name.get(at) {
        match (byte, digit(name.get(at + 1)), digit(name.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high << 4 | low) as u8);
                at += 3;
            }
            _ => {
                bytes.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(ReplyBody::Whole(None));
    *reply.status_mut() = status;
    reply
}

/// What is told to a client whose request is refused.
fn refusal(error: &ApiError, dialect: Dialect, endpoint: Option<Endpoint>) -> Reply {
    let mut reply = Response::new(ReplyBody::Whole(Some(error.to_bytes(dialect))));
    *reply.status_mut() = error.kind.status();
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = error.retry_after {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    match error.kind {
        Kind::Unauthorized => drop(headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
        Kind::MethodNotAllowed => {
            let methods = if endpoint.is_some_and(Endpoint::is_get) { "GET, HEAD" } else { "POST" };
            headers.insert(ALLOW, HeaderValue::from_static(methods));
        }
        _ => {}
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_listed_once() {
        for (at, (path, endpoint)) in PATHS.iter().enumerate() {
            assert_eq!(Endpoint::find(path), Some(*endpoint));
            assert!(PATHS[..at].iter().all(|(before, _)| before != path), "{path}");
        }
        assert_eq!(unescaped("owner%2Fname%3alatest%"), "owner/name:latest%");
        assert_eq!(Endpoint::find("/v1/models/smollm2"), Some(Endpoint::Model));
        assert_eq!(Endpoint::find("/v1/models/owner/name"), Some(Endpoint::Model));
        for none in
            ["", "//", "/v1", "/v1/models/", "/v1/Models", "/v1/../health", "/health/", "/v1/models%2f"]
        {
            assert_eq!(Endpoint::find(none), None, "{none}");
        }
    }
}
