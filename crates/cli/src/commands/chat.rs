//! `oxcart chat`: a conversation, line by line.

use std::io::{self, BufRead, IsTerminal, Write};

use oxcart::llm::model::AtLimit;
use oxcart::llm::text::Message;

use crate::conversation;
use crate::engine::{Engine, EngineArgs, Opened};
use crate::failure::Failure;
use crate::generation::{Request, SamplerArgs, generate};
use crate::terminal::{Terminal, Tone};

/// Talk with a model
///
/// Type a message and press return. What was said before is remembered; only what is new is computed. A line that ends with
/// a backslash goes on in the next one.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    engine: EngineArgs,

    #[command(flatten)]
    sampler: SamplerArgs,

    /// Tokens of an answer at most
    #[arg(short, long, value_name = "N", default_value_t = 1024)]
    n: usize,

    /// Tell the model beforehand what it is
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
}

const HELP: &str = "Commands:
  /help            what there is
  /clear           forget the conversation
  /undo            take the last message and its answer back
  /retry           answer the last message again
  /system TEXT     tell the model what it is, from now on
  /history         show what was said
  /speed           how fast the last answer was
  /exit            leave; so does the end of input (Ctrl-D)";

pub(crate) fn run(args: &Args, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    let Opened::Ready(engine) = Engine::open(&args.engine, terminal, out, false)? else { return Ok(()) };
    let mut chat = Chat {
        template: conversation::template(&engine)?,
        context: engine.context(AtLimit::Refuse)?,
        sampler: args.sampler.sampler(&engine.vocab)?,
        known: Vec::new(),
        messages: Vec::new(),
        system: args.system.clone(),
        limit: args.n,
        speed: None,
        engine: &engine,
    };
    let interactive = io::stdin().is_terminal();
    if interactive {
        writeln!(out, "{}", terminal.paint("/help says what there is, /exit leaves", Tone::Dim))?;
    }
    let mut lines = io::stdin().lock().lines();
    loop {
        if interactive {
            write!(out, "{}", terminal.paint("> ", Tone::Bold))?;
            out.flush()?;
        }
        let Some(line) = read_message(&mut lines)? else { break };
        match line.trim() {
            "" => {}
            "/exit" | "/quit" | "/bye" => return Ok(()),
            command if command.starts_with('/') => chat.command(command, out)?,
            _ => chat.say(line, out)?,
        }
    }
    if interactive {
        writeln!(out)?;
    }
    Ok(())
}

/// A line, and those that it goes on in.
fn read_message(lines: &mut impl Iterator<Item = io::Result<String>>) -> Result<Option<String>, Failure> {
    let mut message = String::new();
    for line in lines {
        let line = line.map_err(|error| Failure::Usage(format!("the input cannot be read: {error}")))?;
        match line.strip_suffix('\\') {
            Some(begun) => {
                message.push_str(begun);
                message.push('\n');
            }
            None => {
                message.push_str(&line);
                return Ok(Some(message));
            }
        }
    }
    Ok((!message.is_empty()).then_some(message))
}

struct Chat<'e> {
    engine: &'e Engine,
    template: oxcart::llm::text::ChatTemplate,
    context: oxcart::llm::model::Context,
    sampler: oxcart::llm::text::Sampler,
    /// Tokens that the context has seen.
    known: Vec<u32>,
    messages: Vec<Message>,
    system: Option<String>,
    limit: usize,
    speed: Option<String>,
}

impl Chat<'_> {
    fn command(&mut self, command: &str, out: &mut dyn Write) -> Result<(), Failure> {
        let (name, rest) = command.split_once(' ').unwrap_or((command, ""));
        match name {
            "/help" => writeln!(out, "{HELP}")?,
            "/clear" => self.messages.clear(),
            "/undo" => {
                self.take_back();
            }
            "/retry" => match self.take_back() {
                Some(message) => self.say(message, out)?,
                None => writeln!(out, "nothing was said yet")?,
            },
            "/system" => {
                self.system = (!rest.trim().is_empty()).then(|| rest.trim().to_owned());
            }
            "/history" => {
                for message in &self.messages {
                    writeln!(out, "{}: {}", message.role, message.content)?;
                }
            }
            "/speed" => writeln!(out, "{}", self.speed.as_deref().unwrap_or("nothing was said yet"))?,
            _ => writeln!(out, "there is no {name}; /help says what there is")?,
        }
        Ok(())
    }

    /// Forgets the last message and its answer.
    fn take_back(&mut self) -> Option<String> {
        let at = self.messages.iter().rposition(|message| message.role == "user")?;
        let message = self.messages[at].content.clone();
        self.messages.truncate(at);
        Some(message)
    }

    /// Says something and shows the answer.
    fn say(&mut self, text: String, out: &mut dyn Write) -> Result<(), Failure> {
        self.messages.push(Message::new("user", text));
        let mut all = Vec::new();
        all.extend(self.system.as_ref().map(|system| Message::new("system", system)));
        all.extend(self.messages.iter().cloned());
        let prompt = conversation::prompt(self.engine, &self.template, &all)?;
        let new = self.rewind(&prompt)?;
        if prompt.len() >= self.context.limit() {
            self.messages.pop();
            writeln!(
                out,
                "the conversation no longer fits into the context; /clear starts anew, --ctx makes it larger"
            )?;
            return Ok(());
        }
        let request = Request {
            prompt: &prompt[new..],
            limit: self.limit,
            stop: &[],
            ignore_end: false,
            shifts: false,
        };
        let made = generate(self.engine, &mut self.context, &mut self.sampler, &request, |text| {
            out.write_all(text.as_bytes())?;
            Ok(out.flush()?)
        })?;
        writeln!(out)?;
        self.known.truncate(new);
        self.known.extend(&prompt[new..]);
        // The last token was chosen, but not computed yet.
        self.known.extend(made.tokens.iter().take(self.context.position() - prompt.len()));
        self.messages.push(Message::new("assistant", made.text.trim()));
        self.speed = Some(format!(
            "new {}; {} of {} tokens in the context",
            made.speed.summary(made.tokens.len()),
            self.context.position(),
            self.context.limit(),
        ));
        Ok(())
    }

    /// Brings the context back to where it agrees with a prompt; returns how much of the prompt it has.
    fn rewind(&mut self, prompt: &[u32]) -> Result<usize, Failure> {
        let same = self.known.iter().zip(prompt).take_while(|(known, token)| known == token).count();
        // At least one token has to be computed, or there is nothing to go on from.
        let mut keep = same.min(prompt.len().saturating_sub(1));
        if keep < self.context.position() && self.context.truncate(keep).is_err() {
            // Windows may have moved on; then all of it is computed again.
            self.context.reset();
            keep = 0;
        }
        self.known.truncate(keep);
        Ok(keep)
    }
}
