//! What is told to a client whose request is not answered, in the format of the interface that it speaks.
//!
//! Invariant: a message names what is wrong with the request and nothing about other clients; what went wrong on this side is
//! told as far as an operator may pass it on. It is never long.

use bytes::Bytes;
use hyper::StatusCode;
use oxcart_llm::engine::RequestError;
use oxcart_llm::model::Error as ModelError;
use oxcart_llm::text::{ConstrainError, SampleError};
use serde_json::{Value, json};

use crate::limits::MAX_MESSAGE_BYTES;
use crate::service::{Refused, RequestFailure};

/// What is said of an image.
pub(crate) const NO_IMAGES: &str = "images are not supported: the models served here read text only";

/// An interface, as far as its errors are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// OpenAI's, and llama-server's.
    OpenAi,
    /// Anthropic's.
    Anthropic,
    /// Ollama's.
    Ollama,
}

impl Dialect {
    /// The interface that a path belongs to.
    pub(crate) fn of(path: &str) -> Dialect {
        match path {
            _ if path.starts_with("/v1/messages") => Dialect::Anthropic,
            _ if path.starts_with("/api/") => Dialect::Ollama,
            _ => Dialect::OpenAi,
        }
    }
}

/// What is wrong, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    BadRequest,
    /// The prompt does not fit.
    ContextFull,
    Unauthorized,
    Forbidden,
    NotFound,
    NoSuchModel,
    MethodNotAllowed,
    Timeout,
    TooLarge,
    TargetTooLong,
    Busy,
    Internal,
    NotSupported,
    Unavailable,
}

impl Kind {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Kind::BadRequest | Kind::ContextFull => StatusCode::BAD_REQUEST,
            Kind::Unauthorized => StatusCode::UNAUTHORIZED,
            Kind::Forbidden => StatusCode::FORBIDDEN,
            Kind::NotFound | Kind::NoSuchModel => StatusCode::NOT_FOUND,
            Kind::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Kind::Timeout => StatusCode::REQUEST_TIMEOUT,
            Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Kind::TargetTooLong => StatusCode::URI_TOO_LONG,
            Kind::Busy => StatusCode::TOO_MANY_REQUESTS,
            Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Kind::NotSupported => StatusCode::NOT_IMPLEMENTED,
            Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn openai_type(self) -> &'static str {
        match self {
            Kind::Unauthorized => "authentication_error",
            Kind::Forbidden => "permission_error",
            Kind::Busy => "rate_limit_error",
            Kind::Internal => "server_error",
            Kind::NotSupported => "not_supported_error",
            Kind::Unavailable => "unavailable_error",
            _ => "invalid_request_error",
        }
    }

    fn openai_code(self) -> Option<&'static str> {
        match self {
            Kind::Unauthorized => Some("invalid_api_key"),
            Kind::NoSuchModel => Some("model_not_found"),
            Kind::ContextFull => Some("context_length_exceeded"),
            Kind::Busy => Some("rate_limit_exceeded"),
            _ => None,
        }
    }

    fn anthropic_type(self) -> &'static str {
        match self {
            Kind::Unauthorized => "authentication_error",
            Kind::Forbidden => "permission_error",
            Kind::NotFound | Kind::NoSuchModel => "not_found_error",
            Kind::TooLarge => "request_too_large",
            Kind::Busy => "rate_limit_error",
            Kind::Internal => "api_error",
            Kind::Unavailable => "overloaded_error",
            _ => "invalid_request_error",
        }
    }
}

/// Why a request is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    /// The field that is wrong, if it is one.
    pub(crate) field: Option<&'static str>,
    /// Seconds after which it may be tried again.
    pub(crate) retry_after: Option<u64>,
}

impl ApiError {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> ApiError {
        let mut message = message.into();
        // What a client sent may be part of it, and may be long.
        if message.len() > MAX_MESSAGE_BYTES {
            let end = (0..=MAX_MESSAGE_BYTES).rev().find(|at| message.is_char_boundary(*at));
            message.truncate(end.unwrap_or(0));
            message.push('…');
        }
        ApiError { kind, message, field: None, retry_after: None }
    }

    pub(crate) fn bad(message: impl Into<String>) -> ApiError {
        ApiError::new(Kind::BadRequest, message)
    }

    /// A field whose value cannot be used.
    pub(crate) fn field(field: &'static str, problem: impl std::fmt::Display) -> ApiError {
        ApiError { field: Some(field), ..ApiError::bad(format!("{field}: {problem}")) }
    }

    /// The error as a value of the interface.
    pub(crate) fn to_value(&self, dialect: Dialect) -> Value {
        match dialect {
            Dialect::OpenAi => json!({ "error": {
                "message": self.message,
                "type": self.kind.openai_type(),
                "param": self.field,
                "code": self.kind.openai_code(),
            } }),
            Dialect::Anthropic => json!({
                "type": "error",
                "error": { "type": self.kind.anthropic_type(), "message": self.message },
            }),
            Dialect::Ollama => json!({ "error": self.message }),
        }
    }

    pub(crate) fn to_bytes(&self, dialect: Dialect) -> Bytes {
        self.to_value(dialect).to_string().into()
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> ApiError {
        match refused {
            Refused::Busy { retry_after, .. } => ApiError {
                retry_after: Some(retry_after.as_secs().max(1)),
                ..ApiError::new(Kind::Busy, refused.to_string())
            },
            Refused::Closed | Refused::Broken => ApiError::new(Kind::Unavailable, refused.to_string()),
        }
    }
}

impl From<ModelError> for ApiError {
    fn from(error: ModelError) -> ApiError {
        let kind = match &error {
            ModelError::ContextFull { .. } => Kind::ContextFull,
            ModelError::NoSuchToken { .. } | ModelError::Setting { .. } => Kind::BadRequest,
            _ => Kind::Internal,
        };
        ApiError::new(kind, error.to_string())
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> ApiError {
        match error {
            RequestError::Model(error) => error.into(),
            RequestError::Sample(SampleError::Setting { .. })
            | RequestError::Stop(_)
            | RequestError::Refused(_) => ApiError::bad(error.to_string()),
            RequestError::Constrain(error) => error.into(),
            error => ApiError::new(Kind::Internal, error.to_string()),
        }
    }
}

impl From<ConstrainError> for ApiError {
    fn from(error: ConstrainError) -> ApiError {
        let kind = match error {
            ConstrainError::NoThread { .. } => Kind::Internal,
            _ => Kind::BadRequest,
        };
        ApiError::new(kind, error.to_string())
    }
}

impl From<RequestFailure> for ApiError {
    fn from(failure: RequestFailure) -> ApiError {
        match failure {
            RequestFailure::Request(error) => error.into(),
            RequestFailure::Refused(refused) => refused.into(),
            RequestFailure::WaitedTooLong | RequestFailure::Closed => {
                ApiError { retry_after: Some(10), ..ApiError::new(Kind::Unavailable, failure.to_string()) }
            }
            RequestFailure::ReadTooSlowly => ApiError::new(Kind::Timeout, failure.to_string()),
            RequestFailure::Step(_) => ApiError::new(Kind::Internal, failure.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_interface_gets_its_own_format() {
        let error = ApiError::field("temperature", "must not be negative");
        let message = "temperature: must not be negative";
        assert_eq!(
            error.to_value(Dialect::of("/v1/chat/completions")),
            json!({"error": {"message": message, "type": "invalid_request_error", "param": "temperature", "code": null}})
        );
        assert_eq!(
            error.to_value(Dialect::of("/v1/messages")),
            json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}})
        );
        assert_eq!(error.to_value(Dialect::of("/api/chat")), json!({ "error": message }));
    }
}
