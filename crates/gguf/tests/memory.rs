//! How much memory hostile files can make us take. Written byte by byte, in the most compact spelling of the format:
//! version 1, records and tensors as small as they can be.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fs::{self, File};
use std::path::PathBuf;

use common::{check_open, peak_during};
use oxcart_gguf::{Builder, Error, Gguf, GgufSet, limits};
use oxcart_tensor::{DType, Layout};
use tempfile::TempDir;

const FIXED: u64 = 1 << 20;
const U8: u32 = 0;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const I8_TENSOR: u32 = 24;

/// A version 1 file with these counts.
fn header(tensors: u32, records: u32) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    put(&mut bytes, &[1, tensors, records]);
    bytes
}

fn put(bytes: &mut Vec<u8>, numbers: &[u32]) {
    bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
}

fn string(bytes: &mut Vec<u8>, text: &[u8]) {
    put(bytes, &[text.len() as u32]);
    bytes.extend(text);
}

/// The `i`th of many short names.
fn name(i: u32) -> [u8; 3] {
    [i % 90 + 33, i / 90 % 90 + 33, i / 8100 + 33].map(|byte| byte as u8)
}

/// `count` tensors of one byte; tensor `i` lies at `place(i)`.
fn many_tensors(count: u32, place: impl Fn(u32) -> u32) -> Vec<u8> {
    let mut bytes = header(count, 1);
    string(&mut bytes, b"general.alignment");
    put(&mut bytes, &[4, 1]);
    for i in 0..count {
        string(&mut bytes, &name(i));
        put(&mut bytes, &[1, 1, I8_TENSOR, place(i), 0]);
    }
    bytes.resize(bytes.len() + count as usize, 0);
    bytes
}

fn many_records(count: u32) -> Vec<u8> {
    let mut bytes = header(0, count);
    for i in 0..count {
        string(&mut bytes, &name(i));
        put(&mut bytes, &[U8]);
        bytes.push(0);
    }
    bytes
}

fn one_record(value_type: u32, value: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = header(0, 1);
    string(&mut bytes, b"k");
    put(&mut bytes, &[value_type]);
    value(&mut bytes);
    bytes
}

fn write(folder: &TempDir, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join("hostile.gguf");
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn small_records_and_tensors_cost_less_than_half_their_size() {
    let folder = TempDir::new().unwrap();
    for bytes in [
        many_records(400_000),
        many_tensors(300_000, |i| i),
        many_tensors(300_000, |i| 300_000 - 1 - i),
        many_tensors(300_000, |i| (i * 7) % 300_000),
    ] {
        let file = check_open(&write(&folder, &bytes)).unwrap();
        assert!(file.header().header_len() > 4 << 20);
    }
}

#[test]
fn large_values_are_copied_once() {
    let folder = TempDir::new().unwrap();
    let long = 5_000_000_u32;
    let values = [
        one_record(STRING, |bytes| string(bytes, &vec![b'x'; long as usize])),
        one_record(ARRAY, |bytes| {
            put(bytes, &[U8, long]);
            bytes.resize(bytes.len() + long as usize, 1);
        }),
        one_record(ARRAY, |bytes| {
            put(bytes, &[STRING, long / 4]);
            bytes.resize(bytes.len() + long as usize, 0);
        }),
    ];
    for bytes in values {
        let path = write(&folder, &bytes);
        let (file, peak) = peak_during(|| Gguf::open(&path));
        file.unwrap();
        assert!(peak as u64 <= bytes.len() as u64 + FIXED, "{peak} bytes for a file of {}", bytes.len());
        common::check(&bytes);
    }
}

#[test]
fn what_follows_the_header_costs_nothing() {
    let folder = TempDir::new().unwrap();
    let bytes = many_records(100_000);
    let path = write(&folder, &bytes);
    File::options().write(true).open(&path).unwrap().set_len(40 << 30).unwrap();
    let file = check_open(&path).unwrap();
    assert_eq!(file.header().header_len(), bytes.len() as u64);
}

#[test]
fn promises_of_a_huge_file_cost_nothing() {
    let folder = TempDir::new().unwrap();
    for bytes in [
        header(0, 50_000_000),
        header(40_000_000, 0),
        one_record(ARRAY, |bytes| put(bytes, &[99, 1 << 27])),
        one_record(STRING, |bytes| put(bytes, &[1 << 31])),
    ] {
        let path = write(&folder, &bytes);
        File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        let (refused, peak) = peak_during(|| Gguf::open(&path));
        refused.unwrap_err();
        assert!((peak as u64) < FIXED, "{peak} bytes for {}", bytes.len());
    }
}

/// A split model of as many files as there are lists of names.
fn split_model(folder: &TempDir, files: &[Vec<String>]) -> PathBuf {
    let path = |i: usize| folder.path().join(format!("m-{i:05}-of-{:05}.gguf", files.len()));
    let total: usize = files.iter().map(Vec::len).sum();
    // A name of megabytes, which every file repeats.
    let architecture = "x".repeat(4 << 20);
    for (i, names) in files.iter().enumerate() {
        let mut builder = Builder::new();
        builder.set("split.no", i as u16).set("split.count", files.len() as u16);
        builder.set("split.tensors.count", total as u32).set("general.architecture", architecture.as_str());
        for name in names {
            builder.tensor(name, Layout::packed(DType::I8, [1]).unwrap(), &[1]);
        }
        builder.write(File::create(path(i + 1)).unwrap()).unwrap();
    }
    path(1)
}

#[test]
fn the_files_of_a_set_add_up() {
    let names = |file: usize, count: usize| (0..count).map(|i| format!("{i}.{file}")).collect::<Vec<_>>();
    let folder = TempDir::new().unwrap();
    let path = split_model(&folder, &[names(1, 20_000), names(2, 10_000), Vec::new(), names(4, 30_000)]);
    let (set, peak) = peak_during(|| GgufSet::open(&path));
    let set = set.unwrap();
    assert_eq!(set.tensors().count(), 60_000);
    let headers = set.files().iter().map(|file| file.header().header_len()).sum();
    let most = limits::max_open_bytes(headers) + 4 * limits::SET_BYTES_PER_FILE;
    assert!(peak as u64 <= most, "{peak} bytes of memory for {headers} of headers, at most {most}");
    // Well below even that: the names are not gathered.
    assert!(peak as u64 <= headers + 4 * 60_000 + FIXED, "{peak} bytes of memory for {headers} of headers");

    let mut twice = [names(1, 1000), names(2, 1000), names(3, 1000)];
    twice[2].push("500.1".to_owned());
    let error = GgufSet::open(split_model(&folder, &twice)).unwrap_err();
    assert!(matches!(error.what(), Error::DuplicateTensor { .. }), "{error}");
    assert!(error.to_string().contains("m-00003-of-00003.gguf: tensor '500.1'"), "{error}");
}
