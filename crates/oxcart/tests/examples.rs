//! The examples run, with a tiny model that says nothing of sense.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::Command;

use oxcart::rpc::worker::{Config, DialectChoice, Worker};

fn tiny() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/data/tiny.gguf");
    path.to_str().unwrap().to_owned()
}

/// What an example prints. Cargo builds examples before tests.
fn example(name: &str, arguments: &[&str]) -> String {
    let test = std::env::current_exe().unwrap();
    let examples: PathBuf = test.parent().and_then(Path::parent).unwrap().join("examples");
    let output = Command::new(examples.join(name)).args(arguments).output().unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn chat() {
    assert!(!example("chat", &["Hello?", &tiny()]).trim().is_empty());
}

#[test]
fn batch() {
    let answers = example("batch", &[&tiny()]);
    for question in ["Name a colour.", "Name a planet.", "Name a fruit.", "Name an animal."] {
        assert_eq!(answers.matches(question).count(), 1, "{answers}");
    }
}

#[test]
fn constrained() {
    let shown = example("constrained", &[&tiny()]);
    let person: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert!(person["name"].is_string() && person["born"].is_u64(), "{shown}");
}

#[test]
fn embed() {
    let Some(golden) = oxcart_fixtures::golden() else { return };
    let folder = golden.join("tiny-models");
    let index = std::fs::read_to_string(folder.join("index.json")).unwrap();
    let name = index.split('"').find(|text| text.starts_with("bert") && text.ends_with(".gguf")).unwrap();
    let model = folder.join(name);
    let shown = example("embed", &[model.to_str().unwrap(), "a text", "a text", "another one"]);
    let alike: Vec<f32> =
        shown.lines().map(|line| line.split_whitespace().next().unwrap().parse().unwrap()).collect();
    assert!(alike.len() == 3 && alike[0] == 1.0 && alike[1] == 1.0 && alike[2] < 0.9999, "{shown}");
}

#[test]
fn remote() {
    let devices = oxcart::devices::find(&[] as &[&str]).unwrap().devices();
    let mut worker = Worker::new(Config::new(devices)).unwrap();
    let address = worker.listen("127.0.0.1:0", DialectChoice::Auto).unwrap();
    let shown = example("remote", &[&tiny(), &format!("{}", address)]);
    assert!(shown.contains(&format!("[{}]", address)), "{shown}");
}
