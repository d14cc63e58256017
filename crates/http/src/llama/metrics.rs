//! `/metrics`: counters in Prometheus' format.
//!
//! Invariant: counters of a model go on where they were when it was unloaded.

use std::fmt::Write;

use hyper::StatusCode;

use crate::call::Call;
use crate::cluster::{Link, Presence, Purpose};
use crate::error::ApiError;
use crate::models::Listed;
use crate::reply::{self, Reply};
use crate::service::Totals;

/// A model at one moment.
struct Now<'m> {
    model: &'m Listed<'m>,
    running: usize,
    waiting: usize,
    totals: Totals,
}

impl<'m> Now<'m> {
    fn of(model: &'m Listed<'m>) -> Now<'m> {
        let talker = model.model.as_ref().and_then(|served| served.talker().ok());
        let snapshot = talker.map(|talker| talker.service.snapshot());
        let (running, waiting) = snapshot.map_or((0, 0), |now| (now.running.len(), now.waiting));
        Now { model, running, waiting: waiting + model.waiting, totals: model.totals() }
    }
}

/// A value of one model.
type Value = fn(&Now<'_>) -> f64;

/// Name, type, help and value of every figure of a model.
const FIGURES: [(&str, &str, &str, Value); 20] = [
    ("oxcart_model_loaded", "gauge", "Whether the model is loaded.", |now| {
        f64::from(u8::from(now.model.presence == Presence::Loaded))
    }),
    ("oxcart_model_loads_total", "counter", "How often the model was loaded.", |now| now.model.loads as f64),
    ("oxcart_requests_running", "gauge", "Requests that are computed: the width of the batch.", |now| {
        now.running as f64
    }),
    ("oxcart_requests_waiting", "gauge", "Requests that wait for their turn or their model.", |now| {
        now.waiting as f64
    }),
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
    (
        "oxcart_prompt_tokens_reused_total",
        "counter",
        "Tokens of prompts that were held already: hits of shared prefixes.",
        |now| now.totals.reused_tokens as f64,
    ),
    ("oxcart_answer_tokens_total", "counter", "Tokens of answers.", |now| now.totals.answer_tokens as f64),
    ("oxcart_guessed_tokens_total", "counter", "Tokens that were guessed ahead.", |now| {
        now.totals.guessed_tokens as f64
    }),
    ("oxcart_right_guesses_total", "counter", "Guesses that were right.", |now| {
        now.totals.right_guesses as f64
    }),
    ("oxcart_computed_tokens_total", "counter", "Tokens that were computed in all steps.", |now| {
        now.totals.computed_tokens as f64
    }),
    ("oxcart_steps_total", "counter", "Steps of the engine.", |now| now.totals.steps as f64),
    (
        "oxcart_step_requests_total",
        "counter",
        "Requests in all steps; by steps, the mean width of batches.",
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

/// Figures as text.
struct Text(String);

impl Text {
    /// A figure with all its values, by label; none at all without values.
    fn figure(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        values: impl IntoIterator<Item = (String, f64)>,
    ) {
        let mut values = values.into_iter().peekable();
        if values.peek().is_none() {
            return;
        }
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(self.0, "{name}{labels} {value}");
        }
    }
}

pub(crate) fn metrics(call: &Call) -> Result<Reply, ApiError> {
    let models = call.app.models.list();
    // Encoders count nothing.
    let now: Vec<Now<'_>> =
        models.iter().filter(|model| model.purpose == Purpose::Chat).map(Now::of).collect();
    let mut text = Text(String::new());
    for (name, kind, help, value) in FIGURES {
        text.figure(name, kind, help, now.iter().map(|now| (label("model", now.model.name), value(now))));
    }
    let machines = call.app.machines();
    let links: Vec<_> = machines.iter().filter_map(|machine| Some((machine, machine.link?))).collect();
    type OfLink = fn(&Link) -> u64;
    let of_links: [(&str, &str, OfLink); 3] = [
        ("oxcart_worker_sent_bytes_total", "Bytes sent to a worker.", |link| link.sent_bytes),
        ("oxcart_worker_received_bytes_total", "Bytes received from a worker.", |link| link.received_bytes),
        ("oxcart_worker_round_trips_total", "Answers of a worker that were waited for.", |link| {
            link.round_trips
        }),
    ];
    for (name, help, value) in of_links {
        let values = links.iter().map(|(machine, link)| (label("worker", &machine.name), value(link) as f64));
        text.figure(name, "counter", help, values);
    }
    let up = links
        .iter()
        .map(|(machine, _)| (label("worker", &machine.name), f64::from(u8::from(machine.failure.is_none()))));
    text.figure("oxcart_worker_up", "gauge", "Whether a worker can be used.", up);
    let uptime = call.app.started.elapsed().as_secs_f64();
    text.figure("oxcart_uptime_seconds", "gauge", "Time since the start.", [(String::new(), uptime)]);
    Ok(reply::text(StatusCode::OK, "text/plain; version=0.0.4", text.0))
}

/// A label: in its value, backslashes, quotes and line breaks are escaped.
fn label(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{{{name}=\"{value}\"}}")
}
