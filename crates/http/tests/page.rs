//! The page and the picture of the cluster: who gets them, and what browsers are told. What the page does is tested in a browser,
//! by tools/page_test.sh.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::sync::Arc;

use oxcart_http::{Cluster, Keys, Limits, Link, Machine, Purpose, Server};
use serde_json::json;
use support::{
    Gate, Response, address, gated_engine, get, options, post, request_bytes, send_raw, server, server_of,
    server_with, wait_until,
};

const KEY: &str = "a-key-of-some-length";

fn fetch(server: &Server, method: &str, path: &str, headers: &[(&str, &str)]) -> Response {
    send_raw(address(server), &request_bytes(method, path, headers, b"")).unwrap()
}

fn with_keys() -> Server {
    server_with(1, Limits::default(), |config| config.keys = Keys::new([KEY]).unwrap())
}

#[test]
fn browsers_get_the_page_and_programs_a_line() {
    let server = with_keys();
    let page = fetch(&server, "GET", "/", &[("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")]);
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert_eq!(page.header("vary"), Some("accept"));
    for accept in ["*/*", "application/json"] {
        let line = fetch(&server, "GET", "/", &[("Accept", accept)]);
        assert_eq!((line.status, line.text()), (200, "Oxcart is running\n"), "{accept}");
    }
}

#[test]
fn nothing_runs_in_the_page_but_its_own_files() {
    let server = with_keys();
    let page = fetch(&server, "GET", "/", &[("Accept", "text/html")]);
    let files = [
        ("/page.js", "text/javascript; charset=utf-8"),
        ("/page.css", "text/css; charset=utf-8"),
        ("/icon.svg", "image/svg+xml"),
    ];
    for (path, kind) in files {
        let file = get(&server, path);
        assert_eq!((file.status, file.header("content-type")), (200, Some(kind)), "{path}, without a key");
        assert!(!file.body.is_empty() && page.text().contains(path), "{path}");
    }
    let policy = page.header("content-security-policy").unwrap();
    assert!(
        policy.starts_with("default-src 'none';") && policy.contains("frame-ancestors 'none'"),
        "{policy}"
    );
    assert!(!policy.contains("unsafe") && !policy.contains("http") && !policy.contains('*'), "{policy}");
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    let text = page.text();
    assert!(
        !text.contains("style=") && !text.contains(" onclick=") && !text.contains("<style"),
        "it would not be let"
    );
    assert_eq!(text.matches("<script").count(), 1);
    for elsewhere in ["http://", "https://", "src=\"//"] {
        assert!(!text.contains(elsewhere), "{elsewhere}");
    }
}

#[test]
fn the_picture_is_what_runs() {
    let machine = |name: &str, failure: Option<&str>| Machine {
        name: name.into(),
        link: Some(Link { sent_bytes: 10, received_bytes: 20, round_trips: 3 }),
        failure: failure.map(str::to_owned),
        ..Machine::default()
    };
    let machines = vec![machine("here", None), machine("there", Some("it closed the connection"))];
    let told = machines.clone();
    let gate = Gate::default();
    let server = server_of(gated_engine(options(1), &gate), Limits::default(), |config| {
        config.machines = Some(Arc::new(move || told.clone()));
    });
    let picture = || serde_json::from_value::<Cluster>(get(&server, "/cluster").json()).unwrap();
    let idle = picture();
    assert_eq!(idle.machines, machines);
    let [model] = idle.models.as_slice() else { panic!("{idle:?}") };
    assert_eq!((model.name.as_str(), model.purpose, model.slots), ("tiny", Purpose::Chat, 1));
    assert!(model.running.is_empty() && model.answer_tokens == 0);

    let question = json!({ "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 300, "ignore_eos": true });
    std::thread::scope(|scope| {
        let held = gate.hold();
        for _ in 0..2 {
            scope.spawn(|| assert_eq!(post(&server, "/v1/chat/completions", &question).status, 200));
        }
        held.let_by(20);
        wait_until("one is computed, one waits", || {
            let model = &picture().models[0];
            model.running.len() == 1 && model.waiting == 1 && model.running[0].answer_tokens > 0
        });
    });
    let after = picture();
    assert_eq!((after.models[0].finished, after.models[0].answer_tokens), (2, 600));
    assert!(after.models[0].running.is_empty() && after.uptime_seconds > idle.uptime_seconds);
    let metrics = get(&server, "/metrics");
    assert!(metrics.text().contains("oxcart_worker_up{worker=\"here\"} 1"), "{}", metrics.text());
    assert!(metrics.text().contains("oxcart_worker_up{worker=\"there\"} 0"), "{}", metrics.text());
}

#[test]
fn the_picture_is_not_for_everyone() {
    for path in ["/cluster", "/openapi.json"] {
        assert_eq!(get(&with_keys(), path).status, 401, "{path}");
    }
    assert_eq!(get(&server(1, Limits::default()), "/cluster").status, 200);
    let elsewhere = [("Origin", "https://evil.example")];
    assert_eq!(fetch(&server(1, Limits::default()), "GET", "/cluster", &elsewhere).status, 403);
}
