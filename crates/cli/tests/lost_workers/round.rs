//! One round: answers are given, workers suffer what a script says, and what was answered is compared with what it should be.
//!
//! Invariant: a script follows from the kind of the round, a seed and a number alone. When its steps really happen depends on the machine, and no
//! answer may.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::client::{Asking, Choice, Client, Heard, News, Setting};
use crate::figures::{Parts, Stall};
use crate::machines::{COUNT, Fate, Machines, Place};
use crate::random::Random;

/// How long a round waits for anything at all to happen.
const PATIENCE: Duration = Duration::from_secs(180);

/// What happens in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// One worker is killed.
    Kill,
    /// Two are, the second one perhaps before there is a token after the first.
    OneAfterAnother,
    /// One is killed, comes back, and is killed again while answers move to it.
    AgainWhileMoving,
    /// One stands still for longer than the limit, goes on, and is used again.
    Freeze,
    /// One is cut off from the network for longer than the limit, and is used again.
    Partition,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Kill => "kill",
            Kind::OneAfterAnother => "two kills",
            Kind::AgainWhileMoving => "kill, return, kill",
            Kind::Freeze => "freeze and thaw",
            Kind::Partition => "partition that heals",
        }
    }

    /// What `tools/losses.sh` calls it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Kind::Kill => "kill",
            Kind::OneAfterAnother => "two",
            Kind::AgainWhileMoving => "again",
            Kind::Freeze => "freeze",
            Kind::Partition => "partition",
        }
    }
}

/// When a step is due.
#[derive(Clone, Copy, Debug)]
enum When {
    /// At this part of the first stream's first answer.
    At(f64),
    /// When a line with this comes after the step before.
    Noted(&'static str),
    /// At once.
    Now,
}

/// A step of a script: what happens some time after what it waits for.
#[derive(Clone, Copy, Debug)]
struct Step {
    when: When,
    pause: Duration,
    fate: Fate,
}

fn script(plan: Plan, random: &mut Random) -> Vec<Step> {
    let victim = random.below(COUNT);
    // Up to here, so that an answer never ends before; in steps of a thousandth, and anywhere within a token.
    let begin = random.below(900) as f64 / 1000.0;
    let soon = Duration::from_micros(random.below(40_000) as u64);
    let step = |when, pause, fate| Step { when, pause, fate };
    let now = |when, fate| step(when, Duration::ZERO, fate);
    let goes_on = [now(When::Noted("continued after"), Fate::Nothing)];
    // Streams ask on until it is met; a command that gives one answer may have given it by then.
    let is_met: &[Step] = if plan.asking == Asking::Run { &[] } else { &goes_on };
    let away = |lost: Fate, back: Fate| {
        let leaves = [step(When::At(begin), soon, lost), step(When::Now, plan.absence, back)];
        let returns = [now(When::Noted("is back"), Fate::Nothing)];
        [&leaves[..], &returns, &goes_on].concat()
    };
    match plan.kind {
        Kind::Kill => [&[step(When::At(begin), soon, Fate::Kill(victim))], is_met].concat(),
        Kind::OneAfterAnother => {
            let other = (victim + 1 + random.below(COUNT - 1)) % COUNT;
            let second = match random.below(2) {
                // While there is no token yet after the first.
                0 => step(
                    When::Noted("is lost"),
                    Duration::from_millis(random.below(300) as u64),
                    Fate::Kill(other),
                ),
                _ => step(
                    When::At(begin + (0.9 - begin) * random.below(1000) as f64 / 1000.0),
                    soon,
                    Fate::Kill(other),
                ),
            };
            // The second one may have no part of the model by then.
            vec![step(When::At(begin), soon, Fate::Kill(victim)), second]
        }
        Kind::AgainWhileMoving => {
            let moving = Duration::from_millis(random.below(600) as u64);
            let steps = [
                step(When::At(begin), soon, Fate::Kill(victim)),
                now(When::Noted("is lost"), Fate::Restart(victim)),
                step(When::Noted("is back"), moving, Fate::Kill(victim)),
                now(When::Noted("is lost"), Fate::Nothing),
            ];
            [&steps[..], &goes_on].concat()
        }
        Kind::Freeze => away(Fate::Freeze(victim), Fate::Thaw(victim)),
        Kind::Partition => away(Fate::Cut(victim), Fate::Heal(victim)),
    }
}

/// What is to happen, and to whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    pub(crate) asking: Asking,
    pub(crate) choice: Choice,
    pub(crate) place: Place,
    /// How long a worker is away that comes back.
    pub(crate) absence: Duration,
}

/// What has come of a round.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Losses that were noted.
    pub(crate) losses: usize,
    /// Answers in all.
    pub(crate) answers: usize,
    /// The longest time without a token.
    pub(crate) stall: Stall,
    /// What was not as it should be.
    pub(crate) problems: Vec<String>,
    /// All lines on stderr.
    pub(crate) notes: Vec<String>,
}

/// A stream as it is heard.
#[derive(Clone, Debug, Default)]
struct Stream {
    answer: Vec<u32>,
    /// When its last part came, or when it was asked for.
    last: Option<Instant>,
    is_answering: bool,
}

/// Gives answers that nothing disturbs: by stream, what it says.
pub(crate) fn undisturbed(plan: Plan, setting: &Setting) -> Vec<Vec<u32>> {
    let mut round = Round::begin(plan, setting, Vec::new());
    round.listen(None);
    assert!(round.outcome.problems.is_empty(), "{:?}", round.outcome);
    round.streams.into_iter().map(|stream| stream.answer).collect()
}

/// Plays a round; all its answers must be those that were given undisturbed.
pub(crate) fn play(plan: Plan, setting: &Setting, expected: &[Vec<u32>], seed: u64) -> Outcome {
    let script = script(plan, &mut Random::new(seed));
    let mut round = Round::begin(plan, setting, script);
    round.listen(Some(expected));
    round.outcome
}

struct Round {
    machines: Machines,
    /// Held until the end of the round.
    _client: Client,
    news: Receiver<News>,
    over: Arc<AtomicBool>,
    script: Vec<Step>,
    /// The step that is next.
    next: usize,
    /// When it happens, once what it waits for is there.
    due: Option<Instant>,
    streams: Vec<Stream>,
    /// What the first stream has said in all.
    progress: usize,
    outcome: Outcome,
}

impl Round {
    fn begin(plan: Plan, setting: &Setting, script: Vec<Step>) -> Round {
        let machines = Machines::start(plan.place);
        let over = Arc::new(AtomicBool::new(script.is_empty()));
        let (sender, news) = channel();
        let client = Client::start(plan.asking, plan.choice, setting, &machines.addresses(), &over, &sender);
        Round {
            machines,
            _client: client,
            news,
            over,
            script,
            next: 0,
            due: None,
            streams: vec![Stream::default(); plan.asking.streams()],
            progress: 0,
            outcome: Outcome::default(),
        }
    }

    /// Listens until the script is played and no stream asks for more.
    fn listen(&mut self, expected: Option<&[Vec<u32>]>) {
        let mut quiet_since = Instant::now();
        loop {
            self.arm(None, expected);
            if let Some(due) = self.due.filter(|due| *due <= Instant::now()) {
                self.happen();
                quiet_since = quiet_since.max(due);
                continue;
            }
            let wait = self.due.unwrap_or(quiet_since + PATIENCE).saturating_duration_since(Instant::now());
            match self.news.recv_timeout(wait) {
                Ok((at, heard)) => {
                    quiet_since = at;
                    self.hear(at, heard, expected);
                }
                Err(RecvTimeoutError::Timeout) if self.due.is_some() => {}
                Err(RecvTimeoutError::Timeout) => {
                    return self.problem(format!("nothing happened for {} s", PATIENCE.as_secs()));
                }
                // All streams have ended, and the command's log with them.
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let all_answered =
                self.streams.iter().all(|stream| stream.last.is_some() && !stream.is_answering);
            if self.over.load(Ordering::SeqCst) && all_answered || !self.outcome.problems.is_empty() {
                break;
            }
        }
        if self.next < self.script.len() {
            self.problem(format!("it was over before {:?}", self.script[self.next]));
        }
    }

    /// Sets the time of the next step if what it waits for is there.
    fn arm(&mut self, line: Option<&str>, expected: Option<&[Vec<u32>]>) {
        let Some(step) = self.script.get(self.next).filter(|_| self.due.is_none()) else { return };
        let length = expected.map_or(0, |expected| expected[0].len());
        let is_there = match step.when {
            When::At(part) => self.progress as f64 >= part * length as f64,
            When::Noted(text) => line.is_some_and(|line| line.contains(text)),
            When::Now => true,
        };
        // Not before answers are under way, though perhaps before the first token.
        if is_there && self.streams.iter().all(|stream| stream.last.is_some()) {
            self.due = Some(Instant::now() + step.pause);
        }
    }

    /// Takes the step that is due.
    fn happen(&mut self) {
        self.machines.suffer(self.script[self.next].fate);
        (self.next, self.due) = (self.next + 1, None);
        self.over.store(self.next == self.script.len(), Ordering::SeqCst);
    }

    fn hear(&mut self, at: Instant, heard: Heard, expected: Option<&[Vec<u32>]>) {
        match heard {
            Heard::Asked(number) => {
                self.streams[number] = Stream { answer: Vec::new(), last: Some(at), is_answering: true };
            }
            Heard::Part(number, part) => {
                let stream = &mut self.streams[number];
                let last = stream.last.replace(at).unwrap_or(at);
                stream.answer.extend(&part);
                self.outcome.stall.longest =
                    self.outcome.stall.longest.max(at.saturating_duration_since(last));
                if number == 0 {
                    self.progress += part.len();
                }
            }
            Heard::Ended(number) => {
                let stream = &mut self.streams[number];
                stream.is_answering = false;
                self.outcome.answers += 1;
                let should = expected.map(|expected| &expected[number]);
                if should.is_some_and(|should| *should != stream.answer) {
                    let problem = format!("stream {number} says {:?} instead of {should:?}", stream.answer);
                    self.problem(problem);
                }
            }
            Heard::Noted(line) => {
                self.outcome.losses += usize::from(line.contains("is lost; continuing without it"));
                if let Some(parts) = Parts::read(&line) {
                    self.outcome.stall.add(parts);
                }
                if line.contains("panicked") {
                    self.problem(line.clone());
                }
                self.arm(Some(&line), expected);
                self.outcome.notes.push(line);
            }
            Heard::Failed(why) => self.problem(why),
        }
    }

    fn problem(&mut self, problem: String) {
        self.outcome.problems.push(problem);
    }
}
