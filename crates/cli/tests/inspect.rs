//! `oxcart inspect`, run as people run it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use oxcart_gguf::{Builder, ByteOrder, Format, Text, Version};
use oxcart_tensor::{DType, Layout};
use serde_json::{Value, json};
use tempfile::TempDir;

struct Outcome {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn oxcart(folder: &Path, args: &[&str]) -> Outcome {
    let output = Command::new(env!("CARGO_BIN_EXE_oxcart")).current_dir(folder).args(args).output().unwrap();
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
    write("notes.txt", b"just some text\x1b[31m");
    write("escape.gguf", b"\x1b[3\x07");
    write("future.gguf", b"GGUF\x09\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    refused(folder.path(), "none.gguf", "no such file, check the path");
    refused(folder.path(), ".", "not a regular file, give the path of a .gguf file");
    refused(folder.path(), "short.gguf", "tensor 'token_embd.weight' needs 6800 bytes");
    refused(folder.path(), "header.gguf", "download it again");
    refused(folder.path(), "empty.gguf", "the file may be incomplete");
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
        let mut child = Command::new(env!("CARGO_BIN_EXE_oxcart"))
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

/// Runs the command on a terminal, if this system has a tool to make one.
#[cfg(target_os = "linux")]
#[test]
fn colour_only_on_a_terminal_and_only_if_wanted() {
    let folder = TempDir::new().unwrap();
    let path = fixture(&folder);
    let on_terminal = |no_color: &str| {
        let command = format!("{} inspect {}", env!("CARGO_BIN_EXE_oxcart"), path.display());
        let output = Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .env("NO_COLOR", no_color)
            .env("TERM", "xterm")
            .stdin(Stdio::null())
            .output();
        output.ok().filter(|output| output.status.success()).map(|output| output.stdout)
    };
    let Some(colour) = on_terminal("") else { return };
    let bold = b"\x1b[1m";
    let has_bold = |bytes: &[u8]| bytes.windows(bold.len()).any(|window| window == bold);
    assert!(has_bold(&colour));
    assert!(!has_bold(&on_terminal("1").unwrap()));
}
