//! Real files are read, and written again to the same bytes.
//!
//! `OXCART_GOLDEN` is a folder with `tiny-models/*.gguf` and `vocab/*.gguf`, `OXCART_SMOLLM2` the file of a real
//! model. What is not set is skipped.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a test may panic, and says what it skips")]

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use oxcart_gguf::{Gguf, GgufSet};

/// Compares what is written with a file, without holding either.
struct Compare {
    expected: File,
    buffer: Vec<u8>,
}

impl Write for Compare {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.resize(bytes.len(), 0);
        self.expected.read_exact(&mut self.buffer)?;
        if self.buffer == bytes { Ok(bytes.len()) } else { Err(io::Error::other("bytes differ")) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn round_trips(path: &Path) {
    let file = Gguf::open(path).unwrap();
    let expected = Compare { expected: File::open(path).unwrap(), buffer: Vec::new() };
    let len = file.to_builder().write(expected).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(len, fs::metadata(path).unwrap().len(), "{}", path.display());

    let map = file.map().unwrap();
    for info in file.tensors().iter() {
        let mut bytes = vec![0; info.layout().byte_len()];
        file.read_tensor(&info, &mut bytes).unwrap();
        assert!(bytes == info.bytes_in(map.bytes()).unwrap(), "{}: {}", path.display(), info.name());
        assert_eq!(file.tensor(info.name()), Some(info));
    }
    for entry in file.metadata().iter() {
        assert_eq!(file.metadata().get(entry.key()), Some(entry));
    }
    map.check().unwrap();
}

#[test]
fn tiny_models_and_vocabularies() {
    let Some(golden) = oxcart_fixtures::golden() else { return };
    let mut files = 0;
    for folder in ["tiny-models", "vocab"] {
        for entry in fs::read_dir(golden.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "gguf") {
                round_trips(&path);
                files += 1;
            }
        }
    }
    println!("{files} files");
    assert!(files >= 30);
}

#[test]
fn smollm2() {
    let Some(path) = oxcart_fixtures::smollm2() else { return };
    round_trips(&path);
    let model = GgufSet::open(&path).unwrap();
    assert_eq!(model.metadata().require("general.architecture").unwrap().str().unwrap(), "llama");
    assert_eq!(model.metadata().require("llama.block_count").unwrap().u32().unwrap(), 30);
    let tokens = model.metadata().require("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens.strings().unwrap().nth(1).unwrap().to_str(), Some("<|im_start|>"));
    let embedding = model.tensor("token_embd.weight").unwrap().info;
    assert_eq!((embedding.layout().to_string(), embedding.offset()), ("q8_0[576, 49152]".into(), 1_785_664));
}
