//! Describes this build for plug-ins, which share Rust types with their host: both must come from the same compiler and
//! from the same sources.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    let compiler = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(compiler).arg("--version").output().map(|out| out.stdout).unwrap_or_default();
    let version = String::from_utf8_lossy(&version);
    let target = env::var("TARGET").unwrap_or_default();
    let panic = env::var("CARGO_CFG_PANIC").unwrap_or_default();

    // The types that cross are those of this crate and of the tensor crate. Published crates are told apart by their
    // versions; within the workspace a version means nothing, so the sources are compared.
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let mut files = Vec::new();
    for folder in ["src", "../tensor/src"] {
        let path = here.join(folder);
        if path.is_dir() {
            // By its name within the package, so that a checkout that is moved, or copied with what was built, is not compiled again.
            println!("cargo:rerun-if-changed={folder}");
            collect(&path, &mut files);
        }
    }
    println!("cargo:rerun-if-changed=build.rs");
    files.sort();
    let sources = files.iter().fold(FNV_START, |hash, file| fnv(hash, &fs::read(file).unwrap_or_default()));
    println!(
        "cargo:rustc-env=OXCART_ABI={}, {target}, panic={panic}, sources {sources:016x}",
        version.trim()
    );
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// Tells sources apart; it protects against nothing.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
