#![cfg(unix)]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use oxcart_tensor::{DType, Layout};
use tempfile::TempDir;

use super::*;
use crate::{Builder, Gguf};

const ROWS: usize = 64;

/// A file with 64 rows of 4096 bytes, row `i` filled with `i + 1`.
fn write(folder: &TempDir, name: &str) -> PathBuf {
    let path = folder.path().join(name);
    let rows: Vec<u8> = (1..=ROWS as u8).flat_map(|row| [row; 4096]).collect();
    let mut builder = Builder::new();
    builder.tensor("w", Layout::packed(DType::I8, [4096, ROWS]).unwrap(), rows);
    builder.write(File::create(&path).unwrap()).unwrap();
    path
}

fn cut(path: &Path, len: u64) {
    File::options().write(true).open(path).unwrap().set_len(len).unwrap();
}

#[test]
fn a_file_that_shrinks_loses_only_its_own_mapping() {
    let folder = TempDir::new().unwrap();
    let (path, other) = (write(&folder, "cut.gguf"), write(&folder, "other.gguf"));
    let (file, other) = (Gguf::open(&path).unwrap(), Gguf::open(other).unwrap());
    let (map, other_map) = (file.map().unwrap(), other.map().unwrap());
    let w = file.tensor("w").unwrap();
    assert_eq!(w.bytes_in(map.bytes()).unwrap()[4096 * 63], 64);
    map.check().unwrap();

    cut(&path, 10_000);
    // Without the handler, this line ends the process.
    let sum: u64 = w.bytes_in(map.bytes()).unwrap().iter().map(|&byte| u64::from(byte)).sum();
    assert!(sum < 4096 * 10, "lost pages read as zero");
    assert!(matches!(map.check(), Err(Error::Shrunk)));
    // Growing again does not make up for it.
    cut(&path, 10 << 20);
    assert!(matches!(map.check(), Err(Error::Shrunk)));

    other_map.check().unwrap();
    let rows = other.tensor("w").unwrap().bytes_in(other_map.bytes()).unwrap();
    assert!(rows.chunks(4096).zip(1..).all(|(row, want)| row.iter().all(|&byte| byte == want)));
}

#[test]
fn many_threads_may_fault_at_once() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, "cut.gguf");
    let map = Gguf::open(&path).unwrap().map().unwrap();
    let go = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..8_usize {
            let (map, go) = (&map, &go);
            scope.spawn(move || {
                while !go.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                for page in 0..ROWS {
                    let at = (page * 37 + thread * 11) % ROWS * 4096;
                    std::hint::black_box(map.bytes()[at]);
                }
            });
        }
        cut(&path, 0);
        go.store(true, Ordering::Release);
    });
    assert!(matches!(map.check(), Err(Error::Shrunk)));
}

#[test]
fn a_cut_inside_a_page_is_noticed_too() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, "cut.gguf");
    let file = Gguf::open(&path).unwrap();
    let map = file.map().unwrap();
    map.check().unwrap();
    cut(&path, file.header().file_len() - 1);
    assert!(matches!(map.check(), Err(Error::Shrunk)));
}

#[test]
fn slots_are_given_back() {
    let folder = TempDir::new().unwrap();
    let file = Gguf::open(write(&folder, "m.gguf")).unwrap();
    for _ in 0..3 * crate::limits::MAX_MAPPINGS {
        file.map().unwrap();
    }
    assert!(system::slots_in_use() < 32);
}
