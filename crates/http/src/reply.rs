//! What is sent back: a whole text, or one that comes piece by piece.
//!
//! Invariant: a body that comes piece by piece is asked for the next piece only when the one before was taken by the
//! connection, so that no text waits here for a slow client.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;

use crate::error::{ApiError, Kind};

/// Where the pieces of a body come from.
pub(crate) trait Pieces: Send {
    /// The next piece, never empty; `None` at the end.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>>;
}

/// The body of a response.
pub(crate) enum ReplyBody {
    /// All of it.
    Whole(Option<Bytes>),
    /// Piece by piece.
    Pieces(Box<dyn Pieces>),
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = match self.get_mut() {
            ReplyBody::Whole(bytes) => bytes.take().filter(|bytes| !bytes.is_empty()),
            ReplyBody::Pieces(pieces) => std::task::ready!(pieces.poll_piece(context)),
        };
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, ReplyBody::Whole(bytes) if bytes.as_ref().is_none_or(Bytes::is_empty))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ReplyBody::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            ReplyBody::Pieces(_) => SizeHint::default(),
        }
    }
}

/// A response.
pub(crate) type Reply = Response<ReplyBody>;

/// A text of a kind.
pub(crate) fn text(status: StatusCode, kind: &'static str, bytes: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(ReplyBody::Whole(Some(bytes.into())));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

/// A short value as JSON; what may be long is made by [`Output`](crate::call::Output).
pub(crate) fn json(value: &impl Serialize) -> Result<Reply, ApiError> {
    json_with(StatusCode::OK, value)
}

/// A value as JSON, with a status.
pub(crate) fn json_with(status: StatusCode, value: &impl Serialize) -> Result<Reply, ApiError> {
    Ok(text(status, JSON, to_json(value)?))
}

/// What JSON is called.
pub(crate) const JSON: &str = "application/json";

/// The bytes of a value as JSON.
pub(crate) fn to_json(value: &impl Serialize) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(value).map_err(|error| {
        ApiError::new(Kind::Internal, format!("the answer could not be written as JSON: {error}"))
    })
}

/// A kind of stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// Server-sent events.
    Events,
    /// One JSON value per line.
    Lines,
}

/// A text that comes piece by piece.
pub(crate) fn stream(kind: StreamKind, pieces: impl Pieces + 'static) -> Reply {
    let mut reply = Response::new(ReplyBody::Pieces(Box::new(pieces)));
    let headers = reply.headers_mut();
    let kind = match kind {
        StreamKind::Events => "text/event-stream",
        StreamKind::Lines => "application/x-ndjson",
    };
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that collect answers before they pass them on know this one.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    reply
}

/// Appends an event: `data: {…}`, with its name in front if it has one.
///
/// JSON has no line breaks, so an event is one line of data.
pub(crate) fn write_event(out: &mut Vec<u8>, name: Option<&str>, value: &impl Serialize) {
    if let Some(name) = name {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
    write_value(out, value);
    out.extend_from_slice(b"\n\n");
}

/// Appends a line: `{…}`.
pub(crate) fn write_line(out: &mut Vec<u8>, value: &impl Serialize) {
    write_value(out, value);
    out.push(b'\n');
}

fn write_value(out: &mut Vec<u8>, value: &impl Serialize) {
    let start = out.len();
    // Our own types and values are always JSON; should one not be, the reader gets an empty object instead of half a line.
    if serde_json::to_writer(&mut *out, value).is_err() {
        out.truncate(start);
        out.extend_from_slice(b"{}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_of_data() {
        let mut out = Vec::new();
        write_event(&mut out, Some("delta"), &serde_json::json!({"text": "a\nb\r\n\u{2028}data: x\n\n"}));
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches('\n').count(), 3, "{text:?}");
        assert!(text.starts_with("event: delta\ndata: {\"text\":\"a\\nb\\r\\n") && text.ends_with("\n\n"));
    }
}
