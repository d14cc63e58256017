//! What a person says: typed with an editor on a terminal, line by line from anywhere else.
//!
//! Invariant: text that is pasted is one message, whatever it holds. A backslash at the end of a line goes away, and the message
//! goes on, only where return was pressed behind it.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::io::{self, BufRead, Lines, StdinLock};

use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{CompletionType, Config, Context, Editor, Helper};

use super::commands;
use super::history::HistoryFile;
use crate::door::is_harmless;
use crate::failure::Failure;
use crate::limits::{MAX_COMPLETIONS, MAX_HISTORY_ENTRIES};
use crate::os::typing;
use crate::terminal::{Terminal, Tone};

/// What stands before a message.
const PROMPT: &str = "> ";

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// A message or a command.
    Text(String),
    /// Ctrl-C, and whether there was a line that it has cleared.
    Interrupt { cleared: bool },
    /// Ctrl-D, or the end of a file.
    End,
}

/// Where messages come from.
pub(super) enum Input {
    Typed(Box<Typed>),
    Read(Lines<StdinLock<'static>>),
}

impl Input {
    /// With an editor if a person is there, and a history if it shall be kept.
    pub(super) fn new(
        is_interactive: bool,
        keeps_history: bool,
        terminal: Terminal,
    ) -> Result<Input, Failure> {
        match is_interactive {
            true => Ok(Input::Typed(Box::new(Typed::new(keeps_history, terminal)?))),
            false => Ok(Input::Read(io::stdin().lock().lines())),
        }
    }

    /// The next message, begun with `draft` where it can be changed.
    pub(super) fn next(&mut self, draft: &str) -> Result<Said, Failure> {
        match self {
            Input::Typed(typed) => typed.next(draft),
            Input::Read(lines) => read_message(lines),
        }
    }

    /// Whether a person is there.
    pub(super) fn is_interactive(&self) -> bool {
        matches!(self, Input::Typed(_))
    }
}

/// A line, and those that it goes on in.
fn read_message(lines: &mut impl Iterator<Item = io::Result<String>>) -> Result<Said, Failure> {
    let mut message = String::new();
    for line in lines {
        let line = line.map_err(|error| unreadable(&error))?;
        match line.strip_suffix('\\') {
            Some(begun) => {
                message.push_str(begun);
                message.push('\n');
            }
            None => {
                message.push_str(&line);
                return Ok(Said::Text(message));
            }
        }
    }
    Ok(if message.is_empty() { Said::End } else { Said::Text(message) })
}

fn unreadable(error: &dyn std::error::Error) -> Failure {
    Failure::Usage(format!("cannot read the input: {error}"))
}

/// A person at a terminal.
pub(super) struct Typed {
    editor: Editor<Keys, MemHistory>,
    history: Option<HistoryFile>,
}

impl Typed {
    fn new(keeps_history: bool, terminal: Terminal) -> Result<Typed, Failure> {
        let config = Config::builder()
            .max_history_size(MAX_HISTORY_ENTRIES)
            .map_err(|error| unreadable(&error))?
            .history_ignore_space(true)
            .completion_type(CompletionType::List)
            .build();
        let history = HistoryFile::of_user().filter(|_| keeps_history);
        let mut editor = Editor::with_history(config.clone(), MemHistory::with_config(&config))
            .map_err(|error| unreadable(&error))?;
        for entry in history.iter().flat_map(HistoryFile::read) {
            editor.add_history_entry(entry).map_err(|error| unreadable(&error))?;
        }
        editor.set_helper(Some(Keys {
            terminal,
            continued: RefCell::default(),
            has_text: Cell::default(),
            files: FilenameCompleter::new(),
        }));
        Ok(Typed { editor, history })
    }

    fn next(&mut self, draft: &str) -> Result<Said, Failure> {
        if let Some(keys) = self.editor.helper() {
            keys.continued.borrow_mut().clear();
        }
        let typed = self.editor.readline_with_initial(PROMPT, (draft, ""));
        typing::mark_pastes();
        let typed = match typed {
            Ok(typed) => typed,
            Err(ReadlineError::Interrupted) => {
                let cleared = self.editor.helper().is_some_and(|keys| keys.has_text.get());
                return Ok(Said::Interrupt { cleared });
            }
            Err(ReadlineError::Eof) => return Ok(Said::End),
            Err(error) => return Err(unreadable(&error)),
        };
        let continued = self.editor.helper().map(|keys| keys.continued.take()).unwrap_or_default();
        let text = without_backslashes(&typed, &continued);
        if !text.trim().is_empty()
            && self.editor.add_history_entry(text.as_str()).unwrap_or(false)
            && let Some(history) = &self.history
        {
            // What cannot be kept is forgotten with the program.
            let _ = history.add(&text);
        }
        Ok(Said::Text(text))
    }
}

/// Takes away the backslashes that return was pressed behind, which were at these places then.
fn without_backslashes(text: &str, places: &[usize]) -> String {
    let is_one = |(at, letters): &(usize, &str)| places.contains(at) && *letters == "\\\n";
    let mut kept = String::new();
    let mut rest = 0;
    for (at, _) in text.match_indices("\\\n").filter(is_one) {
        kept.push_str(&text[rest..at]);
        rest = at + 1;
    }
    kept + &text[rest..]
}

/// What keys do beyond editing.
struct Keys {
    terminal: Terminal,
    /// Where return was pressed behind a backslash.
    continued: RefCell<Vec<usize>>,
    /// Whether the line is not empty.
    has_text: Cell<bool>,
    files: FilenameCompleter,
}

impl Helper for Keys {}

impl Hinter for Keys {
    type Hint = String;

    /// There are none; but this is called whenever the line changes.
    fn hint(&self, line: &str, _at: usize, _context: &Context<'_>) -> Option<String> {
        self.has_text.set(!line.is_empty());
        None
    }
}

/// What a terminal may show of a text: the editor writes to it by itself, and texts of files and names of files are from outside.
fn harmless(text: &str) -> Cow<'_, str> {
    match text.chars().all(is_harmless) {
        true => text.into(),
        false => text.chars().filter(|c| is_harmless(*c)).collect::<String>().into(),
    }
}

impl Highlighter for Keys {
    fn highlight<'l>(&self, line: &'l str, _at: usize) -> Cow<'l, str> {
        harmless(line)
    }

    fn highlight_candidate<'c>(&self, candidate: &'c str, _kind: CompletionType) -> Cow<'c, str> {
        harmless(candidate)
    }

    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _default: bool) -> Cow<'b, str> {
        self.terminal.paint(prompt, Tone::Bold).into()
    }
}

impl Validator for Keys {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        match context.input().strip_suffix('\\') {
            Some(before) => {
                self.continued.borrow_mut().push(before.len());
                Ok(ValidationResult::Incomplete)
            }
            None => Ok(ValidationResult::Valid(None)),
        }
    }
}

impl Completer for Keys {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        at: usize,
        context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let typed = line.get(..at).unwrap_or(line);
        match typed.split_once(' ') {
            Some((command, _)) if commands::takes_file(command) => {
                let (start, mut fits) = self.files.complete(line, at, context)?;
                fits.truncate(MAX_COMPLETIONS);
                Ok((start, fits))
            }
            None if typed.starts_with('/') => {
                let fits = commands::names().filter(|name| name.starts_with(typed));
                let pair = |name: &str| Pair { display: name.to_owned(), replacement: format!("{name} ") };
                Ok((0, fits.map(pair).collect()))
            }
            _ => Ok((at, Vec::new())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_editor_shows_text_alone() {
        assert_eq!(harmless("a\tb\n\u{e9}"), "a\tb\n\u{e9}");
        assert_eq!(harmless("a\x1b]0;t\x07\u{9b}2J\r\u{202e}b"), "a]0;t2Jb");
    }

    #[test]
    fn only_backslashes_of_return_go_away() {
        assert_eq!(without_backslashes("one\\\ntwo\\\nthree", &[3]), "one\ntwo\\\nthree");
        assert_eq!(without_backslashes("one\\\ntwo", &[3]), "one\ntwo");
        assert_eq!(without_backslashes("cc -o a \\\n  b.c", &[]), "cc -o a \\\n  b.c");
        assert_eq!(without_backslashes("moved", &[2]), "moved");
    }

    #[test]
    fn lines_go_on_behind_a_backslash() {
        let mut lines = ["one\\", "two", "three"].into_iter().map(|line| Ok(line.to_owned()));
        assert_eq!(read_message(&mut lines).unwrap(), Said::Text("one\ntwo".into()));
        assert_eq!(read_message(&mut lines).unwrap(), Said::Text("three".into()));
        assert_eq!(read_message(&mut lines).unwrap(), Said::End);
    }
}
