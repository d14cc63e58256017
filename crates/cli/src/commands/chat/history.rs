//! What was typed, kept between runs: one JSON string per line, in a file of the user's that no other user can read.
//!
//! Invariant: a history is a convenience. Whatever is wrong with its file, the chat goes on; lines that cannot be read are left out.

use std::fs;
use std::io::{self, Read, Write};
use std::path::PathBuf;

use crate::limits::{MAX_HISTORY_BYTES, MAX_HISTORY_ENTRIES, MAX_HISTORY_ENTRY};
use crate::os;

/// The file, and what it held.
#[derive(Debug)]
pub(super) struct HistoryFile {
    path: PathBuf,
}

impl HistoryFile {
    /// The user's own, if there is a place for it.
    pub(super) fn of_user() -> Option<HistoryFile> {
        Some(HistoryFile { path: oxcart::folders::state()?.join("chat_history") })
    }

    /// What was typed, the oldest first; the file is cut to it if it has become long.
    pub(super) fn read(&self) -> Vec<String> {
        let Ok(file) = fs::File::open(&self.path) else { return Vec::new() };
        let mut bytes = Vec::new();
        if file.take(MAX_HISTORY_BYTES).read_to_end(&mut bytes).is_err() {
            return Vec::new();
        }
        let lines = bytes.split(|byte| *byte == b'\n');
        let mut entries: Vec<String> = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
        if entries.len() > 2 * MAX_HISTORY_ENTRIES {
            entries.drain(..entries.len() - MAX_HISTORY_ENTRIES);
            // It stays long if that fails.
            let _ = self.rewrite(&entries);
        }
        entries.drain(..entries.len().saturating_sub(MAX_HISTORY_ENTRIES));
        entries
    }

    /// Adds what was typed just now.
    pub(super) fn add(&self, entry: &str) -> io::Result<()> {
        if entry.len() > MAX_HISTORY_ENTRY {
            return Ok(());
        }
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        // One call, so that chats at the same time do not mix their lines.
        let line = format!("{}\n", serde_json::Value::from(entry));
        os::private_file().append(true).create(true).open(&self.path)?.write_all(line.as_bytes())
    }

    fn rewrite(&self, entries: &[String]) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let text: String =
            entries.iter().map(|entry| format!("{}\n", serde_json::Value::from(entry.as_str()))).collect();
        os::private_file().write(true).create(true).truncate(true).open(&new)?.write_all(text.as_bytes())?;
        fs::rename(&new, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_typed_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let file = HistoryFile { path: folder.path().join("deep/chat_history") };
        assert!(file.read().is_empty());
        file.add("one").unwrap();
        file.add("two\nlines").unwrap();
        file.add(&"x".repeat(MAX_HISTORY_ENTRY + 1)).unwrap();
        let mut raw = fs::OpenOptions::new().append(true).open(&file.path).unwrap();
        raw.write_all(b"no JSON\n\xff no text\n").unwrap();
        file.add("three").unwrap();
        assert_eq!(file.read(), ["one", "two\nlines", "three"]);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&file.path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn it_does_not_grow_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let file = HistoryFile { path: folder.path().join("chat_history") };
        let all: Vec<String> = (0..2 * MAX_HISTORY_ENTRIES + 1).map(|at| at.to_string()).collect();
        file.rewrite(&all).unwrap();
        let kept = file.read();
        assert_eq!((kept.len(), kept.last()), (MAX_HISTORY_ENTRIES, all.last()));
        assert_eq!(fs::read_to_string(&file.path).unwrap().lines().count(), MAX_HISTORY_ENTRIES);
    }
}
