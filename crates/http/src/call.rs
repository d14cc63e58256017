//! One request: who sent it, what it wants, and its body, which is read within bounds.

use std::pin::Pin;
use std::sync::Arc;
use std::task::ready;

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Incoming};
use hyper::header::CONTENT_LENGTH;
use hyper::http::request::Parts;
use serde::de::DeserializeOwned;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;

use crate::app::App;
use crate::error::{ApiError, Kind};
use crate::json;
use crate::limits::{BODY_TIME, MAX_BODIES_BYTES, MAX_BODY_BYTES};
use crate::service::Client;

/// Bytes of bodies are counted in units of this many.
const UNIT: usize = 1 << 10;

/// Units that all bodies have together.
pub(crate) const UNITS: usize = MAX_BODIES_BYTES / UNIT;

/// A body of more bytes is read as JSON by another thread: connections do not have the time.
const LARGE: usize = 64 << 10;

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
    room: Option<OwnedSemaphorePermit>,
}

impl Call {
    /// Reads the body as JSON.
    pub(crate) async fn json<T: DeserializeOwned + Send + 'static>(self) -> Result<(T, Context), ApiError> {
        let (app, client) = (Arc::clone(&self.app), self.client);
        let Read { bytes, room } = self.read().await?;
        let context = Context { app, client, room: room.map(Arc::new) };
        let parsed = match bytes.len() > LARGE {
            true => context.work("the body could not be read", move || json::parse(&bytes)).await?,
            false => json::parse(&bytes),
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
        let reading = async {
            let (mut bytes, mut room): (BytesMut, Option<OwnedSemaphorePermit>) = (BytesMut::new(), None);
            while let Some(data) = next_data(&mut self.body).await? {
                if bytes.len() + data.len() > MAX_BODY_BYTES {
                    return Err(too_large());
                }
                let units = u32::try_from(data.len().div_ceil(UNIT)).unwrap_or(u32::MAX);
                let more = Arc::clone(&self.app.bodies).try_acquire_many_owned(units).map_err(|_| {
                    let message = "too many large requests at the same time";
                    ApiError { retry_after: Some(1), ..ApiError::new(Kind::Busy, message) }
                })?;
                match &mut room {
                    Some(room) => room.merge(more),
                    None => room = Some(more),
                }
                bytes.extend_from_slice(&data);
            }
            Ok(Read { bytes: bytes.freeze(), room })
        };
        tokio::time::timeout(BODY_TIME, reading)
            .await
            .unwrap_or_else(|_| Err(ApiError::new(Kind::Timeout, "the body did not come in time")))
    }
}

/// What a handler needs beside the body, which counts among all bodies until this is dropped.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) app: Arc<App>,
    pub(crate) client: Client,
    room: Option<Arc<OwnedSemaphorePermit>>,
}

impl Context {
    /// Does what takes time that connections do not have, on another thread. It is not begun if the client is gone by then, and
    /// the body counts among all bodies until it has ended.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        failed: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let room = self.room.clone();
        let mut working = Working(tokio::task::spawn_blocking(move || {
            let done = work();
            drop(room);
            done
        }));
        (&mut working.0).await.map_err(|_| ApiError::new(Kind::Internal, failed))
    }
}

/// Work that somebody waits for; without anyone, it is not begun.
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
