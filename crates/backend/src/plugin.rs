//! Devices from shared libraries.
//!
//! A plug-in is a `cdylib` with one C entry point, made by [`export_plugin!`](crate::export_plugin). The entry tells
//! the version of this interface and the compiler before anything else is touched; then a score says how well the
//! plug-in suits this machine, zero meaning not at all; then it hands over its [`Registry`].
//!
//! Invariants: host and plug-in share Rust types only if their [`ABI`]s are equal to the letter. A panic in a plug-in's
//! score or init becomes an error. A loaded library is never unloaded, because its devices may live anywhere. What a
//! plug-in must promise beyond that is in `docs/plugins.md`.

mod entry;
mod load;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use entry::{ABI, API_VERSION, ENTRY_POINT, Entry, InitReply, StaticText, guard_init, guard_score};

use crate::error::Error;
use crate::registry::{Registries, Registry};

/// Why a plug-in was not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The system could not load the library.
    NotLoadable(String),
    /// It has no entry point, or one that is not ours.
    NotAPlugin,
    /// It was built for another version of this interface.
    ApiVersion {
        /// The plug-in's.
        found: u32,
        /// Ours.
        wanted: u32,
    },
    /// It was built by another compiler or against another release.
    Abi {
        /// What the plug-in says of itself.
        found: String,
        /// What this program is.
        wanted: String,
    },
    /// It says that it cannot run on this machine.
    NotForThisMachine,
    /// It failed to start, or panicked.
    InitFailed(String),
    /// There is nothing to load.
    NotFound,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NotLoadable(why) => write!(f, "cannot be loaded: {why}"),
            Refusal::NotAPlugin => write!(f, "is not an Oxcart plug-in"),
            Refusal::ApiVersion { found, wanted } => {
                write!(f, "is for plug-in interface {found}, this program has {wanted}; rebuild it")
            }
            Refusal::Abi { found, wanted } => {
                write!(f, "was built as '{found}', this program as '{wanted}'; rebuild it")
            }
            Refusal::NotForThisMachine => write!(f, "says that it cannot run on this machine"),
            Refusal::InitFailed(why) => write!(f, "failed to start: {why}"),
            Refusal::NotFound => write!(f, "no such plug-in"),
        }
    }
}

/// File name of a plug-in for `family`, with an optional variant for certain machines: `liboxcart-cpu-avx2.so`.
pub fn file_name(family: &str, variant: Option<&str>) -> String {
    let variant = variant.map_or(String::new(), |variant| format!("-{variant}"));
    format!("{}oxcart-{family}{variant}{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX)
}

/// How well a plug-in says it suits this machine.
pub fn score(path: &Path) -> Result<u32, Error> {
    load::open(path).map(|library| library.score())
}

/// Loads one plug-in and gives its devices to `registries`.
pub fn load(path: &Path, registries: &Registries) -> Result<Arc<dyn Registry>, Error> {
    let library = load::open(path)?;
    if library.score() == 0 {
        return Err(refused(path, Refusal::NotForThisMachine));
    }
    let registry = library.init()?;
    registries.register(Arc::clone(&registry))?;
    Ok(registry)
}

/// Loads the variant of a family's plug-in in `folder` that has the highest score; the first by name among equals. When
/// none can be used, says why the first one cannot.
pub fn load_best(folder: &Path, family: &str, registries: &Registries) -> Result<Arc<dyn Registry>, Error> {
    let mut best: Option<(PathBuf, u32)> = None;
    let mut first_refused = None;
    for path in variants(folder, family) {
        match score(&path) {
            Ok(0) => _ = first_refused.get_or_insert(refused(&path, Refusal::NotForThisMachine)),
            Ok(score) if best.as_ref().is_none_or(|&(_, highest)| score > highest) => {
                best = Some((path, score));
            }
            Ok(_) => {}
            Err(error) => _ = first_refused.get_or_insert(error),
        }
    }
    match best {
        Some((path, _)) => load(&path, registries),
        None => Err(first_refused
            .unwrap_or_else(|| refused(&folder.join(file_name(family, None)), Refusal::NotFound))),
    }
}

/// Files of a family in a folder, sorted by name.
fn variants(folder: &Path, family: &str) -> Vec<PathBuf> {
    let (plain, prefix) = (file_name(family, None), file_name(family, Some("")));
    let prefix = prefix.trim_end_matches(std::env::consts::DLL_SUFFIX).to_owned();
    let is_variant = |name: &str| {
        name == plain || (name.starts_with(&prefix) && name.ends_with(std::env::consts::DLL_SUFFIX))
    };
    let Ok(entries) = folder.read_dir() else { return Vec::new() };
    let mut paths: Vec<_> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_variant))
        .collect();
    paths.sort();
    paths
}

fn refused(path: &Path, reason: Refusal) -> Error {
    Error::Plugin { path: path.to_owned(), reason }
}
