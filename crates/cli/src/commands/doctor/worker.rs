//! What is looked at on a worker, over a connection like that of any command.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oxcart::backend::{ByteSize, Device, Error, Registry};
use oxcart::rpc::client::{Abilities, Endpoint, RemoteRegistry, Timeouts};
use serde_json::json;

use super::diagnosis::{Target, diagnosis};
use super::finding::{Finding, Findings, State};
use super::measure::{bandwidth, latency};
use crate::workers::Listed;

/// How long a worker may take for what a healthy one does at once.
const PATIENCE: Duration = Duration::from_secs(5);

/// Less free memory than this is of no use to a model.
const NO_MEMORY: usize = 32 << 20;

/// A latency above this is felt: each token waits for at least one trip.
const SLOW_TRIP: Duration = Duration::from_millis(10);

/// A rate below this makes loading a model take minutes, in bytes per second.
const SLOW_RATE: f64 = (10 << 20) as f64;

/// Looks at everything about a worker.
pub(super) fn examine(listed: &Listed, findings: &Findings) {
    let Some(registry) = connected(listed, findings) else { return };
    findings.add(trust(listed, &registry));
    findings.add(version(listed, &registry));
    if let Some(error) = registry.heartbeat_error() {
        findings.add(Finding::warning(
            "heartbeats",
            format!("it may take long to notice that {} hangs: {error}", listed.name()),
            format!("on {}, look at what the worker says of this machine, and start it again", listed.name()),
        ));
    }
    let devices = registry.devices();
    let measured = devices.iter().try_for_each(|device| {
        findings.add(memory(listed.name(), &**device)?);
        Ok(())
    });
    let measured = measured.and_then(|()| devices.first().map_or(Ok(()), |device| way(&**device, findings)));
    if let Err(error) = measured {
        findings.add(Finding::problem(
            "connection",
            format!("it failed while it was looked at: {error}"),
            format!("on {}, look at what the worker says in its log, and start it again", listed.name()),
        ));
    }
}

/// A connection, at the first of its places that can be reached. That others cannot is only worth knowing then.
fn connected(listed: &Listed, findings: &Findings) -> Option<Arc<RemoteRegistry>> {
    let timeouts = Timeouts { connect: PATIENCE, control: PATIENCE, data: PATIENCE, ..Timeouts::default() };
    let options = listed.options(timeouts);
    let mut failures = Vec::new();
    for endpoint in listed.endpoints() {
        let start = Instant::now();
        match RemoteRegistry::connect(&endpoint.to_string(), &options) {
            Ok(registry) => {
                let notes =
                    failures.into_iter().map(|finding: Finding| Finding { state: State::Note, ..finding });
                notes.for_each(|note| findings.add(note));
                findings.add(reached(endpoint, start.elapsed()));
                return Some(registry);
            }
            Err(error) => {
                let target = Target { name: listed.name(), endpoint, is_paired: listed.is_paired() };
                failures.push(diagnosis(&error, start.elapsed(), target));
            }
        }
    }
    failures.into_iter().for_each(|failure| findings.add(failure));
    None
}

fn reached(endpoint: &Endpoint, took: Duration) -> Finding {
    let took_ms = took.as_secs_f64() * 1e3;
    Finding::good("connection", format!("{endpoint} answers, after {took_ms:.1} ms"))
        .with(json!({ "endpoint": endpoint.to_string(), "milliseconds": took_ms }))
}

fn trust(listed: &Listed, registry: &RemoteRegistry) -> Finding {
    const ABOUT: &str = "pairing";
    if listed.is_paired() {
        return Finding::good(ABOUT, "both machines have proved who they are, and what is sent is encrypted");
    }
    let endpoint = registry.endpoint().parse::<Endpoint>();
    let addresses = endpoint.ok().and_then(|endpoint| endpoint.addresses().ok()).unwrap_or_default();
    let is_here = !addresses.is_empty() && addresses.iter().all(|at| at.ip().to_canonical().is_loopback());
    match is_here {
        true => Finding::good(ABOUT, "it is on this machine, so it needs no key"),
        false => Finding::warning(
            ABOUT,
            "it is not paired with this machine: anyone in this network can read what is sent",
            format!("on {}: oxcart trust invite; then here: oxcart join LINE", listed.name()),
        ),
    }
}

fn version(listed: &Listed, registry: &RemoteRegistry) -> Finding {
    const ABOUT: &str = "version";
    let abilities = registry.abilities();
    let lacks = lacks(abilities);
    let name = registry.dialect().name;
    let values = json!({ "protocol": name, "lacks": &lacks });
    let finding = match (abilities.own_ops, lacks.is_empty()) {
        (true, true) => Finding::good(
            ABOUT,
            format!("a worker of Oxcart that can do all that this one can (protocol {name})"),
        ),
        (true, false) => Finding::warning(
            ABOUT,
            format!("an older Oxcart, without {}", lacks.join(", ")),
            format!("update Oxcart on {}, and start its worker again", listed.name()),
        ),
        (false, _) => Finding::note(
            ABOUT,
            format!("not a worker of this Oxcart (protocol {name}); it works, without {}", lacks.join(", ")),
        ),
    };
    finding.with(values)
}

/// What a worker lacks that one of this version has, in words.
fn lacks(abilities: Abilities) -> Vec<&'static str> {
    let Abilities { own_ops, introductions, heartbeats, known_weights, kept_graphs } = abilities;
    [
        (own_ops, "attention over pages"),
        (introductions, "sending results directly to other workers"),
        (heartbeats, "heartbeats"),
        (known_weights, "weights that it need not be sent"),
        (kept_graphs, "steps that it remembers"),
    ]
    .into_iter()
    .filter_map(|(has, what)| (!has).then_some(what))
    .collect()
}

fn memory(name: &str, device: &dyn Device) -> Result<Finding, Error> {
    const ABOUT: &str = "memory";
    let memory = device.memory()?;
    let (free, total) = (ByteSize(memory.free as u64), ByteSize(memory.total as u64));
    let text = format!("it lends {total}, of which {free} are free");
    let finding = match memory.free < NO_MEMORY {
        true => Finding::problem(
            ABOUT,
            text,
            format!(
                "end other clients of {name}, or start its worker again with more: oxcart worker --max-memory SIZE"
            ),
        ),
        false => Finding::good(ABOUT, text),
    };
    Ok(finding.with(json!({ "device": device.name(), "free": memory.free, "total": memory.total })))
}

/// Latency and bandwidth.
fn way(device: &dyn Device, findings: &Findings) -> Result<(), Error> {
    let latency = latency(|| device.memory().map(|_| ()))?;
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    let (median, worst) = (milliseconds(latency.median), milliseconds(latency.worst));
    let text =
        format!("{median:.2} ms in the median and {worst:.2} ms at worst, of {} round trips", latency.trips);
    let finding = match latency.median > SLOW_TRIP {
        true => Finding::warning(
            "latency",
            format!("{text}: each token waits for it at least once"),
            "connect the machines by cable, or leave this one out: --workers with the names of the others",
        ),
        false => Finding::good("latency", text),
    };
    findings
        .add(finding.with(json!({ "median_ms": median, "worst_ms": worst, "round_trips": latency.trips })));
    let measured = match bandwidth(&device.buffer_type()) {
        Err(Error::OutOfMemory { .. }) => {
            findings.add(Finding::note("bandwidth", "not measured, because there is no memory for it"));
            return Ok(());
        }
        measured => measured?,
    };
    let shown = |rate: f64| format!("{}/s", ByteSize(rate as u64));
    let text = format!(
        "{} there and {} back, with {} each",
        shown(measured.there),
        shown(measured.back),
        ByteSize(measured.bytes as u64)
    );
    let finding = match measured.there.min(measured.back) < SLOW_RATE {
        true => Finding::warning(
            "bandwidth",
            format!("{text}: sending it a model takes minutes"),
            "connect the machines by cable, or let the worker keep weights: oxcart worker --cache, or --models DIR with a copy of the model",
        ),
        false => Finding::good("bandwidth", text),
    };
    findings.add(finding.with(json!({
        "there_bytes_per_second": measured.there,
        "back_bytes_per_second": measured.back,
        "bytes": measured.bytes,
    })));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_named() {
        let all = Abilities {
            own_ops: true,
            introductions: true,
            heartbeats: true,
            known_weights: true,
            kept_graphs: true,
        };
        assert!(lacks(all).is_empty());
        let older = Abilities { heartbeats: false, kept_graphs: false, ..all };
        assert_eq!(lacks(older), ["heartbeats", "steps that it remembers"]);
    }
}
