//! What no honest client sends: the server refuses it, goes on serving, and holds no more than before (`memory.rs`).
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use oxcart_http::{Keys, Limits, Server};
use support::hostile::{self, Case};
use support::{address, connect, get, read_response, request_bytes, send_raw, server, server_with};

/// Sends each of them, and looks whether others are still served afterwards.
#[track_caller]
fn check(server: &Server, cases: &[Case]) {
    for (bytes, expected) in cases {
        hostile::send(server, bytes, *expected);
        assert_eq!(get(server, "/health").status, 200, "after {:?}", hostile::start(bytes));
    }
}

#[test]
fn lines_and_headers_that_are_none() {
    check(&server(1, Limits::default()), &hostile::lines_and_headers());
}

#[test]
fn forged_names_and_pages_of_others_are_refused() {
    check(&server(1, Limits::default()), &hostile::names());
}

#[test]
fn floods_of_headers_and_long_paths() {
    check(&server(1, Limits::default()), &hostile::floods());
}

#[test]
fn paths_that_want_to_be_elsewhere() {
    check(&server(1, Limits::default()), &hostile::paths());
}

#[test]
fn bodies_whose_length_is_a_lie() {
    let server = server(1, Limits::default());
    check(&server, &hostile::lengths());
    // A body that never ends is read no further than it may be long.
    let mut stream = connect(address(&server));
    stream.write_all(hostile::head("Transfer-Encoding: chunked").as_bytes()).unwrap();
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    let mut sent = 0_usize;
    // What the system holds between the two counts, too, and how much that is, is its own affair.
    while sent < 512 << 20 && stream.write_all(chunk.as_bytes()).is_ok() {
        sent += chunk.len();
    }
    assert!(sent < 256 << 20, "{sent} bytes were taken");
    assert!(read_response(stream).is_none_or(|response| response.status == 413));
    assert_eq!(get(&server, "/health").status, 200);
}

#[test]
fn bodies_that_are_no_json_or_too_much_of_it() {
    check(&server(1, Limits::default()), &hostile::bodies());
}

#[test]
fn there_are_many_cases() {
    assert!(hostile::all().len() + hostile::guesses(KEY).len() >= 130);
}

const KEY: &str = "a-key-of-some-length-that-is-long";

fn server_with_key() -> Server {
    server_with(1, Limits::default(), |config| config.keys = Keys::new([KEY]).unwrap())
}

#[test]
fn keys_cannot_be_guessed_by_form() {
    check(&server_with_key(), &hostile::guesses(KEY));
}

/// Guesses are answered one like the other, and a client that has the key is served meanwhile.
#[test]
fn many_guesses_at_a_key_keep_no_client_out() {
    let server = server_with_key();
    let bearer = format!("Bearer {KEY}");
    let right = request_bytes("GET", "/v1/models", &[("Authorization", &bearer)], b"");
    let mut stream = connect(address(&server));
    for number in 0..1000 {
        let guess = format!(
            "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nx-api-key: a-key-of-some-length-{number:04}\r\n\r\n"
        );
        stream.write_all(guess.as_bytes()).unwrap();
        let refused = read_response(&stream).unwrap();
        assert_eq!(
            (refused.status, refused.json()["error"]["code"].as_str()),
            (401, Some("invalid_api_key"))
        );
        if number % 100 == 0 {
            assert_eq!(send_raw(address(&server), &right).unwrap().status, 200);
        }
    }
}

/// As many large bodies as there is room for, of one key, none of which ever ends: other keys are served, and so are small bodies of the same one.
#[test]
fn bodies_of_one_key_that_never_end_keep_no_other_out() {
    const OTHER: &str = "another-key-that-is-as-long-as-it";
    let server = server_with(1, Limits::default(), |config| config.keys = Keys::new([KEY, OTHER]).unwrap());
    let length = 8 << 20;
    let text = vec![b' '; length - 1];
    let begun: Vec<TcpStream> = (0..17)
        .map(|_| {
            let mut stream = connect(address(&server));
            let head = format!("Authorization: Bearer {KEY}\r\nContent-Length: {length}");
            // It may have been refused already.
            let _ = stream.write_all(hostile::head(&head).as_bytes()).and_then(|()| stream.write_all(&text));
            stream
        })
        .collect();
    let ask = |key: &str, body: &[u8]| {
        let bearer = format!("Bearer {key}");
        let request = request_bytes("POST", "/v1/completions", &[("Authorization", &bearer)], body);
        send_raw(address(&server), &request).map(|response| response.status)
    };
    let small = br#"{"prompt": "x", "max_tokens": 1}"#;
    let large = [small.as_slice(), &vec![b' '; 1 << 20]].concat();
    assert_eq!((ask(OTHER, small), ask(OTHER, &large)), (Some(200), Some(200)));
    assert_eq!(ask(KEY, small), Some(200));
    // Before it has come: the client may be told so, or find the connection closed.
    assert!(ask(KEY, &large).is_none_or(|status| status == 429));
    drop(begun);
}

/// A head that comes byte by byte is given twenty seconds, however busily it comes.
#[test]
fn a_head_that_comes_slowly_is_cut_off() {
    let server = server(1, Limits::default());
    // A header without an end, and empty lines, of which there may be some before a head.
    let begun: [(&[u8], &[u8]); 2] =
        [(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ", b"y"), (b"\r\n", b"\r\n")];
    let mut slow = begun.map(|(begun, more)| {
        let mut stream = connect(address(&server));
        stream.write_all(begun).unwrap();
        (stream, more)
    });
    let start = Instant::now();
    // After a connection has ended, writing fails, at the latest the second time.
    while slow.iter_mut().any(|(stream, more)| stream.write_all(more).is_ok()) {
        assert!(start.elapsed() < Duration::from_secs(50), "it is still read");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(start.elapsed() > Duration::from_secs(15), "{:?}", start.elapsed());
    assert_eq!(get(&server, "/health").status, 200);
}

#[test]
fn a_connection_is_used_again_and_closed_in_the_end() {
    let server = server(1, Limits::default());
    let mut stream = connect(address(&server));
    for _ in 0..3 {
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        assert_eq!(read_response(&stream).unwrap().status, 200);
    }
    // Requests in one piece are answered in order.
    let both = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(both).unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    let statuses: Vec<&str> = all.match_indices("HTTP/1.1 ").map(|(at, _)| &all[at + 9..at + 12]).collect();
    assert_eq!(statuses, ["200", "404"]);
}

#[test]
fn connections_that_say_nothing_do_not_keep_it_from_ending() {
    let server = server(1, Limits::default());
    let _silent: Vec<TcpStream> = (0..20).map(|_| connect(address(&server))).collect();
    assert_eq!(get(&server, "/health").status, 200);
    let start = Instant::now();
    server.shutdown(Duration::from_secs(1));
    // They may say something for twenty seconds.
    assert!(start.elapsed() < Duration::from_secs(18), "{:?}", start.elapsed());
}
