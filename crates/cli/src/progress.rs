//! How far long work has come, on stderr: a bar that is drawn over and over on a terminal, a line now and then elsewhere.

use std::env;
use std::io::{self, IsTerminal, Write};
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

#[cfg(test)]
mod tests {
    use super::*;

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
