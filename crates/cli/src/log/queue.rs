//! Lines on their way: a thread of its own writes them, so that a full pipe or a slow disk holds up no one; what does not fit is
//! dropped.

use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Lines that may wait to be written.
pub(super) const QUEUED_LINES: usize = 1024;

/// How long the last lines may take: where they are read, and the machine has other work, longer than a moment.
const LAST_LINES: Duration = Duration::from_secs(5);

/// How often the end is looked for.
const LOOK: Duration = Duration::from_millis(1);

/// A line, or the end of all lines.
pub(super) type Queued = Option<String>;

/// The way from those who have something to tell to where it is written.
#[derive(Debug)]
pub(super) struct Queue {
    sender: SyncSender<Queued>,
    writer: JoinHandle<()>,
}

impl Queue {
    pub(super) fn to(target: impl Write + Send + 'static) -> Queue {
        let (sender, lines) = sync_channel(QUEUED_LINES);
        Queue { sender, writer: thread::spawn(move || write(&lines, target)) }
    }

    pub(super) fn sender(&self) -> SyncSender<Queued> {
        self.sender.clone()
    }

    /// Waits until all is written, unless it is not read.
    pub(super) fn finish(self) {
        let start = Instant::now();
        let is_time_left = || start.elapsed() < LAST_LINES;
        while matches!(self.sender.try_send(None), Err(TrySendError::Full(_))) && is_time_left() {
            thread::sleep(LOOK);
        }
        while !self.writer.is_finished() && is_time_left() {
            thread::sleep(LOOK);
        }
    }
}

fn write(lines: &Receiver<Queued>, mut target: impl Write) {
    while let Ok(Some(mut line)) = lines.recv() {
        line.push('\n');
        // It may not be read any more; those who tell go on.
        let _ = target.write_all(line.as_bytes());
    }
}
