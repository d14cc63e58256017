//! Commands that wait for their turn by themselves, and what becomes of their answers.

use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use oxcart_backend::{Error, Place};

use super::connection::{Connection, Live, Turn};
use super::failure::{About, WorkerFailure};
use super::limits::{MAX_PIECE, STAGE};
use super::message::{Head, Message, Waiting};
use super::record::bytes_record;
use crate::wire::{Command, Dialect, Reply};

/// The first error on a stream since the last call that returned one.
#[derive(Debug, Default)]
pub(super) struct DeferredError(Mutex<Option<Error>>);

impl DeferredError {
    pub(super) fn note(&self, error: Error) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    pub(super) fn take(&self) -> Option<Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A range of bytes of a live buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) buffer: Live,
    pub(super) offset: usize,
    pub(super) len: usize,
}

impl Range {
    /// The range in pieces that one command may move, each with its place in the range.
    pub(super) fn pieces(self) -> impl Iterator<Item = (usize, Range)> {
        self.pieces_of(MAX_PIECE)
    }

    /// The same in pieces of at most so many bytes.
    pub(super) fn pieces_of(self, most: usize) -> impl Iterator<Item = (usize, Range)> {
        (0..self.len).step_by(most).map(move |start| {
            let len = (self.len - start).min(most);
            (start, Range { offset: self.offset + start, len, ..self })
        })
    }
}

/// A command that waits for its turn.
#[derive(Debug)]
pub(super) enum Job {
    /// A command whose answer, if there is one, is empty.
    Tell(Waiting),
    /// A graph in a dialect that answers with a status.
    Graph { graph: Waiting, device: String, deferred: Arc<DeferredError> },
    /// Bytes that a caller waits for. The place keeps the buffer alive.
    Get { source: Range, _keep: Place, device: String, then: Sender<Result<Vec<u8>, Error>> },
    /// A copy between two buffers of the worker. The places keep the buffers alive.
    Copy { source: Range, target: Range, _keep: [Place; 2] },
    /// Makes sure that everything before it is done, with a buffer that is live at its turn; another connection waits for that.
    Confirm { live: Option<Live>, _then: Sender<()> },
    /// Waits for another worker, whose connection has been told to confirm what is waited for. That command has its place there already: one
    /// that looked for a place when this one's turn has come could wait for a command that waits for this connection.
    Wait {
        other: Arc<Connection>,
        era: u64,
        done: Receiver<()>,
        device: String,
        deferred: Arc<DeferredError>,
    },
}

impl Job {
    /// Bytes it holds while it waits.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Job::Tell(command) | Job::Graph { graph: command, .. } => command.len(),
            Job::Get { .. } | Job::Copy { .. } | Job::Confirm { .. } | Job::Wait { .. } => 0,
        }
    }

    /// Whether doing it means waiting for an answer.
    pub(super) fn waits_in(&self, dialect: &Dialect) -> bool {
        match self {
            Job::Tell(command) => command.command.reply(dialect) != Reply::None,
            _ => true,
        }
    }

    /// Runs it. The turn passes a failure of the connection on to all callers.
    pub(super) fn run(self, turn: &mut Turn<'_>) {
        match self {
            Job::Tell(command) => {
                let _ = turn.tell(&command.message());
            }
            Job::Graph { graph, device, deferred } => {
                let mut status = [0];
                if turn.exchange(&graph.message(), &mut status).is_ok() && status != [0] {
                    deferred.note(Error::DeviceFailed { device, reason: status_text(status[0]) });
                }
            }
            Job::Get { source, device, then, _keep } => {
                let got = get(turn, source, &device);
                // The caller may no longer be waiting.
                let _ = then.send(got);
            }
            Job::Copy { source, target, _keep } => {
                let _ = copy(turn, source, target);
            }
            Job::Confirm { live, _then } => {
                if !turn.is_confirmed() {
                    // A failure is passed on, to the one that waits as well.
                    let _ = turn.probe(live);
                }
            }
            Job::Wait { other, era, done, device, deferred } => {
                // Nothing is ever sent: the other end goes once it is done, or will not be.
                let _ = done.recv();
                if let Err(failure) = other.check(era) {
                    deferred.note(failure.of_device(&device));
                }
            }
        }
    }

    /// Tells the caller that waits for it that it will not be done.
    pub(super) fn abandon(self, failure: Option<&WorkerFailure>) {
        if let Job::Get { device, then, .. } = self {
            let _ = then.send(Err(failure.map_or(Error::Cancelled, |failure| failure.of_device(&device))));
        }
    }
}

/// What a status other than success says.
fn status_text(status: u8) -> String {
    match status {
        1 => "the worker stopped computing the graph".into(),
        254 => "the worker has no memory to compute the graph".into(),
        255 => "the worker failed to compute the graph".into(),
        other => format!("the worker computed the graph with status {other}"),
    }
}

fn get(turn: &mut Turn<'_>, source: Range, device: &str) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let no_memory = |_| Error::OutOfMemory { buffer_type: "host memory".into(), size: source.len };
    bytes.try_reserve_exact(source.len).map_err(no_memory)?;
    bytes.resize(source.len, 0);
    turn.get(source, &mut bytes).map_err(|failure| failure.of_device(device))?;
    Ok(bytes)
}

/// Copies on the worker, or through here where the worker cannot.
fn copy(turn: &mut Turn<'_>, source: Range, target: Range) -> Result<(), Arc<WorkerFailure>> {
    for ((_, from), (_, to)) in source.pieces().zip(target.pieces()) {
        if turn.copy(from, to)? {
            continue;
        }
        let mut stage = vec![0; from.len.min(STAGE)];
        for start in (0..from.len).step_by(STAGE) {
            let len = (from.len - start).min(STAGE);
            let part = |range: Range| Range { offset: range.offset + start, len, ..range };
            let bytes = stage.get_mut(..len).unwrap_or_default();
            turn.get(part(from), bytes)?;
            turn.set(part(to), bytes, false, None)?;
        }
    }
    Ok(())
}

/// Commands about ranges of bytes, for the holder of the turn.
impl Turn<'_> {
    /// Reads a range.
    pub(super) fn get(&mut self, source: Range, out: &mut [u8]) -> Result<(), Arc<WorkerFailure>> {
        for ((_, piece), out) in source.pieces().zip(out.chunks_mut(MAX_PIECE)) {
            let record = bytes_record(piece);
            let head = Head::new(Command::GetTensor).record(&record).u64(0).u64(piece.len as u64).whole();
            let about = About::Bytes { len: piece.len, name: None };
            let message =
                Message { command: Command::GetTensor, head: &head, payload: &[], about: &about, work: 0 };
            self.exchange(&message, out)?;
        }
        Ok(())
    }

    /// Writes a range; `data` is as long.
    pub(super) fn set(
        &mut self,
        target: Range,
        data: &[u8],
        worth_keeping: bool,
        name: Option<Arc<str>>,
    ) -> Result<(), Arc<WorkerFailure>> {
        for ((_, piece), data) in target.pieces().zip(data.chunks(MAX_PIECE)) {
            let has_flag = self.dialect().is_some_and(|dialect| dialect.has_cache_flag);
            let head = set_head(piece, has_flag.then_some(worth_keeping));
            let about = About::Bytes { len: data.len(), name: name.clone() };
            self.send(&Message {
                command: Command::SetTensor,
                head: &head,
                payload: data,
                about: &about,
                work: data.len() as u64,
            })?;
        }
        Ok(())
    }

    /// Copies at most a piece; `false` if the worker cannot.
    pub(super) fn copy(&mut self, source: Range, target: Range) -> Result<bool, Arc<WorkerFailure>> {
        let (from, to) = (bytes_record(source), bytes_record(target));
        let head = Head::new(Command::CopyTensor).record(&from).record(&to).whole();
        let about = About::Bytes { len: source.len, name: None };
        let mut answer = [0];
        let message = Message {
            command: Command::CopyTensor,
            head: &head,
            payload: &[],
            about: &about,
            work: source.len as u64,
        };
        self.exchange(&message, &mut answer)?;
        match answer {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(self.refuse(Command::CopyTensor, format!("result {other}"))),
        }
    }

    /// Asks for something that takes no work, whose answer means that all work before it is done. A byte of a buffer if
    /// there is one: workers may compute in the background, but never read memory before its turn.
    pub(super) fn probe(&mut self, live: Option<Live>) -> Result<(), Arc<WorkerFailure>> {
        if let Some(buffer) = live {
            return self.get(Range { buffer, offset: 0, len: 1 }, &mut [0]);
        }
        let has_devices = self.dialect().is_some_and(|dialect| dialect.has_devices);
        let head = Head::new(Command::GetAlignment);
        let head = if has_devices { head.u32(0) } else { head }.whole();
        let about = About::Nothing;
        let message =
            Message { command: Command::GetAlignment, head: &head, payload: &[], about: &about, work: 0 };
        self.exchange(&message, &mut [0; 8])
    }
}

/// The start of SET_TENSOR; the flag exists in some dialects.
pub(super) fn set_head(target: Range, flag: Option<bool>) -> Vec<u8> {
    let head = Head::new(Command::SetTensor).record(&bytes_record(target));
    let head = if let Some(flag) = flag { head.u8(flag.into()) } else { head };
    head.u64(0).followed_by(target.len)
}
