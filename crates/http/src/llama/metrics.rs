//! `/metrics`: counters in Prometheus' format.

use std::fmt::Write;

use hyper::StatusCode;

use crate::call::Call;
use crate::cluster::Link;
use crate::error::ApiError;
use crate::reply::{self, Reply};
use crate::service::Snapshot;

/// A value of one model.
type Value = fn(&Snapshot) -> f64;

/// Name, type, help and value of every figure of a model.
const FIGURES: [(&str, &str, &str, Value); 17] = [
    ("oxcart_requests_running", "gauge", "Requests that are computed.", |now| now.running.len() as f64),
    ("oxcart_requests_waiting", "gauge", "Requests that wait for their turn.", |now| now.waiting as f64),
    ("oxcart_requests_finished_total", "counter", "Requests that were answered.", |now| {
        now.totals.finished as f64
    }),
    ("oxcart_requests_cancelled_total", "counter", "Requests whose client went away.", |now| {
        now.totals.cancelled as f64
    }),
    ("oxcart_requests_failed_total", "counter", "Requests that failed.", |now| now.totals.failed as f64),
    ("oxcart_requests_refused_total", "counter", "Requests refused because too many waited.", |now| {
        now.totals.refused as f64
    }),
    ("oxcart_prompt_tokens_total", "counter", "Tokens of prompts.", |now| now.totals.prompt_tokens as f64),
    ("oxcart_prompt_tokens_reused_total", "counter", "Tokens of prompts that were held already.", |now| {
        now.totals.reused_tokens as f64
    }),
    ("oxcart_answer_tokens_total", "counter", "Tokens of answers.", |now| now.totals.answer_tokens as f64),
    ("oxcart_guessed_tokens_total", "counter", "Tokens that were guessed ahead.", |now| {
        now.totals.guessed_tokens as f64
    }),
    ("oxcart_right_guesses_total", "counter", "Guesses that were right.", |now| {
        now.totals.right_guesses as f64
    }),
    ("oxcart_steps_total", "counter", "Steps of the engine.", |now| now.totals.steps as f64),
    (
        "oxcart_step_requests_total",
        "counter",
        "Requests in all steps; by steps, the width of batches.",
        |now| now.totals.step_requests as f64,
    ),
    ("oxcart_step_seconds_total", "counter", "Time in steps.", |now| now.totals.step_time.as_secs_f64()),
    ("oxcart_waiting_seconds_total", "counter", "Time that requests waited for their turn.", |now| {
        now.totals.waited.as_secs_f64()
    }),
    ("oxcart_prompt_seconds_total", "counter", "Time to first tokens.", |now| {
        now.totals.prompt_time.as_secs_f64()
    }),
    ("oxcart_answer_seconds_total", "counter", "Time from first tokens to last.", |now| {
        now.totals.answer_time.as_secs_f64()
    }),
];

pub(crate) fn metrics(call: &Call) -> Result<Reply, ApiError> {
    let models = call.app.models.iter();
    let now: Vec<(&str, Snapshot)> =
        models.filter_map(|model| Some((model.name(), model.service()?.snapshot()))).collect();
    let mut text = String::new();
    let mut figure = |name: &str, kind: &str, help: &str, values: &mut dyn Iterator<Item = (String, f64)>| {
        let mut values = values.peekable();
        if values.peek().is_some() {
            // Writing to a string does not fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in values {
                let _ = writeln!(text, "{name}{{{labels}}} {value}");
            }
        }
    };
    for (name, kind, help, value) in FIGURES {
        let mut values = now.iter().map(|(model, now)| (format!("model=\"{}\"", label(model)), value(now)));
        figure(name, kind, help, &mut values);
    }
    let machines = call.app.machines();
    let links: Vec<_> = machines.iter().filter_map(|machine| Some((&machine.name, machine.link?))).collect();
    type OfLink = fn(&Link) -> u64;
    let of_links: [(&str, &str, OfLink); 3] = [
        ("oxcart_worker_sent_bytes_total", "Bytes sent to a worker.", |link| link.sent_bytes),
        ("oxcart_worker_received_bytes_total", "Bytes received from a worker.", |link| link.received_bytes),
        ("oxcart_worker_round_trips_total", "Answers of a worker that were waited for.", |link| {
            link.round_trips
        }),
    ];
    for (name, help, value) in of_links {
        let mut values =
            links.iter().map(|(worker, link)| (format!("worker=\"{}\"", label(worker)), value(link) as f64));
        figure(name, "counter", help, &mut values);
    }
    let mut values = machines.iter().filter(|machine| machine.link.is_some()).map(|machine| {
        (format!("worker=\"{}\"", label(&machine.name)), f64::from(u8::from(machine.failure.is_none())))
    });
    figure("oxcart_worker_up", "gauge", "Whether a worker can be used.", &mut values);
    let uptime = call.app.started.elapsed().as_secs_f64();
    let _ = writeln!(
        text,
        "# HELP oxcart_uptime_seconds Time since the start.\n# TYPE oxcart_uptime_seconds gauge\noxcart_uptime_seconds {uptime}"
    );
    Ok(reply::text(StatusCode::OK, "text/plain; version=0.0.4", text))
}

/// A value of a label: backslashes, quotes and line breaks are escaped.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
