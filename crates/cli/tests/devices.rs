//! `oxcart devices`, run as people run it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "user/without_settings.rs"]
mod user;
#[path = "user/worker.rs"]
mod worker;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

use serde_json::Value;
use worker::Worker;

fn oxcart(args: &[&str]) -> (Option<i32>, String, String) {
    let output = user::command(env!("CARGO_BIN_EXE_oxcart")).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A worker of version 7.0.0 with two devices, for one client.
fn worker() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut prefix = [0; 9];
        while stream.read_exact(&mut prefix).is_ok() {
            let mut body = vec![0; usize::from(prefix[1])];
            stream.read_exact(&mut body).unwrap();
            let answer = match prefix[0] {
                14 => [&[7, 0, 0, 0][..], &[0; 24]].concat(),
                15 => vec![2, 0, 0, 0],
                1 => 64_u64.to_le_bytes().to_vec(),
                2 => u64::MAX.to_le_bytes().to_vec(),
                11 => [1_u64 << 30, 3 << 30].map(u64::to_le_bytes).concat(),
                other => panic!("command {other}"),
            };
            let len = (answer.len() as u64).to_le_bytes();
            stream.write_all(&[&len[..], &answer].concat()).unwrap();
        }
    });
    address
}

#[test]
fn the_processor_is_always_there() {
    let (code, stdout, stderr) = oxcart(&["devices"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(stdout.contains("CPU") && stdout.contains("iB"), "{stdout}");
}

#[test]
fn workers_are_listed_and_lost_ones_reported() {
    // Nothing listens on port 1, and no other test is given it.
    let (there, gone) = (worker().to_string(), "127.0.0.1:1");
    let (code, stdout, stderr) = oxcart(&["devices", "--workers", &format!("{gone},{there}")]);
    assert_eq!(code, Some(1));
    for name in [format!(" {there} "), format!(" {there}, device 1 ")] {
        assert!(stdout.contains(&name), "{stdout}");
    }
    assert!(stdout.contains("1.0 GiB") && stdout.contains("3.0 GiB") && stdout.contains("7.0"), "{stdout}");
    assert!(stderr.starts_with(&format!("oxcart: {gone}: cannot connect")), "{stderr}");
    assert_eq!(stderr.lines().count(), 1);
}

#[test]
fn a_worker_that_is_listed_twice_is_shown_once() {
    let there = worker();
    let list = format!("{there},localhost:{}", there.port());
    let (code, stdout, stderr) = oxcart(&["devices", "--workers", &list]);
    assert_eq!((code, stdout.matches(", device 1 ").count()), (Some(0), 1), "{stdout}");
    assert!(stderr.contains("is listed twice; it is shown once"), "{stderr}");
}

#[test]
fn json_has_all_of_it() {
    let there = worker().to_string();
    let (code, stdout, stderr) = oxcart(&["devices", "--json", "--workers", &there]);
    assert_eq!((code, stderr.as_str(), stdout.lines().count()), (Some(0), "", 1));
    let found: Value = serde_json::from_str(&stdout).unwrap();
    let devices = found["devices"].as_array().unwrap();
    assert_eq!(devices[0]["name"], "CPU");
    assert_eq!(devices[0]["kind"], "CPU");
    assert_eq!(devices[0]["worker"], Value::Null);
    assert_eq!(devices[2]["name"], format!("RPC1[{there}]"));
    assert_eq!(devices[2]["worker"], there);
    assert_eq!(devices[2]["dialect"], "7.0");
    assert_eq!(devices[2]["kind"], Value::Null);
    assert_eq!(devices[2]["memory"]["free"], 1_u64 << 30);
    assert_eq!(found["unreachable"].as_array().unwrap().len(), 0);
}

#[test]
fn a_port_that_is_no_number_is_wrong_usage() {
    let (code, stdout, stderr) = oxcart(&["devices", "--workers", "localhost:worker"]);
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert!(stderr.contains("has no valid port"), "{stderr}");
}

fn plugin(name: &str) -> String {
    oxcart_fixtures::example_library(name).to_str().unwrap().to_owned()
}

#[test]
fn devices_of_a_plugin_are_like_any_other() {
    let file = plugin("plugin_good");
    let (code, out, error) = oxcart(&["devices", "--json", "--plugin", &file]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    let out: Value = serde_json::from_str(&out).unwrap();
    let names: Vec<_> = out["devices"].as_array().unwrap().iter().map(|device| &device["name"]).collect();
    assert_eq!(names, ["PLUG0", "CPU"], "the CPU is the last resort");

    let (code, _, error) = oxcart(&["worker", "--plugin", &file, "--device", "PLUG1"]);
    assert_eq!(code, Some(2));
    assert_eq!(error, "oxcart: there is no device 'PLUG1'; available: PLUG0, CPU\n");

    let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tiny.gguf");
    // Asked for or not, a card is not held up by the processor beside it.
    for chosen in [&["--device", "plug0"] as &[_], &[]] {
        let (code, out, error) =
            oxcart(&[&["run", "-m", tiny, "--plan", "--plugin", &file], chosen].concat());
        assert_eq!((code, error.as_str()), (Some(0), ""));
        let line = |name: &str| out.lines().find(|line| line.contains(name)).unwrap().to_owned();
        assert!(line("PLUG0").contains("0-1"), "{out}");
        assert!(line("CPU").contains(" - "), "{out}");
    }
    for chosen in [&["--device", "plug0"] as &[_], &[]] {
        let (code, out, error) =
            oxcart(&[&["run", "-m", tiny, "--plan", "--plugin", &file, "-ngl", "1"], chosen].concat());
        assert_eq!((code, error.as_str()), (Some(0), ""));
        let line = |name: &str| out.lines().find(|line| line.contains(name)).unwrap().to_owned();
        assert!(line("PLUG0").contains(" 0 ") && line("CPU").contains(" 1 "), "a block for each: {out}");
    }
    let both = ["--device", "plug0", "--device", "cpu"];
    let (code, out, _) = oxcart(&[&["run", "-m", tiny, "--plan", "--plugin", &file], &both[..]].concat());
    assert_eq!(code, Some(0));
    let line = out.lines().find(|line| line.contains("PLUG0")).unwrap();
    assert!(line.contains(" - "), "both were asked for, and the CPU has more memory: {out}");
}

/// A plug-in's device computes a model, here and as a worker's, and gives the same answer as the processor.
#[test]
fn devices_of_a_plugin_compute() {
    let file = plugin("plugin_good");
    let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tiny.gguf");
    let answer = |more: &[&str]| {
        let asked = ["run", "-m", tiny, "-n", "6", "--temp", "0", "--ignore-eos", "hello"];
        let (code, out, error) = oxcart(&[&asked, more].concat());
        assert_eq!(code, Some(0), "{more:?}: {error}");
        out
    };
    let expected = answer(&["--device", "cpu"]);
    assert_eq!(answer(&["--plugin", &file, "--device", "plug0"]), expected);
    let worker = Worker::start(&["--plugin", &file, "--device", "PLUG0"]);
    assert_eq!(answer(&["--workers", &worker.address, "--split", "1"]), expected);
}

/// Shares for workers alone: nothing for this machine, whatever it has.
#[test]
fn shares_may_be_those_of_workers_alone() {
    let file = plugin("plugin_good");
    let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tiny.gguf");
    let shared = ["run", "-m", tiny, "--plan", "--plugin", &file, "--workers", "local:2", "--split", "1,1"];
    let (code, out, error) = oxcart(&shared);
    assert_eq!(code, Some(0), "{error}");
    for name in ["PLUG0", " CPU "] {
        let line = out.lines().find(|line| line.contains(name)).unwrap();
        assert!(line.contains(" - "), "{name}: {out}");
    }
}

#[test]
fn a_plugin_that_cannot_be_used_is_an_error() {
    let file = plugin("plugin_failing");
    for command in ["devices", "worker"] {
        let (code, _, error) = oxcart(&[command, "--plugin", &file]);
        assert_eq!(code, Some(1));
        assert!(error.contains("failed to start") && error.contains(&file), "{error}");
    }
}
