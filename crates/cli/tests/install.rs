//! `oxcart worker --install`, in an empty home, with a program called `systemctl` that writes down what it is told.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(target_os = "linux")]

#[path = "user/machine.rs"]
mod machine;
#[path = "user/without_settings.rs"]
mod user;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use machine::{Machine, Worker, port_to_stay};
use tempfile::TempDir;

/// A user with an empty home.
struct Home(TempDir);

impl Home {
    /// A home, and a `systemctl` that ends with a code.
    fn new(code: i32) -> Home {
        let home = Home(tempfile::tempdir().unwrap());
        fs::create_dir(home.path("bin")).unwrap();
        let program = home.path("bin/systemctl");
        let said = home.path("said");
        let script =
            format!("#!/bin/sh\necho \"$@\" >>'{}'\necho 'no bus' >&2\nexit {code}\n", said.display());
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn unit(&self) -> PathBuf {
        self.path("config/systemd/user/oxcart-worker.service")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = user::command(env!("CARGO_BIN_EXE_oxcart"));
        command
            .env("HOME", self.0.path())
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("XDG_DATA_HOME", self.path("data of mine"))
            .env("PATH", self.path("bin"))
            .current_dir(self.0.path())
            .stdin(Stdio::null())
            .arg("worker")
            .args(args);
        command
    }

    fn run(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let Output { status, stdout, stderr } = self.command(args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code(), text(stdout), text(stderr))
    }

    /// What `systemctl` was told since the last time.
    fn told(&self) -> Vec<String> {
        let told = fs::read_to_string(self.path("said")).unwrap_or_default();
        let _ = fs::remove_file(self.path("said"));
        told.lines().map(str::to_owned).collect()
    }
}

/// The value of a setting that a unit has once.
fn setting<'u>(unit: &'u str, name: &str) -> Vec<&'u str> {
    unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).collect()
}

/// The words of a setting in which all words are in double quotes and need nothing else.
fn words(setting: &str) -> Vec<String> {
    setting.split('"').skip(1).step_by(2).map(|word| word.replace("%%", "%").replace("$$", "$")).collect()
}

#[test]
fn a_unit_is_written_replaced_and_removed() {
    let home = Home::new(0);
    let (code, said, error) =
        home.run(&["--install", "--port", "0", "--name", "den", "--log", "a $HOME 100%.log"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(
        said.starts_with("wrote ") && said.contains("enable-linger") && said.contains("trust invite"),
        "{said}"
    );
    assert_eq!(home.told(), ["--user daemon-reload", "--user enable --now oxcart-worker.service"]);
    let unit = fs::read_to_string(home.unit()).unwrap();
    let [command] = setting(&unit, "ExecStart")[..] else { panic!("{unit}") };
    let want =
        [env!("CARGO_BIN_EXE_oxcart"), "worker", "--port", "0", "--name", "den", "--log", "a $HOME 100%.log"];
    assert_eq!(words(command), want);
    let variables: Vec<String> = setting(&unit, "Environment").into_iter().flat_map(words).collect();
    assert!(variables.contains(&format!("XDG_DATA_HOME={}", home.path("data of mine").display())), "{unit}");
    assert!(setting(&unit, "WorkingDirectory") == [format!("-{}", home.0.path().display())], "{unit}");
    // The same again changes nothing that runs; other options do.
    let (code, said, _) =
        home.run(&["--install", "--port", "0", "--name", "den", "--log", "a $HOME 100%.log"]);
    assert!(code == Some(0) && said.starts_with("replaced "), "{said}");
    assert_eq!(home.told().len(), 2);
    assert_eq!(home.run(&["--install", "--port", "7000"]).0, Some(0));
    assert_eq!(home.told().last().unwrap(), "--user restart oxcart-worker.service");
    let (code, said, error) = home.run(&["--uninstall"]);
    assert!(code == Some(0) && said.starts_with("removed ") && !home.unit().exists(), "{error}");
    assert_eq!(home.told(), ["--user disable --now oxcart-worker.service", "--user daemon-reload"]);
    let (code, said, _) = home.run(&["--uninstall"]);
    assert!(code == Some(0) && said.contains("nothing is to be removed") && home.told().is_empty(), "{said}");
}

#[test]
fn units_of_others_stay_as_they_are() {
    let home = Home::new(0);
    fs::create_dir_all(home.unit().parent().unwrap()).unwrap();
    for text in ["[Service]\nExecStart=/bin/true\n", ""] {
        fs::write(home.unit(), text).unwrap();
        for args in [&["--install"][..], &["--uninstall"]] {
            let (code, _, said) = home.run(args);
            assert_eq!((code, said.contains("was not written by oxcart")), (Some(2), true), "{said}");
        }
        assert_eq!(fs::read_to_string(home.unit()).unwrap(), text);
    }
    assert!(home.told().is_empty());
}

#[test]
fn what_could_not_be_done_is_said() {
    // Without systemctl, the user gets what to type.
    let home = Home::new(0);
    fs::remove_file(home.path("bin/systemctl")).unwrap();
    let (code, said, _) = home.run(&["--install"]);
    assert!(code == Some(0) && home.unit().exists(), "{said}");
    assert!(said.contains("  systemctl --user enable --now oxcart-worker.service\n"), "{said}");
    assert_eq!(home.run(&["--uninstall"]).0, Some(0));
    // With one that fails, why.
    let home = Home::new(1);
    let (code, said, error) = home.run(&["--install"]);
    assert!(code == Some(1) && said.starts_with("wrote ") && home.unit().exists(), "{said}");
    assert!(error.contains("daemon-reload failed: no bus"), "{error}");
    // Wrong options are found out now and not at the next start.
    for wrong in [
        &["--install", "--port", "x"][..],
        &["--install", "--cache-size", "1G"],
        &["--install", "--uninstall"],
    ] {
        let home = Home::new(0);
        assert_eq!((home.run(wrong).0, home.unit().exists()), (Some(2), false), "{wrong:?}");
    }
}

/// The worker of a unit has the identity of the user who installed it, and keeps it, and whom it is paired with, over restarts.
#[test]
fn the_worker_of_a_unit_is_the_same_machine_after_a_restart() {
    let home = Home::new(0);
    let port = port_to_stay();
    let args = ["--install", "--port", &port, "--name", "den", "--threads", "1"];
    assert_eq!(home.run(&args).0, Some(0));
    let unit = fs::read_to_string(home.unit()).unwrap();
    let start = || {
        let words = words(setting(&unit, "ExecStart")[0]);
        // As from systemd: nothing of this environment but what the unit says.
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env_clear().env("HOME", home.0.path());
        for assigned in setting(&unit, "Environment").into_iter().flat_map(self::words) {
            let (name, value) = assigned.split_once('=').unwrap();
            command.env(name, value);
        }
        Worker::spawn(command)
    };
    let desk = Machine::new();
    let mut worker = start();
    let line = worker.join_line();
    assert!(desk.does(&["join", &line]).contains("paired with den"));
    let key = desk.known()["machines"][0]["key"].clone();
    drop(worker);
    let mut again = start();
    again.address();
    assert!(desk.does(&["devices", "--workers", "den"]).contains("device 0 of the worker den"));
    assert_eq!(desk.known()["machines"][0]["key"], key);
    assert!(again.line_with("connected").contains(" at "));
}

/// systemd itself has nothing to say about the unit.
#[test]
fn systemd_takes_the_unit() {
    let home = Home::new(0);
    let args = ["--install", "--name", "den", "--log", "a \"b\" 'c' $d 100% \\ e;.log", "--models", "x y"];
    assert_eq!(home.run(&args).0, Some(0));
    let verify = |path: &Path| {
        let mut command = Command::new("systemd-analyze");
        // It looks for the place of its socket, which this user need not have.
        command.env("XDG_RUNTIME_DIR", home.0.path()).args(["verify", "--user", "--man=no"]);
        command.arg(path).output()
    };
    // What it says of any unit where it cannot work is no news about ours.
    let other = home.path("config/systemd/user/other.service");
    fs::write(&other, "[Service]\nExecStart=/bin/true\n").unwrap();
    let (Ok(found), Ok(usual)) = (verify(&home.unit()), verify(&other)) else {
        return oxcart_fixtures::skip("there is no systemd-analyze");
    };
    if !usual.status.success() {
        return oxcart_fixtures::skip("systemd-analyze verify does not work here");
    }
    let said = String::from_utf8_lossy(&found.stderr);
    assert!(found.status.success() && !said.contains("oxcart-worker.service"), "{said}");
}
