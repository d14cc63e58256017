//! Who runs the commands of these tests: a user without settings, whatever those of the developer are.

use std::process::Command;

/// Variables that are no settings and stay.
const KEPT: [&str; 2] = ["OXCART_CPU", "OXCART_CACHE"];

/// A program that sees no settings: neither a file nor variables.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("OXCART_") && !KEPT.contains(&&*name) {
            command.env_remove(&*name);
        }
    }
    command.env("OXCART_CONFIG", "/nowhere/config.toml");
    // Who the developer's machine is, and whom it knows, is no concern of a test.
    command.env("XDG_DATA_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/data"));
    command
}
