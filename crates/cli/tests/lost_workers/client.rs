//! Who asks for answers: `oxcart run`, or streams of `oxcart serve`. All that is heard of them goes into one queue, in the order in which it
//! came, with the time.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Instant;

use serde_json::{Value, json};

use crate::user;

/// How the model is shared out: each worker has a part of the tiny one, too.
const SPLIT: &str = "2,2,1";

/// Which model, and how long answers are.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) model: String,
    pub(crate) tokens: usize,
    /// What `--heartbeat` says.
    pub(crate) heartbeat: &'static str,
}

/// Who asks, and for how many answers at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Asking {
    Run,
    Serve(usize),
}

impl Asking {
    pub(crate) fn streams(self) -> usize {
        match self {
            Asking::Run => 1,
            Asking::Serve(streams) => streams,
        }
    }
}

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Choice {
    Greedy,
    Seeded,
}

/// What is heard of a stream, by its number.
#[derive(Debug)]
pub(crate) enum Heard {
    Asked(usize),
    /// A part of an answer: tokens from a server, and bytes from `oxcart run`, which shows nothing else.
    Part(usize, Vec<u32>),
    Ended(usize),
    /// A line on stderr.
    Noted(String),
    /// Something that must not happen.
    Failed(String),
}

pub(crate) type News = (Instant, Heard);

/// A command that answers, and ends with the round.
pub(crate) struct Client {
    child: Child,
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn prompt(stream: usize) -> String {
    const TOPICS: [&str; 8] =
        ["rivers", "bread", "the moon", "old maps", "bees", "clocks", "salt", "bridges"];
    format!("{}: A few things that everyone should know about {}, and why.", stream + 1, TOPICS[stream % 8])
}

impl Client {
    /// Starts a command. Each stream asks for one answer after another until it is over, and for one at least.
    pub(crate) fn start(
        asking: Asking,
        choice: Choice,
        setting: &Setting,
        workers: &str,
        over: &Arc<AtomicBool>,
        news: &Sender<News>,
    ) -> Client {
        let mut command = user::command(env!("CARGO_BIN_EXE_oxcart"));
        let kind = if asking == Asking::Run { "run" } else { "serve" };
        command.args([kind, "-m", &setting.model, "--workers", workers, "--split", SPLIT, "--threads", "1"]);
        command.args(["--heartbeat", setting.heartbeat]).env("NO_COLOR", "1");
        match asking {
            Asking::Run => Client::run(command, choice, setting, news),
            Asking::Serve(streams) => Client::serve(command, streams, choice, setting, over, news),
        }
    }

    fn run(mut command: Command, choice: Choice, setting: &Setting, news: &Sender<News>) -> Client {
        let count = setting.tokens.to_string();
        command.args([&prompt(0), "--raw", "--ignore-eos", "-n", &count]);
        command.args(["--ctx", &(setting.tokens + 128).to_string()]);
        match choice {
            Choice::Greedy => command.args(["--temp", "0"]),
            Choice::Seeded => command.args(["--temp", "1", "--seed", "7"]),
        };
        let mut child = spawn(command, Stdio::piped());
        let (notes, mut out) = (BufReader::new(child.stderr.take().unwrap()), child.stdout.take().unwrap());
        spawn_notes(notes, news.clone());
        let news = news.clone();
        let _ = news.send((Instant::now(), Heard::Asked(0)));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = out.read(&mut bytes) {
                let part = bytes[..count].iter().copied().map(u32::from).collect();
                let _ = news.send((Instant::now(), Heard::Part(0, part)));
            }
            let _ = news.send((Instant::now(), Heard::Ended(0)));
        });
        Client { child }
    }

    fn serve(
        mut command: Command,
        streams: usize,
        choice: Choice,
        setting: &Setting,
        over: &Arc<AtomicBool>,
        news: &Sender<News>,
    ) -> Client {
        let context = setting.tokens + 128;
        command.args(["--port", "0", "--parallel", &streams.to_string(), "--ctx", &context.to_string()]);
        command.args(["--tokens", &(streams * context).to_string()]);
        let mut child = spawn(command, Stdio::null());
        let mut notes = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        let address = loop {
            let begin = said.len();
            assert!(notes.read_line(&mut said).unwrap() > 0, "the server ended: {said}");
            if let Some((_, url)) = said[begin..].split_once("listening on http://") {
                break url.trim().to_owned();
            }
        };
        spawn_notes(notes, news.clone());
        for stream in 0..streams {
            let mut ask = json!({
                "prompt": prompt(stream), "n_predict": setting.tokens, "ignore_eos": true,
                "stream": true, "return_tokens": true, "temperature": 0,
            });
            if choice == Choice::Seeded {
                ask["temperature"] = json!(1);
                ask["seed"] = json!(7 + stream);
            }
            let (address, over, news) = (address.clone(), Arc::clone(over), news.clone());
            std::thread::spawn(move || {
                loop {
                    // Looked at before: what is asked for afterwards is asked for in vain.
                    let is_last = over.load(Ordering::SeqCst);
                    if let Err(problem) = hear(&address, &ask, stream, &news) {
                        let _ = news.send((Instant::now(), Heard::Failed(problem)));
                        return;
                    }
                    if is_last || over.load(Ordering::SeqCst) {
                        return;
                    }
                }
            });
        }
        Client { child }
    }
}

fn spawn(mut command: Command, out: Stdio) -> Child {
    command.stdin(Stdio::null()).stdout(out).stderr(Stdio::piped()).spawn().unwrap()
}

fn spawn_notes(notes: impl BufRead + Send + 'static, news: Sender<News>) {
    std::thread::spawn(move || {
        for line in notes.lines().map_while(Result::ok) {
            let _ = news.send((Instant::now(), Heard::Noted(line)));
        }
    });
}

/// Asks a server for an answer and passes it on.
fn hear(address: &str, ask: &Value, stream: usize, news: &Sender<News>) -> Result<(), String> {
    let broken = |error: std::io::Error| format!("stream {stream}: {error}");
    let tell = |heard| drop(news.send((Instant::now(), heard)));
    let mut socket = TcpStream::connect(address).map_err(broken)?;
    let body = ask.to_string();
    tell(Heard::Asked(stream));
    write!(
        socket,
        "POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .map_err(broken)?;
    let mut said = String::new();
    for line in BufReader::new(socket).lines() {
        let line = line.map_err(broken)?;
        let Some(part) =
            line.strip_prefix("data: ").and_then(|data| serde_json::from_str::<Value>(data).ok())
        else {
            said.push_str(&line);
            continue;
        };
        if part["stop"] == true {
            tell(Heard::Ended(stream));
            return Ok(());
        }
        let Some(tokens) = part["tokens"].as_array() else { return Err(format!("stream {stream}: {part}")) };
        let tokens = tokens.iter().filter_map(|token| token.as_u64()?.try_into().ok()).collect();
        tell(Heard::Part(stream, tokens));
    }
    Err(format!("stream {stream} broke off: {said}"))
}
