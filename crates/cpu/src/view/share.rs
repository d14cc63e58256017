//! How work is cut among threads.

use std::ops::Range;

/// Which part of some equal units a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    thread: usize,
    threads: usize,
}

impl Share {
    /// Everything.
    pub(crate) const ALL: Share = Share { thread: 0, threads: 1 };

    /// The share of one of several threads.
    pub(crate) fn new(thread: usize, threads: usize) -> Share {
        assert!(thread < threads);
        Share { thread, threads }
    }

    /// Its units out of `count`. All shares together are `0..count`, and no two meet.
    pub(crate) fn of(self, count: usize) -> Range<usize> {
        let cut = |i: usize| (count as u128 * i as u128 / self.threads as u128) as usize;
        cut(self.thread)..cut(self.thread + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_once() {
        for count in 0..20 {
            for threads in 1..7 {
                let all: Vec<_> =
                    (0..threads).flat_map(|thread| Share::new(thread, threads).of(count)).collect();
                assert_eq!(all, (0..count).collect::<Vec<_>>());
            }
        }
    }
}
