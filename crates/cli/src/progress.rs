//! How far long work has come, on stderr: a bar that is drawn over and over on a terminal, a line now and then elsewhere.

use std::env;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::door::visible;
use crate::os;
use crate::quantity;

/// How often a bar is drawn.
const DRAW: Duration = Duration::from_millis(100);
/// How often a line is written where bars cannot be drawn.
const TELL: Duration = Duration::from_secs(10);
/// Characters of a bar.
const WIDTH: u64 = 24;

/// How far one piece of work has come.
#[derive(Debug)]
pub(crate) struct Progress {
    what: String,
    start: Instant,
    shown: Option<Instant>,
    is_drawn: bool,
    /// Whether nothing but warnings is wanted.
    is_quiet: bool,
    done: u64,
    total: Option<u64>,
    show: fn(u64) -> String,
}

impl Progress {
    /// Of work that is counted in bytes.
    pub(crate) fn new(what: impl Into<String>) -> Progress {
        Progress::shown_as(what, quantity::bytes)
    }

    /// Of work that is counted in things.
    pub(crate) fn counting(what: impl Into<String>) -> Progress {
        Progress::shown_as(what, quantity::count)
    }

    fn shown_as(what: impl Into<String>, show: fn(u64) -> String) -> Progress {
        let dumb = env::var_os("TERM").is_some_and(|value| value == "dumb");
        Progress {
            what: what.into(),
            start: Instant::now(),
            shown: None,
            is_drawn: io::stderr().is_terminal() && !dumb && os::has_escape_sequences(),
            is_quiet: !tracing::enabled!(tracing::Level::INFO),
            done: 0,
            total: None,
            show,
        }
    }

    /// Notes how far it has come, and shows it if it is time.
    pub(crate) fn set(&mut self, done: u64, total: Option<u64>) {
        (self.done, self.total) = (done, total);
        let wait = if self.is_drawn { DRAW } else { TELL };
        if self.is_quiet || self.shown.unwrap_or(self.start).elapsed() < wait {
            return;
        }
        self.shown = Some(Instant::now());
        let line = visible(&self.line(self.start.elapsed()));
        // Progress that cannot be printed is not an error.
        let _ = match self.is_drawn {
            true => write!(io::stderr(), "\r\x1b[K{line}"),
            false => writeln!(io::stderr(), "{line}"),
        };
    }

    /// Takes the bar away.
    pub(crate) fn finish(self) {
        if self.is_drawn && self.shown.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    /// `smollm2 [#######-----] 60 %  56.3 of 93.8 MiB  12.1 MiB/s`
    fn line(&self, elapsed: Duration) -> String {
        let rate = (self.show)((self.done as f64 / elapsed.as_secs_f64().max(1e-3)) as u64);
        let Some(total) = self.total.filter(|total| *total > 0) else {
            return format!("{}  {}  {}/s", self.what, (self.show)(self.done).trim_end(), rate.trim_end());
        };
        let done = self.done.min(total);
        let part = |of: u64| (u128::from(done) * u128::from(of) / u128::from(total)) as usize;
        let bar = "#".repeat(part(WIDTH)) + &"-".repeat(WIDTH as usize - part(WIDTH));
        format!(
            "{} [{bar}] {:>3} %  {} of {}  {}/s",
            self.what,
            part(100),
            (self.show)(done).trim_end(),
            (self.show)(total).trim_end(),
            rate.trim_end()
        )
    }
}

/// Progress of work that is done in large pieces of which nothing is heard before they are done: in between, it is as far as it should be at
/// the pace of earlier pieces.
#[derive(Debug)]
pub(crate) struct Paced {
    /// None after its end.
    pace: Arc<Mutex<Option<Pace>>>,
}

#[derive(Debug)]
struct Pace {
    progress: Progress,
    done: u64,
    total: u64,
    /// What is being done, and since when.
    piece: u64,
    since: Instant,
    /// How much is done in a second, as far as that is known.
    rate: f64,
}

impl Pace {
    /// How far it should be by now.
    fn reached(&self, now: Instant) -> u64 {
        let begun = (now.saturating_duration_since(self.since).as_secs_f64() * self.rate) as u64;
        self.done + begun.min(self.piece)
    }

    fn show(&mut self) {
        let reached = self.reached(Instant::now());
        self.progress.set(reached, Some(self.total));
    }
}

impl Paced {
    /// Begins to show work of so many things.
    pub(crate) fn begin(progress: Progress, total: u64) -> Paced {
        let pace = Pace { progress, done: 0, total, piece: 0, since: Instant::now(), rate: 0.0 };
        let pace = Arc::new(Mutex::new(Some(pace)));
        let shown = Arc::downgrade(&pace);
        let show = move || {
            loop {
                thread::sleep(DRAW);
                let Some(shown) = shown.upgrade() else { return };
                match &mut *shown.lock().unwrap_or_else(PoisonError::into_inner) {
                    Some(pace) => pace.show(),
                    None => return,
                }
            }
        };
        // Without a thread it moves after each piece.
        let _ = thread::Builder::new().name("progress".into()).spawn(show);
        Paced { pace }
    }

    fn pace(&self) -> MutexGuard<'_, Option<Pace>> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A piece is being done, of work of which so much is done in a second; zero if that is not known yet.
    pub(crate) fn expect(&self, piece: u64, rate: f64) {
        if let Some(pace) = &mut *self.pace() {
            (pace.piece, pace.rate, pace.since) = (piece, rate, Instant::now());
        }
    }

    /// So much more is done.
    pub(crate) fn add(&self, done: u64) {
        if let Some(pace) = &mut *self.pace() {
            (pace.done, pace.piece) = (pace.done + done, 0);
            pace.show();
        }
    }
}

impl Drop for Paced {
    fn drop(&mut self) {
        if let Some(pace) = self.pace().take() {
            pace.progress.finish();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_as_far_as_it_should_be() {
        let since = Instant::now();
        let progress = Progress::counting("tokens");
        let mut pace = Pace { progress, done: 100, total: 1000, piece: 50, since, rate: 0.0 };
        let reached = |pace: &Pace, seconds| pace.reached(since + Duration::from_secs(seconds));
        assert_eq!(reached(&pace, 7), 100, "at no known pace");
        pace.rate = 10.0;
        assert_eq!((reached(&pace, 0), reached(&pace, 3)), (100, 130));
        assert_eq!(reached(&pace, 60), 150, "no further than its end");
    }

    #[test]
    fn a_line_says_it_all() {
        let mut progress = Progress::new("model");
        (progress.done, progress.total) = (3 << 20, Some(4 << 20));
        let line = progress.line(Duration::from_secs(3));
        assert_eq!(line, "model [##################------]  75 %  3.0 MiB of 4.0 MiB  1.0 MiB/s");
        progress.total = None;
        assert_eq!(progress.line(Duration::from_secs(3)), "model  3.0 MiB  1.0 MiB/s");
    }
}
