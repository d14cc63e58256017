//! Records which compiler builds this crate: plug-ins share Rust types with their host, so both must come from the
//! same one.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let compiler = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(compiler).arg("--version").output().map(|out| out.stdout).unwrap_or_default();
    let version = String::from_utf8_lossy(&version);
    let target = env::var("TARGET").unwrap_or_default();
    println!("cargo:rustc-env=OXCART_ABI={}, {target}", version.trim());
}
