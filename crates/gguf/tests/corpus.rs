//! Replays the fuzz corpus, and what fuzzing found, on stable.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use oxcart_gguf::{Builder, ByteOrder, Format, Text, Version};
use oxcart_tensor::{DType, Layout};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/gguf")
}

#[test]
fn corpus_holds() {
    let mut files = 0;
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        common::check(&bytes);
        files += 1;
    }
    assert!(files >= 20, "the corpus has only {files} files");
}

/// Every truncation and every changed byte of the seeds, which are small.
#[test]
fn damaged_seeds_hold() {
    for (_, seed) in seeds() {
        for len in 0..seed.len() {
            common::check(&seed[..len]);
        }
        let mut damaged = seed.clone();
        for at in 0..seed.len() {
            for change in [1, 0x80, 0xff] {
                damaged[at] = seed[at] ^ change;
                common::check(&damaged);
            }
            damaged[at] = seed[at];
        }
    }
}

/// Writes the seeds: `cargo test -p oxcart-gguf --test corpus -- --ignored`.
#[test]
#[ignore = "writes files"]
fn write_seeds() {
    fs::create_dir_all(folder()).unwrap();
    for (name, bytes) in seeds() {
        fs::write(folder().join(name), bytes).unwrap();
    }
}

/// Small files that together use every version, byte order, value type, element type and tensor type.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for version in [Version::V1, Version::V2, Version::V3] {
        for byte_order in [ByteOrder::Little, ByteOrder::Big] {
            let format = Format { version, byte_order };
            let mut add = |name: &str, fill: fn(&mut Builder<'_>)| {
                let mut builder = Builder::with_format(format);
                fill(&mut builder);
                let mut bytes = Vec::new();
                builder.write(&mut bytes).unwrap();
                seeds.push((format!("v{version}-{byte_order}-{name}"), bytes));
            };
            add("empty", |builder| {
                builder.pad_end(false);
            });
            add("values", values);
            add("arrays", arrays);
            add("tensors", tensors);
            add("aligned", |builder| {
                builder.alignment(64).tensor("w", Layout::packed(DType::F32, [1]).unwrap(), &[1; 4]);
            });
        }
    }
    seeds
}

fn values(builder: &mut Builder<'_>) {
    builder
        .set("general.architecture", "llama")
        .set("u8", 1_u8)
        .set("i8", -1_i8)
        .set("u16", 2_u16)
        .set("i16", -2_i16)
        .set("u32", 3_u32)
        .set("i32", -3_i32)
        .set("f32", 0.5_f32)
        .set("bool", true)
        .set("text", Text::new(b"\xff\0ok"))
        .set("u64", u64::MAX)
        .set("i64", i64::MIN)
        .set("f64", f64::NAN);
}

fn arrays(builder: &mut Builder<'_>) {
    builder
        .set("u8", [1_u8, 2])
        .set("i8", [-1_i8])
        .set("u16", [3_u16])
        .set("i16", [-3_i16])
        .set("u32", [4_u32])
        .set("i32", [-4_i32])
        .set("f32", [0.5_f32, f32::NAN])
        .set("bool", [true, false])
        .set("tokenizer.ggml.tokens", ["<s>", "", "▁a"])
        .set("u64", [5_u64])
        .set("i64", Vec::<i64>::new())
        .set("f64", [0.25_f64]);
}

fn tensors(builder: &mut Builder<'_>) {
    for dtype in DType::all() {
        let layout = Layout::packed(dtype, [dtype.block_len(), 1]).unwrap();
        builder.tensor(&format!("blk.0.{dtype}"), layout, vec![7; layout.byte_len()]);
    }
    builder.tensor("deep", Layout::packed(DType::I8, [1, 2, 1, 2]).unwrap(), &[1, 2, 3, 4]);
}
