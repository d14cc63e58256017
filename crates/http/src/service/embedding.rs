//! An encoder on a thread of its own: texts in, vectors out.
//!
//! Invariants: at most a bounded number of requests wait; asking never blocks. Clients have turns of one text each, so that many long
//! texts of one delay a text of another by no more than one of them. A request whose asker is gone is not computed, nor is one whose time
//! is over. Every request is answered, also if the thread panics.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use oxcart_llm::engine::RequestError;
use oxcart_llm::runner::Encoder;
use oxcart_llm::text::Token;
use tokio::sync::oneshot;

use super::{Client, Limits, Refused, RequestFailure};
use crate::turns::Lines;

/// Vectors of texts, in their order, normalized to length 1.
pub(crate) type Embedded = Result<Vec<Vec<f32>>, RequestFailure>;

struct Asked {
    texts: Vec<Vec<Token>>,
    /// Of the first texts, so far.
    vectors: Vec<Vec<f32>>,
    answer: oneshot::Sender<Embedded>,
    since: Instant,
}

impl Asked {
    /// Embeds the next text; whether there are more.
    fn advance(
        &mut self,
        encoder: &mut Encoder,
        limits: Limits,
        end: Option<Instant>,
    ) -> Result<bool, RequestFailure> {
        if end.is_some_and(|end| end <= Instant::now()) {
            return Err(RequestFailure::Closed);
        }
        if self.since.elapsed() >= limits.time {
            return Err(RequestFailure::WaitedTooLong);
        }
        if self.answer.is_closed() {
            return Ok(false);
        }
        if let Some(text) = self.texts.get(self.vectors.len()) {
            self.vectors.push(normalized(encoder.embed(text).map_err(RequestError::Model)?));
        }
        Ok(self.vectors.len() < self.texts.len())
    }
}

/// What waits to be embedded, between those who ask and the thread.
struct EmbeddingQueue {
    state: Mutex<State>,
    wake: Condvar,
    limits: Limits,
}

#[derive(Default)]
struct State {
    queue: Lines<Asked>,
    /// When nothing may run any longer.
    end: Option<Instant>,
    /// Whether the thread has ended.
    is_over: bool,
}

impl EmbeddingQueue {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done by code that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Embeds until nothing is left to do and nothing will come.
    fn run(&self, mut encoder: Encoder) {
        let mut state = self.lock();
        loop {
            let Some((client, mut asked)) = state.queue.next() else {
                if state.end.is_some() {
                    return;
                }
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let end = state.end;
            drop(state);
            let advanced = asked.advance(&mut encoder, self.limits, end);
            match advanced {
                Ok(true) => {
                    state = self.lock();
                    state.queue.put_back(client, asked);
                    continue;
                }
                // The asker may be gone.
                Ok(false) => drop(asked.answer.send(Ok(asked.vectors))),
                Err(failure) => drop(asked.answer.send(Err(failure))),
            }
            state = self.lock();
        }
    }
}

/// Says that the thread is gone, however it went.
struct Gone(Arc<EmbeddingQueue>);

impl Drop for Gone {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_over = true;
        let (waiting, is_broken) = (state.queue.drain(), state.end.is_none());
        drop(state);
        let why =
            || if is_broken { RequestFailure::Refused(Refused::Broken) } else { RequestFailure::Closed };
        waiting.into_iter().for_each(|asked| drop(asked.answer.send(Err(why()))));
    }
}

/// An encoder that runs on a thread of its own.
pub struct EmbeddingService {
    queue: Arc<EmbeddingQueue>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Tokens that a text may have.
    context: usize,
}

impl fmt::Debug for EmbeddingService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddingService").field("limits", &self.queue.limits).finish_non_exhaustive()
    }
}

impl EmbeddingService {
    /// Starts the thread.
    pub fn start(encoder: Encoder, limits: Limits) -> std::io::Result<EmbeddingService> {
        let context = encoder.model().hyper().context;
        let queue = Arc::new(EmbeddingQueue { state: Mutex::default(), wake: Condvar::new(), limits });
        let of_thread = Arc::clone(&queue);
        let run = move || {
            let gone = Gone(of_thread);
            gone.0.run(encoder);
        };
        let thread = std::thread::Builder::new().name("encoder".into()).spawn(run)?;
        Ok(EmbeddingService { queue, thread: Mutex::new(Some(thread)), context })
    }

    /// Tokens that a text may have.
    pub(crate) fn context(&self) -> usize {
        self.context
    }

    /// Asks for vectors.
    pub(crate) fn submit(
        &self,
        client: Client,
        texts: Vec<Vec<Token>>,
    ) -> Result<oneshot::Receiver<Embedded>, Refused> {
        let mut state = self.queue.lock();
        if state.end.is_some() {
            return Err(Refused::Closed);
        }
        if state.is_over {
            return Err(Refused::Broken);
        }
        let busy = Refused::Busy { waiting: state.queue.len(), retry_after: Duration::from_secs(1) };
        let displaced = state.queue.make_room(client, self.queue.limits.queue).map_err(|_| busy)?;
        let (answer, receiver) = oneshot::channel();
        state.queue.push(client, Asked { texts, vectors: Vec::new(), answer, since: Instant::now() });
        drop(state);
        if let Some(displaced) = displaced {
            // Its asker may be gone.
            let _ = displaced.answer.send(Err(RequestFailure::Refused(busy)));
        }
        self.queue.wake.notify_one();
        Ok(receiver)
    }

    /// Whether the thread has panicked.
    pub(crate) fn is_broken(&self) -> bool {
        let state = self.queue.lock();
        state.is_over && state.end.is_none()
    }

    /// Takes no more requests, gives those that wait so much time to be answered, and returns when the encoder is gone.
    pub fn shutdown(&self, grace: Duration) {
        self.queue.lock().end.get_or_insert(Instant::now() + grace);
        self.queue.wake.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // If it panicked, those who asked were told.
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use oxcart_backend::{Device, StreamOptions};
    use oxcart_cpu::CpuDevice;
    use oxcart_llm::model::{Model, ModelFile, Placement, PlacementOptions};
    use oxcart_llm::runner::EncoderOptions;

    use super::*;

    fn service(limits: Limits) -> EmbeddingService {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/data/tiny-bert.gguf");
        let file = ModelFile::open(&path).unwrap();
        let device = CpuDevice::new().unwrap();
        let placement = Placement::new(&file, vec![device.clone()], &PlacementOptions::default()).unwrap();
        let model = Model::load(file, placement, &|_| {}).unwrap();
        let stream = device.open(&StreamOptions::threads(1)).unwrap();
        let encoder = Encoder::new(model, vec![stream], EncoderOptions { pooling: None }).unwrap();
        EmbeddingService::start(encoder, limits).unwrap()
    }

    /// A client that comes after one with many texts gets its vector after one of them.
    #[test]
    fn many_texts_of_one_client_do_not_hold_up_another() {
        let service = service(Limits::default());
        let text: Vec<Token> = (1..30).collect();
        let mut many = service.submit(Client(1), vec![text.clone(); 2000]).unwrap();
        let one = service.submit(Client(2), vec![text]).unwrap();
        let one = one.blocking_recv().unwrap().unwrap();
        assert!(many.try_recv().is_err(), "all of the others came first");
        let many = many.blocking_recv().unwrap().unwrap();
        assert_eq!(many.len(), 2000);
        assert!(many.iter().all(|vector| *vector == one[0]));
    }

    #[test]
    fn a_full_queue_is_shared() {
        let service = service(Limits { queue: 4, ..Limits::default() });
        let texts = vec![(1..30).collect::<Vec<Token>>(); 500];
        // One of them may be in work already.
        let asked: Vec<_> = (0..8).map(|_| service.submit(Client(1), texts.clone())).collect();
        assert!(matches!(asked.last(), Some(Err(Refused::Busy { .. }))));
        let other = service.submit(Client(2), vec![vec![1, 2, 3]]).unwrap();
        assert_eq!(other.blocking_recv().unwrap().unwrap().len(), 1);
        drop(asked);
        service.shutdown(Duration::ZERO);
        assert!(matches!(service.submit(Client(2), texts), Err(Refused::Closed)));
    }
}
