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

/// How long a test waits for what should happen at once: whatever the machine does beside, only a test that fails waits so long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes that a client finds free where no other has any: what `--max-memory` says, less what is kept for clients with little.
pub(crate) const LENT: usize = (4 << 30) - (64 << 20);

impl Process {
    pub(crate) fn start() -> Process {
        let mut child = Command::new(env!("CARGO_BIN_EXE_oxcart"))
            .args(["worker", "--port", "0", "--threads", "2", "--max-memory", "4G", "--json"])
            .env("XDG_DATA_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/data"))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (sender, log) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let event: Value = serde_json::from_str(&line).unwrap();
                let kind = event["event"].as_str().unwrap().to_owned();
                if ["listening", "counters", "panicked", "stopping"].contains(&kind.as_str()) {
                    let _ = sender.send(event);
                }
            }
        });
        let mut process = Process { child, log, address: String::new() };
        process.address = process.next("listening")["address"].as_str().unwrap().to_owned();
        process
    }

    /// The next event of a kind.
    pub(crate) fn next(&self, kind: &str) -> Value {
        let start = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(start.elapsed());
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
        /// Longer than the worker takes to answer: a late answer must not be taken for a later one.
        const LONG: Duration = Duration::from_secs(10);
        let check = |event: Value| {
            assert_ne!(event["event"], "panicked", "{event}");
            Some(event).filter(|event| event["event"] == "counters")
        };
        for _ in 0..6 {
            // What was answered to an earlier question is old.
            self.log.try_iter().for_each(|event| drop(check(event)));
            self.signal("-USR1");
            let asked = Instant::now();
            while let Ok(event) = self.log.recv_timeout(LONG.saturating_sub(asked.elapsed())) {
                if let Some(counters) = check(event) {
                    return counters;
                }
            }
        }
        panic!("no counters");
    }

    /// Waits until counters are as they should be.
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) {
        let start = Instant::now();
        loop {
            let counters = self.counters();
            if is_so(&counters) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{what} did not happen: {counters}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until no client is connected.
    pub(crate) fn until_empty(&self) {
        self.until("all clients have left", |counters| counters["connected"] == 0);
    }

    /// Waits until it has no more descriptors and threads than that: those of connections that are over may take a moment to go.
    pub(crate) fn until_holds_no_more(&self, (files, threads): (usize, usize)) {
        let start = Instant::now();
        loop {
            let now = self.holdings();
            if now.0 <= files && now.1 <= threads {
                return;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "{} files, {} threads; {files}, {threads} before",
                now.0,
                now.1
            );
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
