//! Many clients: they go away, they wait, they are too many; and the server ends.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use oxcart_http::{
    Client, Config, Event, Keys, Limits, Listeners, Models, Refused, RequestFailure, Server, Service, Totals,
    Update, Updates,
};
use oxcart_llm::engine::{AtLimit, End, Request};
use oxcart_llm::runner::RunnerOptions;
use oxcart_llm::text::{SamplerSettings, Token};
use serde_json::{Value, json};
use support::{
    Gate, address, connect, engine, engine_by, gated_engine, gated_server, get, metric, options, post,
    post_with, read_response, request_bytes, server, server_of, server_with, wait_until,
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

fn waiting(server: &Server) -> f64 {
    metric(server, "oxcart_requests_waiting")
}

/// Requests that the server has. None is counted twice, although each counts elsewhere when its turn comes.
fn taken_on(server: &Server) -> f64 {
    running(server) + waiting(server)
}

/// Whether a model of this name is served at an address; a server of another test may be there once the own one is gone.
fn is_served_at(address: SocketAddr, model: &str) -> bool {
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // The server may have closed it already.
    let _ = stream.write_all(&request_bytes("GET", "/v1/models", &[], b""));
    read_response(stream).is_some_and(|response| response.text().contains(model))
}

#[test]
fn a_client_that_goes_away_frees_its_sequence() {
    let gate = Gate::default();
    let server = gated_server(1, Limits::default(), &gate);
    for is_stream in [true, false] {
        let before = metric(&server, "oxcart_requests_cancelled_total");
        let held = gate.hold();
        let mut stream = begin(&server, "/v1/completions", &long(is_stream));
        wait_until("it runs", || running(&server) == 1.0);
        if is_stream {
            held.let_by(20);
            stream.read_exact(&mut [0; 64]).unwrap();
        }
        drop(stream);
        held.step_until("it is noticed", || {
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
    let gate = Gate::default();
    let server = gated_server(1, Limits { queue: 2, ..Limits::default() }, &gate);
    let held = gate.hold();
    let mut busy = vec![begin(&server, "/v1/completions", &long(true))];
    wait_until("the first runs", || running(&server) == 1.0);
    for count in 1..=2 {
        busy.push(begin(&server, "/v1/completions", &long(false)));
        wait_until("it waits", || waiting(&server) == f64::from(count));
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
    wait_until("it is noticed", || waiting(&server) == 1.0);
    drop((busy, held));
    wait_until("nothing is left", || taken_on(&server) == 0.0);
}

#[test]
fn requests_are_computed_together_and_answered_as_alone() {
    let gate = Gate::default();
    let server = gated_server(4, Limits::default(), &gate);
    let ask = |number: usize| json!({ "prompt": format!("number {number}"), "max_tokens": 24, "temperature": 0.9, "seed": number, "ignore_eos": true });
    let alone: Vec<Value> = (0..12)
        .map(|number| post(&server, "/v1/completions", &ask(number)).json()["choices"].clone())
        .collect();
    let together: Vec<Value> = std::thread::scope(|scope| {
        let (server, held) = (&server, gate.hold());
        let asked: Vec<_> = (0..12)
            .map(|number| {
                scope.spawn(move || post(server, "/v1/completions", &ask(number)).json()["choices"].clone())
            })
            .collect();
        wait_until("all are there", || taken_on(server) == 12.0);
        drop(held);
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
    let models = Models::new(vec![served]).unwrap();
    let refused =
        Server::start(Listeners::bind(&["0.0.0.0:0".parse().unwrap()]).unwrap(), Config::new(models))
            .unwrap_err();
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
    let gate = Gate::default();
    let engine = gated_engine(options(1), &gate);
    let models = Models::new(vec![support::served("ending", engine, Limits::default())]).unwrap();
    let server = Server::start(Listeners::local().unwrap(), Config::new(models)).unwrap();
    let at = address(&server);
    assert!(is_served_at(at, "ending"));
    let held = gate.hold();
    let slow = json!({ "prompt": "the end", "max_tokens": 480, "ignore_eos": true, "temperature": 0, "stream": true, "n": 16 });
    let mut stream = begin(&server, "/v1/completions", &slow);
    held.let_by(20);
    stream.read_exact(&mut [0; 1]).unwrap();
    assert_eq!((running(&server), waiting(&server)), (1.0, 15.0), "one choice runs, and the others wait");
    let behind = begin(&server, "/v1/completions", &long(false));
    wait_until("it waits", || waiting(&server) == 16.0);
    let ending = std::thread::spawn(move || server.shutdown(Duration::from_millis(50)));
    held.step_until("it ends", || ending.is_finished());
    ending.join().unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    let rest = String::from_utf8(rest).unwrap();
    assert!(
        rest.contains("shutting down") && rest.contains("data: [DONE]"),
        "{}",
        &rest[rest.len().saturating_sub(400)..]
    );
    assert!(rest.ends_with("0\r\n\r\n"), "the body has an end");
    let refused = read_response(behind).unwrap();
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(!is_served_at(at, "ending"), "nothing listens any more");
}

#[test]
fn answers_may_end_while_it_shuts_down() {
    let gate = Gate::default();
    let server = gated_server(2, Limits::default(), &gate);
    let held = gate.hold();
    let body = json!({ "prompt": "the end", "max_tokens": 100, "ignore_eos": true });
    let asked = begin(&server, "/v1/completions", &body);
    wait_until("it runs", || running(&server) == 1.0);
    // It is computed only when the server has begun to end, which a connection without a request shows.
    let mut idle = connect(address(&server));
    idle.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert_eq!(read_response(&idle).unwrap().status, 200);
    let ending = std::thread::spawn(move || server.shutdown(Duration::from_secs(60)));
    assert_eq!(idle.read(&mut [0]).unwrap(), 0);
    drop(held);
    let response = read_response(asked).unwrap();
    assert_eq!((response.status, &response.json()["usage"]["completion_tokens"]), (200, &json!(100)));
    ending.join().unwrap();
}

#[test]
fn a_request_may_take_its_time_and_no_longer() {
    // A minute goes by whenever the engine looks at its clock: the hour is over long before the answer is.
    let looks = AtomicU32::new(0);
    let clock = move || Duration::from_secs(60) * looks.fetch_add(1, Ordering::Relaxed);
    let hour = Limits { time: Duration::from_secs(3600), ..Limits::default() };
    let slow = server_of(engine_by(options(1), clock), hour, |_| {});
    let late = post(&slow, "/v1/completions", &long(false)).json();
    assert_eq!(late["choices"][0]["finish_reason"], "length", "{late}");
    let tokens = late["usage"]["completion_tokens"].as_u64().unwrap();
    assert!((10..60).contains(&tokens), "{tokens}");
    // Time that it waits counts, too.
    let hasty = server(1, Limits { time: Duration::ZERO, ..Limits::default() });
    let late = post(&hasty, "/v1/completions", &long(false));
    assert_eq!(late.status, 503, "{}", late.text());
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
    assert!(matches!(end, Update::Failed(RequestFailure::ReadTooSlowly)), "{end:?}");
    assert!((1000..1100).contains(&tokens), "{tokens} waited");
    assert!(block_on(slow.next()).is_none());
}

/// Answers that are asked for together have one reader, and no more waits for it than of a single answer.
#[test]
fn the_reader_of_many_answers_is_not_waited_for_longer() {
    let service = Service::start(engine(8), Limits::default()).unwrap();
    let requests = (0..8).map(|_| endless(3000)).collect();
    let mut slow = service.submit_all(Client(1), requests).unwrap();
    wait_until("they have ended", || service.snapshot().totals.failed == 8);
    let mut tokens = 0;
    for updates in &mut slow {
        while let Some(Update::Token(_)) = block_on(updates.next()) {
            tokens += 1;
        }
    }
    assert!((1000..=1024).contains(&tokens), "{tokens} waited");
}

/// Tokens that were told stay told: figures that only grow do not fall back when a request that runs becomes one that has failed.
#[test]
fn tokens_of_a_request_that_failed_stay_counted() {
    let service = Service::start(engine(2), Limits::default()).unwrap();
    let mut slow = service.submit(Client(1), endless(3000)).unwrap();
    let mut most = 0;
    wait_until("it has failed", || {
        let now = service.snapshot();
        let running: usize = now.running.iter().map(|running| running.answer_tokens).sum();
        let counted = now.totals.answer_tokens + running as u64;
        assert!(counted >= most, "{counted} tokens after {most}");
        most = counted;
        now.totals.failed == 1
    });
    let mut told = 0;
    block_on(async {
        while let Some(Update::Token(_)) = slow.next().await {
            told += 1;
        }
    });
    // The one that there was no room for was computed, too.
    assert_eq!(service.snapshot().totals.answer_tokens, told + 1);
    assert!(service.snapshot().running.is_empty());
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

/// A prompt that arrives beside streams is computed in pieces of at most 128 tokens, and in every step until it is computed each stream
/// gets its next token.
#[test]
fn a_long_prompt_delays_nobody_by_more_than_a_piece() {
    const PROMPT: usize = 4000;
    let options = RunnerOptions { context: 4352, sequences: 9, ..RunnerOptions::default() };
    let gate = Gate::default();
    let service = Service::start(gated_engine(options, &gate), Limits::default()).unwrap();
    let mut events = service.watch();
    let held = gate.hold();
    // Longer than the prompt takes, and few enough steps that none is missed by who watches.
    let streams: Vec<_> = (0..8).map(|at| service.submit(Client(at), endless(600)).unwrap()).collect();
    held.let_by(100);
    wait_until("all have begun", || {
        let now = service.snapshot();
        now.running.len() == 8 && now.running.iter().all(|running| running.answer_tokens >= 1)
    });
    let prompt = (0..PROMPT as u32).map(|at| at * 7 % 300).collect();
    let long = Request { limit: 1, ignore_end: true, ..Request::new(prompt) };
    let before = service.snapshot();
    let long = service.submit(Client(9), long).unwrap();
    // Step by step, so that no stream ends before it is looked at.
    held.step_until("the prompt is computed", || service.snapshot().totals.finished == 1);
    let after = service.snapshot();
    let steps = (after.totals.steps - before.totals.steps) as usize;
    assert_eq!((before.running.len(), after.running.len()), (8, 8));
    for (was, is) in before.running.iter().zip(&after.running) {
        assert_eq!(was.ticket, is.ticket);
        assert_eq!(is.answer_tokens - was.answer_tokens, steps, "a token in each of {steps} steps");
    }
    drop((streams, long, held));
    let (mut beside, mut pieces, mut is_there) = (0, 0, false);
    while let Ok(event) = events.try_recv() {
        match event {
            Event::Queued { prompt_tokens: PROMPT, .. } => is_there = true,
            Event::Step { running, computed, .. } if is_there && running == 9 => {
                // One token for each stream, and a piece of the prompt.
                assert!(computed <= 8 + 128, "{computed} tokens in one step");
                assert!(computed >= 8);
                beside += 1;
                pieces += computed - 8;
            }
            _ => {}
        }
    }
    assert!(beside >= 30, "{beside} steps with all of them");
    assert!(pieces >= 3000, "{pieces} tokens of the prompt were computed beside the streams");
}

#[test]
fn one_client_does_not_keep_another_from_its_turn() {
    let gate = Gate::default();
    let service = Service::start(gated_engine(options(1), &gate), Limits::default()).unwrap();
    let mut events = service.watch();
    let held = gate.hold();
    let many: Vec<_> = (0..10).map(|_| service.submit(Client(1), endless(30)).unwrap()).collect();
    let mut one = service.submit(Client(2), endless(30)).unwrap();
    drop(held);
    block_on(async { while one.next().await.is_some() {} });
    drop(many);
    wait_until("nothing runs", || service.snapshot().running.is_empty() && service.snapshot().waiting == 0);
    // It was behind ten others, but behind at most two of them when it ended.
    let (mut own, mut before) = (None, 0);
    loop {
        match events.try_recv().unwrap() {
            Event::Queued { ticket, client: Client(2), .. } => own = Some(ticket),
            Event::Finished { ticket, .. } if Some(ticket) == own => break,
            Event::Finished { .. } => before += 1,
            _ => {}
        }
    }
    assert!(before <= 2, "{before} were answered before");
}

/// The tokens of an answer.
fn tokens(mut updates: Updates) -> Vec<Token> {
    let mut tokens = Vec::new();
    block_on(async {
        while let Some(Update::Token(token)) = updates.next().await {
            tokens.push(token.token);
        }
    });
    tokens
}

/// Every place is taken by long answers of one key. One of them makes way when another key waits, and goes on later with the same tokens.
#[test]
fn a_client_with_all_places_makes_way_for_another() {
    let gate = Gate::default();
    let service = Service::start(gated_engine(options(2), &gate), Limits::default()).unwrap();
    let ask = |first: Token| Request { prompt: vec![first, 2, 3], ..endless(450) };
    let alone = [1, 5].map(|first| tokens(service.submit(Client(1), ask(first)).unwrap()));
    let mut events = service.watch();
    let held = gate.hold();
    let long = [1, 5].map(|first| service.submit(Client(1), ask(first)).unwrap());
    wait_until("both run", || service.snapshot().running.len() == 2);
    let short = service.submit(Client(2), endless(20)).unwrap();
    drop(held);
    assert_eq!(tokens(short).len(), 20);
    assert_eq!(long.map(tokens), alone);
    let (mut clients, mut ends) = (BTreeMap::new(), Vec::new());
    while let Ok(event) = events.try_recv() {
        match event {
            Event::Queued { ticket, client, .. } => drop(clients.insert(ticket, client)),
            Event::Finished { ticket, report, .. } => ends.push((clients[&ticket], report.answer_tokens)),
            _ => {}
        }
    }
    assert_eq!(ends, [(Client(2), 20), (Client(1), 450), (Client(1), 450)]);
    let now = service.snapshot();
    assert!(now.aside.is_empty() && now.running.is_empty() && now.waiting == 0, "{now:?}");
}

/// What a service did for prompts of five pages in common and one token each, by clients of these numbers, all at the same time.
fn asked_at_once(clients: [u64; 4], limits: Limits) -> Totals {
    let gate = Gate::default();
    let service = Service::start(gated_engine(options(4), &gate), limits).unwrap();
    let held = gate.hold();
    let asked: Vec<Updates> = (0..4)
        .zip(clients)
        .map(|(at, client)| {
            let prompt = (0..320).map(|token| token * 7 % 300).chain([at]).collect();
            service.submit(Client(client), Request { prompt, ..endless(2) }).unwrap()
        })
        .collect();
    drop(held);
    asked.into_iter().for_each(|updates| assert_eq!(tokens(updates).len(), 2));
    service.snapshot().totals
}

/// What prompts of several keys have in common is computed for one of them, also if all come at the same time.
#[test]
fn a_beginning_is_computed_once_for_all_clients() {
    let totals = asked_at_once([0, 1, 2, 3], Limits::default());
    assert_eq!(totals.prompt_tokens, 4 * 321);
    assert_eq!(totals.reused_tokens, 3 * 320);
    // The first prompt, the last token of the others, and the first token of each answer.
    assert_eq!(totals.computed_tokens, 321 + 3 + 4);
}

/// Where that is asked for, a key finds only what was computed for itself.
#[test]
fn prompts_of_clients_can_be_kept_apart() {
    let totals = asked_at_once([1, 2, 1, 2], Limits { separate_prompts: true, ..Limits::default() });
    assert_eq!(totals.prompt_tokens, 4 * 321);
    assert_eq!(totals.reused_tokens, 2 * 320);
}

/// A client whose prompts are known already has had less than one whose answers are computed.
#[test]
fn what_need_not_be_computed_is_not_charged() {
    let gate = Gate::default();
    let service = Service::start(gated_engine(options(1), &gate), Limits::default()).unwrap();
    let long = || Request { prompt: (0..321).map(|token| token * 7 % 300).collect(), ..endless(2) };
    assert_eq!(tokens(service.submit(Client(1), long()).unwrap()).len(), 2);
    let mut events = service.watch();
    let held = gate.hold();
    let known = [(); 2].map(|()| service.submit(Client(1), long()).unwrap());
    let new = [(); 2].map(|()| service.submit(Client(2), endless(100)).unwrap());
    drop(held);
    known.into_iter().for_each(|updates| assert_eq!(tokens(updates).len(), 2));
    new.into_iter().for_each(|updates| assert_eq!(tokens(updates).len(), 100));
    assert!(service.snapshot().totals.reused_tokens >= 2 * 320);
    let (mut clients, mut order) = (BTreeMap::new(), Vec::new());
    while let Ok(event) = events.try_recv() {
        match event {
            Event::Queued { ticket, client, .. } => drop(clients.insert(ticket, client)),
            Event::Finished { ticket, .. } => order.push(clients[&ticket]),
            _ => {}
        }
    }
    assert_eq!(order, [1, 2, 1, 2].map(Client));
}

/// The system has a timer for each connection of the server by which it asks whether the client's machine is still there.
#[cfg(target_os = "linux")]
#[test]
fn clients_that_vanish_are_noticed() {
    let server = server(1, Limits::default());
    let client = connect(address(&server));
    let port = |address: &str| u16::from_str_radix(address.rsplit(':').next()?, 16).ok();
    let ports = (address(&server).port(), client.local_addr().unwrap().port());
    // Fields of a line: its number, here, there, the state, both queues, and which timer runs: 1 and 4 are for bytes that wait, 2 is this one.
    let timer = || {
        let sockets = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        sockets.lines().find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let own = (port(fields.get(1)?)?, port(fields.get(2)?)?) == ports;
            own.then(|| fields[5].split(':').next().unwrap_or_default().to_owned())
        })
    };
    wait_until("the timer runs", || timer().as_deref() == Some("02"));
}
