//! Many clients: they go away, they wait, they are too many; and the server ends.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use oxcart_http::{Client, Event, Failure, Keys, Limits, Refused, Server, Service, Update};
use oxcart_llm::engine::{AtLimit, End, Request};
use oxcart_llm::text::SamplerSettings;
use serde_json::{Value, json};
use support::{
    address, connect, engine, get, metric, post, post_with, read_response, request_bytes, server,
    server_with, wait_until,
};

/// An answer that takes as long as there is room in the context.
fn long(stream: bool) -> Value {
    json!({ "prompt": "the end", "max_tokens": 480, "ignore_eos": true, "temperature": 0, "stream": stream })
}

fn begin(server: &Server, path: &str, body: &Value) -> TcpStream {
    let mut stream = connect(address(server));
    stream.write_all(&request_bytes("POST", path, &[], body.to_string().as_bytes())).unwrap();
    stream
}

fn running(server: &Server) -> f64 {
    metric(server, "oxcart_requests_running")
}

#[test]
fn a_client_that_goes_away_frees_its_sequence() {
    let server = server(1, Limits::default());
    for is_stream in [true, false] {
        let before = metric(&server, "oxcart_requests_cancelled_total");
        let mut stream = begin(&server, "/v1/completions", &long(is_stream));
        if is_stream {
            stream.read_exact(&mut [0; 64]).unwrap();
        } else {
            wait_until("it runs", || running(&server) == 1.0);
        }
        drop(stream);
        wait_until("it is noticed", || {
            running(&server) == 0.0 && metric(&server, "oxcart_requests_cancelled_total") == before + 1.0
        });
    }
    // The one sequence there is can be used again.
    let next =
        post(&server, "/v1/completions", &json!({ "prompt": "x", "max_tokens": 3, "ignore_eos": true }));
    assert_eq!(next.json()["usage"]["completion_tokens"], 3);
}

#[test]
fn a_full_queue_says_when_to_come_back() {
    let server = server(1, Limits { queue: 2, ..Limits::default() });
    let mut busy = vec![begin(&server, "/v1/completions", &long(true))];
    wait_until("the first runs", || running(&server) == 1.0);
    for waiting in 1..=2 {
        busy.push(begin(&server, "/v1/completions", &long(false)));
        wait_until("it waits", || metric(&server, "oxcart_requests_waiting") == f64::from(waiting));
    }
    let refused = post(&server, "/v1/completions", &long(false));
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    let refused = post(
        &server,
        "/v1/messages",
        &json!({ "max_tokens": 9, "messages": [{ "role": "user", "content": "x" }] }),
    );
    assert_eq!((refused.status, &refused.json()["error"]["type"]), (429, &json!("rate_limit_error")));
    assert_eq!(metric(&server, "oxcart_requests_refused_total"), 2.0);
    // One that waits and goes away makes room.
    drop(busy.pop());
    wait_until("it is noticed", || metric(&server, "oxcart_requests_waiting") == 1.0);
    drop(busy);
    wait_until("nothing is left", || {
        running(&server) == 0.0 && metric(&server, "oxcart_requests_waiting") == 0.0
    });
}

#[test]
fn requests_are_computed_together_and_answered_as_alone() {
    let server = server(4, Limits::default());
    let ask = |number: usize| json!({ "prompt": format!("number {number}"), "max_tokens": 24, "temperature": 0.9, "seed": number, "ignore_eos": true });
    let alone: Vec<Value> = (0..12)
        .map(|number| post(&server, "/v1/completions", &ask(number)).json()["choices"].clone())
        .collect();
    let together: Vec<Value> = std::thread::scope(|scope| {
        let server = &server;
        let asked: Vec<_> = (0..12)
            .map(|number| {
                scope.spawn(move || post(server, "/v1/completions", &ask(number)).json()["choices"].clone())
            })
            .collect();
        asked.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(together, alone);
    let (requests, steps) =
        (metric(&server, "oxcart_step_requests_total"), metric(&server, "oxcart_steps_total"));
    assert!(requests > 1.2 * steps, "{requests} requests in {steps} steps");
}

#[test]
fn keys_are_needed_where_there_are_any() {
    let (first, second) = ("first-key-of-some-length", "second-key-of-some-length");
    let keys = Keys::new([first, second]).unwrap();
    let server = server_with(2, Limits::default(), |config| config.keys = keys.clone());
    let body = json!({ "model": "tiny", "max_tokens": 3, "messages": [{ "role": "user", "content": "x" }] });
    let with = |path: &str, headers: &[(&str, &str)]| post_with(&server, path, headers, &body).status;
    let bearer = format!("Bearer {first}");
    assert_eq!(with("/v1/chat/completions", &[("Authorization", &bearer)]), 200);
    assert_eq!(with("/v1/messages", &[("x-api-key", second)]), 200);
    for headers in
        [&[][..], &[("Authorization", "Bearer wrong")], &[("x-api-key", "")], &[("Authorization", first)]]
    {
        assert_eq!(with("/v1/chat/completions", headers), 401, "{headers:?}");
        assert_eq!(with("/nothing", headers), 401, "what there is, is not told");
    }
    let refused = post(&server, "/v1/messages", &body);
    assert_eq!(refused.json()["error"]["type"], "authentication_error");
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    assert_eq!(get(&server, "/health").status, 200);
    for path in ["/v1/models", "/metrics", "/slots", "/props", "/api/tags"] {
        assert_eq!(get(&server, path).status, 401, "{path}");
    }
    keys.replace([second]).unwrap();
    assert_eq!(with("/v1/chat/completions", &[("Authorization", &bearer)]), 401);
    assert_eq!(with("/v1/chat/completions", &[("x-api-key", second)]), 200);
}

#[test]
fn nothing_listens_beyond_loopback_without_keys() {
    let about = oxcart_http::About::default();
    let served = oxcart_http::Served::talking("tiny", engine(1), about, Limits::default()).unwrap();
    let models = oxcart_http::Models::new(vec![served]).unwrap();
    let refused = Server::start(oxcart_http::Config::new("0.0.0.0:0".parse().unwrap(), models)).unwrap_err();
    assert!(matches!(refused, oxcart_http::ServerError::Open { .. }), "{refused}");
}

#[test]
fn pages_of_others_cannot_use_it() {
    let server = server_with(1, Limits::default(), |config| {
        config.origins = vec!["http://localhost:3000".into()];
        config.hosts = vec!["box.lan".into()];
    });
    let body = json!({ "prompt": "x", "max_tokens": 1 });
    let status = |headers: &[(&str, &str)]| post_with(&server, "/v1/completions", headers, &body);
    assert_eq!(status(&[("Origin", "https://evil.example")]).status, 403);
    assert_eq!(status(&[("Host", "evil.example")]).status, 403);
    assert_eq!(status(&[("Host", "box.lan:8080")]).status, 200);
    let allowed = status(&[("Origin", "http://localhost:3000")]);
    assert_eq!(
        (allowed.status, allowed.header("access-control-allow-origin")),
        (200, Some("http://localhost:3000"))
    );
    let preflight = [("Origin", "http://localhost:3000"), ("Access-Control-Request-Method", "POST")];
    let asked = support::send_raw(
        address(&server),
        &request_bytes("OPTIONS", "/v1/chat/completions", &preflight, b""),
    )
    .unwrap();
    assert_eq!(asked.status, 204);
    assert!(asked.header("access-control-allow-headers").unwrap().contains("authorization"));
    let foreign = [("Origin", "https://evil.example"), ("Access-Control-Request-Method", "POST")];
    let asked =
        support::send_raw(address(&server), &request_bytes("OPTIONS", "/v1/chat/completions", &foreign, b""))
            .unwrap();
    assert_eq!((asked.status, asked.header("access-control-allow-origin")), (403, None));
}

#[test]
fn shutting_down_ends_streams_properly() {
    let server = server(1, Limits::default());
    let slow = json!({ "prompt": "the end", "max_tokens": 480, "ignore_eos": true, "temperature": 0, "stream": true, "n": 16 });
    let mut stream = begin(&server, "/v1/completions", &slow);
    stream.read_exact(&mut [0; 1]).unwrap();
    let waiting = begin(&server, "/v1/completions", &long(false));
    wait_until("it waits", || metric(&server, "oxcart_requests_waiting") >= 5.0);
    let at = address(&server);
    let start = Instant::now();
    server.shutdown(Duration::from_millis(50));
    assert!(start.elapsed() < Duration::from_secs(10));
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    let rest = String::from_utf8(rest).unwrap();
    assert!(
        rest.contains("shutting down") && rest.contains("data: [DONE]"),
        "{}",
        &rest[rest.len().saturating_sub(400)..]
    );
    assert!(rest.ends_with("0\r\n\r\n"), "the body has an end");
    let refused = read_response(waiting).unwrap();
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(TcpStream::connect(at).is_err(), "nothing listens any more");
}

#[test]
fn answers_may_end_while_it_shuts_down() {
    let server = server(2, Limits::default());
    let body = json!({ "prompt": "the end", "max_tokens": 100, "ignore_eos": true });
    let asked = begin(&server, "/v1/completions", &body);
    wait_until("it runs", || running(&server) == 1.0);
    server.shutdown(Duration::from_secs(60));
    let response = read_response(asked).unwrap();
    assert_eq!((response.status, &response.json()["usage"]["completion_tokens"]), (200, &json!(100)));
}

#[test]
fn a_request_may_take_its_time_and_no_longer() {
    let server = server(1, Limits { time: Duration::from_millis(1), ..Limits::default() });
    let late = post(&server, "/v1/completions", &long(false));
    match late.status {
        200 => assert_eq!(late.json()["choices"][0]["finish_reason"], "length"),
        status => assert_eq!(status, 503, "{}", late.text()),
    }
}

fn endless(length: usize) -> Request {
    Request {
        sampler: SamplerSettings::greedy(),
        limit: length,
        ignore_end: true,
        at_limit: AtLimit::Shift { keep: 0, exact: false },
        ..Request::new(vec![1, 2, 3])
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

#[test]
fn a_reader_that_falls_behind_is_not_waited_for() {
    let service = Service::start(engine(2), Limits::default()).unwrap();
    let mut slow = service.submit(Client(1), endless(3000)).unwrap();
    wait_until("it has ended", || service.snapshot().totals.failed == 1);
    let mut tokens = 0;
    let end = block_on(async {
        loop {
            match slow.next().await.unwrap() {
                Update::Token(_) => tokens += 1,
                end => break end,
            }
        }
    });
    assert!(matches!(end, Update::Failed(Failure::ReadTooSlowly)), "{end:?}");
    assert!((1000..1100).contains(&tokens), "{tokens} waited");
    assert!(block_on(slow.next()).is_none());
}

#[test]
fn services_tell_what_happens() {
    let service = Service::start(engine(2), Limits::default()).unwrap();
    let mut events = service.watch();
    let mut updates = service.submit(Client(3), endless(4)).unwrap();
    let finished = block_on(async {
        while let Some(update) = updates.next().await {
            if let Update::Finished { end, report, .. } = update {
                return (end, report.answer_tokens);
            }
        }
        panic!("it broke off")
    });
    assert_eq!(finished, (End::Length, 4));
    service.shutdown(Duration::ZERO);
    assert!(matches!(service.submit(Client(3), endless(4)), Err(Refused::Closed)));
    let mut seen = [0; 4];
    while let Ok(event) = events.try_recv() {
        match event {
            Event::Queued { client: Client(3), prompt_tokens: 3, .. } => seen[0] += 1,
            Event::Started { .. } => seen[1] += 1,
            Event::Step { .. } => seen[2] += 1,
            Event::Finished { end: End::Length, .. } => seen[3] += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(seen[0] == 1 && seen[1] == 1 && seen[2] >= 4 && seen[3] == 1, "{seen:?}");
}

#[test]
fn one_client_does_not_keep_another_from_its_turn() {
    let service = Service::start(engine(1), Limits::default()).unwrap();
    let many: Vec<_> = (0..10).map(|_| service.submit(Client(1), endless(30)).unwrap()).collect();
    let mut one = service.submit(Client(2), endless(30)).unwrap();
    block_on(async { while one.next().await.is_some() {} });
    // It was behind ten others, but behind at most two of them when it ended.
    let finished = service.snapshot().totals.finished;
    assert!(finished <= 4, "{finished} were answered before");
    drop(many);
    wait_until("nothing runs", || service.snapshot().running.is_empty() && service.snapshot().waiting == 0);
}
