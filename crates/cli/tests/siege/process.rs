//! `oxcart worker` as a process: its address, its memory, its counters, its end.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A running worker.
pub(crate) struct Process {
    child: Child,
    log: Receiver<Value>,
    pub(crate) address: String,
}

/// How long anything may take that should happen at once, on a machine that is busy.
const SOON: Duration = Duration::from_secs(20);

/// Bytes that a client finds free where no other has any: what `--max-memory` says, less what is kept for clients with little.
pub(crate) const LENT: usize = (4 << 30) - (64 << 20);

impl Process {
    pub(crate) fn start() -> Process {
        let mut child = Command::new(env!("CARGO_BIN_EXE_oxcart"))
            .args(["worker", "--port", "0", "--threads", "2", "--max-memory", "4G", "--json"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (sender, log) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let event: Value = serde_json::from_str(&line).unwrap();
                let kind = event["event"].as_str().unwrap().to_owned();
                if ["listening", "counters", "panicked"].contains(&kind.as_str()) {
                    let _ = sender.send(event);
                }
            }
        });
        let mut process = Process { child, log, address: String::new() };
        process.address = process.next("listening")["address"].as_str().unwrap().to_owned();
        process
    }

    fn next(&self, kind: &str) -> Value {
        let start = Instant::now();
        loop {
            let left = SOON.saturating_sub(start.elapsed());
            let event = self.log.recv_timeout(left).unwrap_or_else(|_| panic!("no '{kind}' in the log"));
            assert_ne!(event["event"], "panicked", "{event}");
            if event["event"] == kind {
                return event;
            }
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// Its counters now. Lines of the log are limited, so it may have to be asked again.
    pub(crate) fn counters(&self) -> Value {
        for _ in 0..40 {
            self.signal("-USR1");
            if let Ok(event) = self.log.recv_timeout(Duration::from_millis(500)) {
                assert_ne!(event["event"], "panicked", "{event}");
                if event["event"] == "counters" {
                    return event;
                }
            }
        }
        panic!("no counters");
    }

    /// Waits until no client is connected.
    pub(crate) fn until_empty(&self) {
        self.until_connected(0);
    }

    /// Waits until so many clients are connected.
    pub(crate) fn until_connected(&self, count: u64) {
        let start = Instant::now();
        while self.counters()["connected"] != count {
            assert!(start.elapsed() < SOON, "not {count} clients: {}", self.counters());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/statm", self.child.id())).unwrap();
        text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }

    fn count(&self, folder: &str) -> usize {
        std::fs::read_dir(format!("/proc/{}/{folder}", self.child.id())).unwrap().count()
    }

    /// Descriptors and threads.
    pub(crate) fn holdings(&self) -> (usize, usize) {
        (self.count("fd"), self.count("task"))
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to end and gives its exit code.
    pub(crate) fn stop(self) -> Option<i32> {
        self.signal("-TERM");
        self.wait()
    }

    /// Its exit code, once it has ended.
    pub(crate) fn wait(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
