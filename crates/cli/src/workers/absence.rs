//! When a worker that was lost, or was never there, is tried again, and when it counts as back. No socket and no clock is in here.
//!
//! Invariants: one try is under way at a time, and between two there are pauses that grow up to a limit. A worker that is reached counts as
//! back only once it has been there for a while without a break. With each loss that follows another, that while doubles, and so does the first
//! pause; after a long time of answers, they are as at first. Time in which a worker has answered nothing speaks for nothing: one that
//! hangs is lost only after a while, which must not count in its favour.

use std::time::Duration;

/// Before the first try after a loss.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// Between two tries at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How long a worker must have been there to be back after its first loss.
const SHORTEST_TRIAL: Duration = Duration::from_secs(2);

/// How long it must have been there at most.
const LONGEST_TRIAL: Duration = Duration::from_secs(300);

/// Time of answers without a loss after which earlier ones are forgotten.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AbsenceEvent {
    /// Time goes by.
    Tick,
    /// The connection was lost, be it the one in use or one on trial.
    Lost {
        /// When its last answer came.
        answered: Duration,
    },
    /// A try led to a connection.
    Reached,
    /// A try led to nothing.
    Unreached,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AbsenceAction {
    /// Try to connect.
    Try,
    /// Use the connection that is on trial.
    Back,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// In use since then.
    There(Duration),
    /// To be tried at that time.
    Gone(Duration),
    Trying,
    /// Connected since then, and on trial.
    OnTrial(Duration),
}

/// A worker's comings and goings.
#[derive(Debug)]
pub(super) struct Absence {
    state: State,
    /// Losses that are not forgotten.
    losses: u32,
    /// Tries in a row that led to nothing.
    failures: u32,
}

impl Absence {
    /// Of a worker that is there.
    pub(super) fn new(now: Duration) -> Absence {
        Absence { state: State::There(now), losses: 0, failures: 0 }
    }

    /// Of a worker that could not be reached from the beginning: it is tried like one that was lost.
    pub(super) fn of_absent(now: Duration) -> Absence {
        Absence { state: State::Gone(now + SHORTEST_PAUSE), losses: 0, failures: 0 }
    }

    /// Takes in what happens at a time.
    pub(super) fn handle(&mut self, event: AbsenceEvent, now: Duration) -> Option<AbsenceAction> {
        match (event, self.state) {
            (AbsenceEvent::Lost { answered }, State::There(since)) => {
                if answered.min(now).saturating_sub(since) >= FORGOTTEN {
                    self.losses = 0;
                }
                self.lost(now);
            }
            (AbsenceEvent::Lost { .. }, State::OnTrial(_)) => self.lost(now),
            (AbsenceEvent::Reached, State::Trying) => {
                (self.failures, self.state) = (0, State::OnTrial(now));
            }
            (AbsenceEvent::Unreached, State::Trying) => {
                self.failures = self.failures.saturating_add(1);
                self.state = State::Gone(now + self.pause());
            }
            (AbsenceEvent::Tick, State::Gone(due)) if now >= due => {
                self.state = State::Trying;
                return Some(AbsenceAction::Try);
            }
            (AbsenceEvent::Tick, State::OnTrial(since)) if now.saturating_sub(since) >= self.trial() => {
                self.state = State::There(now);
                return Some(AbsenceAction::Back);
            }
            // What is said of another state, as that one which was lost is still lost.
            _ => {}
        }
        None
    }

    fn lost(&mut self, now: Duration) {
        self.losses = self.losses.saturating_add(1);
        self.failures = 0;
        self.state = State::Gone(now + self.pause());
    }

    fn pause(&self) -> Duration {
        doubled(SHORTEST_PAUSE, self.failures.max(self.losses.saturating_sub(1)), LONGEST_PAUSE)
    }

    fn trial(&self) -> Duration {
        doubled(SHORTEST_TRIAL, self.losses.saturating_sub(1), LONGEST_TRIAL)
    }
}

/// A time, doubled so often, but no longer than another.
fn doubled(time: Duration, times: u32, most: Duration) -> Duration {
    time.saturating_mul(2_u32.saturating_pow(times)).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(250);

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// Lets a worker that can be reached at some times, and is lost when it cannot be, go through some time; says when it was tried and when it
    /// was back.
    fn run(
        absence: &mut Absence,
        from: Duration,
        to: Duration,
        is_there: impl Fn(Duration) -> bool,
    ) -> (Vec<Duration>, Vec<Duration>) {
        let (mut tries, mut backs) = (Vec::new(), Vec::new());
        let mut now = from;
        while now < to {
            if !is_there(now) {
                absence.handle(AbsenceEvent::Lost { answered: now }, now);
            }
            match absence.handle(AbsenceEvent::Tick, now) {
                Some(AbsenceAction::Try) => {
                    tries.push(now);
                    let event = if is_there(now) { AbsenceEvent::Reached } else { AbsenceEvent::Unreached };
                    assert_eq!(absence.handle(event, now), None);
                }
                Some(AbsenceAction::Back) => backs.push(now),
                None => {}
            }
            now += TICK;
        }
        (tries, backs)
    }

    #[test]
    fn one_that_comes_back_at_once_is_used_after_three_seconds() {
        let mut absence = Absence::new(seconds(0));
        let (tries, backs) = run(&mut absence, seconds(5), seconds(60), |now| now > seconds(5));
        assert_eq!((tries, backs), (vec![seconds(6)], vec![seconds(8)]));
        // As soon, if that was long ago.
        let late = seconds(8) + FORGOTTEN;
        let (tries, backs) = run(&mut absence, late, late + seconds(60), |now| now > late);
        assert_eq!((tries, backs), (vec![late + seconds(1)], vec![late + seconds(3)]));
        // Not so soon, if it was not.
        let late = late + seconds(60);
        let (tries, backs) = run(&mut absence, late, late + seconds(60), |now| now > late);
        assert_eq!((tries, backs), (vec![late + seconds(2)], vec![late + seconds(6)]));
    }

    #[test]
    fn one_that_was_never_there_is_tried_like_one_that_was_lost() {
        let mut absence = Absence::of_absent(seconds(0));
        let (tries, backs) = run(&mut absence, seconds(0), seconds(200), |now| now >= seconds(100));
        let gaps: Vec<u64> = tries.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
        assert_eq!((tries[0], &gaps[..6]), (seconds(1), &[2, 4, 8, 16, 30, 30][..]));
        assert_eq!(backs, [tries.last().unwrap().saturating_add(SHORTEST_TRIAL)]);
        // From then on it is like any other.
        let (tries, _) = run(&mut absence, seconds(300), seconds(302), |now| now > seconds(300));
        assert_eq!(tries, [seconds(301)]);
    }

    #[test]
    fn one_that_stays_away_is_tried_twice_a_minute() {
        let mut absence = Absence::new(seconds(0));
        let (tries, backs) = run(&mut absence, seconds(0), seconds(3600), |_| false);
        let gaps: Vec<u64> = tries.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
        assert_eq!((tries[0], &gaps[..6]), (seconds(1), &[2, 4, 8, 16, 30, 30][..]));
        assert!(gaps[4..].iter().all(|gap| *gap == 30) && backs.is_empty());
        // An hour away is no reason to distrust it.
        let (tries, backs) = run(&mut absence, seconds(3600), seconds(3700), |_| true);
        assert_eq!((tries.len(), backs), (1, vec![tries[0] + seconds(2)]));
    }

    #[test]
    fn one_that_flaps_is_used_ever_more_rarely() {
        let mut absence = Absence::new(seconds(0));
        // It is there for nine seconds of ten.
        let (tries, backs) =
            run(&mut absence, seconds(0), seconds(3600), |now| now.as_secs() % 10 != 0 || now == seconds(0));
        // In time for two trials; the next ones take longer than it ever stays.
        assert!((1..=3).contains(&backs.len()), "{backs:?}");
        assert!(tries.len() < 3600 / 30 + 10, "{} tries", tries.len());
        // It stays, and is used again within the longest trial.
        let (_, backs) = run(&mut absence, seconds(3600), seconds(4000), |_| true);
        assert_eq!(backs.len(), 1);
    }

    /// It comes back, hangs, and is lost when it has been waited for: each time it has to stay for longer.
    #[test]
    fn time_without_answers_is_no_good_conduct() {
        let mut absence = Absence::new(seconds(0));
        let mut now = seconds(0);
        for trial in [2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            let answered = now + seconds(1);
            now += 2 * FORGOTTEN;
            absence.handle(AbsenceEvent::Lost { answered }, now);
            let (_, backs) = run(&mut absence, now, now + seconds(400), |_| true);
            assert_eq!((backs.len(), absence.trial()), (1, seconds(trial)));
            now = backs[0];
        }
        // Answers for as long are.
        now += 2 * FORGOTTEN;
        absence.handle(AbsenceEvent::Lost { answered: now - FORGOTTEN }, now);
        assert_eq!(absence.trial(), SHORTEST_TRIAL);
    }

    /// Whatever happens: tries wait for their results and for a pause, and a worker that is back has been there without a break.
    #[test]
    fn nothing_is_done_too_early() {
        let mut random = 1_u64;
        let mut draw = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let mut count = 0;
        for _ in 0..500 {
            let mut absence = Absence::new(Duration::ZERO);
            let (mut now, mut is_used, mut is_trying) = (Duration::ZERO, true, false);
            let (mut reached, mut rests_until) = (None::<Duration>, None::<Duration>);
            for _ in 0..200 {
                now += Duration::from_millis(draw(3000));
                let event = match draw(8) {
                    0 => AbsenceEvent::Lost { answered: now },
                    1 | 2 => AbsenceEvent::Reached,
                    3 => AbsenceEvent::Unreached,
                    _ => AbsenceEvent::Tick,
                };
                let action = absence.handle(event, now);
                match event {
                    AbsenceEvent::Lost { .. } if is_used || reached.is_some() => {
                        (is_used, reached, rests_until) = (false, None, Some(now + SHORTEST_PAUSE));
                    }
                    AbsenceEvent::Reached if is_trying => (is_trying, reached) = (false, Some(now)),
                    AbsenceEvent::Unreached if is_trying => {
                        (is_trying, rests_until) = (false, Some(now + SHORTEST_PAUSE));
                    }
                    _ => {}
                }
                match action {
                    Some(AbsenceAction::Try) => {
                        assert!(!is_trying && !is_used && reached.is_none());
                        assert!(rests_until.is_some_and(|rest| rest <= now));
                        is_trying = true;
                    }
                    Some(AbsenceAction::Back) => {
                        assert!(reached.is_some_and(|since| now - since >= SHORTEST_TRIAL));
                        (is_used, reached) = (true, None);
                        count += 1;
                    }
                    None => {}
                }
            }
        }
        assert!(count > 200, "{count}");
    }
}
