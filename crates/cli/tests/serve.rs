//! `oxcart serve`, run as people run it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

struct Worker {
    child: Child,
    /// Taken away by a test of what happens without.
    log: Option<BufReader<ChildStderr>>,
}

impl Worker {
    fn start(args: &[&str]) -> Worker {
        let mut child = Command::new(env!("CARGO_BIN_EXE_oxcart"))
            .args(["serve", "--threads", "1"])
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
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
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
    worker.signal("-USR1");
    worker.line_with("so far: 1 connected, 2 clients so far");
    worker.signal("-TERM");
    worker.line_with("stopping");
    worker.line_with("so far: 0 connected, 2 clients so far");
    assert_eq!(worker.child.wait().unwrap().code(), Some(0));
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

#[test]
fn c6_it_does_not_listen_to_the_world_unasked() {
    let serve = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_oxcart")).arg("serve").args(args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for args in
        [&["--host", "0.0.0.0", "--port", "0"][..], &["--listen", "[::]:0"], &["--listen", "7.0@0.0.0.0:0"]]
    {
        let (code, error) = serve(args);
        assert_eq!(code, Some(2), "{error}");
        assert!(error.contains("neither keys nor encryption") && error.contains("--insecure"), "{error}");
    }
    let (code, error) = serve(&["--device", "GPU9"]);
    assert_eq!(
        (code, error.contains("there is no device 'GPU9'; there are CPU")),
        (Some(2), true),
        "{error}"
    );
    for args in
        [["--protocol", "9.9"], ["--max-memory", "lots"], ["--idle-timeout", "0"], ["--listen", "here"]]
    {
        assert_eq!(serve(&args).0, Some(2), "{args:?}");
    }
    let mut worker = Worker::start(&["--host", "0.0.0.0", "--port", "0", "--insecure"]);
    let port = worker.address().rsplit_once(':').unwrap().1.to_owned();
    assert_eq!(greet(&format!("127.0.0.1:{port}"), 24).1, [7, 0, 0]);
}

/// Also with a log that cannot be written at all.
#[test]
fn x6_a_log_that_nobody_reads_holds_up_nobody() {
    let mut worker = Worker::start(&["--port", "0"]);
    let address = worker.address();
    worker.log = None;
    for _ in 0..300 {
        let (mut stream, _) = greet(&address, 24);
        stream.write_all(&[99; 9]).unwrap();
    }
    assert_eq!(greet(&address, 0).1, [2, 0, 0]);
}
