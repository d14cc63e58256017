//! Why a model could not be had, in words for the person who asked for it.

use std::io;
use std::path::PathBuf;

/// Why a model could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name is none.
    #[error("'{name}' is neither a file nor a model: {reason}")]
    Name {
        /// As given.
        name: String,
        /// What is wrong with it, and what to give instead.
        reason: String,
    },
    /// A file or folder of the store could not be used.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process is fetching the same file.
    #[error("{} is being fetched by another process, wait for it", path.display())]
    Busy {
        /// The unfinished file.
        path: PathBuf,
    },
    /// A server did not give what was asked for.
    #[error("{url}: {reason}")]
    Server {
        /// What was asked for.
        url: String,
        /// What went wrong.
        reason: String,
    },
    /// There is no room for it.
    #[error("{bytes} bytes do not fit into {}, where {free} are free for them; make room, or set OXCART_CACHE to another folder", folder.display())]
    NoRoom {
        /// Where it would be.
        folder: PathBuf,
        /// What is missing of it.
        bytes: u64,
        /// What may be used.
        free: u64,
    },
    /// What came is not what was meant to come.
    #[error("{what}: {reason}; what was fetched is deleted, try again")]
    Wrong {
        /// The file.
        what: String,
        /// How it differs.
        reason: String,
    },
    /// The user's own pip did not do it.
    #[error("{0}")]
    Pip(String),
}

impl Error {
    /// Whether the name is at fault, not the machine or the network.
    pub fn is_about_the_name(&self) -> bool {
        matches!(self, Error::Name { .. })
    }
}

/// Turns errors of the system into ours.
pub(crate) trait During<T> {
    fn during(self, action: &'static str, path: impl Into<PathBuf>) -> Result<T, Error>;
}

impl<T> During<T> for io::Result<T> {
    fn during(self, action: &'static str, path: impl Into<PathBuf>) -> Result<T, Error> {
        self.map_err(|source| Error::File { action, path: path.into(), source })
    }
}
