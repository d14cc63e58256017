//! A connection in memory, whose far end a test holds.
//!
//! Each connection has a thread, as it would have over a socket, but steps have one order: [`Line::send`] and [`Line::end`] return once
//! the worker wants more or is done with the connection, and nothing of it goes on until the next of them.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use oxcart_rpc::worker::{DialectChoice, Worker};

/// How a client leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It sends nothing more, and reads what comes.
    Silent,
    /// It is gone: there is nothing to read, and no one takes what is written.
    Closed,
    /// It is gone, and reading says so, too.
    Reset,
}

#[derive(Debug, Default)]
struct State {
    coming: VecDeque<u8>,
    answers: Vec<u8>,
    ending: Option<Ending>,
    /// Bytes of answers that are still taken, where they are counted.
    taken: Option<usize>,
    is_waiting: bool,
    is_over: bool,
}

#[derive(Debug)]
struct Pipe {
    state: Mutex<State>,
    changed: Condvar,
    /// The most bytes that arrive at a time.
    piece: usize,
}

/// A connection, and the thread that serves it.
#[derive(Debug)]
pub(super) struct Line {
    pipe: Arc<Pipe>,
    thread: Option<JoinHandle<()>>,
}

impl Line {
    /// Connects to a worker; at most so many bytes arrive at a time.
    pub(super) fn open(worker: &'static Worker, choice: DialectChoice, piece: usize) -> Line {
        let pipe = Pipe { state: Mutex::default(), changed: Condvar::new(), piece: piece.max(1) };
        let pipe = Arc::new(pipe);
        let far = Arc::clone(&pipe);
        Line { pipe, thread: Some(thread::spawn(move || far.serve(worker, choice))) }
    }

    /// Sends bytes, and waits until they are worked off; says whether the connection is still there.
    pub(super) fn send(&self, bytes: &[u8]) -> bool {
        self.pipe.step(|state| state.coming.extend(bytes))
    }

    /// Takes only so many bytes more of what it is answered.
    pub(super) fn take_no_more_than(&self, bytes: usize) {
        self.pipe.state().taken = Some(bytes);
    }

    /// What was answered since.
    pub(super) fn answers(&self) -> Vec<u8> {
        std::mem::take(&mut self.pipe.state().answers)
    }

    /// Leaves, behind what was sent, and waits until the worker has noticed.
    pub(super) fn end(self, ending: Ending) {
        let is_there = self.pipe.step(|state| state.ending = Some(ending));
        assert!(!is_there, "a client that left is waited for");
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.pipe.hang_up();
        // A panic was caught and counted.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Pipe {
    /// The worker's end, until the connection is over.
    fn serve(&self, worker: &Worker, choice: DialectChoice) {
        worker.serve_client(self, self, choice);
        self.state().is_over = true;
        self.changed.notify_all();
    }

    /// Leaves without waiting: whatever a test's end is, no thread of it is left behind.
    fn hang_up(&self) {
        self.state().ending.get_or_insert(Ending::Reset);
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self, change: impl FnOnce(&mut State)) -> bool {
        const LONG: Duration = Duration::from_secs(60);
        let mut state = self.state();
        change(&mut state);
        state.is_waiting = false;
        self.changed.notify_all();
        let busy = |state: &mut State| !state.is_waiting && !state.is_over;
        let (state, late) =
            self.changed.wait_timeout_while(state, LONG, busy).unwrap_or_else(PoisonError::into_inner);
        assert!(!late.timed_out(), "the worker is stuck: {state:?}");
        !state.is_over
    }
}

impl Read for &Pipe {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut state = self.state();
        loop {
            if !state.coming.is_empty() {
                let most = out.len().min(self.piece);
                return state.coming.read(&mut out[..most]);
            }
            match state.ending {
                Some(Ending::Reset) => return Err(io::ErrorKind::ConnectionReset.into()),
                Some(_) => return Ok(0),
                None => {}
            }
            state.is_waiting = true;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Write for &Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.state();
        let gone = matches!(state.ending, Some(Ending::Closed | Ending::Reset));
        let most = if gone { 0 } else { state.taken.unwrap_or(usize::MAX).min(bytes.len()) };
        if most == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        state.answers.extend_from_slice(&bytes[..most]);
        if let Some(taken) = &mut state.taken {
            *taken -= most;
        }
        Ok(most)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
