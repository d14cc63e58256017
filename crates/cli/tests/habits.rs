//! What people type out of habit, what they have set, and what shells and manuals know about the commands.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "user/without_settings.rs"]
mod user;
#[path = "user/worker.rs"]
mod worker;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use oxcart::gguf::{Builder, Gguf};
use serde_json::Value;
use worker::Worker;

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tiny.gguf");

/// A command of a user with this home.
fn oxcart(home: &Path, args: &[&str]) -> Command {
    let mut command = user::command(env!("CARGO_BIN_EXE_oxcart"));
    command.args(args).env("NO_COLOR", "1").env("HOME", home).env("APPDATA", home).stdin(Stdio::null());
    // Settings of this home, if there are any.
    command.env_remove("XDG_CONFIG_HOME").env_remove("OXCART_CONFIG");
    command
}

fn output(args: &[&str]) -> Output {
    oxcart(Path::new("/nowhere"), args).output().unwrap()
}

fn text(output: &Output) -> (Option<i32>, String, String) {
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), shown(&output.stdout), shown(&output.stderr))
}

/// What a command prints, which must succeed.
fn stdout(command: &mut Command) -> String {
    let (code, said, errors) = text(&command.output().unwrap());
    assert_eq!(code, Some(0), "{command:?}: {errors}");
    said
}

fn run(args: &[&str]) -> Value {
    let base = ["run", "-m", TINY, "--raw", "--ignore-eos", "--json"];
    serde_json::from_str(&stdout(&mut oxcart(Path::new("/nowhere"), &[&base, args].concat()))).unwrap()
}

/// The first command of a new user without a network: one sentence, at once, and no Python is asked.
#[cfg(unix)]
#[test]
fn without_a_network_the_default_model_is_said_to_need_one() {
    use std::os::unix::fs::PermissionsExt;
    let (home, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let was_asked = programs.path().join("asked");
    for python in ["python3", "python", "py"] {
        let path = programs.path().join(python);
        std::fs::write(&path, format!("#!/bin/sh\n: > '{}'\nexit 1\n", was_asked.display())).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let mut command = oxcart(home.path(), &["run", "Why is the sky blue?"]);
    for other in ["PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_PROXY", "HTTPS_PROXY", "https_proxy"] {
        command.env_remove(other);
    }
    for other in ["ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy"] {
        command.env_remove(other);
    }
    command
        .env("OXCART_CACHE", home.path())
        .env("PATH", programs.path())
        .env("PIP_CONFIG_FILE", "/dev/null")
        .env("PIP_INDEX_URL", "http://127.0.0.1:1");
    let (code, _, told) = text(&command.output().unwrap());
    assert_eq!(code, Some(1), "{told}");
    let last = told.lines().last().unwrap();
    let want = "oxcart: cannot reach the package index at 127.0.0.1:1 (";
    assert!(last.starts_with(want) && last.contains("): is there a network?"), "{told}");
    assert!(!told.contains("--mirror") && !was_asked.exists(), "{told}");
}

/// What a file says and Oxcart does not read may matter: it is named whatever the output, for models on the side, too.
#[test]
fn keys_that_are_not_read_are_always_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("surplus.gguf");
    let file = Gguf::open(Path::new(TINY)).unwrap();
    let mut builder = Builder::like(file.header());
    builder.set("qwen2.surprise", 7_u32);
    for tensor in file.tensors().iter() {
        let mut bytes = vec![0; tensor.layout().byte_len()];
        file.read_tensor_little_endian(&tensor, &mut bytes).unwrap();
        builder.tensor_like(&tensor, bytes);
    }
    builder.write(File::create(&path).unwrap()).unwrap();
    let path = path.to_str().unwrap();
    for args in [
        &["-m", path][..],
        &["-m", path, "--json"],
        &["-m", path, "--quiet"],
        &["-m", TINY, "--json", "--draft", path],
    ] {
        let (code, said, told) = text(&output(&[&["run", "the end", "-n", "2"], args].concat()));
        assert!(code == Some(0) && !said.contains("surprise"), "{args:?}: {said} {told}");
        assert!(told.contains("metadata keys that Oxcart ignores: qwen2.surprise"), "{args:?}: {told}");
        if args.contains(&"--json") {
            assert!(serde_json::from_str::<Value>(&said).is_ok(), "{said}");
        }
    }
}

#[test]
fn what_llama_cpp_users_type_works() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt.txt");
    std::fs::write(&file, "the end\n").unwrap();
    let file = file.to_str().unwrap();
    let plain = run(&["the end", "-n", "6", "--seed", "3"]);
    assert_eq!(plain["tokens"].as_array().unwrap().len(), 6);
    for args in [
        &["-f", file, "-n", "6", "-s", "3"][..],
        &["-p", "the end", "--n-predict", "6", "-s", "3"],
        &["the end", "-c", "512", "-t", "1", "-n", "6", "-s", "3"],
        &["the end", "--ctx-size", "512", "-ngl", "99", "-n", "6", "-s", "3"],
        &["the end", "-ngl", "0", "-n", "6", "-seed", "3"],
        &["the end", "-ngl", "-1", "-n", "6", "-s", "3"],
        &["the end", "-ctk", "f16", "-ctv", "f16", "-fa", "auto", "-n", "6", "-s", "3"],
        &["the end", "--rpc", "local:1", "-ts", "1", "-n", "6", "-s", "3", "-t", "1"],
    ] {
        assert_eq!(run(args)["tokens"], plain["tokens"], "{args:?}");
    }
    assert_eq!(run(&["-p", "- one", "-s", "-1", "-n", "3"])["tokens"].as_array().unwrap().len(), 3);
    assert_eq!(run(&["the end", "-c", "32", "-n", "-1"])["end"], "context", "until the context is full");
}

/// Keys and values have types of their own, here as in llama.cpp.
#[test]
fn a_cache_may_have_two_types() {
    let plan = |types: &[&str]| {
        let said = stdout(&mut oxcart(
            Path::new("/nowhere"),
            &[&["run", "-m", TINY, "--plan", "--json"], types].concat(),
        ));
        let report: Value = serde_json::from_str(&said).unwrap();
        report["placement"][0]["cache_bytes"].as_u64().unwrap()
    };
    let both = plan(&["--kv", "q8_0"]);
    let (keys, values) = (plan(&["-ctk", "q8_0"]), plan(&["-ctv", "q8_0"]));
    assert!(both < keys && keys == values && keys < plan(&[]), "{both} {keys} {values}");
    assert_eq!(plan(&["-ctk", "q8_0", "-ctv", "q8_0"]), both);
    let tokens = run(&["the end", "-ctk", "q8_0", "-ctv", "q4_0", "-n", "6"])["tokens"].clone();
    assert_eq!(tokens.as_array().unwrap().len(), 6);
}

#[test]
fn what_is_wrong_is_said_with_what_is_right() {
    for (args, want) in [
        (&["run", "-m", TINY, "x", "--tempp", "1"][..], "--temp"),
        (&["run", "-m", TINY, "x", "-tmep", "0"], "there is no option -tmep; did you mean '--temp'?"),
        (&["run", "-m", TINY, "x", "-ub", "512"], "there is no option -ub"),
        (&["run", "-m", TINY, "x", "-n", "-5"], "-1 for no limit"),
        (&["run", "-m", TINY, "x", "-n", "0"], "a number of tokens from 1"),
        (&["run", "-m", TINY, "x", "--temp", "-1"], "must be a number, 0 or more"),
        (&["run", "-m", TINY, "x", "--top-p", "1.5"], "must be a number from 0 to 1"),
        (&["run", "-m", TINY, "x", "--top-k", "-3"], "must be a whole number, 0 or more"),
        (&["run", "-m", TINY, "x", "--repeat-penalty", "0"], "must be a number above 0"),
        (&["run", "-m", TINY, "x", "-c", "-1"], "must be a whole number from 0 to 268435456"),
        (&["run", "-m", TINY, "x", "-b", "0"], "must be a whole number from 1 to 65536"),
        (&["run", "-m", TINY, "x", "--split=-1,2"], "must be a number, 0 or more"),
        (&["bench", "-m", TINY, "-r", "0"], "must be a whole number, 1 or more"),
        (&["perplexity", "-m", TINY, "-f", TINY, "-c", "3"], "must be a whole number from 4 to "),
        (&["score", "-m", TINY, "--tokens", "1,x"], "must be a whole number, 0 or more"),
        (&["quantize", TINY, "/nowhere/new.gguf", "Q8_0", "-t", "0"], "must be a whole number from 1 to 512"),
        (&["serve", "-m", TINY, "--port", "70000"], "must be a whole number from 0 to 65535"),
        (&["worker", "--max-clients", "0"], "must be a whole number from 1 to 65536"),
        (&["run", "-m", TINY, "x", "-t", "9999"], "a whole number from 1 to 512"),
        (&["run", "-m", TINY, "x", "-ngl", "many"], "a number of blocks, or all"),
        (&["run", "-m", TINY, "x", "-ctk", "q5_1"], "must be f32, f16, q8_0 or q4_0"),
        (&["run", "-m", TINY, "x", "--place", "nothing.*=0"], "no tensor of the model has such a name"),
        (&["run", "-m", TINY, "x", "--place", "blk.*=7"], "the plan has no device 7; it has only device 0"),
        (&["run", "-m", TINY, "x", "--workers", ""], "an address is empty; write HOST or HOST:PORT"),
        (&["worker", "-H", "no.such.invalid", "-p", "0"], "this name cannot be found"),
        (&["devices", "--workers", "no.such.invalid"], "this name cannot be found"),
        (&["man", "runn"], "there is no command 'runn'; did you mean 'run'?"),
        (&["run", "-m", TINY, "the end of it", "--raw", "-c", "4"], "oxcart: the prompt has "),
        (&["worker", "-p", "0", "--max-memory", "9000T"], "in all"),
        (&["worker", "-H", "192.0.2.1", "-p", "0"], "this machine has no such address"),
        (&["benhc"], "bench"),
    ] {
        let (code, _, errors) = text(&output(args));
        assert!(code == Some(2) || code == Some(1), "{args:?}: {code:?}");
        assert!(errors.contains(want), "{args:?}: {errors}");
    }
}

#[test]
fn a_plan_says_whether_it_can_work() {
    let plan = |more: &[&str]| text(&output(&[&["run", "-m", TINY, "x", "--plan"], more].concat()));
    let (code, said, _) = plan(&["--json"]);
    let report: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (code, &report["fits"], &report["context"]),
        (Some(0), &Value::Bool(true), &Value::from(1024))
    );
    let small = Worker::start(&["--max-memory", "1M"]);
    let (code, said, errors) =
        plan(&["--ctx", "1000000", "--workers", &small.address, "--split", "1", "--json"]);
    let report: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &report["fits"]), (Some(1), &Value::Bool(false)));
    let is_full = |place: &Value| place["needed_bytes"].as_u64() > place["free_bytes"].as_u64();
    assert!(report["placement"].as_array().unwrap().iter().any(is_full), "{said}");
    assert!(errors.contains(" free, but its part of the model needs "), "{errors}");
}

/// A device that gets nothing is said to, and why.
#[test]
fn a_plan_says_why_a_worker_gets_nothing() {
    let workers = [(); 2].map(|()| Worker::start(&[]));
    let tiny = Worker::start(&["--max-memory", "1K"]);
    let plan = |more: &[&str]| {
        let args = [&["run", "-m", TINY, "x", "--plan"], more].concat();
        text(&output(&args)).1
    };
    let list = format!("{},{}", workers[0].address, workers[1].address);
    let said = plan(&["--workers", &list, "--split", "1,0"]);
    let nothing = |worker: &Worker, why: &str| format!("{} gets no part of the model: {why}", worker.address);
    assert!(said.contains(&nothing(&workers[1], "--split gives it nothing")), "{said}");
    assert!(!said.contains(&nothing(&workers[0], "")), "{said}");
    let list = format!("{},{}", workers[0].address, tiny.address);
    let said = plan(&["--workers", &list]);
    let why = "it has 1.0 KiB free, and a block of the model needs ";
    assert!(said.contains(&nothing(&tiny, why)), "{said}");
    let report: Value = serde_json::from_str(&plan(&["--workers", &list, "--json"])).unwrap();
    let whys = report["placement"].as_array().unwrap().iter().map(|share| share["why_nothing"].as_str());
    let whys: Vec<bool> = whys.map(|known| known.is_some_and(|known| known.starts_with(why))).collect();
    assert_eq!(whys, [false, true, false], "{report}");
    // Also where it is run.
    let args = ["run", "-m", TINY, "the end", "--raw", "-n", "2", "--workers", &list];
    let (_, _, told) = text(&output(&args));
    assert!(told.contains(&nothing(&tiny, why)), "{told}");
}

/// An answer that the context cuts says so, and what helps.
#[test]
fn an_answer_without_room_says_what_helps() {
    let told = |ctx: &str| {
        let base = ["run", "-m", TINY, "the end", "--raw", "--regex", "(word ){4000}", "-n", "-1", "-c", ctx];
        text(&output(&base)).2
    };
    let short = told("64");
    assert!(
        short.contains("ended because the context of 64 tokens is full: use a larger --ctx (up to 1024)"),
        "{short}"
    );
    let whole = told("1024");
    assert!(
        whole.contains("use a model with a longer context") && !whole.contains("larger --ctx"),
        "{whole}"
    );
}

/// Habits of machines with cards do no harm on others, and are told to have no effect.
#[test]
fn layers_on_cards_that_are_not_there_are_told() {
    let devices: Value = serde_json::from_slice(&output(&["devices", "--json"]).stdout).unwrap();
    if devices["devices"].as_array().is_some_and(|devices| devices.len() > 1) {
        println!("skipped: there is a card here");
        return;
    }
    let told = |more: &[&str]| {
        let (code, _, told) =
            text(&output(&[&["run", "-m", TINY, "the end", "--raw", "-n", "2"], more].concat()));
        assert_eq!(code, Some(0), "{told}");
        told.contains("no graphics card was found")
    };
    assert_eq!([told(&["-ngl", "99"]), told(&["-ngl", "0"]), told(&[])], [true, false, false]);
}

#[test]
fn a_worker_that_is_listed_twice_is_one() {
    let worker = Worker::start(&[]);
    let port = worker.address.rsplit_once(':').unwrap().1;
    let list = format!("{},localhost:{port}", worker.address);
    let (code, said, errors) = text(&output(&["run", "-m", TINY, "x", "--plan", "--workers", &list]));
    assert_eq!(code, Some(0), "{errors}");
    assert!(errors.contains("is listed twice; it is used once"), "{errors}");
    assert_eq!(said.matches(port).count(), 1, "{said}");
}

#[test]
fn a_graph_goes_to_stdout() {
    let svg = stdout(&mut oxcart(Path::new("/nowhere"), &["graph", "-m", TINY, "--svg", "-"]));
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
}

#[test]
fn settings_are_shown_set_and_explained() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let config = |args: &[&str]| stdout(&mut oxcart(home, &[&["config"], args].concat()));
    assert!(config(&[]).contains("nothing has been changed"));
    assert!(
        config(&["run"])
            .lines()
            .any(|line| line.contains("run.temp") && line.contains("0.8") && line.ends_with("default"))
    );
    assert!(config(&["run.n", "3"]).starts_with("run.n = 3, in "));
    assert!(config(&["temp", "0"]).starts_with("temp = 0, in "));
    let shown = config(&[]);
    assert!(
        shown.contains("config.toml") && shown.contains("run.n") && shown.contains("chat.temp"),
        "{shown}"
    );
    let shown = config(&["run.n"]);
    assert!(
        shown.contains("OXCART_RUN_N")
            && shown.contains("Maximum number of tokens")
            && shown.contains("config.toml"),
        "{shown}"
    );

    let run = |more: &[&str]| {
        let args = [&["run", "-m", TINY, "the end", "--raw", "--ignore-eos", "--json"], more].concat();
        oxcart(home, &args)
    };
    let tokens = |command: &mut Command| {
        let report: Value = serde_json::from_str(&stdout(command)).unwrap();
        report["tokens"].as_array().unwrap().len()
    };
    assert_eq!(tokens(&mut run(&[])), 3, "the file");
    assert_eq!(tokens(run(&[]).env("OXCART_RUN_N", "5")), 5, "a variable");
    assert_eq!(tokens(run(&["-n", "7"]).env("OXCART_RUN_N", "5")), 7, "what is typed");
    let (code, _, errors) = text(&run(&[]).env("OXCART_RUN_N", "some").output().unwrap());
    assert!(
        code == Some(2) && errors.contains("run.n comes from your settings; see: oxcart config run.n"),
        "{errors}"
    );

    for (args, want) in [
        (&["run.tmp"][..], "did you mean 'run.temp'?"),
        (&["run.temp", "warm"], "run.temp cannot be 'warm'"),
        (&["--unset", "run.top-k"], "run.top-k is not set in "),
    ] {
        let (code, _, errors) = text(&oxcart(home, &[&["config"], args].concat()).output().unwrap());
        assert!(code == Some(2) && errors.contains(want), "{args:?}: {errors}");
    }
    assert!(config(&["--unset", "run.n"]).contains("run.n removed from "));
    assert_eq!(config(&["--unset", "temp"]).lines().count(), 1);
    assert!(config(&[]).contains("nothing has been changed"));
}

#[test]
fn settings_that_mean_nothing_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("own.toml");
    std::fs::write(&file, "# mine\ntempp = 1\n").unwrap();
    let command =
        |args: &[&str]| text(&oxcart(folder.path(), args).env("OXCART_CONFIG", &file).output().unwrap());
    let (code, _, errors) = command(&["run", "-m", TINY, "x"]);
    assert!(
        code == Some(2) && errors.contains("there is no setting 'tempp'; did you mean 'temp'?"),
        "{errors}"
    );
    std::fs::write(&file, "# mine\ntop-k = 5 # few\n").unwrap();
    assert_eq!(command(&["config", "run.temp", "0.5"]).0, Some(0));
    assert_eq!(
        std::fs::read_to_string(&file).unwrap(),
        "# mine\ntop-k = 5 # few\n\n[run]\ntemp = 0.5\n",
        "what was there stays"
    );
    std::fs::write(&file, "# mine\n").unwrap();
    assert_eq!(command(&["config", "run.temp", "0.5"]).0, Some(0));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "# mine\n[run]\ntemp = 0.5\n");
    for number in ["18446744073709551615", "00123"] {
        assert_eq!(command(&["config", "run.seed", number]).0, Some(0));
        let (_, said, _) = command(&["config", "run.seed"]);
        assert!(said.starts_with(&format!("run.seed = {number}\n")), "{said}");
    }
}

#[test]
fn wrong_settings_can_be_looked_at_and_mended() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("own.toml");
    std::fs::write(&file, "tempp = 1\n[walk]\nfast = true\n[run]\nn = \"some\"\n").unwrap();
    let command =
        |args: &[&str]| text(&oxcart(folder.path(), args).env("OXCART_CONFIG", &file).output().unwrap());
    for args in [&["--help"][..], &["run", "--help"], &["--version"], &["completions", "bash"], &["config"]] {
        let (code, _, errors) = command(args);
        assert_eq!(code, Some(0), "{args:?}: {errors}");
    }
    assert!(command(&["config"]).2.contains("there is no setting 'tempp'"));
    for name in ["tempp", "walk.fast", "walk"] {
        assert_eq!(command(&["config", "--unset", name]).0, Some(0), "{name}");
    }
    // What was typed is not blamed on what was set, nor on what was set for another command.
    for args in [&["run", "-m", TINY, "x", "-n", "few"][..], &["chat", "-m", TINY, "-n", "some"]] {
        let (code, _, errors) = command(args);
        assert!(code == Some(2) && !errors.contains("comes from your settings"), "{args:?}: {errors}");
    }
    let (code, _, errors) = command(&["run", "-m", TINY, "x"]);
    assert!(code == Some(2) && errors.contains("run.n comes from your settings"), "{errors}");
}

/// What excludes other options can be set, too: what is typed pushes it out.
#[test]
fn settings_give_way_to_what_is_typed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("own.toml");
    let settings = "[worker]\nlisten = [\"192.0.2.1:7\"]\n[serve]\ntls-cert = \"/nowhere.pem\"\ntls-key = \"/nowhere.pem\"\n";
    let told = |settings: &str, args: &[&str]| {
        std::fs::write(&file, settings).unwrap();
        let (code, _, errors) =
            text(&oxcart(folder.path(), args).env("OXCART_CONFIG", &file).output().unwrap());
        assert!(code == Some(1) || code == Some(2), "{args:?}: {errors}");
        errors
    };
    for (settings, args, want) in [
        (settings, &["worker"][..], "cannot listen on 192.0.2.1:7"),
        (settings, &["worker", "-H", "192.0.2.1", "-p", "8"], "cannot listen on 192.0.2.1:8"),
        (settings, &["serve", "-m", "/nowhere.gguf"], "/nowhere.pem"),
        (settings, &["serve", "-m", "/nowhere.gguf", "--tls"], "/nowhere.gguf: no such file"),
        ("[serve]\ntls-cert = \"/nowhere.pem\"\n", &["serve"], "--tls-cert also needs --tls-key"),
        (
            "[worker]\ncache = \"/dev/null/x\"\n",
            &["worker", "-p", "0"],
            "cannot keep weights in '/dev/null/x'",
        ),
        (
            "[worker]\ncache = true\n",
            &["worker", "-H", "192.0.2.1", "--cache=false"],
            "cannot listen on 192.0.2.1:50052",
        ),
        (
            "cache = \"/dev/null/x\"\n",
            &["worker", "-H", "192.0.2.1", "--cache=false"],
            "cannot listen on 192.0.2.1:50052",
        ),
        ("", &["worker", "--cache-size", "1G"], "--cache-size also needs --cache"),
    ] {
        let errors = told(settings, args);
        assert!(errors.contains(want), "{settings} {args:?}: {errors}");
    }
}

/// The file may hold keys, and may be kept elsewhere.
#[cfg(unix)]
#[test]
fn the_file_stays_private_and_where_it_is() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("kept.toml"), folder.path().join("link.toml"));
    std::fs::write(&file, "").unwrap();
    symlink(&file, &link).unwrap();
    stdout(oxcart(folder.path(), &["config", "run.temp", "0.5"]).env("OXCART_CONFIG", &link));
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "[run]\ntemp = 0.5\n");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn shells_and_manuals_know_the_commands() {
    let home = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let script = stdout(&mut oxcart(home.path(), &["completions", shell]));
        assert!(script.contains("perplexity") && script.contains("ctx-size"), "{shell}");
    }
    let page = stdout(&mut oxcart(home.path(), &["man", "run"]));
    assert!(page.contains(".TH oxcart-run 1") && page.contains("temp"), "{page}");
    // The command as it is typed, examples, and values to choose from.
    assert!(
        page.contains("\\fBoxcart run\\fR") && page.contains("\n  oxcart run \"Why is the sky blue?\""),
        "{page}"
    );
    let kinds = page.split("\\-\\-kv\\fR \\fI").nth(1).unwrap().split(".TP").next().unwrap().to_owned();
    assert!(kinds.contains("ossible values") && kinds.contains("q8_0"), "{kinds}");
    let page = stdout(&mut oxcart(home.path(), &["man", "quantize"]));
    assert!(page.contains("IQ3_XXS"), "{page}");
    let script = stdout(&mut oxcart(home.path(), &["completions", "bash"]));
    assert!(script.contains("\"f32 f16 q8_0 q4_0\""), "{script}");
    let folder = home.path().join("man1");
    stdout(&mut oxcart(home.path(), &["man", "--dir", folder.to_str().unwrap()]));
    for page in ["oxcart.1", "oxcart-run.1", "oxcart-worker.1"] {
        assert!(folder.join(page).is_file(), "{page}");
    }
}

#[test]
fn what_is_told_can_be_less_or_more_or_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("oxcart.log");
    let log = file.to_str().unwrap();
    let told = |args: &[&str]| {
        let base = ["run", "-m", TINY, "the end", "--raw", "-n", "2", "--ignore-eos"];
        let (code, answer, told) = text(&output(&[&base, args].concat()));
        assert!(code == Some(0) && !answer.is_empty(), "{told}");
        told
    };
    assert!(told(&[]).contains(" per second"));
    assert_eq!(told(&["-q"]), "");
    let more = told(&["-v"]);
    assert!(more.contains("a context of 1024 tokens") && more.contains(" per second"), "{more}");
    assert_eq!(told(&["--log", log]), "");
    let lines = std::fs::read_to_string(&file).unwrap();
    assert!(lines.lines().count() == 1 && lines.contains("Z prompt "), "{lines}");
    // What ends a command is said where the user looks, too; the file is not begun anew.
    let (code, _, told) = text(&output(&["run", "-m", "/nowhere.gguf", "x", "--log", log]));
    let lines = std::fs::read_to_string(&file).unwrap();
    assert!(code == Some(2) && told.contains("no such file"), "{told}");
    assert!(lines.lines().count() == 2 && lines.contains("no such file"), "{lines}");
    let (code, _, told) = text(&output(&["run", "-m", TINY, "x", "--log", "/nowhere/at/all"]));
    assert!(code == Some(2) && told.contains("cannot write the log to /nowhere/at/all"), "{told}");
    // Of commands inside commands, too.
    let (code, _, told) = text(&output(&["trust", "name", "nobody", "other", "-q", "--log", log]));
    assert!(code.is_some_and(|code| code > 0) && !told.contains("unexpected argument"), "{told}");
    // As settings.
    let home = tempfile::tempdir().unwrap();
    let run = ["run", "-m", TINY, "the end", "--raw", "-n", "2"];
    let (_, _, told) = text(&oxcart(home.path(), &run).env("OXCART_RUN_QUIET", "true").output().unwrap());
    assert_eq!(told, "");
}

#[test]
fn the_context_is_what_a_prompt_needs_and_the_model_knows() {
    let long = "the end ".repeat(600);
    let (code, _, told) = text(&output(&["run", "-m", TINY, "--raw", "-n", "2", &long]));
    assert!(code == Some(2) && told.contains(" tokens, but the context holds only 1024"), "{told}");
    let (code, _, told) =
        text(&output(&["run", "-m", TINY, "--raw", "-n", "2", "--ignore-eos", "-c", "8192", &long]));
    assert!(code == Some(0) && told.contains("longer than the 1024 tokens it was trained for"), "{told}");
}

#[test]
fn a_model_that_is_not_here_is_shown_without_being_fetched() {
    let home = tempfile::tempdir().unwrap();
    let show =
        |args: &[&str]| text(&oxcart(home.path(), args).env("OXCART_CACHE", home.path()).output().unwrap());
    let (code, shown, _) = show(&["show", "smollm2"]);
    assert!(
        code == Some(0) && shown.starts_with("smollm2: 93.8 MiB, licence Apache-2.0, a context of 8,192"),
        "{shown}"
    );
    assert!(shown.contains("oxcart pull smollm2 fetches it"), "{shown}");
    let (code, _, told) = show(&["show", "qwen3:8b", "--mirror", "http://127.0.0.1:1"]);
    assert!(code == Some(1) && told.contains("cannot reach 127.0.0.1:1"), "{told}");
    assert!(told.contains("is there a network?"), "{told}");
    // Commands have a default model that can do what they are for.
    let (code, _, told) = show(&["embed", "a text", "--mirror", "http://127.0.0.1:1"]);
    assert!(code == Some(1) && told.contains("cannot reach 127.0.0.1:1"), "{told}");
    assert!(show(&["embed", "--help"]).1.contains("[default: nomic-embed]"));
    let (_, listed, _) = show(&["pull"]);
    assert!(listed.contains("qwen3-8b") && listed.contains("smollm2"), "{listed}");
    assert!(!home.path().join("models").exists());
}

/// A hub with one model, whose file is that of the tests; gives its address.
fn hub() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let model = std::fs::read(TINY).unwrap();
        let tree = format!(r#"[{{"type":"file","path":"tiny-Q4_K_M.gguf","size":{}}}]"#, model.len());
        let card = r#"{"cardData":{"license":"apache-2.0"},"gguf":{"context_length":40960}}"#;
        for mut stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let first = lines.next().unwrap_or_default();
            let (status, body) = match first.split(' ').nth(1).unwrap_or_default() {
                "/api/models/Qwen/Qwen3-8B-GGUF/tree/main?recursive=true" => (200, tree.as_bytes()),
                "/api/models/Qwen/Qwen3-8B-GGUF" => (200, card.as_bytes()),
                "/Qwen/Qwen3-8B-GGUF/resolve/main/tiny-Q4_K_M.gguf" => (200, model.as_slice()),
                _ => (404, &b""[..]),
            };
            // All of it, or the client would lose its connection while it still sends.
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let head =
                format!("HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        }
    });
    address
}

#[test]
fn a_model_is_described_before_it_is_fetched() {
    let (home, mirror) = (tempfile::tempdir().unwrap(), hub());
    let told = |args: &[&str]| {
        let mut command = oxcart(home.path(), args);
        command.env("OXCART_CACHE", home.path()).env("OXCART_MIRROR", &mirror);
        text(&command.output().unwrap())
    };
    let described = "170.0 KiB, licence apache-2.0, a context of 40,960 tokens";
    let (code, shown, errors) = told(&["show", "qwen3-8b"]);
    assert!(code == Some(0) && shown.contains(described), "{shown} {errors}");
    let (code, path, errors) = told(&["pull", "qwen3:8b"]);
    assert_eq!(code, Some(0), "{errors}");
    let (before, after) = (
        errors.find("fetching Qwen/Qwen3-8B-GGUF:Q4_K_M: 1"),
        errors.find("fetched Qwen/Qwen3-8B-GGUF:Q4_K_M: 1"),
    );
    assert!(before.is_some() && before < after && errors.contains(described), "{errors}");
    assert_eq!(std::fs::read(path.trim()).unwrap(), std::fs::read(TINY).unwrap());
    // From now on without the hub.
    let args = ["run", "-m", "qwen3-8b", "the end", "--raw", "-n", "2", "--mirror", "http://127.0.0.1:1"];
    let (code, _, errors) = told(&args);
    assert_eq!(code, Some(0), "{errors}");
}

#[test]
fn importance_data_is_looked_at_before_the_work_starts() {
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("new.gguf");
    let given = ["quantize", TINY, new.to_str().unwrap(), "Q4_0", "--imatrix", TINY];
    let (code, _, told) = text(&output(&given));
    assert!(code == Some(2) && told.contains("importance data: the file has none"), "{told}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
