//! `oxcart chat` as people use it: on a terminal, key by key, with a tiny model of random weights that a regular expression makes say
//! what a test can wait for. And `oxcart top`, which is looked at there, too.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "user/without_settings.rs"]
mod user;
#[path = "user/worker.rs"]
mod worker;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use oxcart::gguf::{Builder, Gguf};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;
use worker::Worker;

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tiny.gguf");

/// The longest that anything here may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// What an editor switches on before it shows a prompt: marks of pastes, and drawing in one go.
const PROMPT: &str = "\x1b[?2004h\x1b[?2026h";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const UP: &str = "\x1b[A";

/// A terminal with a chat on it.
struct Screen {
    child: Child,
    keys: File,
    bytes: Receiver<Vec<u8>>,
    /// What was shown and not yet looked at.
    shown: String,
}

impl Screen {
    /// Starts a chat whose user has this home, and waits for its first prompt.
    fn chat(home: &Path, args: &[&str]) -> Screen {
        Screen::with_model(home, Path::new(TINY), args, "1")
    }

    /// The same with another model, and with colours where `no_color` is empty.
    fn with_model(home: &Path, model: &Path, args: &[&str], no_color: &str) -> Screen {
        let chat = [&["chat", "--temp", "0", "-m", model.to_str().unwrap()][..], args].concat();
        let mut screen = Screen::of(home, &chat, no_color);
        screen.wait_for(PROMPT);
        screen
    }

    /// Starts any command.
    fn of(home: &Path, args: &[&str], no_color: &str) -> Screen {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        resize(&ours, 80);
        let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let theirs = || Stdio::from(File::options().read(true).write(true).open(&name).unwrap());
        // A session of its own, so that Ctrl-C on this terminal is for it.
        let child = user::command("setsid")
            .args(["--ctty", env!("CARGO_BIN_EXE_oxcart")])
            .args(args)
            .env("HOME", home)
            .env("TERM", "xterm")
            .env("NO_COLOR", no_color)
            .env_remove("XDG_STATE_HOME")
            .env_remove("XDG_CONFIG_HOME")
            .stdin(theirs())
            .stdout(theirs())
            .stderr(theirs())
            .spawn()
            .unwrap();
        let keys = File::from(ours);
        let (mut reads, (sender, bytes)) = (keys.try_clone().unwrap(), channel());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // A terminal whose other end is gone is an error, not an end.
            while let Ok(count @ 1..) = reads.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Screen { child, keys, bytes, shown: String::new() }
    }

    fn press(&mut self, keys: &str) {
        // The other side has to read between, or a long text would fill the terminal's own memory.
        for piece in keys.as_bytes().chunks(256) {
            self.keys.write_all(piece).unwrap();
        }
    }

    /// Waits until something is shown, and gives all that was shown up to it.
    fn wait_for(&mut self, what: &str) -> String {
        let start = Instant::now();
        loop {
            if let Some(at) = self.shown.find(what) {
                let rest = self.shown.split_off(at + what.len());
                return std::mem::replace(&mut self.shown, rest);
            }
            let left = PATIENCE.checked_sub(start.elapsed()).unwrap_or_default();
            match self.bytes.recv_timeout(left) {
                Ok(bytes) => self.shown.push_str(&String::from_utf8_lossy(&bytes)),
                Err(error) => panic!("{what:?} does not come ({error}): {:?}", self.shown),
            }
        }
    }

    /// Says something, and gives all that is shown until the next prompt.
    fn say(&mut self, text: &str) -> String {
        self.press(&format!("{text}\r"));
        self.wait_for(PROMPT)
    }

    /// Pastes something and presses return.
    fn paste(&mut self, text: &str) -> String {
        let text = text.replace('\n', "\r");
        self.say(&format!("\x1b[200~{text}\x1b[201~"))
    }

    /// What was said, by way of a file.
    fn transcript(&mut self, folder: &Path) -> Value {
        let path = folder.join("transcript.json");
        let said = self.say(&format!("/save {}", path.display()));
        assert!(said.contains("saved "), "{said}");
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    /// The end of the program.
    fn end(mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "it does not end: {:?}", self.shown);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn resize(terminal: impl AsFd, columns: u16) {
    tcsetwinsize(terminal, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

fn home() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Contents of the messages of a conversation.
fn contents(transcript: &Value) -> Vec<String> {
    let messages = transcript["messages"].as_array().unwrap();
    messages.iter().map(|message| message["content"].as_str().unwrap().to_owned()).collect()
}

const SHORT: [&str; 2] = ["--regex", "yes"];
/// An answer that would go on for an hour.
const LONG: [&str; 5] = ["--regex", "((word ){4000}){4000}", "-n", "-1", "--shift"];

#[test]
fn ctrl_c_stops_an_answer_and_keeps_the_chat() {
    let home = home();
    let mut screen = Screen::chat(home.path(), &LONG);
    screen.press("Hello\r");
    screen.wait_for("word word");
    screen.press(CTRL_C);
    let shown = screen.wait_for(PROMPT);
    assert!(shown.contains("stopped; the answer so far stays"), "{shown}");
    let said = contents(&screen.transcript(home.path()));
    assert_eq!((said.len(), said[0].as_str()), (2, "Hello"));
    assert!(said[1].starts_with("word word"), "{}", said[1].len());

    // At the prompt it clears the line.
    for _ in 0..3 {
        screen.press("nonsense");
        screen.press(CTRL_C);
        screen.wait_for(PROMPT);
    }
    let shown = screen.say("/stats");
    assert!(shown.contains("2 messages so far"), "{shown}");
    assert!(!shown.contains("nonsense"), "{shown}");

    // Twice it leaves.
    screen.press(CTRL_C);
    screen.wait_for("press Ctrl-C again or Ctrl-D to quit");
    screen.wait_for(PROMPT);
    screen.press(CTRL_C);
    assert!(screen.end().success());
}

#[test]
fn ctrl_c_does_not_end_local_workers() {
    let home = home();
    let mut screen =
        Screen::chat(home.path(), &[&LONG[..], &["--workers", "local:1", "--split", "1"]].concat());
    for _ in 0..2 {
        screen.press("Hello\r");
        screen.wait_for("word word");
        screen.press(CTRL_C);
        let shown = screen.wait_for(PROMPT);
        assert!(shown.contains("stopped"), "{shown}");
    }
}

#[test]
fn ctrl_d_leaves() {
    let home = home();
    let mut screen = Screen::chat(home.path(), &SHORT);
    screen.press(CTRL_D);
    assert!(screen.end().success());
}

#[test]
fn what_was_typed_is_there_the_next_time() {
    let home = home();
    let mut screen = Screen::chat(home.path(), &SHORT);
    assert!(screen.say("remember me").contains("yes"));
    screen.press(CTRL_D);
    screen.end();
    let file = home.path().join(".local/state/oxcart/chat_history");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    let mut screen = Screen::chat(home.path(), &SHORT);
    screen.say(UP);
    assert_eq!(contents(&screen.transcript(home.path())), ["remember me", "yes"]);

    let mut screen = Screen::chat(home.path(), &["--regex", "yes", "--no-history"]);
    screen.press(UP);
    let shown = screen.say("/stats");
    assert!(shown.contains("0 messages so far"), "{shown}");
}

#[test]
fn pasted_text_is_one_message() {
    let home = home();
    let mut screen = Screen::chat(home.path(), &["--regex", "yes", "--ctx", "32768"]);
    let lines: Vec<String> = (1..=40).map(|at| format!("line {at} of a paste \\")).collect();
    let lines = lines.join("\n") + "\nend";
    screen.paste(&lines);
    let long = "the end ".repeat(2560);
    assert_eq!(long.len(), 20_480);
    screen.paste(long.trim_end());
    assert_eq!(contents(&screen.transcript(home.path())), [&lines, "yes", long.trim_end(), "yes"]);
}

/// Also while an answer is under way: it waits for the next prompt, unseen, and nothing of it is lost.
#[test]
fn what_is_pasted_during_an_answer_waits() {
    let home = home();
    let mut screen = Screen::chat(home.path(), &[&LONG[..], &["--ctx", "32768"]].concat());
    screen.press("Hello\r");
    screen.wait_for("word word");
    let (lines, long) = ("two\rlines", "the end ".repeat(900));
    screen.press(&format!("\x1b[200~{lines}\r{long}\x1b[201~"));
    // Ctrl-C would take away what was typed before it, so the answer is stopped from elsewhere.
    let id = screen.child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let shown = screen.wait_for(PROMPT);
    assert!(shown.contains("stopped") && !shown.contains("two"), "{shown}");
    screen.press("\r");
    screen.wait_for("word word");
    screen.press(CTRL_C);
    screen.wait_for(PROMPT);
    let said = contents(&screen.transcript(home.path()));
    assert_eq!((said.len(), &*said[2]), (4, &*format!("two\nlines\n{long}")));

    // However it ends, the terminal is as it was.
    let modes = |screen: &Screen| tcgetattr(&screen.keys).unwrap().local_modes;
    let usual = LocalModes::ICANON | LocalModes::ECHO;
    screen.press("Again\r");
    screen.wait_for("word word");
    assert!(!modes(&screen).intersects(usual));
    assert!(Command::new("kill").arg(&id).status().unwrap().success());
    let start = Instant::now();
    while screen.child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(modes(&screen).contains(usual));
}

#[test]
fn messages_can_have_several_lines() {
    let home = home();
    let mut screen = Screen::chat(home.path(), &SHORT);
    screen.press("one \\\r");
    screen.say("two");
    assert_eq!(contents(&screen.transcript(home.path())), ["one \ntwo", "yes"]);
}

#[test]
fn answers_are_as_wide_as_the_window() {
    let home = home();
    let mut screen = Screen::chat(home.path(), &["--regex", "(word ){60}end"]);
    for columns in [80, 33, 120] {
        resize(&screen.keys, columns);
        let shown = screen.say("Hello");
        let lines: Vec<&str> =
            shown.lines().map(str::trim_end).filter(|line| line.starts_with("word")).collect();
        let widest = lines.iter().map(|line| line.len()).max().unwrap();
        // No word is cut, and one more would not have fitted.
        assert!(
            lines.iter().all(|line| line.split(' ').all(|word| word == "word" || word == "end")),
            "{shown:?}"
        );
        assert!(
            widest < usize::from(columns) && widest + 5 >= usize::from(columns) - 1,
            "{columns}: {shown:?}"
        );
    }
}

/// What is shown has no line that the terminal would break, and all of these words in a row.
fn assert_is_broken_at_words(shown: &str, columns: usize, phrase: &str) {
    // An editor draws what is typed by itself.
    let lines = shown.lines().map(str::trim_end).filter(|line| !line.contains('\x1b'));
    let widest = lines.map(|line| line.chars().count()).max().unwrap();
    assert!(widest < columns, "{widest} columns: {shown:?}");
    let words: Vec<&str> = shown.split_whitespace().collect();
    assert!(words.join(" ").contains(phrase), "{shown:?}");
}

/// Not answers alone: also errors, what is said about the conversation, and what was said in it.
#[test]
fn no_word_is_broken_wherever_people_read() {
    let home = home();
    let mut screen = Screen::chat(home.path(), &["--regex", "(word ){60}end"]);
    screen.say("Hello");
    resize(&screen.keys, 34);
    for (command, phrase) in [
        ("/stats", "first token after"),
        ("/history", "assistant: word word word word word word word word"),
        ("/model /no/where.gguf", "/no/where.gguf: no such file; check the path"),
        ("/zzzz", "There is no command /zzzz. /help lists them all."),
    ] {
        assert_is_broken_at_words(&screen.say(command), 34, phrase);
    }
    let run = |args: &[&str], end: &str| {
        let args = [&["run", "-m", TINY, "--raw", "--temp", "0"], args].concat();
        Screen::of(home.path(), &args, "1").wait_for(end)
    };
    let shown = run(&["the end", "--regex", "(word ){60}end"], "first token");
    assert_is_broken_at_words(&shown, 80, "word word word word word word end prompt");
    let shown = run(&["the end of it", "-c", "4"], "1024)");
    assert_is_broken_at_words(&shown, 80, "use a shorter prompt, or a larger --ctx (up to 1024)");
}

/// Words go on in lines as wide as the window is by then.
#[test]
fn a_window_may_be_resized_during_an_answer() {
    let home = home();
    let mut screen = Screen::chat(home.path(), &LONG);
    screen.press("Hello\r");
    screen.wait_for("word word");
    for columns in [33, 120, 50] {
        resize(&screen.keys, columns);
        // What was on its way at the width before comes first.
        let is_as_wide =
            |line: &str| line.len() < columns.into() && line.len() + 5 >= usize::from(columns) - 1;
        while !is_as_wide(screen.wait_for("\n").trim_end()) {}
        for _ in 0..5 {
            let line = screen.wait_for("\n");
            assert!(is_as_wide(line.trim_end()), "{columns}: {line:?}");
            assert!(line.split_whitespace().all(|word| word == "word"), "{columns}: {line:?}");
        }
    }
    screen.press(CTRL_C);
    let shown = screen.wait_for(PROMPT);
    assert!(shown.contains("stopped; the answer so far stays"), "{shown}");
}

/// A message that is half typed stays what it is.
#[test]
fn a_window_may_be_resized_while_a_message_is_typed() {
    let home = home();
    let mut screen = Screen::chat(home.path(), &SHORT);
    let half = "a message of more columns than there will be ";
    screen.press(half);
    screen.wait_for("there will be");
    for columns in [20, 120, 33] {
        resize(&screen.keys, columns);
        // What is drawn for it.
        screen.press("x");
        screen.wait_for("x");
    }
    screen.say("end");
    assert_eq!(contents(&screen.transcript(home.path())), [&format!("{half}xxxend"), "yes"]);
}

#[test]
fn a_dead_worker_does_not_end_the_conversation() {
    let home = home();
    let mut worker = Worker::start(&[]);
    let mut screen =
        Screen::chat(home.path(), &["--regex", "yes", "--workers", &worker.address, "--split", "1"]);
    screen.say("Hello");
    worker.child.kill().unwrap();
    worker.child.wait().unwrap();
    // This machine takes its part over.
    let shown = screen.say("And now?");
    assert!(shown.contains(&worker.address) && shown.contains("is lost; continuing without it"), "{shown}");
    assert_eq!(contents(&screen.transcript(home.path())), ["Hello", "yes", "And now?", "yes"]);
    // Asked for by name, it is still gone.
    let shown = screen.say(&format!("/workers {}", worker.address));
    assert!(shown.contains(&worker.address) && shown.contains("nothing was changed"), "{shown}");
    let shown = screen.say("/workers none");
    assert!(shown.contains("a context of 1024 tokens"), "{shown}");
    screen.say("/retry");
    assert_eq!(contents(&screen.transcript(home.path())), ["Hello", "yes", "And now?", "yes"]);
}

#[test]
fn a_full_context_says_so_and_what_to_do() {
    let home = home();
    let mut screen = Screen::chat(home.path(), &["--regex", "(word ){1000}", "-n", "-1", "--ctx", "256"]);
    let shown = screen.say("Hello");
    assert!(shown.contains("ended because the context of 256 tokens is full: /undo or /clear"), "{shown}");
    let shown = screen.say("And now?");
    assert!(shown.contains("no longer fits in the context of 256 tokens"), "{shown}");
    let said = contents(&screen.transcript(home.path()));
    assert_eq!(
        (said.len(), said[0].as_str(), said[2].as_str()),
        (3, "Hello", "And now?"),
        "all of it is kept"
    );
    let shown = screen.say("/undo");
    assert!(shown.contains("took back 'And now?'"), "{shown}");
    screen.say("/undo");
    assert!(screen.say("Again").contains("word"));
    screen.say("/clear");
    let shown = screen.paste(&"the end ".repeat(300));
    assert!(shown.contains("this message does not fit in the context of 256 tokens: shorten it"), "{shown}");

    let mut screen =
        Screen::chat(home.path(), &["--regex", "(word ){200}", "-n", "-1", "--ctx", "256", "--shift"]);
    let shown = screen.say("Hello");
    assert!(!shown.contains("full"), "{shown}");
    let shown = screen.say("And now?");
    assert!(shown.contains("the oldest 2 messages") && shown.contains("word"), "{shown}");
}

/// Where no --ctx was given, the context is as long as a message needs, up to what the model was trained for.
#[test]
fn a_long_message_makes_the_context_longer() {
    let home = home();
    let model = model_with(home.path(), "long.gguf", |builder| {
        builder.set("qwen2.context_length", 32_768_u32);
    });
    let mut screen = Screen::with_model(home.path(), &model, &SHORT, "1");
    let shown = screen.say("/stats");
    assert!(shown.contains("a context of 4096 tokens"), "{shown}");
    screen.say("Hello");
    let long = "the end ".repeat(2560);
    let shown = screen.paste(long.trim_end());
    assert!(shown.contains("the context of 4096 tokens is too short") && shown.contains("yes"), "{shown}");
    assert_eq!(contents(&screen.transcript(home.path())), ["Hello", "yes", long.trim_end(), "yes"]);
    // Another model begins with its own.
    let shown = screen.say(&format!("/model {}", reasoning_model(home.path()).display()));
    assert!(shown.contains("a context of 1024 tokens"), "{shown}");

    // One that was chosen stays.
    let mut screen = Screen::with_model(home.path(), &model, &["--regex", "yes", "--ctx", "4096"], "1");
    let shown = screen.paste(long.trim_end());
    assert!(shown.contains("does not fit in the context of 4096 tokens"), "{shown}");
}

/// A model that was taught to reason, as far as its template says.
fn reasoning_model(folder: &Path) -> PathBuf {
    let template = "{% for message in messages %}{{ message.content }}\n{% endfor %}{# <think></think> #}";
    model_with(folder, "reasoning.gguf", |builder| {
        builder.set("tokenizer.chat_template", template);
    })
}

/// The tiny model with other metadata.
fn model_with(folder: &Path, name: &str, change: impl FnOnce(&mut Builder)) -> PathBuf {
    let file = Gguf::open(Path::new(TINY)).unwrap();
    let mut builder = Builder::like(file.header());
    change(&mut builder);
    for tensor in file.tensors().iter() {
        let mut bytes = vec![0; tensor.layout().byte_len()];
        file.read_tensor_little_endian(&tensor, &mut bytes).unwrap();
        builder.tensor_like(&tensor, bytes);
    }
    let path = folder.join(name);
    builder.write(File::create(&path).unwrap()).unwrap();
    path
}

#[test]
fn answers_look_like_what_their_marks_mean() {
    let home = home();
    let args = ["--regex", r"A \*\*bold\*\* word"];
    let mut screen = Screen::with_model(home.path(), Path::new(TINY), &args, "");
    let shown = screen.say("Hello");
    assert!(shown.contains("A \x1b[1mbold\x1b[0m word"), "{shown:?}");
    let shown = screen.say("/markdown off");
    assert!(shown.contains("Markdown is shown as plain text"), "{shown:?}");
    assert!(screen.say("Hello").contains("A **bold** word"));
    // A file, and the model, have it as it was said.
    assert_eq!(contents(&screen.transcript(home.path()))[1], "A **bold** word");
}

#[test]
fn reasoning_is_dim_and_can_be_folded() {
    let home = home();
    let model = reasoning_model(home.path());
    let args = ["--regex", "<think>let me see</think>yes"];
    let mut screen = Screen::with_model(home.path(), &model, &args, "");
    let shown = screen.say("Hello");
    assert!(shown.contains("\x1b[2mlet me see\x1b[0m") && shown.contains("yes"), "{shown:?}");
    let shown = screen.say("/think fold");
    assert!(shown.contains("reasoning is now folded"), "{shown:?}");
    let shown = screen.say("Hello");
    assert!(shown.contains("thinking… 3 words; /think shows them") && !shown.contains("let me"), "{shown:?}");
    assert!(screen.say("/think").contains("let me see"));
    assert_eq!(contents(&screen.transcript(home.path())), ["Hello", "yes", "Hello", "yes"]);
}

/// A conversation goes on with another model; one that cannot be used changes nothing, so that what was computed is still there.
#[test]
fn models_can_be_switched() {
    let home = home();
    let model = reasoning_model(home.path());
    let text = home.path().join("notes.gguf");
    std::fs::write(&text, "no model").unwrap();
    // Where there is no hub.
    let mut screen = Screen::chat(home.path(), &[&SHORT[..], &["--mirror", "http://127.0.0.1:1"]].concat());
    screen.say("Hello");
    let shown = screen.say(&format!("/model {}", model.display()));
    assert!(shown.contains("reasoning.gguf, a context of 1024 tokens"), "{shown}");
    screen.say("More");
    let unusable = [
        ("/nowhere.gguf", "no such file"),
        (text.to_str().unwrap(), "not a GGUF file"),
        ("owner/name", "cannot reach 127.0.0.1:1"),
    ];
    for (name, why) in unusable {
        let shown = screen.say(&format!("/model {name}"));
        assert!(shown.contains(why), "{shown}");
        let kept = "reasoning.gguf, a context of 1024 tokens";
        assert!(shown.contains("nothing was changed: ") && shown.contains(kept), "{shown}");
        assert!(!shown.contains("/retry"), "{shown}");
    }
    screen.say("And more");
    let shown = screen.say("/stats");
    assert!(!shown.contains("; 0 prompt tokens reused"), "{shown}");
    let transcript = screen.transcript(home.path());
    assert_eq!(contents(&transcript), ["Hello", "yes", "More", "yes", "And more", "yes"]);
    assert_eq!(transcript["model"], model.display().to_string());
}

/// Where there is no room for two models, the one that answers makes way only for one that fits in its place.
#[test]
fn a_model_makes_way_for_one_that_fits() {
    let home = home();
    let other = model_with(home.path(), "other.gguf", |_| {});
    let long = model_with(home.path(), "long.gguf", |builder| {
        builder.set("qwen2.context_length", 32_768_u32);
    });
    let needed = {
        let worker = Worker::start(&[]);
        let plan = ["run", "-m", TINY, "--workers", &worker.address, "--split", "1", "--plan", "--json"];
        let plan = user::command(env!("CARGO_BIN_EXE_oxcart")).args(plan).output().unwrap();
        let plan: Value = serde_json::from_slice(&plan.stdout).unwrap();
        plan["placement"][0]["needed_bytes"].as_u64().unwrap()
    };
    let worker = Worker::start(&["--max-memory", &format!("{}K", needed * 5 / 4 / 1024)]);
    let mut screen =
        Screen::chat(home.path(), &["--regex", "yes", "--workers", &worker.address, "--split", "1"]);
    screen.say("Hello");
    let shown = screen.say(&format!("/model {}", long.display()));
    assert!(
        shown.contains("its part of the model needs") && shown.contains("nothing was changed"),
        "{shown}"
    );
    let shown = screen.say(&format!("/model {}", other.display()));
    // Wherever lines are broken.
    let said = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("there is no room for both, so ") && said.contains("is unloaded first"), "{shown}");
    assert!(shown.contains("other.gguf on "), "{shown}");
    screen.say("More");
    assert_eq!(contents(&screen.transcript(home.path())), ["Hello", "yes", "More", "yes"]);
}

#[test]
fn an_answer_that_is_too_long_says_so() {
    let home = home();
    let mut screen = Screen::chat(home.path(), &["--regex", "(word ){1000}", "-n", "8"]);
    let shown = screen.say("Hello");
    assert!(shown.contains("stopped at the limit of 8 tokens (-n)"), "{shown}");
}

#[test]
fn conversations_are_saved_and_loaded() {
    let home = home();
    let path = home.path().join("a talk.json");
    let mut screen = Screen::chat(home.path(), &SHORT);
    screen.say("/system be brief");
    screen.say("Hello");
    let shown = screen.say(&format!("/save \"{}\"", path.display()));
    assert!(shown.contains("saved 2 messages to "), "{shown}");
    let shown = screen.say("/clear");
    assert!(shown.contains("started over; 2 messages dropped"), "{shown}");

    let mut screen = Screen::chat(home.path(), &SHORT);
    let shown = screen.say(&format!("/load {}", path.display()));
    assert!(shown.contains("loaded 2 messages from "), "{shown}");
    let shown = screen.say("/stats");
    assert!(
        shown.contains("2 messages so far") && shown.contains("nothing has been computed yet"),
        "{shown}"
    );
    screen.say("More");
    let transcript = screen.transcript(home.path());
    assert_eq!(contents(&transcript), ["Hello", "yes", "More", "yes"]);
    assert_eq!(transcript["system"], "be brief");
    let mut file = transcript.clone();
    file["messages"].as_array_mut().unwrap().pop();
    std::fs::write(&path, file.to_string()).unwrap();
    screen.say(&format!("/load {}", path.display()));
    screen.say("/retry");
    assert_eq!(contents(&screen.transcript(home.path())), ["Hello", "yes", "More", "yes"]);
    let shown = screen.say(&format!("/load {}", path.display()));
    assert!(shown.contains("loaded 3 messages from ") && shown.contains("in place of 4 messages"), "{shown}");
    let shown = screen.say("/load /nowhere");
    assert!(shown.contains("/nowhere: "), "{shown}");
}

#[test]
fn every_command_says_what_it_did() {
    let home = home();
    let notes = home.path().join("notes.txt");
    std::fs::write(&notes, "buy milk\n").unwrap();
    let mut screen = Screen::chat(home.path(), &SHORT);
    for (command, want) in [
        ("/history", "no messages yet"),
        ("/retry", "no messages yet"),
        ("/edit", "no messages yet"),
        ("/undo", "no messages yet"),
        ("/stats", "0 messages so far"),
        ("/help", "/workers [LIST]"),
        ("/sav", "There is no command /sav. Did you mean /save?"),
        ("/save", "/save needs a path"),
        ("/think", "no reasoning"),
        ("/think fold", "reasoning is now folded"),
        ("/markdown off", "Markdown is shown as plain text"),
        ("/markdown on", "because colours are off"),
        ("/model", "tiny.gguf, a context of 1024 tokens"),
        ("/model /nowhere.gguf", "no such file"),
        ("/workers nonsense:x", "write host:port"),
        ("/system", "system prompt cleared"),
        ("/file /nowhere", "/nowhere: "),
    ] {
        let shown = screen.say(command);
        assert!(shown.contains(want), "{command}: {shown}");
    }
    let shown = screen.say(&format!("/file {}", notes.display()));
    assert!(shown.contains("notes.txt (9 B) will be sent with your next message"), "{shown}");
    screen.say("What is to do?");
    let asked = "What is to do?\n\nnotes.txt:\n```\nbuy milk\n```";
    assert_eq!(contents(&screen.transcript(home.path())), [asked, "yes"]);
    screen.say("/undo");
    screen.say("First");
    screen.say("/edit");
    screen.press(CTRL_C);
    screen.wait_for(PROMPT);
    assert_eq!(
        contents(&screen.transcript(home.path())),
        ["First", "yes"],
        "a draft that is not sent changes nothing"
    );
    screen.say("/edit");
    screen.say(" and more");
    assert_eq!(contents(&screen.transcript(home.path())), ["First and more", "yes"]);
    let shown = screen.say("/stats");
    assert!(shown.contains("2 messages so far") && shown.contains("in the context"), "{shown}");
    screen.press("/exit\r");
    assert!(screen.end().success());
}

#[test]
fn top_is_live_until_it_is_left() {
    let home = home();
    let worker = Worker::start(&[]);
    let mut screen = Screen::of(home.path(), &["top", &worker.address, "--every", "1s"], "1");
    // What is blank already is not drawn, so no more than a word can be waited for.
    screen.wait_for(&worker.address);
    screen.wait_for("free");
    screen.press("x");
    screen.press("q");
    // The screen is as it was before.
    screen.wait_for("\x1b[?1049l");
    assert!(screen.end().success());
}
