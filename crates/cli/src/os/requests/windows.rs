//! Windows: Ctrl-C. There is nothing by which a person could ask for a report.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};

use super::Request;

/// How often to look whether something was asked.
const LOOK: Duration = Duration::from_millis(50);

/// How to ask, for people.
pub(crate) const HELP: &str = "Ctrl-C ends the worker once running graphs are done, a second one at once. Windows has no \
signal that could ask for the\ncounters: they are logged at the end alone.";

pub(super) fn watch(requests: Sender<Request>) -> io::Result<()> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&asked))?;
    }
    let forward = move || {
        loop {
            if asked.swap(false, Ordering::SeqCst) && requests.send(Request::Stop).is_err() {
                return;
            }
            thread::sleep(LOOK);
        }
    };
    thread::Builder::new().name("signals".into()).spawn(forward).map(|_detached| ())
}
