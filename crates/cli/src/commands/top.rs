//! `oxcart top`: a server's machines and models as they are, or a worker's devices, in a terminal.
//!
//! It asks a server for `/cluster` again and again and shows what the page shows; a worker, for the memory of its devices. Where stdout is not a terminal it prints one snapshot as text.

mod history;
mod picture;
mod pinned;
mod source;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use oxcart_http::{Cluster, Fingerprint};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::widgets::Paragraph;

use crate::failure::Failure;
use history::History;
use picture::Subject;
use source::{Access, Source};

/// How often keys are looked for.
const TICK: Duration = Duration::from_millis(100);

/// Watch a server: its machines, models, requests and network traffic
///
/// Of a worker it shows the memory of its devices. In a terminal it runs until you press q, and the arrow keys scroll. Elsewhere it prints one snapshot.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where `oxcart serve` is, or HOST:PORT of a worker
    #[arg(value_name = "URL|HOST:PORT", default_value = "http://127.0.0.1:8080")]
    url: String,

    /// API key for the server. Other users of this machine can see it; --api-key-file keeps it private
    #[arg(long, value_name = "KEY", conflicts_with = "api_key_file")]
    api_key: Option<String>,

    /// File with the API key: its first line that does not begin with #
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,

    /// SHA-256 of the server's certificate, as `oxcart serve --tls` prints it; no other certificate is trusted
    #[arg(long, value_name = "SHA256")]
    fingerprint: Option<Fingerprint>,

    /// How often to refresh
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = crate::units::time)]
    every: Duration,

    /// Print one snapshot as text, with rates measured over one --every, and end
    #[arg(long)]
    once: bool,

    /// Print one snapshot as JSON, the answer of /cluster, and end
    #[arg(long, conflicts_with = "once")]
    json: bool,
}

/// A picture, or why there is none.
type Looked = Result<Cluster, String>;

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let access = Access {
        key: args.api_key.as_deref(),
        key_file: args.api_key_file.as_deref(),
        fingerprint: args.fingerprint,
    };
    let mut source = Source::new(&args.url, access)?;
    let subject = source.subject();
    let first = source.look().map_err(Failure::Machine)?;
    if args.json {
        let text = serde_json::to_string(&first).map_err(|error| Failure::Machine(error.to_string()))?;
        return Ok(writeln!(out, "{text}")?);
    }
    let mut history = History::default();
    history.push(first);
    if args.once || !std::io::stdout().is_terminal() {
        thread::sleep(args.every);
        history.push(source.look().map_err(Failure::Machine)?);
        for line in picture::lines(&history, &subject, None, 100) {
            writeln!(out, "{}", line.to_string().trim_end())?;
        }
        return Ok(());
    }
    live(source, history, &subject, args.every)
}

/// Shows pictures until a key ends it.
fn live(mut source: Source, mut history: History, subject: &Subject, every: Duration) -> Result<(), Failure> {
    let (sender, pictures) = sync_channel(1);
    let looking = move || {
        loop {
            thread::sleep(every);
            if sender.send(source.look()).is_err() {
                return;
            }
        }
    };
    // It ends with the process, at the latest.
    thread::Builder::new()
        .name("look".into())
        .spawn(looking)
        .map_err(|error| Failure::Machine(format!("cannot start a thread: {error}")))?;
    let mut terminal = ratatui::try_init().map_err(|error| {
        // It may have come half way.
        ratatui::restore();
        Failure::Machine(format!("cannot use the terminal: {error}"))
    })?;
    let shown = show(&mut terminal, &mut history, &pictures, subject);
    ratatui::restore();
    shown.map_err(Failure::from)
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    history: &mut History,
    pictures: &Receiver<Looked>,
    subject: &Subject,
) -> std::io::Result<()> {
    let (mut trouble, mut scrolled) = (None, 0_u16);
    loop {
        terminal.draw(|frame| {
            let area = frame.area();
            let lines = picture::lines(history, subject, trouble.as_deref(), usize::from(area.width));
            let most = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_sub(area.height);
            scrolled = scrolled.min(most);
            frame.render_widget(Paragraph::new(lines).scroll((scrolled, 0)), area);
        })?;
        loop {
            if event::poll(TICK)? {
                match wanted(&event::read()?) {
                    Wanted::End => return Ok(()),
                    Wanted::Down => scrolled = scrolled.saturating_add(1),
                    Wanted::Up => scrolled = scrolled.saturating_sub(1),
                    Wanted::Redraw => {}
                    Wanted::Nothing => continue,
                }
                break;
            }
            match pictures.try_recv() {
                Ok(Ok(picture)) => {
                    trouble = None;
                    history.push(picture);
                    break;
                }
                Ok(Err(reason)) => {
                    trouble = Some(reason);
                    break;
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
        }
    }
}

/// What a key asks for.
enum Wanted {
    End,
    Down,
    Up,
    Redraw,
    Nothing,
}

fn wanted(event: &Event) -> Wanted {
    let Event::Key(key) = event else {
        return if matches!(event, Event::Resize(..)) { Wanted::Redraw } else { Wanted::Nothing };
    };
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        _ if key.kind == KeyEventKind::Release => Wanted::Nothing,
        KeyCode::Char('c') if is_control => Wanted::End,
        KeyCode::Char('q') | KeyCode::Esc => Wanted::End,
        KeyCode::Char('j') | KeyCode::Down => Wanted::Down,
        KeyCode::Char('k') | KeyCode::Up => Wanted::Up,
        _ => Wanted::Nothing,
    }
}
