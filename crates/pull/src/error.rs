//! Why a model could not be had, in words for the person who asked for it.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a model could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name is none.
    #[error("'{name}' is neither a file nor a known model: {reason}")]
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
    #[error("{} is being fetched by another process; wait for it to finish", path.display())]
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
    /// A server that cannot be reached.
    #[error(
        "cannot reach {} ({reason}): is there a network? --mirror URL uses a mirror; models already downloaded work offline (oxcart list)",
        host(url)
    )]
    Unreachable {
        /// What was asked for.
        url: String,
        /// What the system said.
        reason: String,
    },
    /// A package index that cannot be reached.
    #[error(
        "cannot reach the package index at {} ({reason}): is there a network? models already downloaded work offline (oxcart list)",
        host(url)
    )]
    IndexUnreachable {
        /// What was asked for.
        url: String,
        /// What the system said.
        reason: String,
    },
    /// There is no room for it.
    #[error("{} will not fit in {}, which has {} free; make room (oxcart rm), or set OXCART_CACHE to another folder", ByteCount(*bytes), folder.display(), ByteCount(*free))]
    NoRoom {
        /// Where it would be.
        folder: PathBuf,
        /// What is missing of it.
        bytes: u64,
        /// What may be used.
        free: u64,
    },
    /// What came is not what was meant to come.
    #[error("{what}: {reason}; the download was deleted; try again")]
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

/// The server in a URL.
fn host(url: &str) -> &str {
    let behind = url.split_once("://").map_or(url, |(_, rest)| rest);
    behind.split(['/', '?', '#']).next().unwrap_or(behind)
}

/// Bytes as people count them.
struct ByteCount(u64);

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: u64 = 1 << 20;
        const GIB: u64 = 1 << 30;
        match self.0 {
            bytes @ ..MIB => write!(f, "{bytes} bytes"),
            bytes @ ..GIB => write!(f, "{:.1} MiB", bytes as f64 / MIB as f64),
            bytes => write!(f, "{:.1} GiB", bytes as f64 / GIB as f64),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_words() {
        let reason = "host not found".to_owned();
        let error = Error::Unreachable { url: "https://huggingface.co/api/models/x".into(), reason };
        assert!(
            error
                .to_string()
                .starts_with("cannot reach huggingface.co (host not found): is there a network?")
        );
        let error = Error::NoRoom { folder: "/m".into(), bytes: 4_100_000_000, free: 12_300_000 };
        assert!(error.to_string().starts_with("3.8 GiB will not fit in /m, which has 11.7 MiB free"));
    }
}
