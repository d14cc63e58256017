//! What clients make the server hold: what is allocated in this process, so these tests have one of their own, and run one after the
//! other.
#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]

mod support;

use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use oxcart_http::Limits;
use oxcart_tally::{live_bytes, peak_bytes};
use serde_json::json;
use support::{address, connect, get, hostile, metric, post, request_bytes, send_raw, server, wait_until};

/// Held by the test that runs.
static TURN: Mutex<()> = Mutex::new(());

/// What no honest client sends takes a bounded amount of memory while it is refused, and nothing of it is kept.
#[test]
fn hostile_requests_leave_nothing_behind() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let server = server(1, Limits::default());
    let cases = hostile::all();
    let round = || cases.iter().for_each(|(bytes, expected)| hostile::send(&server, bytes, *expected));
    // What is made once, for the first request of its kind, stays.
    (0..2).for_each(|_| round());
    let before = live_bytes();
    let most = peak_bytes(|| (0..6).for_each(|_| round()));
    // The largest body there is in these cases has nine MiB; the test's own copies count, too.
    assert!(most < 96 << 20, "{most} bytes at most");
    wait_until("what was held is given back", || live_bytes() < before + (1 << 20));
    assert_eq!(get(&server, "/health").status, 200);
}

#[test]
fn clients_that_never_finish_hold_little() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let server = server(2, Limits::default());
    post(&server, "/v1/completions", &json!({ "prompt": "x", "max_tokens": 4 }));
    let before = live_bytes();
    let mut open = Vec::new();
    for number in 0..300 {
        let mut stream = connect(address(&server));
        let begun: &[u8] = match number % 3 {
            // Heads that come byte by byte, bodies that do not come, answers that are not read.
            0 => b"POST /v1/chat/completions HTTP/1.1\r\nHost: lo",
            1 => b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n{",
            _ => b"",
        };
        stream.write_all(begun).unwrap();
        if number % 3 == 2 {
            let body =
                json!({ "prompt": "x", "max_tokens": 400, "ignore_eos": true, "stream": true }).to_string();
            stream.write_all(&request_bytes("POST", "/v1/completions", &[], body.as_bytes())).unwrap();
        }
        open.push(stream);
    }
    let start = Instant::now();
    assert_eq!(get(&server, "/health").status, 200);
    // The first of them are closed after twenty seconds.
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    let held = live_bytes().saturating_sub(before);
    assert!(held < 48 << 20, "{held} bytes for 300 connections");
    drop(open);
    wait_until("all are gone", || {
        metric(&server, "oxcart_requests_running") == 0.0 && metric(&server, "oxcart_requests_waiting") == 0.0
    });
}

/// A text of one token for each byte is listed in a small multiple of what the list has as JSON, and a longer one is refused.
#[test]
fn the_tokens_of_a_long_text_take_little() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let server = server(1, Limits::default());
    let ask = |bytes: usize, with_pieces: bool| {
        let body = json!({ "content": "~q".repeat(bytes / 2), "with_pieces": with_pieces });
        let mut response = None;
        let most = peak_bytes(|| response = Some(post(&server, "/tokenize", &body)));
        (response.unwrap(), most)
    };
    // What is made once, for the first request of its kind, stays.
    let (first, _) = ask(64, true);
    assert_eq!(first.json()["tokens"].as_array().map(Vec::len), Some(64), "a token for each byte");
    for with_pieces in [false, true] {
        let (listed, most) = ask(240_000, with_pieces);
        assert_eq!(listed.status, 200);
        assert!(most < 48 << 20, "{most} bytes for {} of JSON", listed.body.len());
        let (refused, most) = ask(2_000_000, with_pieces);
        assert_eq!(refused.status, 413);
        assert!(most < 192 << 20, "{most} bytes for what is refused");
    }
}

/// Short objects within each other take a hundred times their text: what is refused is not the text's length.
#[test]
fn a_body_of_many_objects_takes_little() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let server = server(1, Limits::default());
    let ask = |chains: usize| {
        let chain = format!("{}1{}", "{\"\":".repeat(50), "}".repeat(50));
        let body = format!(
            "{{\"messages\":[{{\"role\":\"user\",\"content\":\"x\"}}],\"chat_template_kwargs\":{{\"a\":[{}1]}}}}",
            format!("{chain},").repeat(chains)
        );
        let bytes = request_bytes("POST", "/apply-template", &[], body.as_bytes());
        let mut response = None;
        let most = peak_bytes(|| response = send_raw(address(&server), &bytes));
        (response.unwrap(), most)
    };
    assert_eq!(ask(1).0.status, 200);
    let (answered, most) = ask(400);
    assert_eq!(answered.status, 200, "{}", answered.text());
    assert!(most < 64 << 20, "{most} bytes for what is answered, with what a template makes of it");
    let (refused, most) = ask(5000);
    assert_eq!(refused.status, 413, "{}", refused.text());
    assert!(most < 16 << 20, "{most} bytes for what is refused");
}
