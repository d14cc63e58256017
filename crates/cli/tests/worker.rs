//! `oxcart worker`, run as people run it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "user/without_settings.rs"]
mod user;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

struct Worker {
    child: Child,
    /// Taken away by a test of what happens without.
    log: Option<BufReader<ChildStderr>>,
}

impl Worker {
    fn start(args: &[&str]) -> Worker {
        Worker::start_in(&std::env::temp_dir(), args)
    }

    /// Starts one whose user keeps things here that can be made again.
    fn start_in(cache: &Path, args: &[&str]) -> Worker {
        let mut child = user::command(env!("CARGO_BIN_EXE_oxcart"))
            .env("XDG_CACHE_HOME", cache)
            .env_remove("OXCART_CACHE")
            .args(["worker", "--threads", "1"])
            .args(args)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        Worker { child, log: Some(log) }
    }

    /// The next line of the log.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.log.as_mut().unwrap().read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The next line that has something in it.
    fn line_with(&mut self, wanted: &str) -> String {
        loop {
            let line = self.line();
            assert!(!line.is_empty(), "the log ended before '{wanted}'");
            if line.contains(wanted) {
                return line;
            }
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    fn address(&mut self) -> String {
        let line = self.line_with("listening on ");
        line.split("listening on ").nth(1).unwrap().split(',').next().unwrap().to_owned()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says HELLO and returns the version that is answered.
fn greet(address: &str, body: usize) -> (TcpStream, [u8; 3]) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut hello = vec![14];
    hello.extend((body as u64).to_le_bytes());
    hello.resize(9 + body, 0);
    stream.write_all(&hello).unwrap();
    let mut reply = vec![0; if body == 0 { 11 } else { 36 }];
    stream.read_exact(&mut reply).unwrap();
    (stream, reply[8..11].try_into().unwrap())
}

#[test]
fn it_serves_counts_and_stops() {
    let mut worker = Worker::start(&["--port", "0", "--max-memory", "64M"]);
    assert!(worker.line().contains("lending CPU ("));
    let address = worker.address();
    let (_old, version) = greet(&address, 0);
    assert_eq!(version, [2, 0, 0]);
    worker.line_with("connected, protocol 2.0");
    let (mut new, version) = greet(&address, 24);
    assert_eq!(version, [7, 0, 0]);
    worker.line_with("connected, protocol 7.0");
    new.write_all(&[99; 9]).unwrap();
    worker.line_with("refused: command: there is no command 99 [command]");
    // That is said a moment before its place is free.
    let start = Instant::now();
    loop {
        worker.signal("-USR1");
        let line = worker.line_with("counters: ");
        if line.contains("counters: 1 connected, 2 clients so far") {
            break;
        }
        assert!(line.contains("counters: 2 connected, 2 clients so far"), "{line}");
        assert!(start.elapsed() < Duration::from_secs(60), "it stays");
    }
    worker.signal("-TERM");
    worker.line_with("stopping");
    worker.line_with("counters: 0 connected, 2 clients so far");
    assert_eq!(worker.child.wait().unwrap().code(), Some(0));
}

/// A client of a worker that keeps weights in this home: it has `weights` put somewhere, by their hash if they `are_kept`, and sent
/// otherwise. What the worker counts.
#[cfg(target_os = "linux")]
fn come_with(weights: &[u8], are_kept: bool, home: &Path) -> Value {
    let mut worker = Worker::start_in(home, &["--json", "--port", "0", "--cache"]);
    let line = worker.line_with("\"event\":\"caching\"");
    assert!(line.contains("oxcart/weights") && line.contains("\"bytes\":34359738368"), "{line}");
    let listening: Value = serde_json::from_str(&worker.line_with("\"event\":\"listening\"")).unwrap();
    let (mut client, _) = greet(listening["address"].as_str().unwrap(), 24);
    let mut ask = |command: u8, body: &[&[u8]], reply: usize| -> Vec<u8> {
        let body = body.concat();
        client.write_all(&[&[command][..], &(body.len() as u64).to_le_bytes(), &body].concat()).unwrap();
        let mut bytes = vec![0; reply];
        client.read_exact(&mut bytes).unwrap();
        bytes.split_off(reply.min(8))
    };
    let handle = ask(0, &[&[0; 4], &(weights.len() as u64).to_le_bytes()], 24)[..8].to_vec();
    let base = ask(3, &[&handle], 16);
    // One row of f32: id, type, buffer, extents and strides, and far behind them the address.
    let mut record = vec![0; 296];
    record[0] = 1;
    record[12..20].copy_from_slice(&handle);
    let row = u32::try_from(weights.len()).unwrap();
    for (place, value) in [row / 4, 1, 1, 1, 4, row, row, row].iter().enumerate() {
        record[20 + 4 * place..24 + 4 * place].copy_from_slice(&value.to_le_bytes());
    }
    record[220..228].copy_from_slice(&base);
    let hash = oxcart::rpc::wire::fnv1a(weights);
    let known = ask(7, &[&record, &[0; 8], &hash.to_le_bytes()], 9);
    assert_eq!(known, [u8::from(are_kept)]);
    if !are_kept {
        ask(6, &[&record, &[1], &[0; 8], weights], 0);
    }
    let got = ask(8, &[&record, &[0; 8], &(weights.len() as u64).to_le_bytes()], 8 + weights.len());
    assert!(got == weights);
    drop(client);
    worker.signal("-TERM");
    let counters = serde_json::from_str(&worker.line_with("\"event\":\"counters\"")).unwrap();
    assert_eq!(worker.child.wait().unwrap().code(), Some(0));
    counters
}

// Elsewhere nothing is kept for clients on the worker's own machine.
#[cfg(target_os = "linux")]
#[test]
fn weights_are_kept_for_those_who_come_back() {
    let home = tempfile::tempdir().unwrap();
    // More than clients send without asking.
    let weights = vec![7_u8; 10_485_764];
    let numbers = |counters: &Value| {
        ["hits", "misses", "rejected"].map(|name| counters[format!("cache_{name}")].as_u64().unwrap())
    };
    // Once, if the disk is quick enough; what it is too slow for is not kept.
    let is_stored = || {
        let counters = come_with(&weights, false, home.path());
        assert_eq!(numbers(&counters), [0, 1, 0]);
        counters["cache_stored"] == 1
    };
    assert!((0..10).any(|_| is_stored()), "it is not kept");
    let counters = come_with(&weights, true, home.path());
    assert_eq!((numbers(&counters), &counters["cache_stored"]), ([1, 0, 0], &0.into()));
    assert_eq!(std::fs::read_dir(home.path().join("oxcart/weights")).unwrap().count(), 1);
}

/// A worker with the same model, under another name: none of it is sent, and digests of both files are kept. (Elsewhere nothing is.)
#[cfg(target_os = "linux")]
#[test]
fn a_model_that_the_worker_has_is_not_sent() {
    let home = tempfile::tempdir().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny.gguf");
    let models = home.path().join("models");
    std::fs::create_dir(&models).unwrap();
    std::fs::copy(&model, models.join("other.gguf")).unwrap();
    let mut worker =
        Worker::start_in(home.path(), &["--json", "--port", "0", "--models", models.to_str().unwrap()]);
    let (mut address, mut offered) = (None, None);
    while address.is_none() || offered.is_none() {
        let line: Value = serde_json::from_str(&worker.line()).unwrap();
        match line["event"].as_str().unwrap() {
            "listening" => address = Some(line["address"].as_str().unwrap().to_owned()),
            "own_models" => offered = Some((line["files"].clone(), line["bytes"].as_u64().unwrap())),
            _ => {}
        }
    }
    let (files, bytes) = offered.unwrap();
    assert!(files == 1 && bytes > 100_000, "{files} files, {bytes} bytes");
    let run = || {
        let mut command = user::command(env!("CARGO_BIN_EXE_oxcart"));
        command.env("XDG_CACHE_HOME", home.path()).env_remove("OXCART_CACHE");
        command.args([
            "run",
            "--raw",
            "-n",
            "2",
            "--temp",
            "0",
            "--workers",
            address.as_ref().unwrap(),
            "--split",
            "1,0",
            "-m",
        ]);
        let output = command.arg(&model).arg("the end").output().unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && log.contains("; workers had "), "{log}");
        output.stdout
    };
    assert_eq!(run(), run());
    let records = std::fs::read_dir(home.path().join("oxcart/digests")).unwrap();
    assert!(records.count() >= 1, "those of the client's file, which is old");
}

#[test]
fn own_models_need_a_folder() {
    let output = user::command(env!("CARGO_BIN_EXE_oxcart"))
        .args(["worker", "--port", "0", "--models", "/no/such/folder"])
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && error.contains("cannot look for models in"), "{error}");
}

#[test]
fn a_cache_needs_a_folder_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let worker = |args: &[&str]| {
        let mut command = user::command(env!("CARGO_BIN_EXE_oxcart"));
        let output = command
            .arg("worker")
            .args(args)
            .env_remove("OXCART_CACHE")
            .env_remove("XDG_CACHE_HOME")
            .env_remove("HOME")
            .output();
        let output = output.unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, error) = worker(&["--port", "0", "--cache"]);
    assert!(code == Some(2) && error.contains("--cache=DIR"), "{error}");
    std::fs::write(folder.path().join("file"), []).unwrap();
    let (code, error) = worker(&["--port", "0", &format!("--cache={}/file", folder.path().display())]);
    assert!(code == Some(1) && error.contains("cannot keep weights in"), "{error}");
    assert_eq!(worker(&["--cache-size", "1G"]).0, Some(2));
}

#[test]
fn several_ports_and_json() {
    let mut worker = Worker::start(&["--json", "--listen", "127.0.0.1:0", "--listen", "3.6@127.0.0.1:0"]);
    let mut next = |event: &str| -> Value {
        let line = worker.line_with(&format!("\"event\":\"{event}\""));
        serde_json::from_str(&line).unwrap()
    };
    let (first, second) = (next("listening"), next("listening"));
    assert_eq!((&first["protocol"], &second["protocol"]), (&"auto".into(), &"3.6".into()));
    let (_client, version) = greet(second["address"].as_str().unwrap(), 0);
    assert_eq!(version, [3, 6, 1]);
    assert_eq!(next("connected")["protocol"], "3.6");
    worker.signal("-INT");
    let counters: Value = serde_json::from_str(&worker.line_with("\"event\":\"counters\"")).unwrap();
    assert_eq!((&counters["clients"], &counters["panics"]), (&1.into(), &0.into()));
    assert_eq!(worker.child.wait().unwrap().code(), Some(0));
}

/// A place where nothing can be kept.
fn in_a_file() -> std::path::PathBuf {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("a-file");
    std::fs::write(&file, "").unwrap();
    file.join("x")
}

/// Without being told to, it can be reached from this machine alone. Beyond, it wants keys, so it does not start where there can be none.
#[test]
fn it_listens_beyond_loopback_only_when_told_to() {
    let worker = |args: &[&str]| {
        let mut command = user::command(env!("CARGO_BIN_EXE_oxcart"));
        // No folder can be made in a file.
        let output = command.env("XDG_DATA_HOME", in_a_file()).arg("worker").args(args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for args in [
        &["--host", "0.0.0.0", "--port", "0"][..],
        &["--listen", "[::]:0"],
        &["--listen", "7.0@0.0.0.0:0"],
        &["--port", "0", "--no-plain"],
        &["--port", "0", "--advertise", "den.lan"],
    ] {
        let (code, error) = worker(args);
        assert_eq!((code, error.contains("identity")), (Some(1), true), "{error}");
    }
    let (code, error) = worker(&["--device", "GPU9"]);
    assert_eq!(
        (code, error.contains("there is no device 'GPU9'; available: CPU")),
        (Some(2), true),
        "{error}"
    );
    for args in [
        ["--protocol", "9.9"],
        ["--max-memory", "lots"],
        ["--idle-timeout", "0"],
        ["--listen", "here"],
        ["--allow-plain", "everyone"],
        ["--name", "all"],
    ] {
        assert_eq!(worker(&args).0, Some(2), "{args:?}");
    }
    let mut near = Worker::start(&["--port", "0"]);
    assert!(near.address().starts_with("127.0.0.1:"));
    let mut worker = Worker::start(&["--host", "0.0.0.0", "--port", "0"]);
    let port = worker.address().rsplit_once(':').unwrap().1.to_owned();
    assert_eq!(greet(&format!("127.0.0.1:{port}"), 24).1, [7, 0, 0]);
}

/// Also with a log that cannot be written at all.
#[test]
fn an_unread_log_blocks_no_client() {
    let mut worker = Worker::start(&["--port", "0"]);
    let address = worker.address();
    worker.log = None;
    for _ in 0..300 {
        let (mut stream, version) = greet(&address, 0);
        assert_eq!(version, [2, 0, 0]);
        // Not only greeted, which is a line of the log: GET_ALIGNMENT is answered too.
        stream.write_all(&[1, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        let mut reply = [0; 16];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..8], 8_u64.to_le_bytes());
        stream.write_all(&[99; 9]).unwrap();
    }
}

#[test]
fn the_log_can_be_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("worker.log");
    let mut worker = Worker::start(&["--port", "0", "--json", "--log", file.to_str().unwrap()]);
    let start = Instant::now();
    let written = || std::fs::read_to_string(&file).unwrap_or_default();
    while !written().contains("\"event\":\"listening\"") {
        assert!(start.elapsed() < Duration::from_secs(60), "{}", written());
        std::thread::sleep(Duration::from_millis(20));
    }
    worker.signal("-TERM");
    assert!(worker.child.wait().unwrap().success());
    let lines: Vec<Value> = written().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events: Vec<&str> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["lending", "listening", "invitation", "stopping", "counters"]);
    let is_whole = |line: &Value| line["time"].is_string() && line["message"].is_string();
    assert!(lines.iter().all(is_whole) && lines[4]["refusals"].is_object(), "{lines:?}");
    assert_eq!(worker.line(), "", "nothing of it is on stderr");
}
