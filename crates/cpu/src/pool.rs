//! A few threads that do the stages of a run together, piece by piece, many times a second.
//!
//! A stage is over when all of its pieces are done, whichever thread did them; then the next is opened. Threads take pieces when they
//! happen to run: on a machine that has other work too, one that is late finds the stage over and goes on with the one under
//! way, and the others have not waited for it. What they do wait for is pieces that were taken. A thread is taken off its
//! processor when its time slice is over, in the middle of a piece, for milliseconds; so threads give way by themselves, a
//! little earlier and between two pieces ([`Pace`]).
//!
//! Concurrency: one run at a time ([`Pool::run`] takes a lock). Its stages are borrowed by workers only while they hold a piece,
//! and `run` does not return before none is held.

mod ahead;
mod board;
mod pace;

pub(crate) use ahead::Ahead;
pub(crate) use board::MAX_PIECES;
pub(crate) use pace::Pace;

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use oxcart_backend::StreamOptions;

use self::board::{Board, Found};
use crate::os::affinity;

/// What a run does.
pub(crate) trait Stages: Sync {
    /// Makes the next stage ready, and says of how many pieces it is; `None` if there is none. One thread does this at a time,
    /// and none does a piece meanwhile.
    fn next(&self) -> Option<usize>;

    /// Does a piece, as one of the pool's threads. Pieces of a stage have numbers from 0 on. Says whether it is finished; if it
    /// is not, some thread does it again, perhaps under another number.
    fn work(&self, piece: usize, thread: usize, pace: &Pace) -> bool;

    /// What one of the pool's threads will probably read in one of the next stages. Asked of a thread that has done a piece and has
    /// not said so yet.
    fn ahead(&self, thread: usize) -> Ahead {
        let _ = thread;
        Ahead::default()
    }
}

/// Where stages are. Their lifetime is erased; [`Pool::run`] keeps them alive for as long as a thread may use them.
type Borrowed = *const (dyn Stages + 'static);

/// The most threads a stream has; beyond, taking turns costs more than threads bring.
const MAX_THREADS: usize = 512;

/// The number of threads to use.
fn thread_count(options: &StreamOptions) -> usize {
    let all = || std::thread::available_parallelism().map_or(1, usize::from);
    options.threads.map_or_else(all, usize::from).min(MAX_THREADS)
}

/// Threads that wait for work.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<PoolState>,
    workers: Vec<JoinHandle<()>>,
    running: Mutex<()>,
}

/// What the pool and its workers share.
#[derive(Debug)]
struct PoolState {
    board: Board,
    /// The stages of the run; written only while the board is closed, read only by threads that hold a piece.
    stages: UnsafeCell<Option<Borrowed>>,
    /// Pieces of the stage under way; written only between stages.
    pieces: AtomicUsize,
    panicked: AtomicBool,
}

// SAFETY: `stages` is written by the one thread that runs (see `Pool::running`) while the board is closed, and read by threads
// that hold a piece, which they can take only after the board was opened.
unsafe impl Sync for PoolState {}
// SAFETY: the pointer is to something `Sync`, and used only while `run` keeps it alive.
unsafe impl Send for PoolState {}

impl Pool {
    /// Starts workers; the caller of [`Pool::run`] is thread 0, so one fewer than `threads`.
    pub(crate) fn new(options: &StreamOptions) -> std::io::Result<Pool> {
        let threads = thread_count(options);
        let shared = Arc::new(PoolState {
            board: Board::new(),
            stages: UnsafeCell::new(None),
            pieces: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
        });
        let mut pool = Pool { shared, workers: Vec::with_capacity(threads - 1), running: Mutex::new(()) };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let cpu = options.cpus.get(index % options.cpus.len().max(1)).copied();
            let worker =
                std::thread::Builder::new().name(format!("oxcart-cpu-{index}")).spawn(move || {
                    if let Some(cpu) = cpu {
                        affinity::pin(cpu);
                    }
                    shared.help(index);
                })?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Threads, the caller included.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Does all stages, as thread 0, together with the workers that come.
    ///
    /// # Panics
    ///
    /// When a piece did, after all others are done.
    pub(crate) fn run(&self, stages: &dyn Stages) {
        let _one_at_a_time = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(pieces) = stages.next() else { return };
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. The pointer is used by threads that hold a piece or have ended a stage, and this
        // function returns only after the board was closed, which happens after both.
        let borrowed = unsafe { std::mem::transmute::<*const (dyn Stages + '_), Borrowed>(stages) };
        // SAFETY: the board is closed, so no thread holds a piece.
        unsafe { *shared.stages.get() = Some(borrowed) };
        shared.panicked.store(false, Ordering::Relaxed);
        shared.pieces.store(pieces, Ordering::Relaxed);
        shared.board.open(pieces);
        shared.help(0);
        assert!(!shared.panicked.load(Ordering::Relaxed), "a piece of work panicked");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.board.stop();
        for worker in self.workers.drain(..) {
            // Pieces that panic are caught in `help`, so there is nothing to report.
            let _ = worker.join();
        }
    }
}

impl PoolState {
    /// Does pieces: thread 0, until the board is closed; others, until they are told to go.
    fn help(&self, thread: usize) {
        let (pace, mut ahead) = (Pace::new(), Ahead::default());
        loop {
            let Some(left) = self.board.take() else {
                if self.board.wait(thread != 0, &mut ahead) != Found::Pieces {
                    return;
                }
                continue;
            };
            // SAFETY: this thread holds a piece, so the stages were published and stay alive until it is done with it.
            let stages = unsafe { (*self.stages.get()).map(|stages| &*stages) };
            let stages = stages.unwrap_or_else(|| unreachable!("written before the board was opened"));
            let piece = self.pieces.load(Ordering::Relaxed) - left;
            // A kernel's panic is caught closer to it; this keeps the counts right whatever happens.
            let finished = catch_unwind(AssertUnwindSafe(|| stages.work(piece, thread, &pace)));
            if finished.is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            // Once the piece is done there may be no stages any more.
            ahead = stages.ahead(thread);
            if !finished.unwrap_or(true) {
                self.board.give_back();
            } else if self.board.done() {
                match stages.next() {
                    Some(pieces) => {
                        self.pieces.store(pieces, Ordering::Relaxed);
                        self.board.open(pieces);
                    }
                    None => self.board.close(),
                }
            }
            pace.give_way();
        }
    }
}

#[cfg(test)]
mod tests;
