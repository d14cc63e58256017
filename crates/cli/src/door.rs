//! The one door for what this program prints: nothing from outside can talk to the terminal.
//!
//! Generated text, names in model files and what servers say may hold any characters. On their way to a terminal, those that
//! make it do something (control characters, other than ends of lines and tabs) or show text in another order than it has are
//! spelled out. Results that go to a file or another program are left as they are; messages on stderr are for people and
//! always guarded.
//!
//! Invariant: of control sequences only our own three for bold, dim and neither get through, which do no harm. No other file
//! writes to stdout or stderr, but for bars (`progress`), the log of a worker, the editor of a chat (`input`) and the live picture of
//! `top` (by ratatui), which guard what they show themselves.

use std::io::{self, IsTerminal, Stderr, StdoutLock, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// What `Terminal` writes.
const OWN: [&str; 3] = ["\x1b[0m", "\x1b[1m", "\x1b[2m"];

/// Whether the terminal that stdout goes to is in the middle of a line.
static IS_IN_LINE: AtomicBool = AtomicBool::new(false);

/// A guarded way to somewhere.
#[derive(Debug)]
pub(crate) struct Door<W> {
    to: W,
    is_guarded: bool,
    /// Told whether a terminal is in the middle of a line.
    is_in_line: Option<&'static AtomicBool>,
    /// The beginning of a character, or of a sequence of our own, whose end has not come yet.
    pending: Vec<u8>,
}

/// The way to stdout.
pub(crate) fn stdout() -> Door<StdoutLock<'static>> {
    let to = io::stdout().lock();
    Door { is_guarded: to.is_terminal(), to, is_in_line: Some(&IS_IN_LINE), pending: Vec::new() }
}

/// The way to stderr.
pub(crate) fn stderr() -> Door<Stderr> {
    Door { to: io::stderr(), is_guarded: true, is_in_line: None, pending: Vec::new() }
}

/// A note on stderr: a line of its own, also in the midst of an answer on the same terminal.
pub(crate) fn note(line: &str) -> io::Result<()> {
    let begins = io::stderr().is_terminal() && IS_IN_LINE.swap(false, Ordering::Relaxed);
    writeln!(stderr(), "{}{line}", if begins { "\n" } else { "" })
}

/// Whether what is shown ends in the middle of a line, if anything is shown.
fn ends_in_line(mut shown: &[u8]) -> Option<bool> {
    while let Some(rest) = OWN.iter().find_map(|own| shown.strip_suffix(own.as_bytes())) {
        shown = rest;
    }
    shown.last().map(|&byte| byte != b'\n')
}

/// A text as a terminal may show it.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = Vec::new();
    guard(text.as_bytes(), true, &mut shown);
    String::from_utf8_lossy(&shown).into_owned()
}

/// Whether a terminal shows a character, and nothing more.
pub(crate) fn is_harmless(c: char) -> bool {
    let reorders = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    matches!(c, '\n' | '\t') || !(c.is_control() || reorders)
}

/// Guards some bytes; gives how many of them were used. The others need what comes next, unless there is no more.
fn guard(bytes: &[u8], is_last: bool, out: &mut Vec<u8>) -> usize {
    let mut used = 0;
    for chunk in bytes.utf8_chunks() {
        let valid = chunk.valid();
        let mut rest = valid;
        while let Some(c) = rest.chars().next() {
            let is_cut = |own: &&str| !is_last && own.starts_with(rest) && chunk.invalid().is_empty();
            let taken = if let Some(own) = OWN.iter().find(|own| rest.starts_with(**own)) {
                out.extend_from_slice(own.as_bytes());
                own.len()
            } else if OWN.iter().any(is_cut) {
                return used;
            } else if is_harmless(c) {
                out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                c.len_utf8()
            } else {
                out.extend(c.escape_debug().to_string().bytes());
                c.len_utf8()
            };
            used += taken;
            rest = &rest[taken..];
        }
        let invalid = chunk.invalid();
        let is_end = used + invalid.len() == bytes.len();
        let is_begun = std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
        if is_end && is_begun && !is_last {
            return used;
        }
        for byte in invalid {
            out.extend(format!("\\x{byte:02x}").bytes());
        }
        used += invalid.len();
    }
    used
}

impl<W: Write> Door<W> {
    fn pass(&mut self, is_last: bool) -> io::Result<()> {
        let mut out = Vec::with_capacity(self.pending.len());
        let used = guard(&self.pending, is_last, &mut out);
        self.pending.drain(..used);
        if let (Some(told), Some(is_in_line)) = (self.is_in_line, ends_in_line(&out)) {
            told.store(is_in_line, Ordering::Relaxed);
        }
        self.to.write_all(&out)
    }
}

impl<W: Write> Write for Door<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_guarded {
            return self.to.write(bytes);
        }
        self.pending.extend_from_slice(bytes);
        self.pass(false)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.pass(true)?;
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pieces: &[&[u8]]) -> String {
        let mut door = Door { to: Vec::new(), is_guarded: true, is_in_line: None, pending: Vec::new() };
        for piece in pieces {
            door.write_all(piece).unwrap();
        }
        door.flush().unwrap();
        String::from_utf8(door.to).unwrap()
    }

    #[test]
    fn nothing_but_text_gets_through() {
        assert_eq!(visible("a\tb\nc é 👩‍👩‍👧 فارسی‌ها"), "a\tb\nc é 👩‍👩‍👧 فارسی‌ها");
        assert_eq!(
            visible("\x1b]0;title\x07\x1b[2J\r\u{9b}31m\u{202e}\x08\\"),
            "\\u{1b}]0;title\\u{7}\\u{1b}[2J\\r\\u{9b}31m\\u{202e}\\u{8}\\"
        );
        let all: String = (0..=0x2_0000).filter_map(char::from_u32).collect();
        let seen = visible(&all);
        assert!(seen.chars().all(is_harmless));
        assert!(visible("\x1b[1mbold\x1b[0m").contains("\x1b[1mbold"), "our own");
    }

    #[test]
    fn the_middle_of_a_line_is_known() {
        static IS_IN_LINE: AtomicBool = AtomicBool::new(false);
        let mut door =
            Door { to: Vec::new(), is_guarded: true, is_in_line: Some(&IS_IN_LINE), pending: Vec::new() };
        for (piece, is_in_line) in [
            ("an", true),
            ("\x1b[2m", true),
            ("swer\n", false),
            ("\x1b[0m", false),
            ("\x1b[1mb\n\x1b[0m", false),
        ] {
            door.write_all(piece.as_bytes()).unwrap();
            door.flush().unwrap();
            assert_eq!(IS_IN_LINE.load(Ordering::Relaxed), is_in_line, "{piece:?}");
        }
    }

    #[test]
    fn pieces_are_put_together() {
        let text = "\x1b[1mé👩\x1b[2J\x1b[0m\n".as_bytes();
        let whole = shown(&[text]);
        assert_eq!(whole, "\x1b[1mé👩\\u{1b}[2J\x1b[0m\n");
        for at in 0..text.len() {
            assert_eq!(shown(&[&text[..at], &text[at..]]), whole, "cut at {at}");
        }
        assert_eq!(shown(&[b"a\xff\xe2\x82"]), "a\\xff\\xe2\\x82");
        assert_eq!(shown(&[b"\x1b["]), "\\u{1b}[");
    }

    #[test]
    fn what_is_no_terminal_gets_the_very_bytes() {
        let mut door = Door { to: Vec::new(), is_guarded: false, is_in_line: None, pending: Vec::new() };
        door.write_all(b"\x1b[2J\xff").unwrap();
        door.flush().unwrap();
        assert_eq!(door.to, b"\x1b[2J\xff");
    }

    /// The search that finds another way out.
    #[test]
    fn no_other_file_prints() {
        let (mut folders, mut found) =
            (vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))], vec![]);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                // The last one switches marks of pastes on and off, and writes nothing else.
                let own = ["door.rs", "progress.rs", "log.rs", "typing/unix.rs"];
                let own = own.iter().any(|name| path.ends_with(name));
                let source = std::fs::read_to_string(&path).unwrap();
                let prints = ["stdout()", "stderr()", "println!", "print!("].iter().any(|call| {
                    source.lines().any(|line| {
                        line.contains(call) && !line.contains("is_terminal") && !line.contains("door::")
                    })
                });
                if prints && !own {
                    found.push(path);
                }
            }
        }
        assert!(found.is_empty(), "{found:?}");
    }
}
