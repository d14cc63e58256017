//! `oxcart chat`: a conversation.

mod commands;
mod history;
mod input;
mod markdown;
mod reply;
mod talk;
mod transcript;

use std::io::{self, IsTerminal, Write};

use crate::failure::Failure;
use crate::form::FormArgs;
use crate::generation::{LengthArgs, SamplerArgs};
use crate::loaded::EngineArgs;
use crate::os::interrupts::Interrupts;
use crate::os::typing::Waiting;
use crate::speculation::SpeculationArgs;
use crate::terminal::{Terminal, Tone};
use crate::wrap::wrapped;
use input::{Input, Said};
use talk::Talk;

/// Chat with a model
///
/// Type a message and press Return; /help lists the commands. Earlier messages are not computed again. Ctrl-C stops an answer.
#[derive(Debug, clap::Args)]
#[command(after_long_help = commands::help(), mut_arg("n", |n| n.default_value("1024")))]
pub(crate) struct Args {
    #[command(flatten)]
    engine: EngineArgs,

    #[command(flatten)]
    sampler: SamplerArgs,

    #[command(flatten)]
    form: FormArgs,

    #[command(flatten)]
    speculation: SpeculationArgs,

    #[command(flatten)]
    length: LengthArgs,

    /// System prompt: instructions that the model follows throughout
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,

    /// When the context is full, drop the oldest messages instead of stopping
    #[arg(long)]
    shift: bool,

    /// Hide the model's reasoning; /think shows it
    #[arg(long)]
    fold: bool,

    /// Show Markdown as plain text
    #[arg(long)]
    no_markdown: bool,

    /// Neither load nor save the history of typed messages
    #[arg(long)]
    no_history: bool,
}

pub(crate) fn run(args: &Args, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    if args.form.reads_stdin() {
        return Err(Failure::Usage("messages come from stdin, so --json-schema needs a file".into()));
    }
    let is_interactive = io::stdin().is_terminal() && io::stdout().is_terminal();
    let unwatched = |error| Failure::Machine(format!("cannot watch for Ctrl-C: {error}"));
    let interrupts = is_interactive.then(Interrupts::watch).transpose().map_err(unwatched)?;
    // What is typed while the model is loaded, or answers, is for the next prompt.
    let _waiting = is_interactive.then(Waiting::begin);
    let beginning = interrupts.as_ref().map(Interrupts::beginning);
    let Some(mut talk) = Talk::open(args, terminal, out)? else { return Ok(()) };
    drop(beginning);
    talk.interrupts = interrupts;
    let mut input = Input::new(is_interactive, !args.no_history, terminal)?;
    if is_interactive {
        let about = format!("{}; /help lists the commands, Ctrl-D quits", talk.about());
        writeln!(out, "{}", terminal.paint(&wrapped(&about, Terminal::width()), Tone::Dim))?;
    }
    let mut interrupts = 0;
    loop {
        out.flush()?;
        let draft = talk.draft.take();
        let text = match input.next(draft.as_deref().unwrap_or_default())? {
            Said::Text(text) => text,
            Said::End => return Ok(()),
            Said::Interrupt { cleared: true } => {
                interrupts = 0;
                continue;
            }
            Said::Interrupt { .. } if interrupts > 0 => return Ok(()),
            Said::Interrupt { .. } => {
                interrupts += 1;
                let line = "press Ctrl-C again or Ctrl-D to quit";
                writeln!(out, "{}", terminal.paint(line, Tone::Dim))?;
                continue;
            }
        };
        interrupts = 0;
        let went = match text.trim() {
            "" => continue,
            command if is_command(command) => match talk.command(command, out) {
                Ok(talk::Then::Leave) => return Ok(()),
                Ok(talk::Then::GoOn) => Ok(()),
                Err(failure) => Err(failure),
            },
            _ if draft.is_some() => talk.say_instead(text, out),
            _ => talk.say(text, out),
        };
        if let Err(failure) = went {
            talk.recover(failure, input.is_interactive(), out)?;
        }
    }
}

/// Whether a line is for the chat and not for the model: pasted text may begin with a slash, too.
fn is_command(text: &str) -> bool {
    let first = text.split([' ', '\n']).next().unwrap_or_default();
    first.starts_with('/') && !first[1..].contains('/') && !text.contains('\n')
}
