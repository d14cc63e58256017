//! What no honest client sends, and what may become of it.

use oxcart_http::Server;

use super::{address, request_bytes, send_raw};

/// What may become of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// A response with this status.
    Status(u16),
    /// A response that says that it was the client's fault, or none at all.
    Refused,
}

use Outcome::{Refused, Status};

/// What is sent, and what may become of it.
pub(crate) type Case = (Vec<u8>, Outcome);

fn case(bytes: impl Into<Vec<u8>>, outcome: Outcome) -> Case {
    (bytes.into(), outcome)
}

/// A request with a JSON body that may be anything.
fn with_body(body: impl AsRef<[u8]>) -> Vec<u8> {
    request_bytes("POST", "/v1/chat/completions", &[], body.as_ref())
}

fn message(content: &str) -> String {
    format!("{{\"messages\":[{{\"role\":\"user\",\"content\":{content}}}],\"max_tokens\":1}}")
}

/// The head of a request whose body follows.
pub(crate) fn head(headers: &str) -> String {
    format!("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n\r\n")
}

/// How what is sent begins, for messages of tests.
pub(crate) fn start(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().take(120).collect()
}

/// Sends one, and looks what becomes of it.
#[track_caller]
pub(crate) fn send(server: &Server, bytes: &[u8], expected: Outcome) {
    let response = send_raw(address(server), bytes);
    let (status, start) = (response.as_ref().map(|response| response.status), start(bytes));
    match expected {
        Status(expected) => assert_eq!(status, Some(expected), "{start:?}"),
        Refused => {
            assert!(status.is_none_or(|status| (400..500).contains(&status)), "{start:?}: {status:?}");
        }
    }
}

/// All of them, for a server without keys.
pub(crate) fn all() -> Vec<Case> {
    [lines_and_headers(), names(), floods(), paths(), lengths(), bodies()].concat()
}

/// Lines and headers that are none.
pub(crate) fn lines_and_headers() -> Vec<Case> {
    let line = |line: &str| case(format!("{line}\r\nHost: localhost\r\nConnection: close\r\n\r\n"), Refused);
    let header = |header: &str| {
        case(
            format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{header}\r\nConnection: close\r\n\r\n"),
            Refused,
        )
    };
    vec![
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
    ]
}

/// Names that the server does not have, and pages of others, some of which look like its own.
pub(crate) fn names() -> Vec<Case> {
    let request = |host: &str, more: &str| {
        format!("GET /health HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\r\n")
    };
    let host = |host: &str, status| case(request(host, ""), Status(status));
    let origin = |origin: &str, status| {
        case(request("localhost:8080", &format!("Origin: {origin}\r\n")), Status(status))
    };
    let fetched = |path: &str, site: &str, status| {
        case(request_bytes("GET", path, &[("Sec-Fetch-Site", site)], b""), Status(status))
    };
    vec![
        // An image or a script of another page, which has no Origin.
        fetched("/props", "none", 200),
        fetched("/props", "same-origin", 200),
        fetched("/props", "same-site", 403),
        fetched("/props", "cross-site", 403),
        fetched("/v1/models", "cross-site", 403),
        // A link to the page.
        fetched("/", "cross-site", 200),
        fetched("/page.js", "cross-site", 200),
        host("localhost", 200),
        host("LocalHost.:8080", 200),
        host("127.0.0.1:80", 200),
        host("[::1]:80", 200),
        host("", 403),
        host("evil.example:8080", 403),
        host("localhost.evil.example", 403),
        host("evil-localhost", 403),
        host("localhost:80.evil.example", 403),
        host("localhost:80@evil.example", 403),
        host("localhost@evil.example", 403),
        host("evil.example#localhost", 403),
        host("evil.example/localhost", 403),
        host("evil.example, localhost", 403),
        host("127.0.0.1.evil.example", 403),
        host("[::1].evil.example", 403),
        host("[::1", 403),
        host("[evil.example]", 403),
        host("0x7f.0.0.1", 403),
        host("2130706433", 403),
        host("127.1", 403),
        host("http://localhost", 403),
        host("\u{ff4c}ocalhost", 400),
        origin("http://localhost:8080", 200),
        origin("https://LOCALHOST:8080", 200),
        origin("http://evil.example", 403),
        origin("http://localhost", 403),
        origin("http://localhost:80800", 403),
        origin("http://localhost:8081", 403),
        origin("http://127.0.0.1:8080", 403),
        origin("http://localhost:8080.evil.example", 403),
        origin("http://localhost:8080@evil.example", 403),
        origin("http://evil.example/http://localhost:8080", 403),
        origin("http://localhost:8080/", 403),
        origin("http://localhost:8080, http://evil.example", 403),
        origin("file://", 403),
        origin("file://localhost:8080", 403),
        origin("localhost:8080", 403),
        origin("*", 403),
        origin("", 403),
        origin("http://localhost:8080\r\nOrigin: http://evil.example", 400),
        // The name in the line counts no more than any other.
        case(
            "GET http://evil.example/health HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
            Status(403),
        ),
    ]
}

/// Floods of headers, and long paths.
pub(crate) fn floods() -> Vec<Case> {
    let many: String = (0..1000).map(|number| format!("X-{number}: y\r\n")).collect();
    let large = format!("X: {}\r\n", "y".repeat(1 << 20));
    let path = |length: usize| request_bytes("GET", &format!("/{}", "a".repeat(length)), &[], b"");
    vec![
        case(format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{many}\r\n"), Refused),
        case(format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{large}\r\n"), Refused),
        case(path(2000), Status(404)),
        case(path(5000), Status(414)),
        case(path(1 << 20), Refused),
        case(request_bytes("GET", &format!("/health?{}", "q".repeat(5000)), &[], b""), Status(414)),
    ]
}

/// Paths that want to be elsewhere.
pub(crate) fn paths() -> Vec<Case> {
    let get = |path: &str| case(request_bytes("GET", path, &[], b""), Status(404));
    vec![
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
    ]
}

/// Bodies whose length is a lie.
pub(crate) fn lengths() -> Vec<Case> {
    let smuggled = "0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n";
    vec![
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
        case(head("Transfer-Encoding: chunked") + "2\r\n{}\r\n0\r\nHost: evil.example\r\n\r\n", Status(400)),
    ]
}

/// Bodies that are not JSON, or too much of it.
pub(crate) fn bodies() -> Vec<Case> {
    let deep =
        |open: &str, close: &str| message(&format!("{}{}", open.repeat(100_000), close.repeat(100_000)));
    let numbers = format!("[{}0]", "0,".repeat(1 << 20));
    let tool = "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}";
    let tools = format!(
        "{{\"messages\":[{{\"role\":\"user\",\"content\":\"x\"}}],\"tools\":[{}{tool}]}}",
        format!("{tool},").repeat(500)
    );
    let bad_request = |body: &str| case(with_body(body), Status(400));
    vec![
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
    ]
}

/// Guesses at the key of a server that has this one.
pub(crate) fn guesses(key: &str) -> Vec<Case> {
    let with = |headers: &[(&str, &str)]| case(request_bytes("GET", "/v1/models", headers, b""), Status(401));
    let long = "k".repeat(10_000);
    let bearer = format!("Bearer {long}");
    vec![
        with(&[]),
        with(&[("Authorization", "")]),
        with(&[("Authorization", "Bearer")]),
        with(&[("Authorization", &format!("Bearer {}", key.to_ascii_uppercase()))]),
        with(&[("Authorization", &format!("Bearer {key}, x"))]),
        with(&[("Authorization", "Basic YS1rZXk=")]),
        with(&[("Authorization", &bearer)]),
        with(&[("X-Api-Key", &long)]),
        with(&[("Cookie", &format!("key={key}"))]),
        case(request_bytes("GET", &format!("/v1/models?key={key}"), &[], b""), Status(401)),
    ]
}
