//! Windows: Ctrl-C, Ctrl-Break and the ends of a session. There is nothing by which a person could ask for a report.

use std::io;
use std::sync::mpsc::Sender;

use super::Request;

/// How to ask, for people.
pub(crate) const HELP: &str = "Ctrl-C ends the worker once running graphs are done, a second one at once. Windows has no \
signal that could ask for the\ncounters: they are logged at the end alone.";

/// How to ask a server, for people.
pub(crate) const SERVE_HELP: &str = "Ctrl-C ends the server once answers are complete or 10 s have passed, a second one at once. \
Windows has no signal that\ncould ask it to read its keys again.";

pub(super) fn watch(requests: Sender<Request>, _hangup: Request) -> io::Result<()> {
    let forward = move || {
        // If the receiver is gone, the program is about to end.
        let _ = requests.send(Request::Stop);
    };
    ctrlc::set_handler(forward).map_err(io::Error::other)
}
