//! `oxcart doctor`, run as people run it: where nothing is wrong, and where one thing is.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "user/machine.rs"]
mod machine;
#[path = "user/without_settings.rs"]
mod user;

use std::io::{Read, Write};
use std::net::TcpListener;

use machine::{Machine, Worker};
use serde_json::Value;

/// What the doctor finds: its exit code and its findings.
fn looked_at(machine: &Machine, args: &[&str]) -> (Option<i32>, Value) {
    let (code, printed, said) = machine.run_all(&[&["doctor", "--json"][..], args].concat());
    let found = serde_json::from_str::<Value>(&printed).unwrap_or_else(|error| panic!("{error}: {said}"));
    (code, found["machines"].clone())
}

/// What was found about one thing of a machine.
#[track_caller]
fn of<'f>(machines: &'f Value, name: &str, about: &str) -> &'f Value {
    let machine = machines.as_array().unwrap().iter().find(|machine| machine["machine"] == name).unwrap();
    let findings = machine["findings"].as_array().unwrap();
    findings.iter().find(|found| found["about"] == about).unwrap_or_else(|| panic!("{machine:#}"))
}

fn says(found: &Value, field: &str, part: &str) -> bool {
    found[field].as_str().is_some_and(|text| text.contains(part))
}

/// A paired worker, the machine that uses it, and where it is.
fn paired() -> (Machine, Machine, Worker, String) {
    let (den, desk) = (Machine::new(), Machine::new());
    let mut worker = Worker::start(&den, &[]);
    let address = worker.address();
    let line = worker.join_line();
    desk.does(&["join", &line, "--name", "desk"]);
    (den, desk, worker, address)
}

#[test]
fn a_machine_alone_is_looked_at_and_left_as_it_is() {
    let desk = Machine::new();
    let (code, machines) = looked_at(&desk, &[]);
    assert_eq!((code, machines.as_array().unwrap().len()), (Some(0), 1), "{machines:#}");
    for about in ["version", "processor", "memory", "models", "identity", "pairing"] {
        let found = of(&machines, "this machine", about);
        assert!(found["state"] != "problem" && found["text"].is_string(), "{found}");
    }
    let memory = &of(&machines, "this machine", "memory")["values"];
    assert!(memory["free"].as_u64() <= memory["total"].as_u64() && memory["total"].is_u64(), "{memory}");
    assert!(says(of(&machines, "this machine", "identity"), "text", "no key yet"));
    assert_eq!(std::fs::read_dir(desk.data()).unwrap().count(), 0, "nothing was made");
}

#[test]
fn a_worker_is_measured() {
    let (_den, desk, _worker, address) = paired();
    // All paired machines, unless workers are named; one that is named twice is one.
    for args in [&[][..], &["--workers", "den,all"]] {
        let (code, machines) = looked_at(&desk, args);
        assert_eq!((code, machines.as_array().unwrap().len()), (Some(0), 2), "{machines:#}");
        for about in ["connection", "pairing", "version", "memory", "latency", "bandwidth"] {
            let found = of(&machines, "den", about);
            assert!(found["state"] == "good" || about == "latency" || about == "bandwidth", "{found}");
        }
        let value = |about: &str, name: &str| of(&machines, "den", about)["values"][name].as_f64().unwrap();
        assert!(value("latency", "median_ms") <= value("latency", "worst_ms"));
        assert!(value("bandwidth", "there_bytes_per_second") > 0.0);
        assert!(value("bandwidth", "bytes") <= f64::from(64 << 20));
        assert_eq!(of(&machines, "den", "connection")["values"]["endpoint"], address);
        assert_eq!(of(&machines, "den", "version")["values"]["protocol"], "7.0+");
        assert!(says(of(&machines, "den", "pairing"), "text", "encrypted"));
    }
    let text = desk.does(&["doctor"]);
    assert!(
        text.contains("this machine\n") && text.contains("\nden\n") && text.contains("  good "),
        "{text}"
    );
    // On its own machine, a worker needs no key.
    let (code, machines) = looked_at(&Machine::new(), &["--workers", &address]);
    assert_eq!(code, Some(0));
    assert!(says(of(&machines, &address, "pairing"), "text", "on this machine"), "{machines:#}");
}

#[test]
fn each_problem_has_its_remedy() {
    let (den, desk, worker, address) = paired();
    // One that is not there, beside one that is.
    let (code, machines) = looked_at(&desk, &["--workers", "127.0.0.1:1,den"]);
    let found = of(&machines, "127.0.0.1:1", "connection");
    assert_eq!((code, &found["state"]), (Some(1), &"problem".into()), "{found}");
    assert!(
        says(found, "text", "refuses connections") && says(found, "remedy", "here: oxcart worker"),
        "{found}"
    );
    assert!(of(&machines, "den", "latency")["state"] != "problem");
    // One whose name cannot be found.
    let (code, machines) = looked_at(&desk, &["--workers", "no.such.invalid"]);
    let found = of(&machines, "no.such.invalid:50052", "connection");
    assert!(code == Some(1) && says(found, "text", "cannot be found"), "{machines:#}");
    // One that does not know this machine any more.
    den.does(&["trust", "revoke", "desk"]);
    let (code, machines) = looked_at(&desk, &[]);
    let found = of(&machines, "den", "connection");
    assert!(code == Some(1) && says(found, "text", "den does not know this machine"), "{found}");
    assert!(says(found, "remedy", "oxcart trust invite"), "{found}");
    // Another machine in its place.
    drop(worker);
    let attic = Machine::new();
    let port = address.rsplit(':').next().unwrap();
    let mut other = Worker::start(&attic, &["--port", port]);
    other.address();
    let (code, machines) = looked_at(&desk, &[]);
    let found = of(&machines, "den", "connection");
    assert!(code == Some(1) && says(found, "text", "another machine than den"), "{found}");
    assert!(says(found, "remedy", "oxcart trust forget den"), "{found}");
    // What a user did is no problem.
    desk.does(&["trust", "revoke", "den"]);
    let (code, machines) = looked_at(&desk, &[]);
    let found = of(&machines, "den", "pairing");
    assert!(
        code == Some(0) && found["state"] == "note" && says(found, "text", "was revoked here"),
        "{found}"
    );
}

/// What listens at a port may be anything, and may say nothing at all; a worker is looked at all the same.
#[test]
fn other_programs_are_told_from_workers() {
    let (_den, desk, _worker, _) = paired();
    let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
    let (web, silent) = (listen(), listen());
    let at = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
    let (web_at, silent_at) = (at(&web), at(&silent));
    std::thread::spawn(move || {
        for stream in web.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 64]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
            // Until the client has gone, so that it gets the answer.
            let _ = stream.read(&mut [0; 64]);
        }
    });
    let workers = format!("{web_at},{silent_at},den");
    let (code, machines) = looked_at(&desk, &["--workers", &workers]);
    assert_eq!(code, Some(1));
    let found = of(&machines, &web_at, "connection");
    assert!(says(found, "text", "something other than a worker"), "{found}");
    let found = of(&machines, &silent_at, "connection");
    assert!(says(found, "text", "does not answer as a worker does"), "{found}");
    assert!(of(&machines, "den", "bandwidth")["values"].is_object());
    drop(silent);
}

/// Private files that others can read, and folders that cannot be used.
#[cfg(unix)]
#[test]
fn files_of_this_machine_are_looked_at() {
    use std::os::unix::fs::PermissionsExt;
    let (_den, desk, _worker, _) = paired();
    let identity = desk.data().join("oxcart/identity");
    std::fs::set_permissions(&identity, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (code, machines) = looked_at(&desk, &[]);
    let found = of(&machines, "this machine", "identity");
    assert!(code == Some(1) && says(found, "remedy", "chmod 600"), "{found}");
    std::fs::set_permissions(&identity, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(looked_at(&desk, &[]).0, Some(0));
    // Whom this machine knows cannot be told, so nothing is sent to addresses either.
    std::fs::write(desk.data().join("oxcart/machines.toml"), "broken").unwrap();
    let (code, machines) = looked_at(&desk, &["--workers", "127.0.0.1:1"]);
    assert_eq!((code, machines.as_array().unwrap().len()), (Some(1), 1), "{machines:#}");
    assert_eq!(of(&machines, "this machine", "pairing")["state"], "problem");
    // A file where models should be.
    let other = Machine::new();
    let file = other.data().join("file");
    std::fs::write(&file, "").unwrap();
    let mut command = other.command();
    command.env("OXCART_CACHE", &file).args(["doctor", "--json"]);
    let output = command.output().unwrap();
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = of(&printed["machines"], "this machine", "models");
    assert!(output.status.code() == Some(1) && found["state"] == "problem", "{found}");
}
