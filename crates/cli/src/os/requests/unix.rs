//! Unix: signals.

use std::io;
use std::sync::mpsc::Sender;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::Request;

/// How to ask, for people.
pub(crate) const HELP: &str = "Signals: SIGUSR1 logs counters; SIGTERM, SIGINT and SIGHUP end the worker once running graphs \
are done, after 10 s at the latest; a second one ends it at once.";

/// How to ask a server, for people.
pub(crate) const SERVE_HELP: &str = "Signals: SIGHUP reads the keys again; SIGTERM and SIGINT end the server once answers are \
complete, after 10 s at the latest; a second one ends it at once.";

pub(super) fn watch(requests: Sender<Request>, hangup: Request) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
    let forward = move || {
        for signal in signals.forever() {
            let request = match signal {
                SIGUSR1 => Request::Report,
                SIGHUP => hangup,
                _ => Request::Stop,
            };
            if requests.send(request).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(forward).map(|_detached| ())
}
