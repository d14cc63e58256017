//! A few threads that run one function together, many times a second.
//!
//! Between two runs workers spin for a moment, then sleep; asleep they cost nothing. Inside a run they meet at a
//! [`Barrier`].
//!
//! Concurrency: one run at a time ([`Pool::run`] takes a lock). The function is borrowed by the workers only between the
//! moment it is published and the moment the last of them reports back, and `run` does not return before that.

mod affinity;
mod barrier;

pub(crate) use barrier::Barrier;

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use oxcart_backend::StreamOptions;

/// How often a worker looks for work before it sleeps; some ten microseconds.
const SPINS: usize = 2_000;

/// A function that all threads run, each with its number. Its lifetime is erased; [`Pool::run`] keeps it alive for as long
/// as a worker may call it.
type Function = *const (dyn Fn(usize) + Sync);

/// The most threads a stream has; beyond, barriers cost more than threads bring.
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
    /// What to run; written under `sleep`'s lock before `round` changes, read only after `round` was seen to change.
    function: UnsafeCell<Option<Function>>,
    /// How many workers take part in the round; same rule.
    wanted: AtomicUsize,
    /// Goes up with every run.
    round: AtomicUsize,
    /// Workers that have not reported back.
    busy: AtomicUsize,
    stop: AtomicBool,
    sleep: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `function` is written by the one thread that runs (see `Pool::running`) while no worker is busy, and read by
// workers only after they have seen `round` change, which happens after the write.
unsafe impl Sync for PoolState {}
// SAFETY: the pointer is to a `Sync` function and used only while `run` keeps it alive.
unsafe impl Send for PoolState {}

impl Pool {
    /// Starts workers; the caller of [`Pool::run`] is thread 0, so one fewer than `threads`.
    pub(crate) fn new(options: &StreamOptions) -> std::io::Result<Pool> {
        let threads = thread_count(options);
        let shared = Arc::new(PoolState {
            function: UnsafeCell::new(None),
            wanted: AtomicUsize::new(0),
            round: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        });
        let mut pool = Pool { shared, workers: Vec::with_capacity(threads - 1), running: Mutex::new(()) };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let cpu = options.cpus.get(index % options.cpus.len().max(1)).copied();
            let worker =
                std::thread::Builder::new().name(format!("oxcart-cpu-{index}")).spawn(move || {
                    affinity::pin(cpu);
                    work(&shared, index);
                })?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Threads, the caller included.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `function(0)` here and `function(1..threads)` on workers, and returns when all are done. If one of them
    /// panics, so does this, after the others are done.
    pub(crate) fn run(&self, threads: usize, function: &(dyn Fn(usize) + Sync)) {
        let _one_at_a_time = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let helpers = threads.clamp(1, self.threads()) - 1;
        if helpers == 0 {
            return function(0);
        }
        // SAFETY: only the lifetime changes. Workers use the pointer until they count themselves out of `busy`, and this
        // function returns (or unwinds) only after `busy` has come down to zero.
        let function_ptr: Function =
            unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), Function>(function) };
        {
            let _asleep = self.shared.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: no worker is busy, so none reads it; see `PoolState`.
            unsafe { *self.shared.function.get() = Some(function_ptr) };
            self.shared.wanted.store(helpers, Ordering::Relaxed);
            self.shared.busy.store(helpers, Ordering::Relaxed);
            self.shared.round.fetch_add(1, Ordering::Release);
        }
        self.shared.wake.notify_all();
        let mine = catch_unwind(AssertUnwindSafe(|| function(0)));
        barrier::wait_until(|| self.shared.busy.load(Ordering::Acquire) == 0);
        if let Err(panic) = mine {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        {
            let _asleep = self.shared.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            self.shared.stop.store(true, Ordering::Relaxed);
            self.shared.round.fetch_add(1, Ordering::Release);
        }
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // Functions that panic are caught in `work`, so there is nothing to report.
            let _ = worker.join();
        }
    }
}

/// The life of a worker.
fn work(shared: &PoolState, index: usize) {
    let mut seen = 0;
    loop {
        seen = next_round(shared, seen);
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        if index > shared.wanted.load(Ordering::Relaxed) {
            continue;
        }
        // SAFETY: the round has changed, so the function was published and stays alive until `busy` goes down.
        let function = unsafe { (*shared.function.get()).map(|function| &*function) };
        if let Some(function) = function {
            // A kernel's panic is caught closer to it; this keeps the count right whatever happens.
            let _ = catch_unwind(AssertUnwindSafe(|| function(index)));
        }
        shared.busy.fetch_sub(1, Ordering::Release);
    }
}

/// Waits for a round after `seen`: spins, then sleeps.
fn next_round(shared: &PoolState, seen: usize) -> usize {
    for _ in 0..SPINS {
        let round = shared.round.load(Ordering::Acquire);
        if round != seen {
            return round;
        }
        std::hint::spin_loop();
    }
    let mut asleep = shared.sleep.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let round = shared.round.load(Ordering::Acquire);
        if round != seen {
            return round;
        }
        asleep = shared.wake.wait(asleep).unwrap_or_else(PoisonError::into_inner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(threads: usize) -> Pool {
        Pool::new(&StreamOptions::threads(threads)).unwrap()
    }

    #[test]
    fn every_thread_runs_once_a_round() {
        let pool = pool(4);
        for threads in [1, 2, 4, 3, 9] {
            let counts: Vec<_> = (0..4).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..200 {
                pool.run(threads, &|index| {
                    counts[index].fetch_add(1, Ordering::Relaxed);
                });
            }
            let counts: Vec<_> = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
            let expected: Vec<_> = (0..4).map(|index| if index < threads { 200 } else { 0 }).collect();
            assert_eq!(counts, expected);
        }
    }

    #[test]
    fn workers_wake_from_sleep() {
        let pool = pool(2);
        let count = AtomicUsize::new(0);
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            pool.run(2, &|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(count.into_inner(), 6);
    }

    #[test]
    fn a_panic_hangs_no_thread() {
        let pool = pool(3);
        let here = catch_unwind(AssertUnwindSafe(|| pool.run(3, &|index| assert_ne!(index, 0))));
        assert!(here.is_err());
        pool.run(3, &|index| assert_ne!(index, 1));
        let count = AtomicUsize::new(0);
        pool.run(3, &|_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 3);
    }

    #[test]
    fn callers_from_several_threads_take_turns() {
        let pool = pool(2);
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        pool.run(2, &|index| {
                            if index == 0 {
                                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                                inside.fetch_sub(1, Ordering::SeqCst);
                            }
                        });
                    }
                });
            }
        });
    }
}
