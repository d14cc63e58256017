//! `oxcart inspect`, run as people run it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[cfg(target_os = "linux")]
#[path = "user/terminal.rs"]
mod terminal;
#[path = "user/without_settings.rs"]
mod user;

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use oxcart::gguf::{Builder, ByteOrder, Format, Text, Version};
use oxcart::tensor::{DType, Layout};
use serde_json::{Value, json};
use tempfile::TempDir;

struct Outcome {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn oxcart(folder: &Path, args: &[&str]) -> Outcome {
    let output = user::command(env!("CARGO_BIN_EXE_oxcart")).current_dir(folder).args(args).output().unwrap();
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The answer, which must be a success without a word on stderr.
fn shown(folder: &Path, args: &[&str]) -> String {
    let outcome = oxcart(folder, args);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    outcome.stdout
}

fn add(builder: &mut Builder<'_>, name: &str, dtype: DType, ne: [usize; 2]) {
    let layout = Layout::packed(dtype, ne).unwrap();
    builder.tensor(name, layout, vec![0; layout.byte_len()]);
}

/// A small model with something of everything, some of it hostile.
fn fixture(folder: &TempDir) -> PathBuf {
    let path = folder.path().join("tiny.gguf");
    let mut builder = Builder::new();
    builder
        .set("general.architecture", "llama")
        .set("general.name", "Tiny \u{1b}[31mred")
        .set("llama.context_length", 8192_u32)
        .set("llama.block_count", 2_u32)
        .set("llama.attention.head_count", [4_i32, 8])
        .set("llama.rope.freq_base", 10000.0_f32)
        .set("general.file_type", 7_u32)
        .set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.tokens", (0..100).map(|i| format!("token{i}")).collect::<Vec<_>>())
        .set("tokenizer.ggml.bos_token_id", 1_u32)
        .set("tokenizer.chat_template", "{% for message in messages %}".repeat(10))
        .set("x.huge", u64::MAX)
        .set("x.minus", i64::MIN)
        .set("x.bytes", Text::new(b"\xff\x00"))
        .set("x.nan", f32::NAN)
        .set("x.tenth", 0.1_f32);
    add(&mut builder, "token_embd.weight", DType::Q8_0, [64, 100]);
    add(&mut builder, "output_norm.weight", DType::F32, [64, 1]);
    builder.write(File::create(&path).unwrap()).unwrap();
    path
}

const HUMAN: &str = r#"Tiny \u{1b}[31mred
llama · 6.5 K parameters · Q8_0 · 9.4 KiB

Model
  architecture         llama
  parameters           6.5 K (6,464)
  quantization         Q8_0, 8.73 bits per weight
  context length       8,192
  layers               2
  attention heads      4 to 8, by layer

Tokenizer
  model                gpt2 (byte-level BPE)
  tokens               100
  bos                  1  "token1"
  chat template        290 bytes

File
  format               GGUF version 3, little-endian
  size                 9.4 KiB (9,600 bytes)
  tensors              2

Size by type
  type   tensors  parameters     size    share
  q8_0         1       6.4 K  6.6 KiB   96.4 %
  f32          1        64    256 B      3.6 %
  total        2       6.5 K  6.9 KiB  100.0 %

Metadata (16)
  general.architecture         string       "llama"
  general.name                 string       "Tiny \u{1b}[31mred"
  general.file_type            u32          7
  llama.context_length         u32          8192
  llama.block_count            u32          2
  llama.attention.head_count   i32[2]       [4, 8]
  llama.rope.freq_base         f32          10000.0
  tokenizer.ggml.model         string       "gpt2"
  tokenizer.ggml.tokens        string[100]  ["token0", "token1", "token2", "token3", "token4", …]
  tokenizer.ggml.bos_token_id  u32          1
  tokenizer.chat_template      string       "{% for message in messages %}{% for message in messag…"
  x.huge                       u64          18446744073709551615
  x.minus                      i64          -9223372036854775808
  x.bytes                      string       "\xff\0"
  x.nan                        f32          NaN
  x.tenth                      f32          0.1

Tensors (2)
  name                type  shape        size  offset
  token_embd.weight   q8_0  64 × 100  6.6 KiB   2,528
  output_norm.weight  f32   64        256 B     9,344
"#;

#[test]
fn text_for_people() {
    let folder = TempDir::new().unwrap();
    fixture(&folder);
    let shown = shown(folder.path(), &["inspect", "tiny.gguf", "--tensors"]);
    assert_eq!(shown, HUMAN, "\n{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 100 && line == line.trim_end()));
    let control = |c: char| c.is_control() && c != '\n';
    assert!(!shown.contains(control), "nothing of the file reaches the terminal unescaped");
}

#[test]
fn tensors_are_listed_only_when_asked_for() {
    let folder = TempDir::new().unwrap();
    fixture(&folder);
    assert!(!shown(folder.path(), &["inspect", "tiny.gguf"]).contains("Tensors (2)"));
    let json: Value =
        serde_json::from_str(&shown(folder.path(), &["inspect", "--json", "tiny.gguf"])).unwrap();
    assert_eq!(json.get("tensors"), None);
}

#[test]
fn json_for_programs() {
    let folder = TempDir::new().unwrap();
    fixture(&folder);
    let text = shown(folder.path(), &["inspect", "tiny.gguf", "--json", "--tensors"]);
    assert_eq!(text.lines().count(), 1, "one object, one line");
    let json: Value = serde_json::from_str(&text).unwrap();

    assert_eq!(json["format"], json!({"version": 3, "byte_order": "little", "alignment": 32}));
    assert_eq!(json["files"], json!([{"path": "tiny.gguf", "bytes": 9600, "tensors": 2}]));
    assert_eq!(json["model"]["name"], "Tiny \u{1b}[31mred");
    assert_eq!(json["model"]["context_length"], 8192);
    assert_eq!(json["model"]["heads"], json!([4, 8]));
    assert_eq!(json["model"]["license"], Value::Null);
    assert_eq!(json["tokenizer"]["special"], json!({"bos": {"id": 1, "text": "token1"}}));
    assert_eq!(json["totals"]["parameters"], 6464);
    assert_eq!(json["totals"]["tensor_bytes"], 7056);
    assert_eq!(json["types"][1], json!({"type": "f32", "tensors": 1, "parameters": 64, "bytes": 256}));
    assert_eq!(
        json["tensors"][0],
        json!({
            "name": "token_embd.weight", "type": "q8_0", "shape": [64, 100],
            "bytes": 6800, "offset": 2528, "file": 0,
        })
    );

    let metadata = |key: &str| json["metadata"][key].clone();
    assert_eq!(metadata("x.huge"), json!({"type": "u64", "value": u64::MAX}));
    assert_eq!(metadata("x.minus"), json!({"type": "i64", "value": i64::MIN}));
    assert_eq!(metadata("x.bytes"), json!({"type": "string", "value": {"hex": "ff00"}}));
    assert_eq!(metadata("x.nan"), json!({"type": "f32", "value": "NaN"}));
    assert_eq!(metadata("x.tenth").to_string(), r#"{"type":"f32","value":0.1}"#);
    let tokens = metadata("tokenizer.ggml.tokens");
    assert_eq!((&tokens["type"], &tokens["element_type"]), (&json!("array"), &json!("string")));
    assert_eq!((tokens["count"].as_u64(), tokens["first"].as_array().map(Vec::len)), (Some(100), Some(8)));

    let full = shown(folder.path(), &["inspect", "tiny.gguf", "--json", "--full"]);
    let full: Value = serde_json::from_str(&full).unwrap();
    assert_eq!(full["metadata"]["tokenizer.ggml.tokens"]["value"][99], "token99");
}

#[test]
fn split_models_are_summed_up() {
    let folder = TempDir::new().unwrap();
    for number in 0..2_u16 {
        let mut builder = Builder::new();
        builder.set("general.architecture", "llama").set("split.no", number);
        builder.set("split.count", 2_u16).set("split.tensors.count", 2_i32);
        add(&mut builder, &format!("t{number}"), DType::F16, [64, 100]);
        let name = format!("m-0000{}-of-00002.gguf", number + 1);
        builder.write(File::create(folder.path().join(name)).unwrap()).unwrap();
    }
    let text = shown(folder.path(), &["inspect", "m-00001-of-00002.gguf", "--tensors"]);
    assert!(text.contains("Shards (2)") && text.contains("m-00002-of-00002.gguf"), "{text}");
    assert!(text.contains("12.8 K (12,800)"), "{text}");
    let json = shown(folder.path(), &["inspect", "m-00001-of-00002.gguf", "--tensors", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["files"].as_array().map(Vec::len), Some(2));
    assert_eq!(json["tensors"][1]["file"], 1);
    assert_eq!(json["totals"]["parameters"], 12800);

    let second = oxcart(folder.path(), &["inspect", "m-00002-of-00002.gguf"]);
    assert_eq!(second.code, Some(2));
    assert_eq!(
        second.stderr,
        "oxcart: m-00002-of-00002.gguf: split model: this is file 2 of 2, open the first one\n"
    );

    fs::remove_file(folder.path().join("m-00002-of-00002.gguf")).unwrap();
    let missing = oxcart(folder.path(), &["inspect", "m-00001-of-00002.gguf"]);
    assert_eq!(missing.code, Some(2));
    assert_eq!(
        missing.stderr,
        "oxcart: m-00002-of-00002.gguf: split model: the file is missing: the first file says there are 2; \
         put all of them in one folder\n"
    );
}

#[test]
fn half_a_model_is_not_shown() {
    let folder = TempDir::new().unwrap();
    let mut builder = Builder::new();
    builder.set("split.no", 0_u16).set("split.count", 1_u16).set("split.tensors.count", 1_i32);
    add(&mut builder, "t", DType::F16, [64, 100]);
    let name = "k-00001-of-00002.gguf";
    builder.write(File::create(folder.path().join(name)).unwrap()).unwrap();
    refused(folder.path(), name, "the file name says it is one of 2, but 'split.count' is 1");
}

/// The file `name`, with a few records.
fn file_with(folder: &TempDir, name: &str, fill: impl FnOnce(&mut Builder<'_>)) {
    let mut builder = Builder::new();
    builder.set("general.architecture", "llama");
    fill(&mut builder);
    builder.write(File::create(folder.path().join(name)).unwrap()).unwrap();
}

#[test]
fn nothing_invisible_reaches_the_output() {
    let hostile = "a\u{1b}[31m\u{7f}\u{9b}31m\u{202e}\u{2066}\u{200b}\u{feff}\u{e0001}z";
    let folder = TempDir::new().unwrap();
    file_with(&folder, "h.gguf", |builder| {
        builder.set("general.name", hostile).set(hostile, hostile).set("list", [hostile]);
        builder.set("tokenizer.ggml.model", hostile).set("tokenizer.ggml.tokens", [hostile]);
        builder.set("tokenizer.ggml.bos_token_id", 0_u32);
        add(builder, hostile, DType::F32, [1, 1]);
    });
    let visible = |text: &str| {
        text.trim_end_matches('\n').lines().all(|line| line.chars().all(|c| c == '\\' || Text::is_plain(c)))
    };
    let text = shown(folder.path(), &["inspect", "h.gguf", "--tensors"]);
    assert!(visible(&text), "{text:?}");
    let text = shown(folder.path(), &["inspect", "h.gguf", "--tensors", "--json", "--full"]);
    assert!(visible(&text), "{text:?}");
    let json: Value = serde_json::from_str(&text).unwrap();
    for same in [
        &json["model"]["name"],
        &json["metadata"][hostile]["value"],
        &json["metadata"]["list"]["value"][0],
        &json["tokenizer"]["special"]["bos"]["text"],
        &json["tensors"][0]["name"],
    ] {
        assert_eq!(same, hostile, "the value is the same");
    }
}

#[test]
fn long_lists_are_cut() {
    let folder = TempDir::new().unwrap();
    file_with(&folder, "long.gguf", |builder| {
        builder.set("llama.block_count", vec![1_u8; 1025]).set("llama.expert_count", vec![1_u8; 1024]);
        for i in 0..1500 {
            builder.set(&format!("key.{i}"), 0_u8);
        }
    });
    let text = shown(folder.path(), &["inspect", "long.gguf"]);
    assert!(text.contains("  layers               1,025 numbers\n"), "{text}");
    assert!(text.contains("  experts              1 in every layer\n"), "{text}");
    assert!(text.contains("Metadata (1503)") && text.contains("  key.996 "), "{text}");
    assert!(!text.contains("  key.997 ") && text.ends_with("  … and 503 more, --json has all\n"), "{text}");
    let json: Value =
        serde_json::from_str(&shown(folder.path(), &["inspect", "long.gguf", "--json"])).unwrap();
    assert_eq!(json["model"]["layers"], json!({ "count": 1025 }));
    assert_eq!(json["model"]["experts"].as_array().map(Vec::len), Some(1024));
    assert_eq!(json["metadata"].as_object().map(|metadata| metadata.len()), Some(1503));
}

/// Runs the command in a shell that first sets a limit.
#[cfg(target_os = "linux")]
fn oxcart_within(folder: &Path, limit: &str, args: &[&str]) -> Outcome {
    let command = format!("ulimit {limit} && exec \"$0\" inspect \"$@\"");
    let output = user::command("sh")
        .args(["-c", &command, env!("CARGO_BIN_EXE_oxcart")])
        .args(args)
        .current_dir(folder)
        .stdout(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    Outcome { code: output.status.code(), stdout: String::new(), stderr }
}

/// A hostile file costs its header and a little more, however it is shown.
#[cfg(target_os = "linux")]
#[test]
fn memory_is_bounded_by_the_header() {
    let folder = TempDir::new().unwrap();
    file_with(&folder, "layers.gguf", |builder| {
        builder.set("llama.block_count", vec![1_u8; 8 << 20]);
    });
    file_with(&folder, "name.gguf", |builder| {
        builder.set("general.name", "\u{1b}".repeat(8 << 20));
    });
    file_with(&folder, "bytes.gguf", |builder| {
        builder.set("general.name", Text::new(&vec![0xff; 8 << 20]));
    });
    file_with(&folder, "architecture.gguf", |builder| {
        builder.set("general.architecture", "x".repeat(8 << 20));
    });
    file_with(&folder, "tensors.gguf", |builder| {
        for i in 0..150_000 {
            builder.tensor(&format!("tensor.{i}"), Layout::packed(DType::I8, [1]).unwrap(), &[0]);
        }
    });
    // The builder looks for equal keys, which takes too long for as many.
    let mut records = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    records.extend(200_000_u64.to_le_bytes());
    for i in 0..200_000 {
        records.extend(6_u64.to_le_bytes());
        records.extend(format!("{i:06}").bytes());
        records.extend([0; 5]);
    }
    fs::write(folder.path().join("records.gguf"), records).unwrap();
    // What the program takes before it has a file: that grows with what is in it.
    file_with(&folder, "small.gguf", |_| {});
    let mebibytes = |count: usize| format!("-v {}", count << 10);
    let runs =
        |&most: &usize| oxcart_within(folder.path(), &mebibytes(most), &["small.gguf"]).code == Some(0);
    let program = (8..128).find(runs).unwrap();
    // One and a half times the largest header, and what a file has in the end.
    let limit = mebibytes(program + 14);
    for file in ["layers", "name", "bytes", "architecture", "tensors", "records"] {
        for args in [&["--tensors"][..], &["--tensors", "--json"], &["--tensors", "--json", "--full"]] {
            let file = format!("{file}.gguf");
            let outcome = oxcart_within(folder.path(), &limit, &[args, &[&file]].concat());
            assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{file} {args:?}");
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_machine_out_of_files_is_exit_code_1() {
    let folder = TempDir::new().unwrap();
    for number in 0..30_u16 {
        let name = format!("m-{:05}-of-00030.gguf", number + 1);
        file_with(&folder, &name, |builder| {
            builder.set("split.no", number).set("split.count", 30_u16).set("split.tensors.count", 0_u32);
        });
    }
    let first = "m-00001-of-00030.gguf";
    assert_eq!(oxcart_within(folder.path(), "-n 64", &[first]).code, Some(0));
    let outcome = oxcart_within(folder.path(), "-n 20", &[first]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("Too many open files"), "{}", outcome.stderr);
}

#[test]
fn other_formats_are_shown_too() {
    let folder = TempDir::new().unwrap();
    let format = Format { version: Version::V1, byte_order: ByteOrder::Big };
    let mut builder = Builder::with_format(format);
    builder.set("n", 258_u16);
    builder.write(File::create(folder.path().join("old.gguf")).unwrap()).unwrap();
    let text = shown(folder.path(), &["inspect", "old.gguf"]);
    assert!(text.contains("GGUF version 1, big-endian") && text.contains("258"), "{text}");
}

/// One line that begins with the command and the file, nothing on stdout, exit code 2.
fn refused(folder: &Path, file: &str, what: &str) {
    let outcome = oxcart(folder, &["inspect", file]);
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, "");
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    assert!(outcome.stderr.starts_with(&format!("oxcart: {file}: ")), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(what), "{}", outcome.stderr);
}

#[test]
fn bad_files_are_one_line_and_exit_code_2() {
    let folder = TempDir::new().unwrap();
    let whole = fs::read(fixture(&folder)).unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    write("short.gguf", &whole[..whole.len() / 2]);
    write("header.gguf", &whole[..100]);
    write("empty.gguf", b"");
    write("two.gguf", b"XY");
    write("notes.txt", b"just some text\x1b[31m");
    write("escape.gguf", b"\x1b[3\x07");
    write("future.gguf", b"GGUF\x09\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    refused(folder.path(), "none.gguf", "no such file; check the path");
    refused(folder.path(), ".", "not a regular file; give the path of a .gguf file");
    refused(folder.path(), "short.gguf", "tensor 'token_embd.weight' needs 6800 bytes");
    refused(folder.path(), "header.gguf", "download it again");
    refused(folder.path(), "empty.gguf", "not a GGUF file: only 0 bytes long; the file may be incomplete");
    refused(folder.path(), "two.gguf", "not a GGUF file: only 2 bytes long");
    refused(folder.path(), "notes.txt", "not a GGUF file: it begins with 'just'");
    refused(folder.path(), "escape.gguf", r"begins with '\x1b[3\x07'");
    refused(folder.path(), "future.gguf", "version 9 is not supported");
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let folder = TempDir::new().unwrap();
    fixture(&folder);
    for args in [
        &[][..],
        &["inspect"],
        &["inspect", "tiny.gguf", "--full"],
        &["inspekt"],
        &["inspect", "--frob", "x"],
    ] {
        let outcome = oxcart(folder.path(), args);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""), "{args:?}");
        assert!(!outcome.stderr.is_empty());
    }
    assert!(shown(folder.path(), &["--help"]).contains("inspect"));
}

#[test]
fn a_closed_pipe_is_a_quiet_success() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("large.gguf");
    let mut builder = Builder::new();
    for i in 0..20_000 {
        builder.tensor(&format!("tensor.{i}"), Layout::packed(DType::I8, [1]).unwrap(), &[0]);
    }
    builder.write(File::create(&path).unwrap()).unwrap();
    for json in ["--tensors", "--json"] {
        let mut child = user::command(env!("CARGO_BIN_EXE_oxcart"))
            .args(["inspect", "--tensors", json].iter().take(if json == "--json" { 3 } else { 2 }))
            .arg(&path)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn colour_only_on_a_terminal_and_only_if_wanted() {
    let folder = TempDir::new().unwrap();
    let path = fixture(&folder);
    let has_bold = |no_color: &str| {
        let mut command = user::command(env!("CARGO_BIN_EXE_oxcart"));
        command.arg("inspect").arg(&path).env("NO_COLOR", no_color).env("TERM", "xterm");
        terminal::shown(command).contains("\x1b[1m")
    };
    assert!(has_bold(""));
    assert!(!has_bold("1"));
    assert!(!shown(folder.path(), &["inspect", "tiny.gguf"]).contains('\x1b'));
}
