//! The host's side: opening a library and believing it step by step.
#![expect(unsafe_code, reason = "calling into a shared library; each block says what makes it sound")]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libloading::Library;

use super::entry::{ABI, API_VERSION, ENTRY_POINT, Entry, Head, MAGIC, StaticText};
use super::{Refusal, refused};
use crate::error::Error;
use crate::registry::Registry;

/// A library whose entry has been checked. Never unloaded.
#[derive(Debug)]
pub(super) struct Plugin {
    path: PathBuf,
    entry: &'static Entry,
}

/// Opens a library and checks that it is a plug-in for this very build.
pub(super) fn open(path: &Path) -> Result<Plugin, Error> {
    let refuse = |reason| refused(path, reason);
    // A whole path: given a bare name, the system would look for the library elsewhere.
    let file = path.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => refuse(Refusal::NotFound),
        _ => refuse(Refusal::NotLoadable(error.to_string())),
    })?;
    // SAFETY: loading runs the library's initializers. The user who puts a library where plug-ins are looked for trusts it
    // as much as this program; that is what a plug-in is.
    let library = unsafe { Library::new(file) };
    let library = library.map_err(|error| refuse(Refusal::NotLoadable(error.to_string())))?;
    let entry = entry_of(&library).map_err(refuse)?;
    // From here on the library is never unloaded: its code may be referred to from anywhere.
    std::mem::forget(library);
    // SAFETY: `entry_of` found an `Entry` of our version there, a static of a library that stays.
    let entry: &'static Entry = unsafe { &*entry };
    let found = text_of(entry.abi);
    if found != ABI {
        return Err(refuse(Refusal::Abi { found, wanted: ABI.to_owned() }));
    }
    Ok(Plugin { path: path.to_owned(), entry })
}

/// Where the entry is, if the symbol is there and what it returns is an entry of our version.
fn entry_of(library: &Library) -> Result<*const Entry, Refusal> {
    // SAFETY: a symbol of this name is, by contract, a function of this type in every version of the interface.
    let function = unsafe { library.get::<extern "C" fn() -> *const Entry>(ENTRY_POINT.as_bytes()) };
    let entry = function.map_err(|_| Refusal::NotAPlugin)?();
    if entry.is_null() || !entry.is_aligned() {
        return Err(Refusal::NotAPlugin);
    }
    // SAFETY: not null, aligned, and by contract the address of a static that starts with a `Head` in every version.
    // Only that much is read: an entry of another version may be shorter than ours.
    let head = unsafe { entry.cast::<Head>().read() };
    match head {
        Head { magic: MAGIC, api_version: API_VERSION } => Ok(entry),
        Head { magic: MAGIC, api_version } => {
            Err(Refusal::ApiVersion { found: api_version, wanted: API_VERSION })
        }
        _ => Err(Refusal::NotAPlugin),
    }
}

/// A plug-in's text, copied.
fn text_of(text: StaticText) -> String {
    // SAFETY: every `StaticText` is made from a `&'static str` of a library that is never unloaded.
    let bytes = unsafe { std::slice::from_raw_parts(text.start, text.len) };
    String::from_utf8_lossy(bytes).into_owned()
}

impl Plugin {
    /// How well it suits this machine.
    pub(super) fn score(&self) -> u32 {
        (self.entry.score)()
    }

    /// Starts it.
    pub(super) fn init(&self) -> Result<Arc<dyn Registry>, Error> {
        let reply = (self.entry.init)();
        if reply.registry.is_null() {
            return Err(refused(&self.path, Refusal::InitFailed(text_of(reply.message))));
        }
        // SAFETY: `guard_init` boxed an `Arc<dyn Registry>` and gave up ownership. `open` found that both sides were
        // built by the same compiler from the same sources, so the type is the same; both use the system's allocator,
        // which is a condition of the interface (docs/plugins.md).
        let registry = unsafe { Box::from_raw(reply.registry.cast::<Arc<dyn Registry>>()) };
        Ok(*registry)
    }
}
