//! One request: who sent it, what it wants, and its body, which is read within bounds.

use std::pin::Pin;
use std::sync::Arc;
use std::task::ready;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::StatusCode;
use hyper::body::{Body, Incoming};
use hyper::header::CONTENT_LENGTH;
use hyper::http::request::Parts;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;

use crate::app::App;
use crate::bodies::Room;
use crate::error::{ApiError, Kind};
use crate::json;
use crate::limits::{MAX_BODY_BYTES, SMALL_BODY_BYTES};
use crate::models::Lease;
use crate::reply::{self, Reply};
use crate::service::Client;

/// A request.
pub(crate) struct Call {
    pub(crate) app: Arc<App>,
    pub(crate) client: Client,
    pub(crate) parts: Parts,
    pub(crate) body: Incoming,
}

/// A body that was read, and what it counts for among all bodies.
struct Read {
    bytes: Bytes,
    room: Room,
}

impl Call {
    /// Reads the body as JSON.
    pub(crate) async fn json<T: DeserializeOwned + Send + 'static>(self) -> Result<(T, Context), ApiError> {
        let (app, client) = (Arc::clone(&self.app), self.client);
        let Read { bytes, room } = self.read().await?;
        let context = Context { app, client, room: Arc::new(room) };
        // Connections do not have the time for more.
        let room = Arc::clone(&context.room);
        let is_large = bytes.len() > SMALL_BODY_BYTES;
        let parse = move || json::parse_in(&bytes, |more| room.grow_by_values(more));
        let parsed = match is_large {
            true => context.work("the body could not be read", parse).await?,
            false => parse(),
        };
        Ok((parsed?, context))
    }

    async fn read(mut self) -> Result<Read, ApiError> {
        let too_large =
            || ApiError::new(Kind::TooLarge, format!("the body has more than {MAX_BODY_BYTES} bytes"));
        let announced = self.parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        let announced: Option<u64> = announced.and_then(|length| length.parse().ok());
        if announced.is_some_and(|length| length > MAX_BODY_BYTES as u64) {
            return Err(too_large());
        }
        let is_small = announced.is_some_and(|length| length <= SMALL_BODY_BYTES as u64);
        let room = self.app.bodies.room(self.client, is_small);
        let reading = async {
            let mut bytes = BytesMut::new();
            while let Some(data) = next_data(&mut self.body).await? {
                if bytes.len() + data.len() > MAX_BODY_BYTES {
                    return Err(too_large());
                }
                room.grow(data.len())?;
                bytes.extend_from_slice(&data);
            }
            Ok(Read { bytes: bytes.freeze(), room })
        };
        tokio::time::timeout(self.app.body_time, reading)
            .await
            .unwrap_or_else(|_| Err(ApiError::new(Kind::Timeout, "the body did not arrive in time")))
    }
}

/// What a handler needs beside the body, which counts among all bodies until this is dropped.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) app: Arc<App>,
    pub(crate) client: Client,
    room: Arc<Room>,
}

impl Context {
    /// Has a model stay for as long as the client says, if it does; says for how long that is. Several keys may be several people, none of whom
    /// takes a model from the others.
    pub(crate) fn keep(&self, model: &Lease, idle: Option<Duration>) -> Option<Duration> {
        idle.map(|idle| model.keep(idle, self.app.keys.len() > 1))
    }

    /// Does what takes time that connections do not have, see [`Output::work`]. The body counts among all bodies until it has ended.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        failed: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let room = Arc::clone(&self.room);
        let work = move || {
            let done = work();
            drop(room);
            done
        };
        self.output().work(failed, work).await
    }

    /// Where the response is made, without the body.
    pub(crate) fn output(&self) -> Output {
        Output { app: Arc::clone(&self.app), client: self.client }
    }
}

/// Where whole responses are made: on another thread, because they may be long.
#[derive(Clone)]
pub(crate) struct Output {
    app: Arc<App>,
    client: Client,
}

impl Output {
    /// Does what takes time that connections do not have, on another thread, when it is the client's turn. It is not begun if the client
    /// is gone by then.
    async fn work<T: Send + 'static>(
        &self,
        failed: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let place = self.app.preparing.take(self.client).await;
        let mut working = Working(tokio::task::spawn_blocking(move || {
            let done = work();
            drop(place);
            done
        }));
        (&mut working.0).await.map_err(|_| ApiError::new(Kind::Internal, failed))
    }

    /// A response, which is made and written in the client's turn.
    pub(crate) async fn reply(
        &self,
        make: impl FnOnce(&Output) -> Result<Reply, ApiError> + Send + 'static,
    ) -> Result<Reply, ApiError> {
        let output = self.clone();
        self.work("the answer could not be written", move || make(&output)).await?
    }

    /// A value as JSON, which counts among all bodies until it is sent.
    pub(crate) fn json(&self, value: &impl Serialize) -> Result<Reply, ApiError> {
        let bytes = self.app.bodies.counted(self.client, reply::to_json(value)?)?;
        Ok(reply::text(StatusCode::OK, reply::JSON, bytes))
    }
}

/// Work that a client waits for; without one, it is not begun.
struct Working<T>(JoinHandle<T>);

impl<T> Drop for Working<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The next bytes of a body.
async fn next_data(body: &mut Incoming) -> Result<Option<Bytes>, ApiError> {
    std::future::poll_fn(|context| {
        loop {
            match ready!(Pin::new(&mut *body).poll_frame(context)) {
                None => return std::task::Poll::Ready(Ok(None)),
                Some(Err(error)) => {
                    let error = ApiError::bad(format!("the body ended early: {error}"));
                    return std::task::Poll::Ready(Err(error));
                }
                // Trailers say nothing that is asked for.
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return std::task::Poll::Ready(Ok(Some(data)));
                    }
                }
            }
        }
    })
    .await
}
