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
    #[allow(dead_code, reason = "not every test has one that may be anywhere")]
    pub(crate) fn start(args: &[&str]) -> Worker {
        Worker::start_on("0", args)
    }

    /// Ends it and starts another one in its place.
    #[allow(dead_code, reason = "not every test has one come back")]
    pub(crate) fn restart(&mut self, args: &[&str]) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let port = self.address.rsplit(':').next().unwrap().to_owned();
        *self = Worker::start_on(&port, args);
    }

    /// Starts one at a port that the system gives to none by itself, so that it is still free after the worker's end.
    #[allow(dead_code, reason = "not every test has one come back")]
    pub(crate) fn start_to_stay(args: &[&str]) -> Worker {
        let first = 20_000 + std::process::id() % 8000;
        let is_free = |port: &u32| std::net::TcpListener::bind(format!("127.0.0.1:{port}")).is_ok();
        let port = (first..first + 2000).find(is_free).unwrap();
        Worker::start_on(&port.to_string(), args)
    }

    fn start_on(port: &str, args: &[&str]) -> Worker {
        let mut command = user::command(env!("CARGO_BIN_EXE_oxcart"));
        command.args(["worker", "--port", port, "--threads", "1"]).args(args).stdin(Stdio::null());
        Worker::wait_for(command.stderr(Stdio::piped()).spawn().unwrap())
    }

    /// A worker that was started, with its log on a pipe, once clients can come.
    pub(crate) fn wait_for(mut child: Child) -> Worker {
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
