//! What a program that runs until it is told to end is told: to end, or to say how it is.
//!
//! Invariant: from [`Requests::watch`] on, what the system asks ends nothing by itself; it waits for [`Requests::next`].

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};

#[cfg(not(windows))]
#[path = "requests/unix.rs"]
mod system;
#[cfg(windows)]
#[path = "requests/windows.rs"]
mod system;

pub(crate) use system::{HELP, SERVE_HELP};

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// To end.
    Stop,
    /// To say how it is.
    #[cfg_attr(windows, expect(dead_code, reason = "Windows has no signal that could ask for it"))]
    Report,
    /// To read its files again.
    Reread,
}

/// Requests in the order they came in.
#[derive(Debug)]
pub(crate) struct Requests {
    sender: Sender<Request>,
    receiver: Receiver<Request>,
}

impl Requests {
    /// Watches for what the system asks; a terminal that goes away, which programs without one are sent when they are to read
    /// their files again, asks for `hangup`.
    pub(crate) fn watch(hangup: Request) -> io::Result<Requests> {
        let (sender, receiver) = channel();
        system::watch(sender.clone(), hangup)?;
        Ok(Requests { sender, receiver })
    }

    /// Where others can put theirs.
    pub(crate) fn sender(&self) -> Sender<Request> {
        self.sender.clone()
    }

    /// Waits for the next one.
    pub(crate) fn next(&self) -> Request {
        // A sender is kept here, so the channel is never closed.
        self.receiver.recv().unwrap_or(Request::Stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_in_order() {
        let requests = Requests::watch(Request::Reread).unwrap();
        requests.sender().send(Request::Stop).unwrap();
        assert_eq!(requests.next(), Request::Stop);
        #[cfg(not(windows))]
        {
            use signal_hook::consts::{SIGHUP, SIGUSR1};
            for (signal, request) in [(SIGUSR1, Request::Report), (SIGHUP, Request::Reread)] {
                signal_hook::low_level::raise(signal).unwrap();
                assert_eq!(requests.next(), request);
            }
        }
    }
}
