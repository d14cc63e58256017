//! A file over several connections: parts are asked for side by side, and put together in their order.
//!
//! Invariants: what is written grows from the front, as with one connection, so that either way can go on with what the other left;
//! at most two parts of each connection are in memory. Every part is of the same state of the file as what is there already.

use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use ureq::http::StatusCode;

use crate::error::Error;
use crate::partial::Partial;
use crate::transfer::{Steady, Step, Web, number, range_start, version_of};

/// How often it is told how far the file has come.
const TELL: Duration = Duration::from_millis(100);

/// How a file is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// Connections at the same time.
    pub(crate) connections: usize,
    /// Bytes of a part.
    pub(crate) part: u64,
}

impl Default for Cut {
    fn default() -> Cut {
        Cut { connections: 4, part: 8 << 20 }
    }
}

impl Cut {
    /// Whether so many bytes are worth more than one connection.
    pub(crate) fn is_worth_it(self, bytes: u64) -> bool {
        self.connections > 1 && bytes >= 2 * self.part
    }
}

/// A part that came, or why it did not.
type Came = Result<Vec<u8>, String>;

impl Web {
    /// Fetches what is missing of a file of `total` bytes. `Some` says why that broke off.
    pub(crate) fn fetch_side_by_side(
        &self,
        url: &str,
        version: &str,
        partial: &mut Partial,
        total: u64,
        progress: &mut dyn FnMut(Step),
    ) -> Result<Option<String>, Error> {
        let Cut { connections, part } = self.cut;
        let start = partial.len();
        let parts = (total - start).div_ceil(part);
        let (is_over, came) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let (is_over, came) = (&is_over, &came);
            let lines: Vec<Receiver<Came>> = (0..connections as u64)
                .map(|first| {
                    let (sender, line) = sync_channel(1);
                    scope.spawn(move || {
                        for at in (first..parts).step_by(connections) {
                            let from = start + at * part;
                            let part = self.part(url, version, from, part.min(total - from), is_over, came);
                            let is_last = part.is_err();
                            // Without a reader, no one waits for it any more.
                            if sender.send(part).is_err() || is_last {
                                return;
                            }
                        }
                    });
                    line
                })
                .collect();
            let mut in_order = || -> Result<Option<String>, Error> {
                for line in (0..parts).map(|at| &lines[(at % connections as u64) as usize]) {
                    let part = loop {
                        match line.recv_timeout(TELL) {
                            Ok(part) => break part,
                            Err(RecvTimeoutError::Disconnected) => break Err("a connection ended".into()),
                            Err(RecvTimeoutError::Timeout) => {
                                let done = start + came.load(Ordering::Relaxed);
                                progress(Step { done: done.min(total), total: Some(total) });
                            }
                        }
                    };
                    let part = match part {
                        Ok(part) => part,
                        Err(reason) => return Ok(Some(reason)),
                    };
                    // Reading from memory does not fail.
                    let _ = partial.append(&mut part.as_slice(), total, |_| {})?;
                }
                progress(Step { done: total, total: Some(total) });
                Ok(None)
            };
            let outcome = in_order();
            is_over.store(true, Ordering::Relaxed);
            // Those who wait to hand a part over go home.
            drop(lines);
            outcome
        })
    }

    /// One part of a file.
    fn part(
        &self,
        url: &str,
        version: &str,
        from: u64,
        bytes: u64,
        is_over: &AtomicBool,
        came: &AtomicU64,
    ) -> Came {
        if is_over.load(Ordering::Relaxed) {
            return Err("it is over".into());
        }
        let response = self.get(url, from, Some(bytes), None).map_err(|error| error.to_string())?;
        let headers = response.headers();
        let is_it = response.status() == StatusCode::PARTIAL_CONTENT
            && range_start(headers) == Some(from)
            && number(headers, "content-length").is_none_or(|length| length == bytes)
            && version_of(url, headers) == version;
        if !is_it {
            return Err(format!("the server does not send bytes {from} and after"));
        }
        let mut body = Steady::new(response.into_body().into_reader(), self.patience()).take(bytes);
        let (mut part, mut piece) = (Vec::new(), vec![0; 64 << 10]);
        while !is_over.load(Ordering::Relaxed) {
            match body.read(&mut piece).map_err(|error| error.to_string())? {
                0 => break,
                read => {
                    part.extend_from_slice(&piece[..read]);
                    came.fetch_add(read as u64, Ordering::Relaxed);
                }
            }
        }
        match part.len() as u64 == bytes {
            true => Ok(part),
            false => Err(format!("a connection ended after {} of {bytes} bytes", part.len())),
        }
    }
}
