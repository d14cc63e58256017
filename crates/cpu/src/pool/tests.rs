//! Stages in order, every piece once, and no waiting for threads that took none.

use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::*;

fn pool(threads: usize) -> Pool {
    Pool::new(&StreamOptions::threads(threads)).unwrap()
}

/// Stages made of closures, for tests.
struct Script<W> {
    pieces: Vec<usize>,
    /// The stage under way, plus one.
    next: AtomicUsize,
    /// Does a piece of a stage, as a thread, and says whether it is finished.
    work: W,
}

impl<W: Fn(usize, usize, usize) -> bool + Sync> Script<W> {
    fn new(pieces: &[usize], work: W) -> Script<W> {
        Script { pieces: pieces.to_vec(), next: AtomicUsize::new(0), work }
    }
}

impl<W: Fn(usize, usize, usize) -> bool + Sync> Stages for Script<W> {
    fn next(&self) -> Option<usize> {
        self.pieces.get(self.next.fetch_add(1, Ordering::Relaxed)).copied()
    }

    fn work(&self, piece: usize, thread: usize, _pace: &Pace) -> bool {
        (self.work)(self.next.load(Ordering::Relaxed) - 1, piece, thread)
    }
}

#[test]
fn every_piece_is_done_once_and_stages_do_not_meet() {
    let rounds = if cfg!(miri) { 3 } else { 300 };
    for threads in [1, 2, 4] {
        let (pool, sizes) = (pool(threads), [3, 1, 4, 1, 1, 9, 2]);
        for _ in 0..rounds {
            let done: Vec<_> =
                sizes.iter().map(|&n| (0..n).map(|_| AtomicUsize::new(0)).collect::<Vec<_>>()).collect();
            let count = |stage: usize| done[stage].iter().map(|n| n.load(Ordering::Relaxed)).sum::<usize>();
            pool.run(&Script::new(&sizes, |stage, piece, thread| {
                assert!(thread < threads);
                assert!((0..stage).all(|before| count(before) == sizes[before]));
                assert!((stage + 1..sizes.len()).all(|after| count(after) == 0));
                done[stage][piece].fetch_add(1, Ordering::Relaxed);
                true
            }));
            assert!(done.iter().flatten().all(|n| n.load(Ordering::Relaxed) == 1));
        }
    }
}

/// Thread 1 comes when the first stage is over, and finds itself in the second. Thread 0 has not waited for it before.
#[test]
fn a_late_thread_finds_the_stage_under_way() {
    let state = Arc::clone(&pool(1).shared);
    state.board.close();
    let pool = Pool { shared: Arc::clone(&state), workers: Vec::new(), running: Mutex::new(()) };
    let (come, late) = channel();
    let come = Mutex::new(Some(come));
    let (taken, both) = (Mutex::new(Vec::new()), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            late.recv().unwrap();
            state.help(1);
        });
        pool.run(&Script::new(&[3, 2, 1], |stage, _, thread| {
            taken.lock().unwrap().push((stage, thread));
            if stage == 1 {
                if let Some(come) = come.lock().unwrap().take() {
                    come.send(()).unwrap();
                }
                // Each of the two holds one of the two pieces.
                both.wait();
            }
            true
        }));
        drop(pool);
    });
    let mut taken = taken.into_inner().unwrap();
    assert_eq!(taken[..3], [(0, 0); 3]);
    taken[3..5].sort_unstable();
    assert_eq!(taken[3..5], [(1, 0), (1, 1)]);
    assert_eq!((taken.len(), taken[5].0), (6, 2));
}

#[test]
fn what_is_not_finished_is_done_again() {
    let pool = pool(3);
    let tries = AtomicUsize::new(0);
    pool.run(&Script::new(&[2, 1], |stage, _, _| stage == 1 || tries.fetch_add(1, Ordering::Relaxed) >= 5));
    assert_eq!(tries.into_inner(), 7);
}

#[test]
fn workers_wake_from_sleep() {
    let pool = pool(2);
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(20));
        // Neither piece ends without the other, so both threads take one.
        let both = Barrier::new(2);
        pool.run(&Script::new(&[2], |_, _, _| {
            both.wait();
            true
        }));
    }
}

#[test]
fn a_panic_hangs_no_thread() {
    let pool = pool(3);
    for bad in 0..3 {
        let done = AtomicUsize::new(0);
        let run = catch_unwind(AssertUnwindSafe(|| {
            pool.run(&Script::new(&[3], |_, piece, _| {
                assert_ne!(piece, bad);
                done.fetch_add(1, Ordering::Relaxed);
                true
            }));
        }));
        assert!(run.is_err());
        assert_eq!(done.into_inner(), 2);
    }
    pool.run(&Script::new(&[3], |_, _, _| true));
}

#[test]
fn callers_from_several_threads_take_turns() {
    let pool = pool(2);
    let inside = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..100 {
                    pool.run(&Script::new(&[1, 1], |_, _, _| {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        true
                    }));
                }
            });
        }
    });
}
