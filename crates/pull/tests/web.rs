//! Downloads from a web server of our own, which fails in the ways that servers fail.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oxcart_pull::{Error, Hub, Name, Step, Store};

/// What the server gives for a path, once for each time it is asked; the last one again and again.
#[derive(Clone)]
struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// Bytes of the body after which the connection ends.
    cut: usize,
    /// Whether a range may be asked for.
    ranges: bool,
    /// What comes after the body.
    then: Then,
}

#[derive(Clone, Copy, PartialEq)]
enum Then {
    Close,
    /// Nothing, but the connection stays.
    Silence,
    /// A byte now and then.
    Drip,
    /// More of the same without an end, of which no length is announced.
    Endless,
}

fn file(body: &[u8], version: &str) -> Reply {
    let headers = vec![("etag", version.to_owned())];
    Reply { status: 200, headers, body: body.to_vec(), cut: usize::MAX, ranges: true, then: Then::Close }
}

fn status(status: u16) -> Reply {
    Reply { status, headers: vec![], body: b"no".to_vec(), cut: usize::MAX, ranges: false, then: Then::Close }
}

/// Requests, as the lines of their headers.
type Seen = Arc<Mutex<Vec<Vec<String>>>>;

struct Server {
    address: String,
    seen: Seen,
}

impl Server {
    fn start(paths: Vec<(&'static str, Vec<Reply>)>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let seen: Seen = Arc::default();
        let (of_thread, mut paths) = (Arc::clone(&seen), paths);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if let Ok((stream, then)) = answer(stream, &mut paths, &of_thread) {
                    std::thread::spawn(move || go_on(stream, then));
                }
            }
        });
        Server { address, seen }
    }

    fn hub(&self) -> Hub {
        Hub::at(&self.address, Some("secret".into()))
    }

    /// One that does not wait long.
    fn impatient(&self, patience: Duration) -> Hub {
        Hub::with_patience(&self.address, None, patience)
    }

    /// The header lines of the requests so far that have a word in them.
    fn lines_with(&self, word: &str) -> Vec<String> {
        self.seen.lock().unwrap().iter().flatten().filter(|line| line.contains(word)).cloned().collect()
    }
}

/// Does what comes after the body.
fn go_on(mut stream: TcpStream, then: Then) {
    let (pause, piece) = match then {
        Then::Close => return,
        Then::Silence => (Duration::from_secs(1), vec![]),
        Then::Drip => (Duration::from_millis(100), vec![b'x']),
        Then::Endless => (Duration::ZERO, vec![b'x'; 1 << 20]),
    };
    // Until the other side is gone; silence ends with the test.
    for _ in 0..600 {
        if stream.write_all(&piece).is_err() {
            return;
        }
        std::thread::sleep(pause);
    }
}

fn answer(
    stream: TcpStream,
    paths: &mut [(&str, Vec<Reply>)],
    seen: &Seen,
) -> std::io::Result<(TcpStream, Then)> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let mut request = Vec::new();
    for line in lines.by_ref() {
        match line?.to_lowercase() {
            line if line.is_empty() => break,
            line => request.push(line),
        }
    }
    // A client may leave without a word.
    let first = request.first().ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let range = request.iter().find_map(|line| line.strip_prefix("range: bytes=")?.split_once('-'));
    let from: usize = range.and_then(|(from, _)| from.parse().ok()).unwrap_or(0);
    let to: Option<usize> = range.and_then(|(_, to)| to.parse().ok());
    seen.lock().unwrap().push(request);
    let replies =
        paths.iter_mut().find(|(known, _)| known.to_lowercase() == path).map(|(_, replies)| replies);
    let reply = match replies {
        None => status(404),
        Some(replies) if replies.len() > 1 => replies.remove(0),
        Some(replies) => replies[0].clone(),
    };
    let from = if reply.ranges { from.min(reply.body.len()) } else { 0 };
    let end = to.filter(|_| reply.ranges).map_or(reply.body.len(), |to| (to + 1).min(reply.body.len()));
    let is_part = reply.ranges && (from > 0 || to.is_some());
    let (status, rest) =
        if is_part { (206, &reply.body[from..end]) } else { (reply.status, &reply.body[..]) };
    let mut stream = stream;
    write!(stream, "HTTP/1.1 {status} x\r\nconnection: close\r\n")?;
    if reply.then != Then::Endless {
        write!(stream, "content-length: {}\r\n", rest.len())?;
    }
    if is_part {
        let len = reply.body.len();
        write!(stream, "content-range: bytes {from}-{}/{len}\r\n", end - 1)?;
    }
    for (name, value) in &reply.headers {
        write!(stream, "{name}: {value}\r\n")?;
    }
    write!(stream, "\r\n")?;
    stream.write_all(&rest[..rest.len().min(reply.cut)])?;
    Ok((stream, reply.then))
}

fn model(len: usize) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend((0..len).map(|i| (i * 7 % 251) as u8));
    bytes
}

fn fetch(server: &Server, store: &Store, path: &str) -> Result<Vec<u8>, Error> {
    let name: Name = format!("{}{path}", server.address).parse().unwrap();
    let mut last = None;
    let path = store.fetch(&name, &server.hub(), &mut |step| last = Some(step))?;
    let bytes = std::fs::read(path).unwrap();
    let len = bytes.len() as u64;
    assert_eq!(last, Some(Step { done: len, total: Some(len) }));
    Ok(bytes)
}

#[test]
fn a_file_comes_once() {
    let (folder, want) = (tempfile::tempdir().unwrap(), model(1_000_000));
    let server = Server::start(vec![("/m.gguf", vec![file(&want, "v1")])]);
    let store = Store::at(folder.path());
    assert_eq!(fetch(&server, &store, "/m.gguf").unwrap(), want);
    let name: Name = format!("{}/m.gguf", server.address).parse().unwrap();
    store.fetch(&name, &server.hub(), &mut |_| panic!("nothing is left to fetch")).unwrap();
    assert_eq!(server.seen.lock().unwrap().len(), 1);
}

#[test]
fn a_broken_download_goes_on_where_it_stopped() {
    let (folder, want) = (tempfile::tempdir().unwrap(), model(500_000));
    let cut = |cut| Reply { cut, ..file(&want, "v1") };
    let server = Server::start(vec![("/m.gguf", vec![cut(100_000), cut(200_000), file(&want, "v1")])]);
    assert_eq!(fetch(&server, &Store::at(folder.path()), "/m.gguf").unwrap(), want);
    assert_eq!(server.lines_with("range: "), ["range: bytes=100000-", "range: bytes=300000-"]);
}

#[test]
fn a_later_call_goes_on_too_unless_the_file_has_changed() {
    let (folder, old, new) = (tempfile::tempdir().unwrap(), model(300_000), model(310_000));
    let store = Store::at(folder.path());
    // Nothing more comes: the call ends, and what there is stays.
    let server = Server::start(vec![(
        "/m.gguf",
        vec![
            Reply { cut: 200_000, ..file(&old, "v1") },
            Reply { cut: 0, ..file(&old, "v1") },
            file(&new, "v2"),
            file(&new, "v2"),
        ],
    )]);
    let error = fetch(&server, &store, "/m.gguf").unwrap_err();
    assert!(matches!(error, Error::Server { .. }), "{error}");
    assert_eq!(fetch(&server, &store, "/m.gguf").unwrap(), new);
    assert_eq!(server.lines_with("range: bytes=200000-").len(), 2);
}

/// A reply of a server that says that it gives parts.
fn in_parts(reply: Reply) -> Reply {
    let mut reply = reply;
    reply.headers.push(("accept-ranges", "bytes".into()));
    reply
}

#[test]
fn a_large_file_comes_in_parts_over_several_connections() {
    let (folder, want) = (tempfile::tempdir().unwrap(), model(1_000_000));
    let server = Server::start(vec![("/m.gguf", vec![in_parts(file(&want, "v1"))])]);
    let name: Name = format!("{}/m.gguf", server.address).parse().unwrap();
    let mut last = None;
    let hub = server.hub().cut(3, 100_000);
    let path = Store::at(folder.path()).fetch(&name, &hub, &mut |step| last = Some(step)).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), want);
    assert_eq!(last, Some(Step { done: 1_000_004, total: Some(1_000_004) }));
    let mut parts = server.lines_with("range: bytes=");
    parts.sort();
    assert_eq!(parts.len(), 11, "{parts:?}");
    assert!(parts.contains(&"range: bytes=1000000-1000003".to_owned()), "{parts:?}");
}

#[test]
fn where_parts_do_not_come_one_connection_goes_on() {
    let (folder, want) = (tempfile::tempdir().unwrap(), model(900_000));
    let store = Store::at(folder.path());
    let whole = in_parts(file(&want, "v1"));
    let cut = Reply { cut: 50_000, ..whole.clone() };
    // The third connection breaks off; one connection goes on.
    let (begins, breaks) = (whole.clone(), cut);
    let server = Server::start(vec![
        ("/m.gguf", vec![begins.clone(), begins, breaks, whole.clone()]),
        // What it says is not so.
        ("/no.gguf", vec![Reply { ranges: false, ..whole }]),
    ]);
    let fetch = |path: &str| {
        let name: Name = format!("{}{path}", server.address).parse().unwrap();
        std::fs::read(store.fetch(&name, &server.hub().cut(3, 100_000), &mut |_| {}).unwrap()).unwrap()
    };
    assert_eq!(fetch("/m.gguf"), want);
    assert_eq!(fetch("/no.gguf"), want);
}

#[test]
fn a_model_is_looked_up_without_being_fetched() {
    let folder = tempfile::tempdir().unwrap();
    let tree = r#"[{"type":"file","path":"m-Q4_K_M.gguf","size":5000}]"#;
    let card = r#"{"cardData":{"license":"apache-2.0"},"gguf":{"context_length":40960}}"#;
    let server = Server::start(vec![
        ("/api/models/Qwen/Qwen3-8B-GGUF/tree/main?recursive=true", vec![file(tree.as_bytes(), "")]),
        ("/api/models/Qwen/Qwen3-8B-GGUF", vec![file(card.as_bytes(), "")]),
    ]);
    let about = Store::at(folder.path()).look_up(&"qwen3-8b".parse().unwrap(), &server.hub()).unwrap();
    assert_eq!(
        (about.bytes, about.licence.as_deref(), about.context),
        (Some(5000), Some("apache-2.0"), Some(40960))
    );
    assert_eq!(about.files, ["m-Q4_K_M.gguf"]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn servers_without_ranges_start_anew() {
    let (folder, want) = (tempfile::tempdir().unwrap(), model(300_000));
    let whole = Reply { ranges: false, ..file(&want, "v1") };
    let server = Server::start(vec![("/m.gguf", vec![Reply { cut: 200_000, ..whole.clone() }, whole])]);
    assert_eq!(fetch(&server, &Store::at(folder.path()), "/m.gguf").unwrap(), want);
}

#[test]
fn what_is_no_model_gets_no_name() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(vec![("/page", vec![file(b"<html>please log in</html>", "v1")])]);
    let store = Store::at(folder.path());
    let error = fetch(&server, &store, "/page").unwrap_err();
    assert!(error.to_string().contains("not a GGUF file"), "{error}");
    assert_eq!(store.find(&format!("{}/page", server.address).parse().unwrap()), None);
}

#[test]
fn refusals_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let replies = |code| vec![status(code)];
    let server = Server::start(vec![("/401", replies(401)), ("/429", replies(429)), ("/503", replies(503))]);
    for (path, want) in [("/401", "HF_TOKEN"), ("/404", "check the name"), ("/429", "later"), ("/503", "503")]
    {
        let error = fetch(&server, &Store::at(folder.path()), path).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
    // No server listens there, and no such name is ever known: so it is without a network, too.
    for (host, want) in [
        ("127.0.0.1:1", "cannot reach 127.0.0.1:1 ("),
        ("hub.invalid", "cannot reach hub.invalid (its address cannot be found): is there a network?"),
    ] {
        let (name, hub) =
            (format!("http://{host}/x.gguf").parse().unwrap(), Hub::at(&format!("http://{host}"), None));
        let error = Store::at(folder.path()).fetch(&name, &hub, &mut |_| {}).unwrap_err().to_string();
        assert!(error.starts_with(want), "{error}");
    }
}

#[test]
fn a_repository_of_the_hub() {
    let (folder, want) = (tempfile::tempdir().unwrap(), model(50_000));
    let sha256 = {
        use sha2::Digest as _;
        sha2::Sha256::digest(&want).iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let tree = |sha256: &str| {
        format!(
            r#"[{{"type":"file","path":"m-Q8_0.gguf","size":9}},{{"type":"file","path":"m-Q4_0.gguf","size":{},"lfs":{{"oid":"{sha256}"}}}}]"#,
            want.len()
        )
    };
    // The hub sends large files from elsewhere.
    let elsewhere = Server::start(vec![("/blob", vec![file(&want, "v1")])]);
    let moved = Reply { headers: vec![("location", format!("{}/blob", elsewhere.address))], ..status(302) };
    let server = Server::start(vec![
        (
            "/api/models/owner/name/tree/main?recursive=true",
            vec![file(tree(&"0".repeat(64)).as_bytes(), ""), file(tree(&sha256).as_bytes(), "")],
        ),
        ("/owner/name/resolve/main/m-Q4_0.gguf", vec![moved]),
    ]);
    let store = Store::at(folder.path());
    let name: Name = "owner/name".parse().unwrap();
    let error = store.fetch(&name, &server.hub(), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("SHA-256"), "{error}");
    let path = store.fetch(&name, &server.hub(), &mut |_| {}).unwrap();
    assert!(path.ends_with("hub/owner/name/m-Q4_0.gguf"));
    assert_eq!(std::fs::read(path).unwrap(), want);
    assert_eq!(server.lines_with("authorization: bearer secret").len(), 4);
    assert!(elsewhere.lines_with("authorization").is_empty(), "the token is for the hub alone");
    let missing = store.fetch(&"owner/other".parse().unwrap(), &server.hub(), &mut |_| {}).unwrap_err();
    assert!(missing.to_string().contains("check the name"), "{missing}");
}

#[test]
fn a_server_that_stops_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::at(folder.path());
    let want = model(300_000);
    let stuck = |cut, then| Reply { cut, then, ..file(&want, "v1") };
    let server = Server::start(vec![
        ("/silent.gguf", vec![stuck(100_000, Then::Silence), stuck(0, Then::Silence)]),
        ("/drip.gguf", vec![stuck(100_000, Then::Drip), stuck(0, Then::Drip)]),
        // It goes on once the connection is made anew.
        ("/better.gguf", vec![stuck(100_000, Then::Silence), file(&want, "v1")]),
        ("/api/models/o/n/tree/main?recursive=true", vec![stuck(10, Then::Silence)]),
    ]);
    let fetch = |name: &str, patience| {
        store.fetch(&name.parse().unwrap(), &server.impatient(Duration::from_secs(patience)), &mut |_| {})
    };
    let start = Instant::now();
    for path in ["silent", "drip"] {
        let error = fetch(&format!("{}/{path}.gguf", server.address), 1).unwrap_err();
        assert!(matches!(error, Error::Server { .. }), "{error}");
    }
    assert!(matches!(fetch("o/n", 1).unwrap_err(), Error::Server { .. }));
    // Longer than a machine stands still: what comes must not be given up for that.
    let better = fetch(&format!("{}/better.gguf", server.address), 4).unwrap();
    assert_eq!(std::fs::read(better).unwrap(), want);
    // Each is silent for ten minutes.
    assert!(start.elapsed() < Duration::from_secs(120), "{:?}", start.elapsed());
}

#[test]
fn nothing_is_written_that_was_not_announced_or_has_no_room() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::at(folder.path());
    let short = model(1000);
    let tree = r#"[{"type":"file","path":"a-00001-of-00002.gguf","size":18446744073709551615},
        {"type":"file","path":"a-00002-of-00002.gguf","size":18446744073709551615}]"#;
    let server = Server::start(vec![
        ("/api/models/o/n/tree/main?recursive=true", vec![file(tree.as_bytes(), "")]),
        (
            "/o/n/resolve/main/a-00001-of-00002.gguf",
            vec![Reply { then: Then::Endless, ..file(&short, "v1") }],
        ),
    ]);
    let error = store.fetch(&"o/n".parse().unwrap(), &server.hub(), &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::NoRoom { .. }), "{error}");
    let tree = r#"[{"type":"file","path":"b.gguf","size":5000}]"#;
    let server = Server::start(vec![
        ("/api/models/o/m/tree/main?recursive=true", vec![file(tree.as_bytes(), "")]),
        ("/o/m/resolve/main/b.gguf", vec![Reply { then: Then::Endless, ..file(&short, "v1") }]),
    ]);
    let error = store.fetch(&"o/m".parse().unwrap(), &server.hub(), &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::Wrong { .. }), "{error}");
    let left = std::fs::metadata(folder.path().join("hub/o/m/b.gguf.part")).unwrap().len();
    assert_eq!(left, 0, "what is wrong takes no room");
}

#[test]
fn a_model_is_here_when_all_its_files_are() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::at(folder.path());
    let (one, two) = (model(1000), model(2000));
    let tree = format!(
        r#"[{{"type":"file","path":"a-00001-of-00002.gguf","size":{}}},{{"type":"file","path":"a-00002-of-00002.gguf","size":{}}}]"#,
        one.len(),
        two.len()
    );
    let server = Server::start(vec![
        ("/api/models/o/n/tree/main?recursive=true", vec![file(tree.as_bytes(), "")]),
        ("/o/n/resolve/main/a-00001-of-00002.gguf", vec![file(&one, "v1")]),
        ("/o/n/resolve/main/a-00002-of-00002.gguf", vec![status(503), file(&two, "v1")]),
        ("/u/b-00001-of-00002.gguf", vec![file(&one, "v1")]),
        ("/u/b-00002-of-00002.gguf", vec![status(503), file(&two, "v1")]),
    ]);
    let url = format!("{}/u/b-00001-of-00002.gguf", server.address);
    for name in ["o/n", "o/n:a-00001-of-00002.gguf", &url] {
        let name: Name = name.parse().unwrap();
        if store.find(&name).is_none() {
            store.fetch(&name, &server.hub(), &mut |_| {}).unwrap_err();
            assert_eq!(store.find(&name), None, "one of two files is no model");
        }
        let path = store.fetch(&name, &server.hub(), &mut |_| {}).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), one);
        let second = path.to_str().unwrap().replace("00001-of", "00002-of");
        assert_eq!(std::fs::read(second).unwrap(), two);
        assert_eq!(store.find(&name), Some(path));
    }
}
