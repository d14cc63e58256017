//! The workers of a round, and what befalls them: they are killed, started again, stopped, and cut off from the network.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::user;
use crate::worker::Worker;

/// How many there are.
pub(crate) const COUNT: usize = 3;

/// What befalls a worker, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Kill(usize),
    Restart(usize),
    Freeze(usize),
    Thaw(usize),
    Cut(usize),
    Heal(usize),
    /// Nothing befalls any.
    Nothing,
}

/// Where workers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On loopback.
    Here,
    /// Each in a network of its own with one cable to this one. This one must be the test's own, too.
    Networks,
}

pub(crate) struct Machines {
    workers: Vec<Worker>,
    place: Place,
}

impl Machines {
    pub(crate) fn start(place: Place) -> Machines {
        let worker = |number| match place {
            Place::Here => Worker::start_to_stay(&[]),
            Place::Networks => in_network(number),
        };
        Machines { workers: (0..COUNT).map(worker).collect(), place }
    }

    /// What `--workers` takes.
    pub(crate) fn addresses(&self) -> String {
        let addresses: Vec<&str> = self.workers.iter().map(|worker| worker.address.as_str()).collect();
        addresses.join(",")
    }

    pub(crate) fn suffer(&mut self, fate: Fate) {
        match fate {
            Fate::Kill(at) => {
                self.workers[at].child.kill().unwrap();
                self.workers[at].child.wait().unwrap();
            }
            Fate::Restart(at) => self.workers[at].restart(&[]),
            Fate::Freeze(at) => run("kill", &["-STOP", &self.id(at)]),
            Fate::Thaw(at) => run("kill", &["-CONT", &self.id(at)]),
            Fate::Cut(at) => self.plug(at, "down"),
            Fate::Heal(at) => self.plug(at, "up"),
            Fate::Nothing => {}
        }
    }

    fn id(&self, at: usize) -> String {
        self.workers[at].child.id().to_string()
    }

    /// Pulls the cable out of a worker's machine, or puts it in again.
    fn plug(&self, at: usize, state: &str) {
        run("nsenter", &["-t", &self.id(at), "-n", "ip", "link", "set", &format!("in{at}"), state]);
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        // A cable goes with the network at either end of it, but not at once.
        if self.place == Place::Networks {
            (0..COUNT).for_each(|at| run("ip", &["link", "delete", &format!("out{at}")]));
        }
    }
}

fn run(program: &str, args: &[&str]) {
    let status = Command::new(program).args(args).status().unwrap();
    assert!(status.success(), "{program} {args:?}: {status}");
}

/// Starts a worker in a network of its own, in which it has one address.
fn in_network(number: usize) -> Worker {
    let (outside, inside) = (format!("10.77.{number}.1"), format!("10.77.{number}.2"));
    // The worker's process has the network from its beginning, and becomes the worker once the cable is plugged in.
    let script = r#"read -r _; exec "$@""#;
    let mut command = user::command("unshare");
    command.args(["--net", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_oxcart"), "worker", "--port", "0"]);
    command.args(["--host", &inside, "--allow-plain", &format!("{outside}/32"), "--threads", "1"]);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let id = child.id().to_string();
    // Until it has, the process is in the network of the test.
    let network = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/net")).unwrap();
    while network(&id) == network("self") {
        std::thread::yield_now();
    }
    let (here, there) = (format!("out{number}"), format!("in{number}"));
    run("ip", &["link", "add", &here, "type", "veth", "peer", "name", &there, "netns", &id]);
    run("ip", &["address", "add", &format!("{outside}/24"), "dev", &here]);
    run("ip", &["link", "set", &here, "up"]);
    let within = |args: &[&str]| run("nsenter", &[&["-t", &id, "-n", "ip"], args].concat());
    within(&["address", "add", &format!("{inside}/24"), "dev", &there]);
    within(&["link", "set", &there, "up"]);
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    Worker::wait_for(child)
}
