//! A worker of a user without settings, which ends with the test.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use crate::user;

pub(crate) struct Worker {
    #[allow(dead_code, reason = "not every test ends it before its time")]
    pub(crate) child: Child,
    pub(crate) address: String,
}

impl Worker {
    /// Starts one, and waits until clients can come.
    pub(crate) fn start(args: &[&str]) -> Worker {
        let mut child = user::command(env!("CARGO_BIN_EXE_oxcart"))
            .args(["worker", "--port", "0", "--threads", "1"])
            .args(args)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let address = loop {
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "the worker ended");
            if let Some((_, rest)) = line.split_once("listening on ") {
                break rest.split(',').next().unwrap().trim().to_owned();
            }
        };
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Worker { child, address }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
