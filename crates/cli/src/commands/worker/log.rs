//! Lines for the operator on stderr: text, or one JSON object each.
//!
//! A thread of its own writes them, so that a full pipe holds up no client; what does not fit its queue is dropped. That holds
//! for the messages of panics, too.

use std::io::{self, Write};
use std::panic::{self, PanicHookInfo};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use oxcart::backend::ByteSize;
use oxcart::rpc::worker::{Event, Observer, Snapshot, Totals};
use serde_core::Serialize;
use serde_json::{Value, json};

use crate::printable::Printable;

/// Lines that may wait to be written.
const QUEUED_LINES: usize = 1024;

/// How long the last lines may take.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Where lines go.
#[derive(Debug)]
pub(crate) struct Log {
    json: bool,
    queue: SyncSender<String>,
    writer: JoinHandle<()>,
}

impl Log {
    pub(crate) fn new(json: bool) -> Log {
        let (queue, lines) = sync_channel(QUEUED_LINES);
        Log { json, queue, writer: thread::spawn(move || write(&lines)) }
    }

    /// Makes panics lines of the log, one a second at most, from now until it is finished. A worker survives them, and a thread
    /// that panics may have the turn of a device, so the message must not wait for a pipe.
    pub(crate) fn catch_panics(&self) {
        let (json, queue, last) = (self.json, self.queue.clone(), AtomicU64::new(0));
        panic::set_hook(Box::new(move |panic| {
            let now = seconds(SystemTime::now());
            if last.swap(now, Ordering::Relaxed) != now {
                let (place, message) = described(panic);
                let text = format!("panic at {place}: {}", message.escape_debug());
                line(&queue, json, "panic", &text, json!({"place": place, "message": message}));
            }
        }));
    }

    fn line(&self, kind: &str, text: &str, fields: Value) {
        line(&self.queue, self.json, kind, text, fields);
    }

    pub(crate) fn lending(&self, name: &str, description: &str, memory: u64) {
        let text = format!("lending {name} ({description}), {}", ByteSize(memory));
        self.line("lending", &text, json!({"device": name, "description": description, "bytes": memory}));
    }

    /// `except` says what is not kept, if there is such.
    pub(crate) fn caching(&self, folder: &str, size: u64, except: Option<&str>) {
        let mut text = format!("keeping weights in {}, at most {}", folder.escape_debug(), ByteSize(size));
        if let Some(except) = except {
            text.push_str("; ");
            text.push_str(except);
        }
        self.line("caching", &text, json!({"folder": folder, "bytes": size, "except": except}));
    }

    pub(crate) fn counters(&self, counters: &Snapshot) {
        let fields = serde_json::from_str(&counters.to_json()).unwrap_or(Value::Null);
        self.line("counters", &format!("so far: {counters}"), fields);
    }

    pub(crate) fn stopping(&self) {
        self.line("stopping", "stopping: no new clients, running graphs may end", json!({}));
    }

    /// What the worker tells its news to.
    pub(crate) fn observer(&self) -> Observer {
        let (json, queue) = (self.json, self.queue.clone());
        Arc::new(move |event| line(&queue, json, event.kind(), &event.to_string(), fields(event)))
    }

    /// Waits until all is written, unless stderr is not read.
    pub(crate) fn finish(self) {
        drop(panic::take_hook());
        drop(self.queue);
        let start = Instant::now();
        while !self.writer.is_finished() && start.elapsed() < LAST_LINES {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Where a panic happened, and what it said.
fn described(panic: &PanicHookInfo<'_>) -> (String, String) {
    let place = panic.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    let payload = panic.payload();
    let message = payload.downcast_ref::<&str>().copied();
    let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    (place, message.unwrap_or("no message").to_owned())
}

fn line(queue: &SyncSender<String>, as_json: bool, kind: &str, text: &str, fields: Value) {
    let time = utc(SystemTime::now());
    let line = if as_json {
        let mut object = json!({"time": time, "event": kind});
        if let (Value::Object(object), Value::Object(fields)) = (&mut object, fields) {
            object.extend(fields);
        }
        printable(&object)
    } else {
        format!("{time} {text}")
    };
    // A full queue means that stderr is not read; the line is lost, not the client's time.
    let _ = queue.try_send(line);
}

/// JSON whose characters can all be seen.
fn printable(value: &Value) -> String {
    let mut out = Vec::new();
    let written = value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, Printable));
    written.map(|()| String::from_utf8_lossy(&out).into_owned()).unwrap_or_default()
}

fn write(lines: &Receiver<String>) {
    for line in lines {
        // The log may not be read any more; the worker goes on.
        let _ = writeln!(io::stderr(), "{line}");
    }
}

/// What is in an event, for programs.
fn fields(event: &Event) -> Value {
    match event {
        Event::Listening { address, choice } => {
            json!({"address": address.to_string(), "protocol": choice.to_string()})
        }
        Event::Connected { client, peer, dialect } => {
            json!({"client": client, "peer": peer.to_string(), "protocol": dialect.name})
        }
        Event::Left { client, peer, dialect, totals, lasted } => {
            let Totals { commands, graphs, bytes_in, bytes_out } = totals;
            json!({
                "client": client, "peer": peer.to_string(), "protocol": dialect.name,
                "seconds": lasted.as_secs_f64(), "commands": commands, "graphs": graphs,
                "bytes_in": bytes_in, "bytes_out": bytes_out,
            })
        }
        Event::Refused { client, peer, command, code, reason } => {
            json!({
                "client": client, "peer": peer.to_string(), "command": command, "code": code, "reason": reason,
            })
        }
        Event::Dropped { client, peer, why } => {
            json!({"client": client, "peer": peer.to_string(), "reason": why.reason()})
        }
        Event::Panicked { client, peer } => json!({"client": client, "peer": peer.to_string()}),
        Event::DeviceLost { device, reason } => json!({"device": device, "reason": reason}),
        Event::AcceptFailed { reason } => json!({"reason": reason}),
        Event::Suppressed { lines } => json!({"lines": lines}),
        _ => json!({}),
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

/// `2026-11-15T14:48:52Z`.
fn utc(time: SystemTime) -> String {
    let seconds = seconds(time);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years that start in March, so that the leap day is the last: 146,097 days make 400 years.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, early) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era * 400 + early;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_lines_and_blocks_no_client() {
        let (queue, lines) = sync_channel(QUEUED_LINES);
        for _ in 0..3 * QUEUED_LINES {
            line(&queue, false, "event", "text", json!({}));
        }
        assert_eq!(lines.try_iter().count(), QUEUED_LINES);
    }

    /// Set in the process that panics.
    const PANICS: &str = "OXCART_TEST_PANICS";

    /// The test runs itself again in a process of its own, whose stderr is not read.
    #[test]
    fn panics_do_not_wait_for_a_pipe() {
        if std::env::var_os(PANICS).is_some() {
            let log = Log::new(false);
            log.catch_panics();
            for _ in 0..5000 {
                let _ = panic::catch_unwind(|| panic!("{}", "long ".repeat(100)));
            }
            std::process::exit(7);
        }
        let test = thread::current().name().unwrap_or_default().to_owned();
        let mut panicking = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &test, "--nocapture"])
            .env(PANICS, "1")
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let start = Instant::now();
        let status = loop {
            if let Some(status) = panicking.try_wait().unwrap() {
                break status.code();
            }
            if start.elapsed() > Duration::from_secs(60) {
                panicking.kill().unwrap();
                break None;
            }
            thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(status, Some(7));
    }

    #[test]
    fn dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_102_444_800, "2100-01-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
