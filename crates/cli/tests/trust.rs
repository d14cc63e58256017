//! Pairing as people do it: `oxcart worker` on one machine, `oxcart join` on another, `oxcart trust` on both. A machine is a folder here.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "user/machine.rs"]
mod machine;
#[path = "user/without_settings.rs"]
mod user;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpListener;
use std::process::Stdio;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use machine::{Machine, Worker, port_to_stay};
use serde_json::Value;

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tiny.gguf");

/// The text of an answer, which is the same wherever it is computed.
fn answer(machine: &Machine, args: &[&str]) -> Value {
    let asked = ["run", "-m", TINY, "the end", "--raw", "-n", "12", "--temp", "0", "--json"];
    let answer: Value = serde_json::from_str(&machine.does(&[&asked[..], args].concat())).unwrap();
    answer["text"].clone()
}

#[test]
fn two_machines_are_paired_in_two_lines() {
    let (den, desk) = (Machine::new(), Machine::new());
    let mut worker = Worker::start(&den, &[]);
    let (address, line) = (worker.address(), worker.join_line());
    let (start, end) = line.split_at(60);
    let said = desk.does(&["join", start, end, "--name", "desk"]);
    assert!(said.contains("--workers den"), "{said}");
    assert!(worker.line_with("paired with").contains("desk"));
    // The answer is the same over the link: by name, by all, by address.
    let here = answer(&desk, &[]);
    assert!(here.is_string(), "{here}");
    for workers in ["den", "all", &address] {
        assert_eq!(answer(&desk, &["--workers", workers, "--split", "1"]), here, "{workers}");
        assert!(worker.line_with("connected").contains("(desk at "), "{workers}");
    }
    let said = desk.does(&["devices", "--json", "--workers", "den"]);
    assert!(said.contains(&address) && said.contains(r#""machine":"den""#), "{said}");
    let said = desk.does(&["devices", "--workers", "den"]);
    assert!(said.contains(&format!("device 0 of the worker den ({address})")), "{said}");
    // People read the name that they gave it; programs get the address, too.
    let plan = ["run", "-m", TINY, "x", "--workers", "den", "--split", "1", "--plan"];
    let said = desk.does(&plan);
    assert!(said.contains(" den ") && !said.contains(&address), "{said}");
    let plan: Value = serde_json::from_str(&desk.does(&[&plan[..], &["--json"]].concat())).unwrap();
    assert_eq!(
        (&plan["placement"][0]["device"], &plan["placement"][0]["address"]),
        (&"RPC0[den]".into(), &(*address).into())
    );
    let said = desk.does(&["top", "den", "--once", "--every", "1s"]);
    assert!(
        said.starts_with("worker den · 1 device\n") && said.contains(&format!("■ den  {address}  alive")),
        "{said}"
    );
    let (known, knows) = (desk.known(), den.known());
    assert_eq!(known["machines"][0]["addresses"][0], *address);
    assert_eq!(known["machines"][0]["key"], knows["key"]);
    assert_eq!(
        (&knows["machines"][0]["name"], &knows["machines"][0]["may_use_this_machine"]),
        (&"desk".into(), &true.into())
    );
    // Names and limits.
    desk.does(&["trust", "name", "den", "attic"]);
    assert!(desk.does(&["devices", "--json", "--workers", "attic"]).contains(&address));
    assert_eq!(den.does(&["trust", "limit", "desk"]), "desk may use this machine, without limits\n");
    let limited = "desk may use this machine: 64.0 MiB of each device\n";
    assert_eq!(den.does(&["trust", "limit", "desk", "--memory", "64M"]), limited);
    assert_eq!(den.does(&["trust", "limit", "desk"]), limited);
    assert!(desk.does(&["devices", "--json", "--workers", "attic"]).contains("67108864"));
    // The end of it holds at once, and there is no way around it in the clear.
    den.does(&["trust", "revoke", "desk"]);
    let said = den.does(&["trust", "limit", "desk"]);
    assert!(said.contains("is revoked") && said.contains("64.0 MiB of each device"), "{said}");
    for workers in ["attic", &address] {
        let (code, said) = desk.run(&["devices", "--workers", workers]);
        assert_eq!((code, said.contains("does not know this machine")), (Some(1), true), "{said}");
    }
    // A third machine needs another line.
    let (code, said) = Machine::new().run(&["join", &line]);
    assert_eq!((code, said.contains("no longer valid")), (Some(1), true), "{said}");
    let invited = den.does(&["trust", "invite", &address]);
    let again = invited.trim().strip_prefix("oxcart join ").unwrap();
    assert!(desk.does(&["join", again]).contains("paired with attic"));
    desk.does(&["devices", "--workers", "attic"]);
}

/// A machine that is off keeps no one from using the others, unless it is asked for by name, or devices are meant by their numbers.
#[test]
fn one_of_all_machines_may_be_off() {
    let (den, attic, desk) = (Machine::new(), Machine::new(), Machine::new());
    let mut workers = [&den, &attic].map(|machine| Worker::start(machine, &[]));
    for (worker, name) in workers.iter_mut().zip(["den", "attic"]) {
        let line = worker.join_line();
        desk.does(&["join", &line, "--call-it", name]);
    }
    let here = answer(&desk, &[]);
    let asked = ["run", "-m", TINY, "the end", "--raw", "-n", "12", "--temp", "0", "--json"];
    let ask = |args: &[&str]| desk.run_all(&[&asked[..], args].concat());
    assert_eq!(answer(&desk, &["--workers", "all", "--split", "1,1"]), here);
    let [first, second] = workers;
    drop(second);
    let (code, printed, said) = ask(&["--workers", "all"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("attic cannot be reached (") && said.contains("continuing without it"), "{said}");
    assert!(!said.contains("den cannot"), "{said}");
    assert_eq!(serde_json::from_str::<Value>(&printed).unwrap()["text"], here);
    for args in [
        &["--workers", "attic"][..],
        &["--workers", "attic,all"],
        &["--workers", "all,attic"],
        &["--workers", "all", "--split", "1"],
        &["--workers", "all", "--place", "output=0"],
    ] {
        let (code, _, said) = ask(args);
        assert_eq!((code, said.contains("continuing")), (Some(1), false), "{args:?}: {said}");
    }
    drop(first);
    let (code, _, said) = ask(&["--workers", "all"]);
    assert_eq!((code, said.contains("continuing")), (Some(1), false), "{said}");
}

/// What a chat answers to messages, each of which begins a conversation: `messages` sends them, and is told of each whether a machine was
/// taken in by then. Also how many there were, and what the chat told besides.
fn chat(
    machine: &Machine,
    args: &[&str],
    messages: impl FnOnce(&mut dyn FnMut() -> bool),
) -> (String, usize, String) {
    let mut command = machine.command();
    command.args(["chat", "-m", TINY, "--temp", "0", "-n", "12", "--threads", "1"]).args(args);
    let piped = Stdio::piped;
    let mut chat = command.stdin(piped()).stdout(piped()).stderr(piped()).spawn().unwrap();
    let (mut keys, mut answers) = (chat.stdin.take().unwrap(), chat.stdout.take().unwrap());
    let (sender, notes) = channel();
    let log = BufReader::new(chat.stderr.take().unwrap());
    std::thread::spawn(move || log.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let answers = std::thread::spawn(move || {
        let mut text = String::new();
        answers.read_to_string(&mut text).map(|_| text)
    });
    let (mut count, mut told) = (0, Vec::new());
    messages(&mut || {
        keys.write_all(b"hello\n/clear\n").unwrap();
        count += 1;
        told.extend(notes.recv_timeout(Duration::from_millis(200)));
        told.extend(notes.try_iter());
        told.iter().any(|line: &String| line.contains("can be reached now; continuing with it"))
    });
    drop(keys);
    let text = answers.join().unwrap().unwrap();
    told.extend(notes);
    assert!(chat.wait().unwrap().success(), "{told:?}");
    (text, count, told.join("\n"))
}

/// A machine that was off when a conversation began is used once it is there, and no word changes.
#[test]
fn one_of_all_machines_may_come_later() {
    let (den, attic, desk) = (Machine::new(), Machine::new(), Machine::new());
    // It is there, and has no room for a part of the model.
    let mut first = Worker::start(&den, &["--max-memory", "1M"]);
    desk.does(&["join", &first.join_line(), "--call-it", "den"]);
    let port = port_to_stay();
    let mut second = Worker::start(&attic, &["--port", &port]);
    desk.does(&["join", &second.join_line(), "--call-it", "attic"]);
    drop(second);
    let (alone, ..) = chat(&desk, &[], |ask| assert!(!ask()));
    assert!(!alone.is_empty());
    let mut again = None;
    let (text, count, told) = chat(&desk, &["--workers", "all"], |ask| {
        ask();
        again = Some(Worker::start(&attic, &["--port", &port]));
        let start = Instant::now();
        while !ask() {
            assert!(start.elapsed() < Duration::from_secs(120), "it is not taken in");
        }
        ask();
    });
    assert_eq!(text, alone.repeat(count));
    assert!(told.contains("attic cannot be reached (") && told.contains("continued after"), "{told}");
    assert!(again.unwrap().line_with("connected").contains(" at "));
}

/// What was once paired and then revoked is not talked to, in TLS or in the clear, under any of its names.
#[test]
fn a_revoked_worker_is_not_talked_to() {
    let (desk, address, listener) = loop {
        let (den, desk) = (Machine::new(), Machine::new());
        let mut worker = Worker::start(&den, &[]);
        let (address, line) = (worker.address(), worker.join_line());
        desk.does(&["join", &line]);
        let said = desk.does(&["trust", "revoke", "den"]);
        assert!(said.contains("is revoked"), "{said}");
        assert_eq!(desk.known()["machines"][0]["revoked"], true);
        // Now someone else may be there: this test, unless the port was given to another program meanwhile.
        drop(worker);
        match TcpListener::bind(&address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            bound => break (desk, address, bound.unwrap()),
        }
    };
    listener.set_nonblocking(true).unwrap();
    for workers in ["den", "den:1234", &address] {
        let (code, said) = desk.run(&["devices", "--workers", workers]);
        assert_eq!((code, said.contains("was revoked")), (Some(1), true), "{said}");
    }
    let (code, said) = desk.run(&["run", "-m", TINY, "x", "--workers", "all"]);
    assert_eq!((code, said.contains("not paired with any worker")), (Some(2), true), "{said}");
    assert!(listener.accept().is_err(), "no machine came");
    // Forgotten, it is an address like any other.
    desk.does(&["trust", "forget", "den"]);
    listener.set_nonblocking(false).unwrap();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let (code, said) = desk.run(&["devices", "--workers", &address]);
    assert_eq!((code, said.contains("closed the connection at once")), (Some(1), true), "{said}");
}

#[test]
fn what_is_no_machine_is_said() {
    let desk = Machine::new();
    assert!(desk.does(&["trust"]).contains("not paired with any other yet"));
    for (args, code, want) in [
        (&["join", "den"][..], 2, "not a join line"),
        (&["join", "oxjzzzz"], 2, "damaged"),
        (&["join"], 2, "not a join line"),
        (&["join", "-"], 2, "not a join line"),
        (&["trust", "revoke", "den"], 2, "no machine is called 'den'"),
        (&["trust", "limit", "den"], 2, "no machine is called 'den'"),
        (&["trust", "name", "den", "all"], 2, "cannot be the name"),
        (&["run", "-m", TINY, "x", "--workers", "all"], 2, "not paired with any worker yet"),
        (&["trust", "invite", "127.0.0.1:1"], 1, "cannot connect"),
    ] {
        let (found, said) = desk.run(args);
        assert_eq!((found, said.contains(want)), (Some(code), true), "{args:?}: {said}");
    }
    assert!(desk.data().join("oxcart/identity").is_file());
}

/// A log has a join line where a person waits for it: not again and again, not where others read it, not where little is told.
#[test]
fn a_line_is_shown_where_it_is_wanted() {
    let (den, desk) = (Machine::new(), Machine::new());
    let mut worker = Worker::start(&den, &[]);
    let line = worker.join_line();
    desk.does(&["join", &line]);
    drop(worker);
    let mut again = Worker::start(&den, &[]);
    let address = again.address();
    let told = again.line_with("join");
    assert!(told.contains("paired with this one already") && told.contains("trust invite"), "{told}");
    // It can be had all the same.
    let invited = den.does(&["trust", "invite", &address]);
    assert!(invited.contains("oxcart join oxj"), "{invited}");
    drop(again);
    // A log that others can read.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let attic = Machine::new();
        let file = attic.data().join("worker.log");
        for (mode, is_shown) in [(0o644, false), (0o600, true)] {
            std::fs::write(&file, "").unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            let worker = Worker::start(&attic, &["--log", file.to_str().unwrap()]);
            let start = Instant::now();
            let written = loop {
                let written = std::fs::read_to_string(&file).unwrap();
                if written.contains("oxcart join") || written.contains("no join line") {
                    break written;
                }
                assert!(start.elapsed().as_secs() < 60, "{written}");
                std::thread::sleep(Duration::from_millis(20));
            };
            assert_eq!(written.contains("oxj"), is_shown, "{mode:o}: {written}");
            drop(worker);
        }
    }
}

/// Where little is told, no line is open, and that a machine was paired is told.
#[test]
fn a_quiet_worker_tells_of_pairings_alone() {
    let (den, desk) = (Machine::new(), Machine::new());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let mut worker = Worker::start(&den, &["--quiet", "--port", &port]);
    let address = format!("127.0.0.1:{port}");
    let start = Instant::now();
    let invited = loop {
        let (code, invited, said) = den.run_all(&["trust", "invite", &address]);
        if code == Some(0) {
            break invited;
        }
        assert!(start.elapsed().as_secs() < 60, "{said}");
    };
    let line = invited.trim().strip_prefix("oxcart join ").unwrap();
    desk.does(&["join", line, "--name", "desk"]);
    let mut first = String::new();
    worker.log.read_line(&mut first).unwrap();
    assert!(first.contains("paired with desk"), "{first}");
}

/// What a machine is called here is for people here to say, also of one that is known; and a name that is taken costs no line.
#[test]
fn a_known_machine_gets_the_name_it_is_given() {
    let (den, attic, desk) = (Machine::new(), Machine::new(), Machine::new());
    let (mut worker, mut other) = (Worker::start(&den, &[]), Worker::start(&attic, &[]));
    let (address, line, line_of_other) = (worker.address(), worker.join_line(), other.join_line());
    desk.does(&["join", &line]);
    let invited = den.does(&["trust", "invite", &address]);
    let again = invited.trim().strip_prefix("oxcart join ").unwrap();
    assert!(desk.does(&["join", again, "--call-it", "study"]).contains("--workers study"));
    // It is found by what it calls itself, too.
    assert!(desk.does(&["devices", "--json", "--workers", "den"]).contains(&address));
    let (code, said) = desk.run(&["join", &line_of_other, "--call-it", "study"]);
    assert_eq!((code, said.contains("another machine is called study")), (Some(1), true), "{said}");
    assert!(desk.does(&["join", &line_of_other]).contains("--workers den"));
    // Both are paired, so what is neither of them is told, unless it stays here.
    let (_, said) = desk.run(&["devices", "--workers", "0.0.0.0:1"]);
    assert!(said.contains("not encrypted"), "{said}");
    let (_, said) = desk.run(&["devices", "--workers", "127.0.0.1:1"]);
    assert!(!said.contains("not encrypted"), "{said}");
}

/// Without a home it is not known what a name means, so it means nothing.
#[cfg(unix)]
#[test]
fn names_mean_nothing_without_a_home() {
    let run = |workers: &str| {
        let mut command = Machine::new().command();
        command.env_remove("HOME").env_remove("XDG_DATA_HOME").args(["devices", "--workers", workers]);
        let output = command.stdin(Stdio::null()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for name in ["den", "all", "den.local:7"] {
        let (code, said) = run(name);
        assert_eq!((code, said.contains("this user has no home")), (Some(2), true), "{said}");
    }
    let (code, said) = run("127.0.0.1:1");
    assert_eq!((code, said.contains("no home")), (Some(1), false), "{said}");
}
