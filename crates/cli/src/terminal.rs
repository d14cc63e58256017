//! What the output may look like: colour on a terminal, plain text anywhere else.

use std::env;
use std::io::{self, IsTerminal};

use crate::os;

/// How text stands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Bold,
    Dim,
    /// A number and, after the last space, a unit that is dimmed.
    Quantity,
}

/// What stdout can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terminal {
    pub(crate) colour: bool,
}

impl Terminal {
    /// Colour if stdout is a terminal that can show it and `NO_COLOR` is not set.
    pub(crate) fn from_env() -> Terminal {
        let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = env::var_os("TERM").is_some_and(|value| value == "dumb");
        Terminal { colour: io::stdout().is_terminal() && !refused && !dumb && os::has_escape_sequences() }
    }

    /// Columns of the terminal that stdout is, as wide as it is now; none if it is something else.
    pub(crate) fn width() -> Option<usize> {
        let size = io::stdout().is_terminal().then(terminal_size::terminal_size).flatten();
        size.map(|(width, _)| usize::from(width.0)).filter(|width| *width > 0)
    }

    /// The same of stderr, where notes and errors go.
    pub(crate) fn width_for_notes() -> Option<usize> {
        let size =
            io::stderr().is_terminal().then(|| terminal_size::terminal_size_of(io::stderr())).flatten();
        size.map(|(width, _)| usize::from(width.0)).filter(|width| *width > 0)
    }

    /// `text` in `tone`.
    pub(crate) fn paint(self, text: &str, tone: Tone) -> String {
        match tone {
            _ if !self.colour || text.is_empty() => text.to_owned(),
            Tone::Plain => text.to_owned(),
            Tone::Bold => format!("\x1b[1m{text}\x1b[0m"),
            Tone::Dim => format!("\x1b[2m{text}\x1b[0m"),
            Tone::Quantity => match text.trim_end().rfind(' ') {
                Some(at) => format!("{}\x1b[2m{}\x1b[0m", &text[..at], &text[at..]),
                None => text.to_owned(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_only_where_wanted() {
        let (plain, colour) = (Terminal { colour: false }, Terminal { colour: true });
        assert_eq!(plain.paint("x", Tone::Bold), "x");
        assert_eq!(colour.paint("x", Tone::Bold), "\x1b[1mx\x1b[0m");
        assert_eq!(colour.paint("1.5 MiB", Tone::Quantity), "1.5\x1b[2m MiB\x1b[0m");
        assert_eq!(colour.paint("15", Tone::Quantity), "15");
    }
}
