//! `/metrics` by the rules of Prometheus' text format and of `promtool check metrics`; `tools/metrics.sh` asks promtool itself.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use oxcart_http::{Limits, Link, Machine};
use serde_json::json;
use support::{get, post, server_with};

/// Name of a metric: its type, and its values by labels.
type Metrics = BTreeMap<String, (String, BTreeMap<String, f64>)>;

/// Reads metrics, strictly: every one has help and type before its values, which are together; labels are escaped as they should be and
/// differ; names say what promtool wants them to.
fn read(text: &str) -> Metrics {
    assert!(text.ends_with('\n'));
    let (mut metrics, mut helped, mut current) = (Metrics::new(), BTreeSet::new(), String::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(is_name(name) && help.len() > 5 && !help.contains('\\'), "{line}");
            assert!(helped.insert(name.to_owned()), "help twice: {line}");
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(helped.contains(name), "no help before {line}");
            assert!(["counter", "gauge"].contains(&kind), "{line}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            assert!(!["_sum", "_count", "_bucket"].iter().any(|end| name.ends_with(end)), "{line}");
            assert!(!name.contains("gauge") && !name.contains("counter") && name == name.to_lowercase());
            assert!(metrics.insert(name.to_owned(), (kind.to_owned(), BTreeMap::new())).is_none(), "{line}");
            current = name.to_owned();
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}').unwrap()),
            None => (series, ""),
        };
        assert_eq!(name, current, "values stand behind their type: {line}");
        check_labels(labels);
        let value: f64 = value.parse().unwrap();
        assert!(value.is_finite() && value >= 0.0, "{line}");
        let values = &mut metrics.get_mut(name).unwrap().1;
        assert!(values.insert(labels.to_owned(), value).is_none(), "twice: {line}");
    }
    assert!(metrics.values().all(|(_, values)| !values.is_empty()));
    metrics
}

fn is_name(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !name.starts_with(|c: char| c.is_ascii_digit())
}

/// One label, or none.
fn check_labels(labels: &str) {
    if labels.is_empty() {
        return;
    }
    let (name, value) = labels.split_once("=\"").unwrap();
    assert!(is_name(name), "{labels}");
    let value = value.strip_suffix('"').unwrap();
    let mut rest = value.chars();
    while let Some(c) = rest.next() {
        assert!(c != '"' && c != '\n', "{labels:?}");
        if c == '\\' {
            assert!(matches!(rest.next(), Some('\\' | '"' | 'n')), "{labels:?}");
        }
    }
}

#[test]
fn metrics_are_as_prometheus_wants_them() {
    let server = server_with(2, Limits::default(), |config| {
        config.machines = Some(Arc::new(|| {
            let link = Some(Link { sent_bytes: 5, received_bytes: 7, round_trips: 3 });
            let named =
                |name: &str, failure| Machine { name: name.into(), link, failure, ..Machine::default() };
            vec![
                named("a \"b\" \\ c\nd:1", None),
                named("10.0.0.7:50052", Some("gone".into())),
                Machine { name: "this machine".into(), ..Machine::default() },
            ]
        }));
    });
    let prompt = "the same beginning ".repeat(12);
    for _ in 0..2 {
        let ask = json!({ "prompt": prompt, "max_tokens": 3, "ignore_eos": true });
        assert_eq!(post(&server, "/v1/completions", &ask).status, 200);
    }
    let reply = get(&server, "/metrics");
    assert_eq!(reply.header("content-type"), Some("text/plain; version=0.0.4"));
    let metrics = read(reply.text());
    let model = |name: &str| metrics[name].1["model=\"tiny\""];
    // Queue, width of batches, hits of prefixes.
    assert_eq!((model("oxcart_requests_waiting"), model("oxcart_requests_running")), (0.0, 0.0));
    assert_eq!(model("oxcart_requests_finished_total"), 2.0);
    assert!(model("oxcart_step_requests_total") >= model("oxcart_steps_total"));
    assert!(model("oxcart_prompt_tokens_reused_total") > 0.0, "{}", reply.text());
    assert_eq!(model("oxcart_model_loaded"), 1.0);
    // Bytes and trips of every worker.
    let worker = |name: &str| metrics[name].1["worker=\"10.0.0.7:50052\""];
    assert_eq!(worker("oxcart_worker_sent_bytes_total"), 5.0);
    assert_eq!(worker("oxcart_worker_received_bytes_total"), 7.0);
    assert_eq!(worker("oxcart_worker_round_trips_total"), 3.0);
    assert_eq!(worker("oxcart_worker_up"), 0.0);
    assert_eq!(metrics["oxcart_worker_up"].1.len(), 2, "this machine is no worker");
}
