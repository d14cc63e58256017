//! Split models, right and wrong.

use std::fs::{self, File};

use oxcart_tensor::{DType, Layout};
use tempfile::TempDir;

use super::*;
use crate::Builder;

/// Three files of one model with two, one and one tensors; tests then spoil one of them.
fn split_model(folder: &TempDir, spoil: impl Fn(u16, &mut Builder<'_>)) -> PathBuf {
    for number in 0..3_u16 {
        let mut builder = Builder::new();
        builder.set("general.architecture", "llama").set(NUMBER_KEY, number);
        builder.set(COUNT_KEY, 3_u16).set(TENSORS_KEY, 4_i32);
        add(&mut builder, &format!("t{number}"));
        if number == 0 {
            builder.set("general.name", "split");
            add(&mut builder, "extra");
        }
        spoil(number, &mut builder);
        builder.write(File::create(path(folder, number)).unwrap()).unwrap();
    }
    path(folder, 0)
}

fn add(builder: &mut Builder<'_>, name: &str) {
    builder.tensor(name, Layout::packed(DType::I8, [4]).unwrap(), vec![name.as_bytes()[1]; 4]);
}

fn path(folder: &TempDir, number: u16) -> PathBuf {
    folder.path().join(part("m", number, 3).to_string())
}

fn refused(spoil: impl Fn(u16, &mut Builder<'_>)) -> (Error, String) {
    let folder = TempDir::new().unwrap();
    let error = GgufSet::open(split_model(&folder, spoil)).unwrap_err();
    let Error::InFile { path, source } = error else { panic!("{error} names no file") };
    (*source, path.file_name().unwrap().to_str().unwrap().to_owned())
}

#[test]
fn a_split_model_reads_as_one() {
    let folder = TempDir::new().unwrap();
    let set = GgufSet::open(split_model(&folder, |_, _| {})).unwrap();
    assert_eq!(set.files().len(), 3);
    assert_eq!(set.metadata().require("general.name").unwrap().str().unwrap(), "split");
    let all: Vec<_> = set.tensors().map(|tensor| (tensor.file_index, tensor.info.name())).collect();
    assert_eq!(all, [(0, "t0"), (0, "extra"), (1, "t1"), (2, "t2")]);
    let tensor = set.tensor("t2").unwrap();
    let mut bytes = [0; 4];
    tensor.file.read_tensor(&tensor.info, &mut bytes).unwrap();
    assert_eq!((tensor.file_index, &bytes), (2, b"2222"));
    assert!(set.tensor("t3").is_none());
}

#[test]
fn a_model_in_one_file_is_a_set_of_one() {
    let folder = TempDir::new().unwrap();
    for count in [None, Some(0_u16), Some(1)] {
        let path = folder.path().join("any name.bin");
        let mut builder = Builder::new();
        if let Some(count) = count {
            builder.set(COUNT_KEY, count);
        }
        add(&mut builder, "t0");
        builder.write(File::create(&path).unwrap()).unwrap();
        assert_eq!(GgufSet::open(&path).unwrap().tensors().count(), 1);
    }
}

#[test]
fn later_files_need_only_their_number() {
    let folder = TempDir::new().unwrap();
    split_model(&folder, |_, _| {});
    let mut bare = Builder::new();
    bare.set(NUMBER_KEY, 1_u16);
    add(&mut bare, "t1");
    bare.write(File::create(path(&folder, 1)).unwrap()).unwrap();
    assert!(GgufSet::open(path(&folder, 0)).is_ok());
}

#[test]
fn counts_and_numbers_must_agree() {
    let (error, file) = refused(|number, builder| {
        if number == 1 {
            builder.set(NUMBER_KEY, 2_u16);
        }
    });
    assert!(matches!(error, Error::Set(SetError::Number { want: 1, found: 2 })), "{error}");
    assert_eq!(file, "m-00002-of-00003.gguf");

    let (error, file) = refused(|number, builder| {
        if number == 2 {
            builder.set(COUNT_KEY, 4_u16);
        }
    });
    assert!(matches!(error, Error::Set(SetError::Count { want: 3, found: 4 })), "{error}");
    assert_eq!(file, "m-00003-of-00003.gguf");

    for count in [2_u64, 4, 65_535] {
        let (error, _) = refused(|number, builder| {
            if number == 0 {
                builder.set(COUNT_KEY, count);
            }
        });
        assert!(matches!(error, Error::Set(SetError::FileName { .. })), "{error}");
    }
    let (error, _) = refused(|_, builder| {
        builder.set(COUNT_KEY, 70_000_u64);
    });
    assert_eq!(error.to_string(), "split model: 'split.count' is 70000, at most 65535 files are possible");
    let (error, _) = refused(|_, builder| {
        builder.set(NUMBER_KEY, u64::MAX);
    });
    assert!(matches!(error, Error::Set(SetError::NotFirst { count: None, .. })), "{error}");
}

/// The error for the only file of a model, of this name and with these numbers.
fn refused_alone(name: &str, metadata: &[(&str, u64)]) -> String {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join(name);
    let mut builder = Builder::new();
    for &(key, value) in metadata {
        builder.set(key, value);
    }
    add(&mut builder, "t0");
    builder.write(File::create(&path).unwrap()).unwrap();
    GgufSet::open(&path).map(drop).unwrap_err().what().to_string()
}

#[test]
fn a_model_in_one_file_is_checked_too() {
    for count in [0, 1] {
        let error = refused_alone("one.gguf", &[(COUNT_KEY, count), (TENSORS_KEY, 99)]);
        assert_eq!(error, "split model: 'split.tensors.count' is 99, but the number of tensors is 1");
    }
    let error = refused_alone("one.gguf", &[(NUMBER_KEY, 5)]);
    assert_eq!(error, "split model: this is file 6, open the first one");
}

#[test]
fn a_name_cannot_announce_more_files_than_there_are() {
    for name in [
        "k-00001-of-00002.gguf",
        "k-00002-of-00002.gguf",
        "-00001-of-99999.gguf",
        "k-00000-of-00002.gguf",
        "k-00003-of-00002.gguf",
    ] {
        for count in [0, 1] {
            let error = refused_alone(name, &[(COUNT_KEY, count), (TENSORS_KEY, 1)]);
            assert!(error.starts_with("split model: the file name says it is one of "), "{error}");
            assert!(error.ends_with(&format!(", but 'split.count' is {count}")), "{error}");
        }
        let error = refused_alone(name, &[]);
        assert!(error.ends_with(", but it has no 'split.count'"), "{error}");
    }
    for fine in ["k-00001-of-00001.gguf", "k-1-of-2.gguf", "two-of-00002.gguf", "k-00001-of-00002.bin"] {
        assert_eq!(PartName::of(fine).map(|part| part.count).filter(|&count| count > 1), None, "{fine}");
    }
}

#[test]
fn tensors_must_add_up() {
    let (error, _) = refused(|number, builder| {
        if number == 1 {
            add(builder, "more");
        }
    });
    assert!(matches!(error, Error::Set(SetError::TensorCount { want: 4, found: 5 })), "{error}");

    let (error, file) = refused(|number, builder| {
        if number == 2 {
            builder.set(TENSORS_KEY, 5_i32);
        }
    });
    assert!(matches!(error, Error::Set(SetError::TensorCount { want: 4, found: 5 })), "{error}");
    assert_eq!(file, "m-00003-of-00003.gguf");

    let (error, _) = refused(|_, builder| {
        builder.set(TENSORS_KEY, -1_i32);
    });
    assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
}

#[test]
fn a_tensor_is_in_one_file_only() {
    let (error, file) = refused(|number, builder| {
        builder.set(TENSORS_KEY, 5_i32);
        if number == 2 {
            add(builder, "extra");
        }
    });
    assert!(matches!(error, Error::DuplicateTensor { .. }), "{error}");
    assert_eq!(file, "m-00003-of-00003.gguf");
}

#[test]
fn a_file_of_another_model_is_refused() {
    let (error, _) = refused(|number, builder| {
        if number == 1 {
            builder.set("general.architecture", "qwen2");
        }
    });
    assert!(matches!(error, Error::Set(SetError::Architecture { .. })), "{error}");
}

#[test]
fn missing_files_and_wrong_names_are_refused() {
    let folder = TempDir::new().unwrap();
    let first = split_model(&folder, |_, _| {});
    let error = GgufSet::open(path(&folder, 1)).unwrap_err();
    assert!(matches!(error.what(), Error::Set(SetError::NotFirst { number: 1, count: Some(3) })), "{error}");

    let renamed = folder.path().join("renamed.gguf");
    fs::copy(&first, &renamed).unwrap();
    let error = GgufSet::open(&renamed).unwrap_err();
    assert!(matches!(error.what(), Error::Set(SetError::FileName { .. })), "{error}");

    fs::remove_file(path(&folder, 2)).unwrap();
    let error = GgufSet::open(&first).unwrap_err();
    let want = "m-00003-of-00003.gguf: split model: the file is missing: the first file says there are 3";
    assert!(error.to_string().ends_with(want), "{error}");
}

#[test]
fn only_siblings_are_opened() {
    // Names are made of the path that was given and two numbers; nothing in the file can add a path to them.
    let folder = TempDir::new().unwrap();
    let description = SetDescription::of(&Gguf::open(split_model(&folder, |_, _| {})).unwrap()).unwrap();
    for number in 0..3 {
        assert_eq!(description.path(number).parent(), Some(folder.path()));
    }
}
