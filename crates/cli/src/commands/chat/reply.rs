//! An answer on the screen: broken at words, marks shown as what they mean, reasoning dim or folded.
//!
//! Invariant: a file or another program gets the text as it is, without reasoning; only a terminal gets looks.

use std::io::{self, Write};

use oxcart::llm::text::{Answer, AnswerEvent, AnswerParser};

use super::markdown::{Look, Markdown};
use crate::quantity::counted;
use crate::terminal::Terminal;
use crate::wrap::{Wrap, wrapped};

/// What is shown of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Style {
    pub(super) terminal: Terminal,
    /// Marks are shown as what they mean.
    pub(super) markdown: bool,
    /// Reasoning is shown.
    pub(super) reasoning: bool,
    /// Stdout is a terminal.
    pub(super) wraps: bool,
}

impl Style {
    /// How wide the window is now, where there is one.
    pub(super) fn width(&self) -> Option<usize> {
        if self.wraps { Terminal::width() } else { None }
    }

    /// A text as wide as the window.
    pub(super) fn wrapped(&self, text: &str) -> String {
        wrapped(text, self.width())
    }
}

/// What the text is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Nothing,
    Reasoning,
    Text,
}

/// One answer, as it comes.
#[derive(Debug)]
pub(super) struct Reply {
    style: Style,
    parser: AnswerParser,
    /// All of it so far.
    pub(super) answer: Answer,
    part: Part,
    wrap: Wrap,
    markdown: Markdown,
    look: Look,
    /// How wide the window is now.
    width: fn() -> Option<usize>,
}

impl Reply {
    pub(super) fn new(style: Style, parser: AnswerParser) -> Reply {
        Reply {
            style,
            parser,
            answer: Answer::default(),
            part: Part::Nothing,
            wrap: Wrap::default(),
            markdown: Markdown::default(),
            look: Look::default(),
            width: Terminal::width,
        }
    }

    /// More of it.
    pub(super) fn push(&mut self, text: &str, out: &mut dyn Write) -> io::Result<()> {
        let events = self.parser.push(text);
        self.show(&events, out)?;
        out.flush()
    }

    /// Its end, after which the cursor is at the beginning of a line.
    pub(super) fn finish(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let events = self.parser.finish();
        self.show(&events, out)?;
        match self.part {
            // An answer without a word is an empty line.
            Part::Nothing => out.write_all(b"\n")?,
            _ => self.begin(Part::Nothing, out)?,
        }
        out.flush()
    }

    fn show(&mut self, events: &[AnswerEvent], out: &mut dyn Write) -> io::Result<()> {
        // A window may be made wider or narrower at any time.
        self.wrap.set_width(if self.style.wraps { (self.width)() } else { None });
        for event in events {
            self.answer.add(event);
            match event {
                AnswerEvent::Reasoning(text) if self.style.wraps => {
                    self.begin(Part::Reasoning, out)?;
                    if self.style.reasoning {
                        self.put(text, Look { dim: true, ..Look::default() }, out)?;
                    }
                }
                AnswerEvent::Text(text) => {
                    self.begin(Part::Text, out)?;
                    self.put_text(text, out)?;
                }
                // No tools are offered, so there are no calls.
                _ => {}
            }
        }
        Ok(())
    }

    /// Ends one part and begins another.
    fn begin(&mut self, part: Part, out: &mut dyn Write) -> io::Result<()> {
        if self.part == part {
            return Ok(());
        }
        match self.part {
            Part::Nothing => {}
            Part::Reasoning if self.style.reasoning => self.end_line(out)?,
            Part::Reasoning => {
                let words = self.answer.reasoning.split_whitespace().count();
                let them = if words == 1 { "it" } else { "them" };
                let line = format!(" {}; /think shows {them}", counted(words, "word"));
                self.put(&line, Look { dim: true, ..Look::default() }, out)?;
                self.end_line(out)?;
            }
            Part::Text => {
                self.finish_markdown(out)?;
                self.end_line(out)?;
            }
        }
        if part == Part::Reasoning && !self.style.reasoning {
            self.put("thinking…", Look { dim: true, ..Look::default() }, out)?;
            self.wrap.end_word(out)?;
        }
        if part == Part::Text && self.part == Part::Reasoning {
            out.write_all(b"\n")?;
        }
        self.part = part;
        Ok(())
    }

    fn put_text(&mut self, text: &str, out: &mut dyn Write) -> io::Result<()> {
        if !self.style.markdown {
            return self.put(text, Look::default(), out);
        }
        let mut markdown = std::mem::take(&mut self.markdown);
        let mut shown = Ok(());
        markdown.push(text, &mut |text, look| {
            if shown.is_ok() {
                shown = self.put(text, look, out);
            }
        });
        self.markdown = markdown;
        shown
    }

    fn finish_markdown(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let mut markdown = std::mem::take(&mut self.markdown);
        let mut shown = Ok(());
        markdown.finish(&mut |text, look| {
            if shown.is_ok() {
                shown = self.put(text, look, out);
            }
        });
        shown
    }

    /// Text that looks like this.
    fn put(&mut self, text: &str, look: Look, out: &mut dyn Write) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.turn(look);
        match look.verbatim {
            true => {
                self.wrap.end_word(out)?;
                let width = if self.style.wraps { (self.width)() } else { None };
                self.wrap.set_width(None);
                self.wrap.push(text, out)?;
                self.wrap.end_word(out)?;
                self.wrap.set_width(width);
                Ok(())
            }
            false => self.wrap.push(text, out),
        }
    }

    fn turn(&mut self, look: Look) {
        if self.style.terminal.colour && (look.bold, look.dim) != (self.look.bold, self.look.dim) {
            if self.look.bold || self.look.dim {
                self.wrap.style("\x1b[0m");
            }
            if look.bold {
                self.wrap.style("\x1b[1m");
            }
            if look.dim {
                self.wrap.style("\x1b[2m");
            }
        }
        self.look = look;
    }

    fn end_line(&mut self, out: &mut dyn Write) -> io::Result<()> {
        self.turn(Look::default());
        self.wrap.end_word(out)?;
        if !self.wrap.is_at_start() {
            self.wrap.push("\n", out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use oxcart::gguf::{Builder, Header};
    use oxcart::llm::text::{ChatFormat, ChatTemplate, Vocab};

    use super::*;

    fn parser(prompt: &str) -> AnswerParser {
        let (mut file, mut builder) = (Vec::new(), Builder::new());
        builder
            .set("tokenizer.ggml.model", "gpt2")
            .set("tokenizer.ggml.tokens", ["a", "</s>"])
            .set("tokenizer.ggml.merges", ["a a"]);
        builder.write(&mut file).unwrap();
        let vocab = Vocab::from_gguf(&Header::parse(&file).unwrap().metadata()).unwrap();
        let template = ChatTemplate::new("<think></think>").unwrap();
        ChatFormat::detect(&template, &vocab).parser(prompt, &[])
    }

    fn shown(style: Style, pieces: &[&str]) -> (String, Answer) {
        let (mut reply, mut out) = (Reply::new(style, parser("assistant:")), Vec::new());
        reply.width = || Some(80);
        for piece in pieces {
            reply.push(piece, &mut out).unwrap();
        }
        reply.finish(&mut out).unwrap();
        (String::from_utf8(out).unwrap(), reply.answer)
    }

    const SCREEN: Style =
        Style { terminal: Terminal { colour: true }, markdown: true, reasoning: true, wraps: true };

    #[test]
    fn reasoning_is_dim_or_folded() {
        let pieces = ["<thi", "nk>let me see</think>", "It is **so**."];
        let (text, answer) = shown(SCREEN, &pieces);
        assert_eq!(text, "\x1b[2mlet me see\x1b[0m\n\nIt is \x1b[1mso\x1b[0m.\n");
        assert_eq!((answer.reasoning.as_str(), answer.text.as_str()), ("let me see", "It is **so**."));
        let (text, _) = shown(Style { reasoning: false, ..SCREEN }, &pieces);
        assert_eq!(text, "\x1b[2mthinking… 3 words; /think shows them\x1b[0m\n\nIt is \x1b[1mso\x1b[0m.\n");
        let (text, _) = shown(Style { reasoning: false, ..SCREEN }, &["<think>so</think>yes"]);
        assert!(text.contains("thinking… 1 word; /think shows it"), "{text}");
    }

    #[test]
    fn files_get_the_text_as_it_is() {
        let plain =
            Style { terminal: Terminal { colour: false }, markdown: false, reasoning: true, wraps: false };
        let (text, _) = shown(plain, &["<think>let me see</think>It is **so**."]);
        assert_eq!(text, "It is **so**.\n");
        assert_eq!(shown(plain, &[]).0, "\n");
    }
}
