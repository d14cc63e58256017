//! The host's side: opening a library and believing it step by step.
#![expect(unsafe_code, reason = "calling into a shared library; each block says what makes it sound")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use libloading::Library;

use super::entry::{API_VERSION, Abi, ENTRY_POINT, Entry, MAGIC};
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
    let not_loadable = |error: libloading::Error| refused(path, Refusal::NotLoadable(error.to_string()));
    // SAFETY: loading runs the library's initializers. Whoever puts a library where plug-ins are looked for trusts it
    // as they trust this program; that is what a plug-in is.
    let library = unsafe { Library::new(path) }.map_err(not_loadable)?;
    let entry = entry_of(&library).ok_or_else(|| refused(path, Refusal::NotAPlugin))?;
    if entry.api_version != API_VERSION {
        let reason = Refusal::ApiVersion { found: entry.api_version, wanted: API_VERSION };
        return Err(refused(path, reason));
    }
    let found = text_of(&entry.abi);
    if found != Abi::TEXT {
        return Err(refused(path, Refusal::Abi { found, wanted: Abi::TEXT.to_owned() }));
    }
    // SAFETY: the entry is a static of the library, and from here on the library is never unloaded: its code may be
    // referred to from anywhere.
    let entry = unsafe { &*std::ptr::from_ref(entry) };
    std::mem::forget(library);
    Ok(Plugin { path: path.to_owned(), entry })
}

/// The entry, if the symbol is there and what it returns is ours.
fn entry_of(library: &Library) -> Option<&Entry> {
    // SAFETY: a symbol of this name is, by contract, a function of this type; the magic number checks it further.
    let function = unsafe { library.get::<extern "C" fn() -> *const Entry>(ENTRY_POINT.as_bytes()) }.ok()?;
    let entry = function();
    if entry.is_null() || !entry.is_aligned() {
        return None;
    }
    // SAFETY: not null, aligned, and the function returns the address of a static of the library. The magic number is
    // the first field in every version.
    let magic = unsafe { std::ptr::read(entry.cast::<u64>()) };
    // SAFETY: the magic number says that this is an `Entry`; the borrow ends before the library can be unloaded.
    (magic == MAGIC).then(|| unsafe { &*entry })
}

/// A plug-in's text, copied.
fn text_of(text: &Abi) -> String {
    // SAFETY: every `Abi` is made from a `&'static str` of the library, which is loaded.
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
            return Err(refused(&self.path, Refusal::InitFailed(text_of(&reply.message))));
        }
        // SAFETY: `guard_init` boxed an `Arc<dyn Registry>` and gave up ownership. Both sides were built by the same
        // compiler from the same release (`open` compared them), so the type is the same; both use the system's
        // allocator, which is a condition of the interface.
        let registry = unsafe { Box::from_raw(reply.registry.cast::<Arc<dyn Registry>>()) };
        Ok(*registry)
    }
}
