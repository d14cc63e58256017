//! `oxcart chat`: a conversation, line by line.

use std::io::{self, BufRead, IsTerminal, Write};

use oxcart::llm::engine::{Engine, Request};
use oxcart::llm::text::{ChatTemplate, Constraint, Message, SamplerSettings};

use crate::conversation;
use crate::failure::Failure;
use crate::form::FormArgs;
use crate::generation::{SamplerArgs, answer, summary};
use crate::loaded::{EngineArgs, Loaded, Opened};
use crate::speculation::SpeculationArgs;
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

    #[command(flatten)]
    form: FormArgs,

    #[command(flatten)]
    speculation: SpeculationArgs,

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
    if args.form.reads_stdin() {
        return Err(Failure::Usage("messages come from stdin; give --json-schema a file".into()));
    }
    let form = args.form.read()?;
    let Opened::Ready(loaded) = Loaded::open(&args.engine, terminal, out, false)? else { return Ok(()) };
    let mut engine = loaded.engine()?;
    args.speculation.apply(&mut engine, &args.engine, terminal, out)?;
    let mut chat = Chat {
        template: conversation::template(&loaded)?,
        constraint: form.map(|form| form.compile(&mut engine)).transpose()?,
        engine,
        sampler: args.sampler.settings(&loaded.vocab),
        messages: Vec::new(),
        system: args.system.clone(),
        limit: args.n,
        speed: None,
        loaded: &loaded,
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

struct Chat<'l> {
    loaded: &'l Loaded,
    template: ChatTemplate,
    engine: Engine,
    sampler: SamplerSettings,
    /// At the beginning of an answer.
    constraint: Option<Constraint>,
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
        let prompt = conversation::prompt(self.loaded, &self.template, &all)?;
        let (known, limit) = (prompt.len(), self.engine.runner().options().context);
        if known >= limit {
            self.messages.pop();
            writeln!(
                out,
                "the conversation no longer fits into the context; /clear starts anew, --ctx makes it larger"
            )?;
            return Ok(());
        }
        // What was computed for the messages before is still held, and used.
        let request = Request {
            sampler: self.sampler.clone(),
            constraint: self.constraint.clone(),
            limit: self.limit,
            ..Request::new(prompt)
        };
        let answered = answer(self.loaded, &mut self.engine, request, |text| {
            out.write_all(text.as_bytes())?;
            Ok(out.flush()?)
        })?;
        writeln!(out)?;
        self.messages.push(Message::new("assistant", answered.text.trim()));
        let report = &answered.report;
        self.speed = Some(format!(
            "{}; {} tokens were known, {} of {limit} are in the context",
            summary(report),
            report.reused_tokens,
            known + report.answer_tokens,
        ));
        Ok(())
    }
}
