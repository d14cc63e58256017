//! A conversation under way: the model that answers, what was said, and what can be done about both.
//!
//! Invariant: whatever fails, what was said stays; a message that got no answer can be sent again.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oxcart::backend::ByteSize;
use oxcart::llm::engine::{AtLimit, Cancel, End, Engine, Request};
use oxcart::llm::text::{ChatFormat, ChatTemplate, Constraint, Message, Token};

use super::Args;
use super::commands::{self, Command};
use super::reply::{Reply, Style};
use super::transcript::Transcript;
use crate::conversation;
use crate::failure::Failure;
use crate::form::Form;
use crate::generation::{Answered, Limit, answer, room_for_more, summary};
use crate::limits::MAX_ATTACHED_BYTES;
use crate::loaded::{EngineArgs, Found, Loaded, Opened};
use crate::os::interrupts::Interrupts;
use crate::quantity::counted;
use crate::terminal::{Terminal, Tone};
use crate::workers::WorkerAt;

/// Tokens at the beginning of a conversation that are not forgotten.
const KEPT: usize = 64;

/// Contexts to try where the one that there is does not hold a prompt and its answer: a comfortable one, and the least that would do. None
/// if it does, or if the model was not trained for as much as the prompt alone.
fn longer_context(context: usize, trained: usize, needed: usize, answer: usize) -> Option<Vec<usize>> {
    // A prompt leaves room for at least one token.
    let least = needed.saturating_add(answer.max(1)).min(trained);
    if least <= context || needed >= trained {
        return None;
    }
    let mut contexts = vec![context.saturating_mul(2).clamp(least, trained), least];
    contexts.dedup();
    Some(contexts)
}

/// What comes after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    GoOn,
    Leave,
}

/// A model that can answer.
struct Ready {
    engine: Engine,
    template: ChatTemplate,
    format: ChatFormat,
    /// At the beginning of an answer.
    constraint: Option<Constraint>,
    /// Control tokens that mark reasoning.
    shown: Vec<Token>,
    /// Dropped last: it holds the workers.
    loaded: Box<Loaded>,
}

impl Ready {
    /// Tokens that the context holds.
    fn context(&self) -> usize {
        self.engine.runner().options().context
    }

    /// Tokens that the model was trained for.
    fn trained(&self) -> usize {
        self.engine.runner().model().hyper().context
    }
}

/// What the last answer was like.
struct Last {
    answered: Answered,
    reasoning: String,
    /// Tokens in the context.
    held: usize,
}

pub(super) struct Talk<'a> {
    args: &'a Args,
    terminal: Terminal,
    form: Option<Form>,
    /// Which model, and where; as changed by commands.
    settings: EngineArgs,
    /// None after it was lost, until it is loaded again.
    ready: Option<Ready>,
    transcript: Transcript,
    /// A message that got no answer.
    unanswered: Option<String>,
    /// Files that go along with the next message: names and texts.
    attached: Vec<(String, String)>,
    /// What the next message begins with, to be changed.
    pub(super) draft: Option<String>,
    last: Option<Last>,
    style: Style,
    /// Whether a longer context may be tried: the user has not chosen one, and none was too long for the memory.
    may_grow: bool,
    /// Whether a change of the model or of the workers failed and left everything as it was.
    is_unchanged: bool,
    pub(super) interrupts: Option<Interrupts>,
}

impl<'a> Talk<'a> {
    /// Loads the model. None if only a plan was to be shown.
    pub(super) fn open(
        args: &'a Args,
        terminal: Terminal,
        out: &mut dyn Write,
    ) -> Result<Option<Talk<'a>>, Failure> {
        let mut talk = Talk {
            args,
            terminal,
            form: args.form.read()?,
            settings: args.engine.clone(),
            ready: None,
            transcript: Transcript { system: args.system.clone(), messages: Vec::new() },
            unanswered: None,
            attached: Vec::new(),
            draft: None,
            last: None,
            style: Style {
                terminal,
                markdown: terminal.colour && !args.no_markdown,
                reasoning: !args.fold,
                wraps: io::stdout().is_terminal(),
            },
            may_grow: args.engine.ctx.is_none(),
            is_unchanged: false,
            interrupts: None,
        };
        talk.ready = talk.prepare(&talk.settings, out)?;
        Ok(talk.ready.is_some().then_some(talk))
    }

    /// A model with these settings, ready to answer.
    fn prepare(&self, settings: &EngineArgs, out: &mut dyn Write) -> Result<Option<Ready>, Failure> {
        let _whole = self.interrupts.as_ref().map(Interrupts::whole);
        match Loaded::open(settings, self.terminal, out, false)? {
            Opened::Ready(loaded) => self.begin(loaded, settings, out).map(Some),
            Opened::Shown => Ok(None),
        }
    }

    /// Makes a model that is loaded ready to answer.
    fn begin(
        &self,
        mut loaded: Box<Loaded>,
        settings: &EngineArgs,
        out: &mut dyn Write,
    ) -> Result<Ready, Failure> {
        let mut engine = loaded.engine(None)?;
        self.args.speculation.apply(&mut engine, settings, self.terminal, out)?;
        let template = conversation::template(&loaded.model.metadata(), &loaded.path)?;
        let format = ChatFormat::detect(&template, &loaded.vocab);
        let constraint = self.form.as_ref().map(|form| form.compile(&mut engine)).transpose()?;
        let shown = format.shown_tokens(&loaded.vocab);
        Ok(Ready { engine, template, format, constraint, shown, loaded })
    }

    /// Goes on with other settings. The model that answers is kept until the other one can, as far as there is room for both; if there is
    /// not, until nothing but loading the other one is left to do.
    fn change(&mut self, settings: EngineArgs, out: &mut dyn Write) -> Result<(), Failure> {
        let changed = match &self.ready {
            Some(ready) => self.beside(ready, &settings, out),
            None => Ok(None),
        };
        self.is_unchanged = changed.is_err();
        let ready = match changed? {
            Some(ready) => Some(ready),
            None => {
                if self.ready.take().is_some() {
                    let before = &self.settings.model.model;
                    self.note(&format!("there is no room for both, so {before} is unloaded first"), out)?;
                }
                self.prepare(&settings, out)?
            }
        };
        self.ready = ready;
        self.settings = EngineArgs { connected: None, ..settings };
        Ok(())
    }

    /// A model that is made ready while another one still is. None if it has to take the other one's place, for which there is room.
    fn beside(
        &self,
        ready: &Ready,
        settings: &EngineArgs,
        out: &mut dyn Write,
    ) -> Result<Option<Ready>, Failure> {
        let _whole = self.interrupts.as_ref().map(Interrupts::whole);
        let found = Found::open(&settings.model)?;
        let about = found.unloaded();
        conversation::template(&about.metadata, about.path)?;
        let placed = found.place(settings, 0, false, Some(ready.engine.runner()))?;
        placed.check_room()?;
        if !placed.fits_beside()? {
            return Ok(None);
        }
        match placed.load().and_then(|loaded| self.begin(loaded, settings, out)) {
            Err(failure) if failure.is_of_memory() => Ok(None),
            begun => begun.map(Some),
        }
    }

    /// The settings, to be changed; the workers stay connected.
    fn settings(&self) -> EngineArgs {
        let connected = self.ready.as_ref().map(|ready| Arc::clone(&ready.loaded.workers));
        EngineArgs { connected, ..self.settings.clone() }
    }

    /// Gives the model a longer context if a prompt of so many tokens and its answer need one, the user has not chosen any and the model
    /// was trained for more; says whether it did. It becomes at least twice as long, so that not every message loads the model again,
    /// unless there is no memory for that much. Where there is none for enough either, everything is as before.
    fn grow(&mut self, needed: usize, out: &mut dyn Write) -> Result<bool, Failure> {
        let length = self.args.length.n;
        // An answer without a limit gets what is left.
        let answer = if length == Limit::NONE { 0 } else { length.0 };
        let ready = self.ready(out)?;
        let (context, trained) = (ready.context(), ready.trained());
        let Some(longer) = longer_context(context, trained, needed, answer).filter(|_| self.may_grow) else {
            return Ok(false);
        };
        self.note(&format!("the context of {context} tokens is too short; loading the model again"), out)?;
        for wanted in longer {
            let settings = EngineArgs { ctx: Some(wanted), ..self.settings() };
            match self.change(settings, out) {
                Ok(()) => {
                    self.note(&format!("the context now holds {wanted} tokens"), out)?;
                    return Ok(true);
                }
                Err(failure) if failure.is_of_memory() => {
                    self.is_unchanged = false;
                    self.note(&format!("a context of {wanted} tokens is too long: {failure}"), out)?;
                }
                Err(failure) => return Err(failure),
            }
        }
        self.may_grow = false;
        Ok(false)
    }

    /// The model, loaded again if it was lost.
    fn ready(&mut self, out: &mut dyn Write) -> Result<&mut Ready, Failure> {
        if self.ready.is_none() {
            self.ready = self.prepare(&self.settings, out)?;
        }
        self.ready.as_mut().ok_or_else(|| Failure::Machine("no model is loaded".into()))
    }

    /// Which model answers, and where.
    pub(super) fn about(&self) -> String {
        let workers: Vec<String> = self.settings.workers.iter().map(ToString::to_string).collect();
        let place = match workers.is_empty() {
            true => String::new(),
            false => format!(" on {}", workers.join(", ")),
        };
        let context = match &self.ready {
            Some(ready) => {
                format!(", a context of {} tokens", ready.context())
            }
            None => ", not loaded".to_owned(),
        };
        format!("{}{place}{context}", self.settings.model.model)
    }

    /// Says something about the conversation, which is no part of what a file or another program gets.
    fn note(&self, text: &str, out: &mut dyn Write) -> Result<(), Failure> {
        note(self.style, text, out)
    }

    /// Tells what went wrong and what can be done about it. Without a person there it ends the command.
    pub(super) fn recover(
        &mut self,
        failure: Failure,
        is_interactive: bool,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        if !is_interactive || matches!(failure, Failure::ClosedPipe | Failure::Output(_)) {
            return Err(failure);
        }
        let failure = self.style.wrapped(&failure.to_string());
        writeln!(out, "{}", self.terminal.paint(&failure, Tone::Bold))?;
        let is_unchanged = std::mem::take(&mut self.is_unchanged);
        match (&self.ready, &self.unanswered) {
            (Some(_), _) if is_unchanged => self.note(&format!("nothing was changed: {}", self.about()), out),
            (Some(_), _) => Ok(()),
            (None, Some(_)) => self.note(
                "the conversation is kept: /retry loads the model and tries again, /workers and /model switch to others, \
                 /save PATH writes it to a file",
                out,
            ),
            (None, None) => self.note(
                &format!(
                    "the conversation is kept: your next message loads {} again, /workers and /model switch to others, /save PATH \
                     writes it to a file",
                    self.settings.model.model
                ),
                out,
            ),
        }
    }

    /// Does what a command says.
    pub(super) fn command(&mut self, line: &str, out: &mut dyn Write) -> Result<Then, Failure> {
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.trim();
        let command = match commands::find(name) {
            Ok(command) => command,
            Err(likely) => {
                let likely = likely.map_or_else(String::new, |likely| format!(" Did you mean {likely}?"));
                self.note(&format!("There is no command {name}.{likely} /help lists them all."), out)?;
                return Ok(Then::GoOn);
            }
        };
        match command {
            Command::Exit => return Ok(Then::Leave),
            Command::Help => writeln!(out, "{}", commands::help())?,
            Command::Clear => self.clear(out)?,
            Command::Undo => self.undo(out)?,
            Command::Retry => match self.last_message() {
                Some(message) => self.say_instead(message, out)?,
                None => self.note("no messages yet", out)?,
            },
            Command::Edit => match self.last_message() {
                Some(_) if !rest.is_empty() => self.say_instead(rest.to_owned(), out)?,
                Some(message) => self.draft = Some(message),
                None => self.note("no messages yet", out)?,
            },
            Command::File => self.attach(rest, out)?,
            Command::System => {
                self.transcript.system = (!rest.is_empty()).then(|| rest.to_owned());
                self.note(if rest.is_empty() { "system prompt cleared" } else { "system prompt set" }, out)?;
            }
            Command::Save => self.save(rest, out)?,
            Command::Load => self.load(rest, out)?,
            Command::Model => self.model(rest, out)?,
            Command::Workers => self.workers(rest, out)?,
            Command::History => self.history(out)?,
            Command::Think => self.think(rest, out)?,
            Command::Markdown => {
                let is_on = match rest {
                    "" => self.style.markdown,
                    "on" => true,
                    "off" => false,
                    _ => return Err(Failure::Usage("usage: /markdown on or /markdown off".into())),
                };
                self.style.markdown = is_on && self.terminal.colour;
                let state = match (self.style.markdown, is_on) {
                    (true, _) => "rendered",
                    (false, true) => {
                        "shown as plain text, because colours are off (NO_COLOR is set, or this is not a terminal)"
                    }
                    (false, false) => "shown as plain text",
                };
                self.note(&format!("Markdown is {state}"), out)?;
            }
            Command::Stats => self.stats(out)?,
        }
        Ok(Then::GoOn)
    }

    /// The last message of the user.
    fn last_message(&self) -> Option<String> {
        let messages = self.transcript.messages.iter();
        let answered = || messages.rev().find(|message| message.role == "user");
        self.unanswered.clone().or_else(|| answered().map(|message| message.content.clone()))
    }

    /// Takes the last message back, with its answer.
    fn take_back(&mut self) -> Option<String> {
        self.unanswered.take().or_else(|| self.transcript.take_back())
    }

    fn clear(&mut self, out: &mut dyn Write) -> Result<(), Failure> {
        let count = messages(self.transcript.messages.len());
        self.transcript.messages.clear();
        (self.unanswered, self.last) = (None, None);
        self.attached.clear();
        self.note(&format!("started over; {count} dropped"), out)
    }

    fn undo(&mut self, out: &mut dyn Write) -> Result<(), Failure> {
        match self.take_back() {
            Some(message) => {
                let first = message.lines().next().unwrap_or_default();
                let left = messages(self.transcript.messages.len());
                self.note(&format!("took back '{}'; {left} left", shortened(first)), out)
            }
            None => self.note("no messages yet", out),
        }
    }

    fn attach(&mut self, path: &str, out: &mut dyn Write) -> Result<(), Failure> {
        let path = path_in(path, "/file")?;
        let wrong = |why: String| Failure::Usage(format!("{}: {why}", path.display()));
        let about = std::fs::metadata(&path).map_err(|error| wrong(error.to_string()))?;
        if !about.is_file() {
            return Err(wrong("this is not a regular file".into()));
        }
        if about.len() > MAX_ATTACHED_BYTES {
            let (size, most) = (ByteSize(about.len()), ByteSize(MAX_ATTACHED_BYTES));
            return Err(wrong(format!("the file is {size}; at most {most} can be attached")));
        }
        let bytes = std::fs::read(&path).map_err(|error| wrong(error.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|_| wrong("this is not UTF-8 text".into()))?;
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let size = ByteSize(text.len() as u64);
        self.note(&format!("{name} ({size}) will be sent with your next message"), out)?;
        self.attached.push((name, text));
        Ok(())
    }

    /// The conversation, with a message that got no answer.
    fn with_unanswered(&self) -> Transcript {
        let mut all = self.transcript.clone();
        all.messages.extend(self.unanswered.iter().map(|message| Message::new("user", message)));
        all
    }

    fn save(&mut self, path: &str, out: &mut dyn Write) -> Result<(), Failure> {
        let path = path_in(path, "/save")?;
        let all = self.with_unanswered();
        all.save(&path, &self.settings.model.model)?;
        let count = messages(all.messages.len());
        self.note(&format!("saved {count} to {}", path.display()), out)
    }

    fn load(&mut self, path: &str, out: &mut dyn Write) -> Result<(), Failure> {
        let path = path_in(path, "/load")?;
        let before = self.with_unanswered().messages.len();
        self.transcript = Transcript::load(&path)?;
        let count = messages(self.transcript.messages.len());
        let unanswered = self.transcript.messages.pop_if(|message| message.role == "user");
        (self.unanswered, self.last) = (unanswered.map(|message| message.content), None);
        let dropped = match before {
            0 => String::new(),
            before => format!(" in place of {}, now dropped", messages(before)),
        };
        self.note(&format!("loaded {count} from {}{dropped}; /history shows them", path.display()), out)
    }

    fn model(&mut self, name: &str, out: &mut dyn Write) -> Result<(), Failure> {
        if !name.is_empty() {
            let mut settings = self.settings();
            settings.model.model = name.to_owned();
            // A context that became longer on the way was the other model's.
            settings.ctx = self.args.engine.ctx;
            self.change(settings, out)?;
            self.may_grow = self.args.engine.ctx.is_none();
        }
        self.note(&self.about(), out)
    }

    fn workers(&mut self, list: &str, out: &mut dyn Write) -> Result<(), Failure> {
        if !list.is_empty() {
            let parsed: Result<Vec<WorkerAt>, String> = match list {
                "none" => Ok(Vec::new()),
                list => list.split(',').map(|worker| worker.trim().parse()).collect(),
            };
            let mut settings = self.settings.clone();
            settings.workers = parsed.map_err(Failure::Usage)?;
            // Shares and places were meant for the devices before.
            settings.split.clear();
            settings.overrides.clear();
            if self.ready.as_ref().is_some_and(|ready| ready.loaded.workers.serve_one_client()) {
                // Those that are to be used again have to be let go first.
                self.ready = None;
            }
            self.change(settings, out)?;
            self.may_grow = self.args.engine.ctx.is_none();
        }
        self.note(&self.about(), out)
    }

    fn history(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let all = self.with_unanswered();
        if all.messages.is_empty() {
            self.note("no messages yet", out)?;
        }
        for message in all.all() {
            let text = self.style.wrapped(&format!("{}: {}", message.role, message.content));
            let (role, text) = text.split_at(message.role.len());
            writeln!(out, "{}{text}", self.terminal.paint(role, Tone::Bold))?;
        }
        Ok(())
    }

    fn think(&mut self, what: &str, out: &mut dyn Write) -> Result<(), Failure> {
        match what {
            "show" | "fold" => {
                self.style.reasoning = what == "show";
                let state = if self.style.reasoning { "shown" } else { "folded" };
                self.note(&format!("reasoning is now {state}"), out)
            }
            "" => match self.last.as_ref().filter(|last| !last.reasoning.is_empty()) {
                Some(last) => {
                    let reasoning = self.style.wrapped(last.reasoning.trim());
                    Ok(writeln!(out, "{}", self.terminal.paint(&reasoning, Tone::Dim))?)
                }
                None => self.note("the last answer has no reasoning", out),
            },
            _ => Err(Failure::Usage("usage: /think, /think show or /think fold".into())),
        }
    }

    fn stats(&self, out: &mut dyn Write) -> Result<(), Failure> {
        self.note(&self.about(), out)?;
        self.note(&format!("{} so far", messages(self.transcript.messages.len())), out)?;
        let Some(last) = &self.last else { return self.note("nothing has been computed yet", out) };
        let report = &last.answered.report;
        let line = format!(
            "{}; {} reused, {} in the context; first token after {:.2} s",
            summary(report),
            counted(report.reused_tokens, "prompt token"),
            counted(last.held, "token"),
            report.prompt_time.as_secs_f64(),
        );
        self.note(&line, out)?;
        if let Some(ready) = self.ready.as_ref().filter(|ready| !ready.loaded.workers.is_empty()) {
            let traffic = ready.loaded.workers.traffic();
            let (sent, received) = (ByteSize(traffic.sent), ByteSize(traffic.received));
            self.note(&format!("sent {sent} to workers and received {received}"), out)?;
        }
        Ok(())
    }

    /// Says something in place of the last message, which stays, with its answer, if this one gets none.
    pub(super) fn say_instead(&mut self, text: String, out: &mut dyn Write) -> Result<(), Failure> {
        let before = self.unanswered.is_none().then(|| self.transcript.clone());
        self.take_back();
        let said = self.say(text, out);
        if let Some(before) = before.filter(|_| self.unanswered.is_some()) {
            (self.transcript, self.unanswered) = (before, None);
        }
        said
    }

    /// Says something and shows the answer.
    pub(super) fn say(&mut self, text: String, out: &mut dyn Write) -> Result<(), Failure> {
        let mut message = text;
        for (name, contents) in self.attached.drain(..) {
            let end = if contents.ends_with('\n') { "" } else { "\n" };
            message.push_str(&format!("\n\n{name}:\n```\n{contents}{end}```"));
        }
        self.unanswered = Some(message.clone());
        let (shift, shown, limit) = (self.args.shift, self.style, self.args.length.n.0);
        let ignore_end = self.args.length.ignore_eos;
        let transcript = self.transcript.clone();
        let interrupts = self.interrupts.clone();
        let sampler = self.args.sampler.clone();
        let mut fit = fitting(self.ready(out)?, &transcript, &message, shift)?;
        let needed = match &fit {
            Fit::TooLong(tokens) => *tokens,
            // Who has chosen --shift has chosen what happens to an answer without room.
            Fit::Fits { .. } if shift => 0,
            Fit::Fits { prompt, .. } => prompt.len(),
        };
        if self.grow(needed, out)? {
            fit = fitting(self.ready(out)?, &transcript, &message, shift)?;
        }
        let may_grow = self.may_grow;
        let ready = self.ready(out)?;
        let (context, trained) = (ready.context(), ready.trained());
        let Fit::Fits { prompt, begun, left_out } = fit else {
            let longer = room_for_more(context, trained);
            return Err(Failure::Usage(match shift || transcript.messages.is_empty() {
                true => format!(
                    "this message does not fit in the context of {context} tokens: shorten it (/edit), or start the chat with {longer}"
                ),
                false => format!(
                    "the conversation no longer fits in the context of {context} tokens: /undo or /clear make room; or start the chat \
                     with {longer}, or with --shift to drop the oldest messages"
                ),
            }));
        };
        if left_out > 0 {
            let were = if left_out == 1 { "was" } else { "were" };
            let line = format!("the context is full, so the oldest {} {were} dropped", messages(left_out));
            note(shown, &line, out)?;
        }
        let (known, cancel) = (prompt.len(), Cancel::default());
        let at_limit = match shift {
            true => AtLimit::Shift { keep: known.min(KEPT), exact: false },
            false => AtLimit::End,
        };
        // What was computed for the messages before is still held, and used.
        let request = Request {
            sampler: sampler.settings(&ready.loaded.vocab),
            constraint: ready.constraint.clone(),
            limit,
            at_limit,
            ignore_end,
            shown: ready.shown.clone(),
            cancel: cancel.clone(),
            ..Request::new(prompt)
        };
        let mut reply = Reply::new(shown, ready.format.parser(&begun, &[]));
        let under_way = interrupts.as_ref().map(|interrupts| interrupts.answering(&cancel));
        let answered = answer(&ready.loaded, &mut ready.engine, request, |text| Ok(reply.push(text, out)?));
        drop(under_way);
        reply.finish(out)?;
        if answered.as_ref().is_err_and(Failure::is_of_machine) {
            // Devices that failed once are not asked again.
            self.ready = None;
        }
        let answered = answered?;
        let end = ended(answered.end, limit, context, trained, may_grow);
        self.unanswered = None;
        self.transcript.messages.push(Message::new("user", message));
        self.transcript.messages.push(Message::new("assistant", reply.answer.text.trim()));
        let held = (known + answered.report.answer_tokens).min(context);
        self.last = Some(Last { answered, reasoning: reply.answer.reasoning, held });
        match end {
            Some(line) => self.note(&line, out),
            None => Ok(()),
        }
    }
}

fn note(style: Style, text: &str, out: &mut dyn Write) -> Result<(), Failure> {
    match style.wraps {
        true => Ok(writeln!(out, "{}", style.terminal.paint(&style.wrapped(text), Tone::Dim))?),
        false => {
            tracing::info!("{text}");
            Ok(())
        }
    }
}

/// Whether a conversation fits in the context.
enum Fit {
    /// It does.
    Fits {
        prompt: Vec<Token>,
        /// The end of its text.
        begun: String,
        /// How many messages were left out for that.
        left_out: usize,
    },
    /// It does not: it has so many tokens, or what has to stay of it.
    TooLong(usize),
}

/// The tokens of a conversation that ends with a message.
fn fitting(
    ready: &Ready,
    transcript: &Transcript,
    message: &str,
    may_leave_out: bool,
) -> Result<Fit, Failure> {
    let mut transcript = transcript.clone();
    let mut left_out = 0;
    loop {
        let mut all = transcript.all();
        all.push(Message::new("user", message));
        let prompt = conversation::render(&ready.loaded.vocab, &ready.template, &all)?;
        let tokens = ready.loaded.vocab.encode_prompt(&prompt);
        if tokens.len() < ready.context() {
            return Ok(Fit::Fits { prompt: tokens, begun: prompt.text().to_owned(), left_out });
        }
        if !may_leave_out || transcript.messages.is_empty() {
            return Ok(Fit::TooLong(tokens.len()));
        }
        // A question and its answer, so that roles go on taking turns.
        let pair = transcript.messages.len().min(2);
        transcript.messages.drain(..pair);
        left_out += pair;
    }
}

/// Why an answer ended, if that was not the model.
fn ended(end: End, limit: usize, context: usize, trained: usize, may_grow: bool) -> Option<String> {
    match end {
        End::Model | End::Complete | End::Stop => None,
        End::Cancelled => Some("stopped; the answer so far stays in the conversation".into()),
        End::Length => Some(format!("stopped at the limit of {limit} tokens (-n)")),
        End::Context if may_grow && trained > context => Some(format!(
            "ended because the context of {context} tokens is full; your next message gets a longer one if it needs that"
        )),
        End::Context => Some(format!(
            "ended because the context of {context} tokens is full: /undo or /clear make room; or start the chat with {}, or with --shift \
             to drop the oldest messages",
            room_for_more(context, trained)
        )),
        End::Deadline => Some("stopped: out of time".into()),
    }
}

/// A path that was typed behind a command, perhaps in quotes.
fn path_in(text: &str, command: &str) -> Result<PathBuf, Failure> {
    let quoted = |quote: char| text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
    match quoted('"').or(quoted('\'')).unwrap_or(text) {
        "" => Err(Failure::Usage(format!("{command} needs a path"))),
        path => Ok(match (path.strip_prefix("~/"), std::env::home_dir()) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => Path::new(path).to_owned(),
        }),
    }
}

/// `3 messages`
fn messages(count: usize) -> String {
    counted(count, "message")
}

/// The beginning of a line.
fn shortened(line: &str) -> String {
    const LONGEST: usize = 40;
    match line.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_the_model_ended_are_not_explained() {
        assert_eq!(ended(End::Model, 5, 9, 20, false), None);
        let explained = |end, trained, may_grow| ended(end, 5, 9, trained, may_grow).unwrap();
        assert!(explained(End::Length, 20, false).contains("5 tokens"));
        let full = explained(End::Context, 20, false);
        assert!(
            full.contains("9 tokens is full: /undo or /clear") && full.contains("--ctx (up to 20)"),
            "{full}"
        );
        assert!(explained(End::Context, 20, true).contains("9 tokens is full; your next message gets"));
        // Where the model has no more, no larger --ctx is advised.
        for may_grow in [false, true] {
            let full = explained(End::Context, 9, may_grow);
            assert!(full.contains("trained for 9 tokens") && !full.contains("--ctx"), "{full}");
        }
    }

    #[test]
    fn a_context_becomes_longer_where_that_helps() {
        // What fits, stays.
        assert_eq!(longer_context(4096, 32768, 100, 512), None);
        assert_eq!(longer_context(4096, 32768, 4000, 0), None);
        assert_eq!(longer_context(4096, 32768, 3000, 512), None);
        // Twice as long, or as long as it has to be.
        assert_eq!(longer_context(4096, 32768, 4000, 512), Some(vec![8192, 4512]));
        assert_eq!(longer_context(4096, 32768, 20_000, 512), Some(vec![20_512]));
        assert_eq!(longer_context(4096, 6000, 5000, 512), Some(vec![6000, 5512]));
        // No more than the model knows, even if the answer may then be cut.
        assert_eq!(longer_context(4096, 6000, 5900, 512), Some(vec![6000]));
        assert_eq!(longer_context(4096, 4096, 4000, 512), None);
        assert_eq!(longer_context(4096, 6000, 6000, 512), None);
        assert_eq!(longer_context(4096, 6000, 4096, 0), Some(vec![6000, 4097]));
    }

    #[test]
    fn paths_may_be_quoted() {
        assert_eq!(path_in("\"a b\"", "/save").unwrap(), Path::new("a b"));
        assert_eq!(path_in("a b", "/save").unwrap(), Path::new("a b"));
        assert!(path_in("", "/save").is_err());
        assert_eq!(shortened(&"x".repeat(50)).chars().count(), 41);
    }
}
