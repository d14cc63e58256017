//! `oxcart worker --install` and `--uninstall`: a systemd unit of the user that starts the worker with the same options at each start of the machine.
//!
//! Invariant: a unit that this command did not write is neither replaced nor removed.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use oxcart::backend::DeviceKind;

use super::unit::{Unit, is_ours};
use crate::failure::Failure;
use crate::local::PluginArgs;
use crate::new_file::NewFile;
use crate::os::service;
use crate::settings::{Origin, Setting};

/// What the unit is called.
const NAME: &str = "oxcart-worker.service";

/// Folders that a worker's files are in, besides what settings name.
const FOLDERS: [&str; 6] =
    ["OXCART_CACHE", "OXCART_CONFIG", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"];

/// Forces an instruction set.
const INSTRUCTIONS: &str = "OXCART_CPU";

/// Where the units of a user are.
fn path() -> Result<PathBuf, Failure> {
    if let Some(why) = service::refused() {
        return Err(Failure::Usage(why.into()));
    }
    let settings = oxcart::folders::settings();
    // Settings of all programs are side by side.
    let folder = settings.as_deref().and_then(Path::parent).ok_or_else(|| {
        Failure::Usage(
            "there is no home folder to put a systemd unit in; set XDG_CONFIG_HOME to a folder".into(),
        )
    })?;
    Ok(folder.join("systemd/user").join(NAME))
}

/// What is at the place of the unit.
fn present(path: &Path) -> Result<Option<String>, Failure> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::Machine(format!("cannot read {}: {error}", path.display()))),
    }
}

/// The unit that is at its place, if it is one of ours.
fn own(path: &Path) -> Result<Option<String>, Failure> {
    match present(path)? {
        Some(text) if !is_ours(&text) => Err(Failure::Usage(format!(
            "{} was not written by oxcart worker --install, so it stays as it is; move it away first",
            path.display()
        ))),
        found => Ok(found),
    }
}

/// Writes the unit, and has the worker run. `set` is what the user has chosen besides what was typed.
pub(super) fn install(plugins: &PluginArgs, set: &[Setting], out: &mut dyn Write) -> Result<(), Failure> {
    let path = path()?;
    let before = own(&path)?;
    let text = unit(plugins, set)?.text().map_err(|error| Failure::Usage(error.to_string()))?;
    let folder = path.parent().unwrap_or(&path);
    fs::create_dir_all(folder)
        .map_err(|error| Failure::Machine(format!("cannot make {}: {error}", folder.display())))?;
    let new = NewFile::create(&path)?;
    new.file().write_all(text.as_bytes())?;
    new.finish()?;
    let done = if before.is_some() { "replaced" } else { "wrote" };
    writeln!(out, "{done} {}", path.display())?;
    // One that runs already goes on with its old options until it is started again.
    let restart = before.is_some_and(|before| before != text).then_some(&["restart", NAME][..]);
    let calls = [&["daemon-reload"][..], &["enable", "--now", NAME]].into_iter().chain(restart);
    let calls: Vec<&[&str]> = calls.collect();
    match systemctl(&calls)? {
        Called::All => writeln!(
            out,
            "the worker runs, and will run whenever you are logged in; to see what it says: journalctl --user -u {NAME}"
        )?,
        Called::NotThere => {
            writeln!(out, "systemctl is not here; where systemd runs for your user, start the worker with:")?;
            calls.iter().try_for_each(|call| writeln!(out, "  systemctl --user {}", call.join(" ")))?;
        }
    }
    writeln!(
        out,
        "to have it run from the start of the machine on, whether you log in or not: sudo loginctl enable-linger $USER"
    )?;
    Ok(writeln!(out, "to pair another machine with this one: oxcart trust invite, then oxcart join there")?)
}

/// Ends the worker, and removes the unit.
pub(super) fn uninstall(out: &mut dyn Write) -> Result<(), Failure> {
    let path = path()?;
    if own(&path)?.is_none() {
        return Ok(writeln!(out, "there is no {}, so nothing is to be removed", path.display())?);
    }
    // While the unit is still there, so that it can be disabled.
    let disabled = systemctl(&[&["disable", "--now", NAME]]);
    fs::remove_file(&path)
        .map_err(|error| Failure::Machine(format!("cannot remove {}: {error}", path.display())))?;
    writeln!(out, "removed {}", path.display())?;
    match disabled? {
        Called::All => systemctl(&[&["daemon-reload"]]).map(|_| ()),
        Called::NotThere => Ok(writeln!(
            out,
            "systemctl is not here; if the worker still runs, end it: oxcart worker --help says how"
        )?),
    }
}

/// What starts this very command, without what makes it install.
fn unit(plugins: &PluginArgs, set: &[Setting]) -> Result<Unit, Failure> {
    let unknown =
        |what: &str, error: &dyn std::fmt::Display| Failure::Machine(format!("cannot find {what}: {error}"));
    let program = env::current_exe().map_err(|error| unknown("this program", &error))?;
    let folder = env::current_dir().map_err(|error| unknown("the current folder", &error))?;
    let words: Vec<OsString> = env::args_os().skip(1).filter(|word| word != "--install").collect();
    let by_settings = set.iter().filter_map(|setting| match &setting.origin {
        Origin::Variable(name) => Some(name.as_str()),
        Origin::Default | Origin::File => None,
    });
    let mut variables: Vec<(String, OsString)> = Vec::new();
    for name in FOLDERS.into_iter().chain([INSTRUCTIONS]).chain(by_settings) {
        let is_new = variables.iter().all(|(known, _)| known != name);
        if let Some(value) = env::var_os(name).filter(|value| is_new && !value.is_empty()) {
            variables.push((name.to_owned(), value));
        }
    }
    let is_card = |kind| kind != DeviceKind::Cpu;
    let is_confined = !plugins.find()?.devices().iter().any(|device| is_card(device.kind()));
    Ok(Unit { program, words, folder, variables, is_confined })
}

/// What became of calls of `systemctl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Called {
    All,
    /// There is no such program.
    NotThere,
}

/// Has systemd do something for this user.
fn systemctl(calls: &[&[&str]]) -> Result<Called, Failure> {
    for call in calls {
        let typed = format!("systemctl --user {}", call.join(" "));
        let called = Command::new("systemctl").arg("--user").args(*call).stdin(Stdio::null()).output();
        let output = match called {
            Ok(output) => output,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Called::NotThere),
            Err(error) => return Err(Failure::Machine(format!("cannot run {typed}: {error}"))),
        };
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().next().unwrap_or("it says nothing").trim();
            return Err(Failure::Machine(format!(
                "{typed} failed: {said}; the unit is as said above, so log in as this user on the machine itself (not by su) and run it there"
            )));
        }
    }
    Ok(Called::All)
}
