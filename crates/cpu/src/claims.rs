//! Which thread does which units of a stage.
//!
//! Units are cut into ranges. A thread takes units from the front of a range of its own, and when there are none left, from the
//! ends of the others. So what it works on lies together for as long as possible, it knows what comes next, and what it takes
//! a unit from is nearly always in its own cache; yet no thread is waited for while there are units left.
//!
//! Invariant: each unit is taken once, by whichever thread.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::job::{Grain, Stop};
use crate::pool::Pace;

/// The most ranges; where there are more threads, some have the same one.
pub(crate) const MOST_RANGES: usize = 16;

/// The most that can be taken of a range.
const MOST_TAKEN: usize = 1 << 15;

/// What was taken of a range, apart from the others in memory: the stage that it is about, how much from its end and how much
/// from its front.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Taken(AtomicU64);

impl Taken {
    /// Nothing, of any stage; those have numbers from 1 on.
    pub(crate) const fn new() -> Taken {
        Taken(AtomicU64::new(0))
    }

    /// How much of a stage was taken from the front, and how much from the end.
    const fn of(word: u64, stage: u32) -> [usize; 2] {
        // What is about an earlier stage counts for nothing.
        if (word >> 32) as u32 == stage {
            [word as u16 as usize, (word >> 16) as u16 as usize]
        } else {
            [0; 2]
        }
    }

    /// How much is left of `len`.
    fn left(&self, stage: u32, len: usize) -> usize {
        let [front, end] = Taken::of(self.0.load(Ordering::Relaxed), stage);
        len - front - end
    }

    /// Takes one of `len` that are left, from the front or from the end, and says which it is.
    fn take(&self, stage: u32, len: usize, is_front: bool) -> Option<usize> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let [front, end] = Taken::of(word, stage);
            if front + end >= len {
                return None;
            }
            let [now_front, now_end] = if is_front { [front + 1, end] } else { [front, end + 1] };
            let now = u64::from(stage) << 32 | (now_end as u64) << 16 | now_front as u64;
            match self.0.compare_exchange_weak(word, now, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(if is_front { front } else { len - 1 - end }),
                Err(found) => word = found,
            }
        }
    }
}

/// What threads take units of a stage from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranges<'t> {
    pub(crate) taken: &'t [Taken],
    /// The number of the stage: no two in a row have the same, and none has 0.
    pub(crate) stage: u32,
    /// The range of this thread.
    pub(crate) own: usize,
}

/// Whether a kernel should end between two units, and be called again for the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pause<'t> {
    /// Says when, if ever.
    pub(crate) pace: Option<&'t Pace>,
    /// Says whether it is always.
    pub(crate) grain: Grain,
    /// Set once a kernel has ended for this reason.
    pub(crate) paused: &'t AtomicBool,
}

impl Pause<'_> {
    fn is_due(self) -> bool {
        self.pace.is_some_and(|pace| self.grain.always_pauses() || pace.is_due())
    }
}

/// A unit that a thread has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) unit: usize,
    /// The unit that this thread will probably take next.
    pub(crate) next: usize,
}

/// Units that go to whichever thread comes first. Each goes to exactly one job, and those after a request to stop to none. When a
/// thread should give way they end too, and the kernel is called again for the others: a kernel that claims units does nothing else
/// that counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claims<'t> {
    pub(crate) ranges: Ranges<'t>,
    pub(crate) stop: Stop<'t>,
    pub(crate) pause: Pause<'t>,
}

impl<'t> Claims<'t> {
    /// Units out of `count` in ascending order, first come, first served; for units that take unequally long.
    pub(crate) fn of(self, count: usize) -> impl Iterator<Item = usize> + use<'t> {
        let ranges = Ranges { taken: &self.ranges.taken[..1], own: 0, ..self.ranges };
        Claims { ranges, ..self }.near(count).map(|claim| claim.unit)
    }

    /// Units out of `count`, each probably beside the one before.
    pub(crate) fn near(self, count: usize) -> impl Iterator<Item = Claim> + use<'t> {
        let ranges = self.ranges.taken.len();
        // What is taken at a time.
        let bunch = count.div_ceil(ranges * MOST_TAKEN).max(1);
        let bunches = count.div_ceil(bunch);
        let range = move |number: usize| bunches * number / ranges..bunches * (number + 1) / ranges;
        let units = move |at: usize| at * bunch..(at * bunch + bunch).min(count);
        let mut bunch_left = 0..0;
        let mut next_bunch = 0;
        let (mut is_first, mut looked) = (true, self.stop.done());
        std::iter::from_fn(move || {
            if bunch_left.is_empty() {
                if !std::mem::take(&mut is_first) && self.pauses(&range, &mut looked) {
                    return None;
                }
                let taken = self.take(&range)?;
                (bunch_left, next_bunch) = (units(taken.unit), taken.next);
            }
            if self.stop.now() {
                return None;
            }
            let unit = bunch_left.next()?;
            let next = if bunch_left.is_empty() { next_bunch * bunch } else { bunch_left.start };
            Some(Claim { unit, next })
        })
    }

    /// Whether the thread should give way now, and there is something left to do later. `looked` is what it had done when it looked
    /// at the clock last.
    fn pauses(&self, range: &impl Fn(usize) -> Range<usize>, looked: &mut u64) -> bool {
        let Ranges { taken, stage, .. } = self.ranges;
        let done = self.stop.done();
        if done - *looked < self.pause.grain.per_clock() {
            return false;
        }
        *looked = done;
        let is_left = || (0..taken.len()).any(|number| taken[number].left(stage, range(number).len()) > 0);
        let pauses = self.pause.is_due() && is_left();
        if pauses {
            self.pause.paused.store(true, Ordering::Relaxed);
        }
        pauses
    }

    /// Takes a bunch, from this thread's own range as long as there is one.
    fn take(&self, range: &impl Fn(usize) -> Range<usize>) -> Option<Claim> {
        let Ranges { taken, stage, own } = self.ranges;
        let mine = range(own);
        if let Some(at) = taken[own].take(stage, mine.len(), true) {
            let unit = mine.start + at;
            // When its own range is done, the thread goes on at the end of the next one.
            let behind = if own + 1 < taken.len() { range(own + 1).end } else { range(0).end };
            let next = if unit + 1 < mine.end { unit + 1 } else { behind.saturating_sub(1) };
            return Some(Claim { unit, next });
        }
        (1..taken.len()).find_map(|distance| {
            let other = (own + distance) % taken.len();
            let theirs = range(other);
            let unit = theirs.start + taken[other].take(stage, theirs.len(), false)?;
            Some(Claim { unit, next: unit.saturating_sub(1).max(theirs.start) })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::job::Meter;

    /// Calls `with` with what a thread claims from, and gives whether it paused. It never does without a pace.
    fn claiming_at(
        pace: Option<&Pace>,
        taken: &[Taken],
        stage: u32,
        own: usize,
        with: impl FnOnce(Claims<'_>),
    ) -> bool {
        let [cancel, given_up, paused] = [const { AtomicBool::new(false) }; 3];
        let (grain, meter) = (Grain::FINEST, Meter::new(Grain::FINEST));
        let stop = Stop { cancel: &cancel, given_up: &given_up, meter: &meter };
        let pause = Pause { pace, grain, paused: &paused };
        with(Claims { ranges: Ranges { taken, stage, own }, stop, pause });
        paused.into_inner()
    }

    fn claiming(taken: &[Taken], stage: u32, own: usize, with: impl FnOnce(Claims<'_>)) {
        assert!(!claiming_at(None, taken, stage, own, with));
    }

    fn fresh(ranges: usize) -> Vec<Taken> {
        std::iter::repeat_with(Taken::new).take(ranges).collect()
    }

    #[test]
    fn a_thread_alone_takes_its_own_range_and_then_the_others_from_their_ends() {
        let taken = fresh(3);
        claiming(&taken, 1, 1, |claims| {
            let units: Vec<usize> = claims.near(9).map(|claim| claim.unit).collect();
            assert_eq!(units, [3, 4, 5, 8, 7, 6, 2, 1, 0]);
        });
        claiming(&taken, 1, 0, |claims| assert_eq!(claims.near(9).count(), 0));
    }

    #[test]
    fn what_comes_next_is_known() {
        let taken = fresh(2);
        claiming(&taken, 1, 0, |claims| {
            let claims: Vec<Claim> = claims.near(6).collect();
            for pair in claims.windows(2) {
                assert_eq!(pair[0].next, pair[1].unit);
            }
        });
    }

    #[test]
    fn units_of_one_range_come_in_order() {
        let taken = fresh(4);
        for stage in 1..4 {
            claiming(&taken, stage, 2, |claims| {
                let mut units = claims.of(7);
                assert_eq!([units.next(), units.next()], [Some(0), Some(1)]);
                claiming(&taken, stage, 3, |claims| assert!(claims.of(7).take(2).eq([2, 3])));
                assert!(units.eq(4..7));
            });
        }
    }

    /// More units than can be counted one by one, few units, none, and one stage after another without anything being set back.
    #[test]
    fn every_unit_is_taken_once() {
        for ranges in [1, 2, 3, MOST_RANGES] {
            let taken = fresh(ranges);
            let many = if cfg!(miri) { 1000 } else { 3 * ranges * MOST_TAKEN + 5 };
            for (stage, count) in [0, 1, ranges, 100, many].into_iter().enumerate() {
                let stage = stage as u32 + 1;
                let done: Vec<AtomicBool> = (0..count).map(|_| AtomicBool::new(false)).collect();
                let all: usize = std::thread::scope(|scope| {
                    let threads: Vec<_> = (0..3)
                        .map(|thread| {
                            let (taken, done) = (&taken, &done);
                            scope.spawn(move || {
                                let mut mine = 0;
                                claiming(taken, stage, thread % ranges, |claims| {
                                    for Claim { unit, next } in claims.near(count) {
                                        assert!(!done[unit].swap(true, Ordering::Relaxed) && next < count);
                                        mine += 1;
                                    }
                                });
                                mine
                            })
                        })
                        .collect();
                    threads.into_iter().map(|thread| thread.join().unwrap()).sum()
                });
                assert_eq!(all, count);
            }
        }
    }

    #[test]
    fn a_pause_leaves_the_others_for_later() {
        let taken = fresh(2);
        let mut seen = Vec::new();
        for round in 0..5 {
            let paused = claiming_at(Some(&Pace::new()), &taken, 1, round % 2, |claims| {
                seen.extend(claims.near(4).map(|claim| claim.unit));
            });
            assert_eq!(paused, round < 3, "round {round}");
        }
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3]);
    }
}
