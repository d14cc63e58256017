//! An encoder on a thread of its own: texts in, vectors out.
//!
//! Invariant: at most a bounded number of requests wait; asking never blocks. A request whose asker is gone is not computed, nor is
//! one whose time is over.

use std::fmt;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use oxcart_llm::engine::RequestError;
use oxcart_llm::runner::Encoder;
use oxcart_llm::text::Token;
use tokio::sync::oneshot;

use super::{Limits, Refused, RequestFailure};

/// Vectors of texts, in their order, normalized to length 1.
pub(crate) type Embedded = Result<Vec<Vec<f32>>, RequestFailure>;

struct Asked {
    texts: Vec<Vec<Token>>,
    answer: oneshot::Sender<Embedded>,
    since: Instant,
}

impl Asked {
    fn embed(&self, encoder: &mut Encoder, limits: Limits, end: &OnceLock<Instant>) -> Embedded {
        let mut vectors = Vec::with_capacity(self.texts.len());
        for text in &self.texts {
            if end.get().is_some_and(|end| *end <= Instant::now()) {
                return Err(RequestFailure::Closed);
            }
            if self.since.elapsed() >= limits.time {
                return Err(RequestFailure::WaitedTooLong);
            }
            if self.answer.is_closed() {
                break;
            }
            vectors.push(normalized(encoder.embed(text).map_err(RequestError::Model)?));
        }
        Ok(vectors)
    }
}

/// An encoder that runs on a thread of its own.
pub struct EmbeddingService {
    /// Gone when it is to end.
    queue: Mutex<Option<SyncSender<Asked>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    limits: Limits,
    /// Tokens that a text may have.
    context: usize,
    /// When nothing may run any longer.
    end: Arc<OnceLock<Instant>>,
}

impl fmt::Debug for EmbeddingService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddingService").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl EmbeddingService {
    /// Starts the thread.
    pub fn start(mut encoder: Encoder, limits: Limits) -> std::io::Result<EmbeddingService> {
        let (sender, queue) = sync_channel::<Asked>(limits.queue);
        let context = encoder.model().hyper().context;
        let end = Arc::new(OnceLock::new());
        let ends = Arc::clone(&end);
        let run = move || {
            for asked in queue {
                let embedded = asked.embed(&mut encoder, limits, &ends);
                // The asker may be gone.
                let _ = asked.answer.send(embedded);
            }
        };
        let thread = std::thread::Builder::new().name("encoder".into()).spawn(run)?;
        let (queue, thread) = (Mutex::new(Some(sender)), Mutex::new(Some(thread)));
        Ok(EmbeddingService { queue, thread, limits, context, end })
    }

    /// Tokens that a text may have.
    pub(crate) fn context(&self) -> usize {
        self.context
    }

    /// Asks for vectors.
    pub(crate) fn submit(&self, texts: Vec<Vec<Token>>) -> Result<oneshot::Receiver<Embedded>, Refused> {
        let (answer, receiver) = oneshot::channel();
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        match queue.as_ref().map(|queue| queue.try_send(Asked { texts, answer, since: Instant::now() })) {
            Some(Ok(())) => Ok(receiver),
            Some(Err(TrySendError::Full(_))) => {
                Err(Refused::Busy { waiting: self.limits.queue, retry_after: Duration::from_secs(1) })
            }
            Some(Err(TrySendError::Disconnected(_))) | None => Err(Refused::Closed),
        }
    }

    /// Takes no more requests, gives those that wait so much time to be answered, and returns when the encoder is gone.
    pub fn shutdown(&self, grace: Duration) {
        self.end.get_or_init(|| Instant::now() + grace);
        drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // If it panicked, those who asked were told by their channels.
            let _ = thread.join();
        }
    }
}

impl Drop for EmbeddingService {
    fn drop(&mut self) {
        self.shutdown(Duration::ZERO);
    }
}

fn normalized(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    let scale = if length > 0.0 { length.recip() } else { 0.0 };
    vector.iter().map(|x| (f64::from(*x) * scale) as f32).collect()
}
