//! What no honest client sends: the server refuses it, goes on serving, and holds no more than before.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use oxcart_http::{Keys, Limits, Server};
use support::{address, connect, get, read_response, request_bytes, send_raw, server, server_with};

/// What may become of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    /// A response with this status.
    Status(u16),
    /// A response that says that it was the client's fault, or none at all.
    Refused,
}

use Outcome::{Refused, Status};

fn case(bytes: impl Into<Vec<u8>>, outcome: Outcome) -> (Vec<u8>, Outcome) {
    (bytes.into(), outcome)
}

/// A request with a JSON body that may be anything.
fn with_body(body: impl AsRef<[u8]>) -> Vec<u8> {
    request_bytes("POST", "/v1/chat/completions", &[], body.as_ref())
}

fn message(content: &str) -> String {
    format!("{{\"messages\":[{{\"role\":\"user\",\"content\":{content}}}],\"max_tokens\":1}}")
}

#[track_caller]
fn check(server: &Server, cases: &[(Vec<u8>, Outcome)]) {
    for (bytes, expected) in cases {
        let start: String = String::from_utf8_lossy(bytes).chars().take(120).collect();
        let response = send_raw(address(server), bytes);
        let status = response.as_ref().map(|response| response.status);
        match expected {
            Status(expected) => assert_eq!(status, Some(*expected), "{start:?}"),
            Refused => {
                assert!(status.is_none_or(|status| (400..500).contains(&status)), "{start:?}: {status:?}")
            }
        }
        assert_eq!(get(server, "/health").status, 200, "after {start:?}");
    }
}

#[test]
fn lines_and_headers_that_are_none() {
    let server = server(1, Limits::default());
    let line = |line: &str| case(format!("{line}\r\nHost: localhost\r\nConnection: close\r\n\r\n"), Refused);
    let header = |header: &str| {
        case(
            format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{header}\r\nConnection: close\r\n\r\n"),
            Refused,
        )
    };
    check(
        &server,
        &[
            line("GET /health HTTP/9.9"),
            line("GET /health"),
            line("GET  /health HTTP/1.1"),
            line("\0\0\0\0 / HTTP/1.1"),
            line("GET /\x01 HTTP/1.1"),
            line("GET http://[::1 HTTP/1.1"),
            line("PRI * HTTP/2.0"),
            line("NONSENSE /health HTTP/1.1"),
            line("CONNECT evil.example:80 HTTP/1.1"),
            line("TRACE /health HTTP/1.1"),
            line("DELETE /v1/models/tiny HTTP/1.1"),
            case(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(), Refused),
            case(vec![0xff; 4096], Refused),
            case(b"\r\n\r\n\r\n".to_vec(), Refused),
            header("X: a\0b"),
            header("No colon here"),
            header("Host : evil.example"),
            header(" folded: yes"),
            header("Host: evil.example"),
            header("Host: localhost"),
            case("GET /health HTTP/1.1\r\nConnection: close\r\n\r\n", Status(400)),
            case("GET /health HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", Status(403)),
            case(
                "GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\nConnection: close\r\n\r\n",
                Status(403),
            ),
            case("GET /health HTTP/1.1\nHost: localhost\nConnection: close\n\n", Status(200)),
        ],
    );
}

#[test]
fn floods_of_headers_and_long_paths() {
    let server = server(1, Limits::default());
    let many: String = (0..1000).map(|number| format!("X-{number}: y\r\n")).collect();
    let large = format!("X: {}\r\n", "y".repeat(1 << 20));
    let path = |length: usize| request_bytes("GET", &format!("/{}", "a".repeat(length)), &[], b"");
    check(
        &server,
        &[
            case(format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{many}\r\n"), Refused),
            case(format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{large}\r\n"), Refused),
            case(path(2000), Status(404)),
            case(path(5000), Status(414)),
            case(path(1 << 20), Refused),
            case(request_bytes("GET", &format!("/health?{}", "q".repeat(5000)), &[], b""), Status(414)),
        ],
    );
}

#[test]
fn paths_that_want_to_be_elsewhere() {
    let server = server(1, Limits::default());
    let get = |path: &str| case(request_bytes("GET", path, &[], b""), Status(404));
    check(
        &server,
        &[
            get("/../../etc/passwd"),
            get("/v1/../v1/models"),
            get("/v1/models/../../etc/passwd"),
            get("/v1//models"),
            get("//v1/models"),
            get("/%2e%2e/etc/passwd"),
            get("/v1/models/%00"),
            get("/v1/models/tiny/../other"),
            get("/V1/MODELS"),
            get("/health/"),
            get("/api/blobs/sha256:0"),
            get("/.env"),
        ],
    );
}

#[test]
fn bodies_whose_length_is_a_lie() {
    let server = server(1, Limits::default());
    let head = |headers: &str| {
        format!("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n\r\n")
    };
    let smuggled = "0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n";
    check(
        &server,
        &[
            case(head("Content-Length: 5\r\nContent-Length: 6") + "hello!", Refused),
            case(head("Content-Length: -1"), Refused),
            case(head("Content-Length: +5") + "hello", Refused),
            case(head("Content-Length: 5, 5") + "hello", Refused),
            case(head("Content-Length: 18446744073709551616"), Refused),
            case(head("Content-Length: 99999999999"), Status(413)),
            case(head("Content-Length: 0x10") + "0123456789abcdef", Refused),
            case(head("Content-Length: 4\r\nTransfer-Encoding: chunked") + smuggled, Refused),
            case(head("Transfer-Encoding: chunked\r\nContent-Length: 4") + smuggled, Refused),
            case(head("Transfer-Encoding: xchunked") + smuggled, Refused),
            case(head("Transfer-Encoding: chunked, identity") + smuggled, Refused),
            case(head("Transfer-Encoding: chunked") + "zz\r\nhello\r\n0\r\n\r\n", Refused),
            case(head("Transfer-Encoding: chunked") + "fffffffffffffffff\r\nhello\r\n0\r\n\r\n", Refused),
            case(
                head("Transfer-Encoding: chunked") + "5;" + &"x".repeat(1 << 17) + "\r\nhello\r\n0\r\n\r\n",
                Refused,
            ),
            case(
                head("Transfer-Encoding: chunked") + "2\r\n{}\r\n0\r\nHost: evil.example\r\n\r\n",
                Status(400),
            ),
        ],
    );
    // A body that never ends is read no further than it may be long.
    let mut stream = connect(address(&server));
    stream.write_all(head("Transfer-Encoding: chunked").as_bytes()).unwrap();
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
    let server = server(1, Limits::default());
    let deep =
        |open: &str, close: &str| message(&format!("{}{}", open.repeat(100_000), close.repeat(100_000)));
    let numbers = format!("[{}0]", "0,".repeat(1 << 20));
    let tool = "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}";
    let tools = format!(
        "{{\"messages\":[{{\"role\":\"user\",\"content\":\"x\"}}],\"tools\":[{}{tool}]}}",
        format!("{tool},").repeat(500)
    );
    let bad_request = |body: &str| case(with_body(body), Status(400));
    check(
        &server,
        &[
            bad_request(""),
            bad_request("{"),
            bad_request("null"),
            bad_request("[]"),
            bad_request("\"text\""),
            bad_request("{\"messages\": [}"),
            bad_request("{} {}"),
            bad_request("{\"messages\":[],\"messages\":[]}"),
            case(with_body(b"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}"), Status(400)),
            case(with_body(b"\xef\xbb\xbf{}"), Status(400)),
            bad_request(&message("\"\\ud800\"")),
            bad_request(&message("1e999")),
            bad_request(&message("{\"a\":1}")),
            bad_request(&deep("[", "]")),
            bad_request(&deep("{\"a\":", "}")),
            case(with_body(format!("{{\"prompt\":{numbers}}}")), Status(413)),
            // Refused by its length, before it has come: the client may be told so, or find the connection closed.
            case(with_body(message(&format!("{:?}", "x".repeat(9 << 20)))), Refused),
            bad_request(&tools),
            bad_request(&message(&format!("{:?}", "the end ".repeat(100_000)))),
            bad_request("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":1e30}"),
            bad_request("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"temperature\":1e39}"),
            bad_request("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"n\":-1}"),
            bad_request("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"seed\":1e300}"),
            case(
                with_body(format!(
                    "{{\"messages\":[{{\"role\":\"user\",\"content\":\"x\"}}],\"stop\":[{}\"x\"]}}",
                    "\"y\",".repeat(1000)
                )),
                Status(400),
            ),
            case(
                with_body(format!(
                    "{{\"messages\":[{{\"role\":\"user\",\"content\":\"x\"}}],\"json_schema\":{{\"type\":\"string\",\"pattern\":{:?}}}}}",
                    "(a|b)*".repeat(20_000)
                )),
                Status(400),
            ),
        ],
    );
}

#[test]
fn keys_cannot_be_guessed_by_form() {
    let keys = Keys::new(["a-key-of-some-length-that-is-long"]).unwrap();
    let server = server_with(1, Limits::default(), |config| config.keys = keys);
    let with = |headers: &[(&str, &str)]| case(request_bytes("GET", "/v1/models", headers, b""), Status(401));
    let long = "k".repeat(10_000);
    let bearer = format!("Bearer {long}");
    check(
        &server,
        &[
            with(&[]),
            with(&[("Authorization", "")]),
            with(&[("Authorization", "Bearer")]),
            with(&[("Authorization", "Bearer a-key-of-some-length-that-is-lonG")]),
            with(&[("Authorization", "Bearer a-key-of-some-length-that-is-long, x")]),
            with(&[("Authorization", "Basic YS1rZXk=")]),
            with(&[("Authorization", &bearer)]),
            with(&[("X-Api-Key", &long)]),
            with(&[("Cookie", "key=a-key-of-some-length-that-is-long")]),
            case(
                request_bytes("GET", "/v1/models?key=a-key-of-some-length-that-is-long", &[], b""),
                Status(401),
            ),
        ],
    );
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
