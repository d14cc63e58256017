//! What a worker tells its operator, as events.
//!
//! Telling never waits, also of a panic: the log sees to that.

use std::panic::{self, PanicHookInfo};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use oxcart::backend::ByteSize;
use oxcart::own_models::Offered;
use oxcart::rpc::link::{Invitation, MachineName, Network};
use oxcart::rpc::worker::{Event, Observer, Snapshot};
use serde_json::{Map, Value};
use tracing::{error, info, warn};

/// Makes panics lines of the log, one a second at most. A worker survives them, and a thread that panics may have the turn of a
/// device, so the message must not wait for a pipe.
pub(crate) fn catch_panics() {
    let last = AtomicU64::new(0);
    panic::set_hook(Box::new(move |panic| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if last.swap(now, Ordering::Relaxed) != now {
            let (place, message) = described(panic);
            error!(event = "panic", place, "panic at {place}: {}", message.escape_debug());
        }
    }));
}

/// Where a panic happened, and what it said.
fn described(panic: &PanicHookInfo<'_>) -> (String, String) {
    let place = panic.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    let payload = panic.payload();
    let message = payload.downcast_ref::<&str>().copied();
    let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    (place, message.unwrap_or("no message").to_owned())
}

pub(crate) fn lending(device: &str, description: &str, bytes: u64) {
    info!(
        event = "lending",
        device,
        description,
        bytes,
        "lending {device} ({description}), {}",
        ByteSize(bytes)
    );
}

/// `except` says what is not kept, if there is such.
pub(crate) fn caching(folder: &str, bytes: u64, except: Option<&str>) {
    let and = except.map_or_else(String::new, |except| format!("; {except}"));
    let shown = folder.escape_debug();
    info!(
        event = "caching",
        folder,
        bytes,
        except,
        "keeping weights in {shown}, at most {}{and}",
        ByteSize(bytes)
    );
}

/// Weights that clients need not send.
pub(crate) fn own_models(folder: &str, offered: &Offered) {
    let shown = folder.escape_debug();
    let Offered { files, tensors, bytes } = *offered;
    info!(
        event = "own_models",
        folder, files, tensors, bytes, "clients need not send what is in {shown}: {offered}"
    );
}

/// What another machine is paired with this one by.
pub(crate) fn invitation(invitation: &Invitation, is_reachable: bool) {
    let (line, seconds) = (invitation.line.to_string(), invitation.lasts.as_secs());
    let minutes = seconds / 60;
    let who = match is_reachable {
        true => "to use this machine from another one",
        false => {
            "only this machine can reach the worker (use --host with its address to let others in); to use it as another user"
        }
    };
    info!(
        event = "invitation",
        line, seconds, "{who}, run this once within {minutes} minutes: oxcart join {line}"
    );
}

/// Why there is no such line.
pub(crate) fn no_invitation(reason: &str, shows_one: &str) {
    info!(event = "no_invitation", reason, "{reason}, so no join line is shown here; {shows_one} shows one");
}

/// Who may come without a key, beyond this machine.
pub(crate) fn allowing_plain(networks: &[Network]) {
    let networks = networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    warn!(
        event = "plain",
        networks, "clients of {networks} need no key: anyone there can use the devices and read what is sent"
    );
}

pub(crate) fn not_pairing(reason: &str) {
    let shown = reason.escape_debug();
    warn!(event = "not_pairing", reason, "no machine can pair with this one: {shown}");
}

pub(crate) fn counters(counters: &Snapshot) {
    let mut fields: Map<String, Value> =
        counters.numbers().into_iter().map(|(name, number)| (name.to_owned(), number.into())).collect();
    let refusals = counters.refusals.iter().map(|(code, count)| ((*code).to_owned(), (*count).into()));
    fields.insert("refusals".into(), Value::Object(refusals.collect()));
    let fields = Value::Object(fields);
    info!(event = "counters", fields.json = %fields, "counters: {counters}");
}

pub(crate) fn stopping() {
    info!(event = "stopping", "stopping: no new clients, running graphs may finish");
}

/// What the worker tells its news to.
pub(crate) fn observer() -> Observer {
    Arc::new(tell)
}

fn tell(news: &Event) {
    let event = news.kind();
    match news {
        Event::Listening { address, choice } => {
            info!(event, %address, protocol = %choice, "{news}");
        }
        Event::Connected { client, peer, dialect, machine } => {
            let machine = machine.as_ref().map(MachineName::as_str);
            info!(event, client, %peer, protocol = dialect.name, machine, "{news}");
        }
        // Also where little is told.
        Event::Paired { peer, machine, key } => warn!(event, %peer, %machine, %key, "{news}"),
        Event::Pairing { news: pairing } => {
            let reason = pairing.to_string();
            warn!(event, reason, "{news}");
        }
        Event::Left { client, peer, dialect, totals, lasted } => info!(
            event,
            client,
            %peer,
            protocol = dialect.name,
            seconds = lasted.as_secs_f64(),
            commands = totals.commands,
            graphs = totals.graphs,
            bytes_in = totals.bytes_in,
            bytes_out = totals.bytes_out,
            "{news}"
        ),
        Event::Refused { client, peer, command, code, reason } => {
            warn!(event, client, %peer, command, code, reason, "{news}");
        }
        Event::Full { client, peer, device, bytes, free, others, held } => {
            let others = *others as u64;
            warn!(event, client, %peer, device, bytes, free, others, held, "{news}");
        }
        Event::Undelivered { client, peer, worker, machine, why } => {
            let worker = worker.as_ref().map(ToString::to_string);
            let machine = machine.as_ref().map(MachineName::as_str);
            warn!(event, client, %peer, worker, machine, reason = %why, "{news}");
        }
        Event::Dropped { client, peer, why } => {
            warn!(event, client, %peer, reason = why.reason(), "{news}");
        }
        Event::Panicked { client, peer } => error!(event, client, %peer, "{news}"),
        Event::DeviceLost { device, reason } => error!(event, device, reason, "{news}"),
        Event::AcceptFailed { reason } => warn!(event, reason, "{news}"),
        Event::Suppressed { lines } => warn!(event, lines, "{news}"),
        _ => info!(event, "{news}"),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::log::{Log, LogArgs, Style};
    use crate::terminal::Terminal;

    /// Set in the process that panics.
    const PANICS: &str = "OXCART_TEST_PANICS";

    /// The test runs itself again in a process of its own, whose stderr is not read.
    #[test]
    fn panics_do_not_wait_for_a_pipe() {
        if std::env::var_os(PANICS).is_some() {
            let log = Log::start(&LogArgs::default(), Some(Style::Timed), Terminal { colour: false });
            assert!(log.is_ok());
            catch_panics();
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
}
