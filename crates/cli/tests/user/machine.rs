//! Machines that are folders: each with an identity, with whom it knows, and with workers of its own.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::user;

/// A machine: a user's folders.
pub(crate) struct Machine(TempDir);

impl Machine {
    pub(crate) fn new() -> Machine {
        Machine(tempfile::tempdir().unwrap())
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = user::command(env!("CARGO_BIN_EXE_oxcart"));
        command.env("XDG_DATA_HOME", self.0.path());
        command
    }

    /// Runs a command; its exit code, what it printed, and what else it said.
    pub(crate) fn run_all(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let output = self.command().args(args).stdin(Stdio::null()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    /// Runs a command that fails, mostly; its exit code, and why.
    pub(crate) fn run(&self, args: &[&str]) -> (Option<i32>, String) {
        let (code, _, error) = self.run_all(args);
        (code, error)
    }

    /// What a command prints, which must succeed.
    #[track_caller]
    pub(crate) fn does(&self, args: &[&str]) -> String {
        let (code, printed, error) = self.run_all(args);
        assert_eq!(code, Some(0), "{args:?}: {error}");
        printed
    }

    pub(crate) fn known(&self) -> Value {
        serde_json::from_str(&self.does(&["trust", "--json"])).unwrap()
    }

    pub(crate) fn data(&self) -> &Path {
        self.0.path()
    }
}

/// A worker of a machine.
pub(crate) struct Worker {
    child: Child,
    pub(crate) log: BufReader<ChildStderr>,
}

impl Worker {
    pub(crate) fn start(machine: &Machine, args: &[&str]) -> Worker {
        let mut command = machine.command();
        let port: &[&str] = if args.contains(&"--port") { &[] } else { &["--port", "0"] };
        command.args(["worker", "--threads", "1", "--name", "den"]).args(port).args(args);
        Worker::spawn(command)
    }

    /// One that is started by other means.
    pub(crate) fn spawn(mut command: Command) -> Worker {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        Worker { child, log }
    }

    pub(crate) fn line_with(&mut self, wanted: &str) -> String {
        let mut line = String::new();
        while !line.contains(wanted) {
            line.clear();
            assert_ne!(self.log.read_line(&mut line).unwrap(), 0, "the log ended before '{wanted}'");
        }
        line.trim_end().to_owned()
    }

    pub(crate) fn address(&mut self) -> String {
        let line = self.line_with("listening on ");
        line.split("listening on ").nth(1).unwrap().split(',').next().unwrap().to_owned()
    }

    pub(crate) fn join_line(&mut self) -> String {
        self.line_with("oxcart join ").split("oxcart join ").nth(1).unwrap().to_owned()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that the system gives to none by itself, so that it is still free after a worker's end.
pub(crate) fn port_to_stay() -> String {
    let first = 30_000 + std::process::id() % 2000;
    let is_free = |port: &u32| std::net::TcpListener::bind(format!("127.0.0.1:{port}")).is_ok();
    (first..first + 700).find(is_free).unwrap().to_string()
}
