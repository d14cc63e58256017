//! What the tensors of a file are known by, so that bytes which a device has already need not be read to be named.
//!
//! Digests are computed when a device first wants them, and belong to the state that the file was in when it was opened. Invariant: what is
//! found was computed from this file in this state, or from a record which says that it was. A file that has changed since is known by
//! nothing, and so is nothing kept of one that may have changed unseen.
//!
//! A record, to be kept where no other user can change it:
//!
//! ```text
//! 0   8  "OXDIGEST"
//! 8   4  version, 1
//! 12  4  number of tensors
//! 16 56  state of the file
//! 72 32  BLAKE3 digest of its table of tensors
//! 104    for each tensor: offset u64, length u64, FNV-1a hash u64, BLAKE3 digest 32 bytes
//! end 32 BLAKE3 digest of all of the above
//! ```
//!
//! Numbers are little-endian; tensors are in the order of their offsets.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use oxcart_backend::Content;
use oxcart_gguf::{FileState, Gguf, TensorInfo};

const MAGIC: [u8; 8] = *b"OXDIGEST";
const VERSION: u32 = 1;
/// Bytes before the first tensor.
const HEAD: usize = 8 + 4 + 4 + FileState::BYTES + 32;
/// Bytes of a tensor.
const EACH: usize = 8 + 8 + 8 + 32;
/// Bytes of the digest at the end.
const END: usize = 32;

/// What is known of a file's tensors.
#[derive(Debug)]
pub struct Contents {
    /// The state in which the file was opened, and when that was; `None` where nothing tells one state from another.
    opened: Option<(FileState, SystemTime)>,
    /// Digest of the table of tensors.
    table: [u8; 32],
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// By offset in the file: length, and what the bytes are known by.
    tensors: BTreeMap<u64, (u64, Content)>,
    /// Whether there is more than any record says.
    has_grown: bool,
}

impl Contents {
    /// The longest record there may be.
    pub const MAX_RECORD: u64 = 16 << 20;

    /// Of an open file of which nothing is known yet.
    pub fn of(file: &Gguf) -> Contents {
        let mut table = blake3::Hasher::new();
        for tensor in file.tensors().iter() {
            for number in [tensor.name().len() as u64, tensor.offset(), tensor.byte_len()] {
                table.update(&number.to_le_bytes());
            }
            table.update(tensor.name().as_bytes());
        }
        Contents {
            opened: file.state().map(|state| (state, SystemTime::now())),
            table: *table.finalize().as_bytes(),
            known: Mutex::default(),
        }
    }

    /// What records of this file are called, whatever path it has; `None` if there can be none.
    pub fn name(&self) -> Option<String> {
        let (state, _) = self.opened.as_ref()?;
        let digest = blake3::hash(&state.file());
        let short: String = digest.as_bytes().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Some(format!("{short}.digests"))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the file is still in the state in which it was opened.
    pub fn is_current(&self, file: &Gguf) -> bool {
        self.opened.as_ref().is_some_and(|(state, _)| file.state().as_ref() == Some(state))
    }

    /// Takes over a record; says whether it is one of this file in this state. If not, nothing of it is used.
    pub fn recall(&self, record: &[u8]) -> bool {
        let Some(tensors) = self.decode(record) else { return false };
        let mut known = self.known();
        for (offset, tensor) in tensors {
            known.tensors.entry(offset).or_insert(tensor);
        }
        true
    }

    fn decode(&self, record: &[u8]) -> Option<BTreeMap<u64, (u64, Content)>> {
        let (state, _) = self.opened.as_ref()?;
        let (body, digest) = record.split_last_chunk::<END>()?;
        if blake3::hash(body) != *digest {
            return None;
        }
        let (head, rest) = body.split_at_checked(HEAD)?;
        let count = u32::try_from(rest.len() / EACH).ok()?;
        if head != self.head(state, count) || !rest.len().is_multiple_of(EACH) {
            return None;
        }
        let tensors: Option<BTreeMap<_, _>> = rest.chunks_exact(EACH).map(decode_tensor).collect();
        // Twice the same offset would be one tensor less.
        tensors.filter(|tensors| tensors.len() == rest.len() / EACH)
    }

    /// What a record begins with.
    fn head(&self, state: &FileState, count: u32) -> Vec<u8> {
        let mut head = Vec::with_capacity(HEAD);
        head.extend(MAGIC);
        head.extend(VERSION.to_le_bytes());
        head.extend(count.to_le_bytes());
        head.extend(state.encode());
        head.extend(self.table);
        head
    }

    /// What a tensor of the file is known by, if it is and the file has not changed.
    pub fn find(&self, file: &Gguf, tensor: &TensorInfo<'_>) -> Option<Content> {
        self.find_at(file, tensor.offset(), tensor.byte_len())
    }

    pub(crate) fn find_at(&self, file: &Gguf, offset: u64, len: u64) -> Option<Content> {
        let (_, content) = self.known().tensors.get(&offset).copied().filter(|(known, _)| *known == len)?;
        self.is_current(file).then_some(content)
    }

    /// Remembers what the bytes of a tensor are known by, as they were read since the file was opened.
    pub fn note(&self, tensor: &TensorInfo<'_>, content: Content) {
        self.note_at(tensor.offset(), tensor.byte_len(), content);
    }

    pub(crate) fn note_at(&self, offset: u64, len: u64, content: Content) {
        let mut known = self.known();
        known.tensors.insert(offset, (len, content));
        known.has_grown = true;
    }

    /// The record of all that is known, if there is more to keep than was recalled. There is none of a file that has changed since it was
    /// opened, or so shortly before that a change since would not show.
    pub fn record(&self, file: &Gguf) -> Option<Vec<u8>> {
        let (state, since) = self.opened.as_ref()?;
        if !self.is_current(file) || !state.is_settled(*since) {
            return None;
        }
        let known = self.known();
        if !known.has_grown {
            return None;
        }
        let count = u32::try_from(known.tensors.len()).ok()?;
        let mut record = self.head(state, count);
        for (offset, (len, content)) in &known.tensors {
            for number in [*offset, *len, content.hash] {
                record.extend(number.to_le_bytes());
            }
            record.extend(content.digest);
        }
        record.extend(blake3::hash(&record).as_bytes());
        (record.len() as u64 <= Contents::MAX_RECORD).then_some(record)
    }

    /// All that was found out is kept now.
    pub fn kept(&self) {
        self.known().has_grown = false;
    }
}

fn decode_tensor(bytes: &[u8]) -> Option<(u64, (u64, Content))> {
    let (offset, rest) = bytes.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let (hash, digest) = rest.split_first_chunk()?;
    let content = Content { hash: u64::from_le_bytes(*hash), digest: digest.try_into().ok()? };
    Some((u64::from_le_bytes(*offset), (u64::from_le_bytes(*len), content)))
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::path::{Path, PathBuf};
    use std::thread::sleep;
    use std::time::Duration;

    use oxcart_gguf::Builder;
    use oxcart_tensor::{DType, Layout};
    use tempfile::TempDir;

    use super::*;

    /// Longer than a file takes to settle.
    const SETTLED: Duration = Duration::from_millis(2_100);

    fn write_file(path: &Path, value: u8) {
        let mut builder = Builder::new();
        for name in ["one", "two"] {
            builder.tensor(name, Layout::packed(DType::F32, [16]).unwrap(), vec![value; 64]);
        }
        builder.write(fs::File::create(path).unwrap()).unwrap();
    }

    fn content(value: u8) -> Content {
        Content { hash: value.into(), digest: [value; 32] }
    }

    fn is_known(contents: &Contents, file: &Gguf) -> Vec<Option<Content>> {
        file.tensors().iter().map(|tensor| contents.find(file, &tensor)).collect()
    }

    /// A file that was written a while ago, in a folder that lasts as long as it is held.
    fn settled() -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        write_file(&path, 7);
        sleep(SETTLED);
        (folder, path)
    }

    fn noted(file: &Gguf) -> Contents {
        let contents = Contents::of(file);
        for (tensor, value) in file.tensors().iter().zip(1..) {
            contents.note(&tensor, content(value));
        }
        contents
    }

    #[test]
    fn a_record_is_taken_over_whole_or_not_at_all() {
        let (_folder, path) = settled();
        let file = Gguf::open(&path).unwrap();
        let contents = noted(&file);
        let record = contents.record(&file).unwrap();
        assert_eq!(record.len(), HEAD + 2 * EACH + END);
        contents.kept();
        assert_eq!(contents.record(&file), None, "there is nothing new to keep");

        let again = Gguf::open(&path).unwrap();
        let recalled = Contents::of(&again);
        assert_eq!(recalled.name(), contents.name());
        assert_eq!(is_known(&recalled, &again), [None, None]);
        assert!(recalled.recall(&record));
        assert_eq!(is_known(&recalled, &again), [Some(content(1)), Some(content(2))]);
        assert_eq!(recalled.record(&again), None, "it is kept already");

        let fresh = Contents::of(&again);
        for at in 0..record.len() {
            let mut damaged = record.clone();
            damaged[at] ^= 1;
            assert!(!fresh.recall(&damaged) && !fresh.recall(&record[..at]), "{at}");
        }
        assert!(!fresh.recall(&[&record[..], &[0]].concat()));
        assert_eq!(is_known(&fresh, &again), [None, None]);
    }

    #[test]
    fn a_file_that_has_changed_is_known_by_nothing() {
        let (_folder, path) = settled();
        let file = Gguf::open(&path).unwrap();
        let contents = noted(&file);
        let record = contents.record(&file).unwrap();
        // In place, with the same length and the old time of writing.
        let before = fs::metadata(&path).unwrap().modified().unwrap();
        let mut writing = fs::File::options().write(true).open(&path).unwrap();
        writing.write_all(b"GGUF").unwrap();
        writing.set_modified(before).unwrap();
        assert_eq!(is_known(&contents, &file), [None, None], "the one that has it open");
        assert_eq!(contents.record(&file), None);
        let changed = Gguf::open(&path).unwrap();
        assert!(!Contents::of(&changed).recall(&record), "the one that opens it now");

        // Replaced: what is open is the file that it was, and its path is another one.
        let other = path.with_file_name("other");
        write_file(&other, 8);
        let old = Gguf::open(&path).unwrap();
        let of_old = noted(&old);
        fs::rename(&other, &path).unwrap();
        let replaced = Gguf::open(&path).unwrap();
        assert_ne!(Contents::of(&replaced).name(), of_old.name());
        assert!(!Contents::of(&replaced).recall(&record));
    }

    #[test]
    fn nothing_is_kept_of_a_file_that_was_just_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        write_file(&path, 7);
        let file = Gguf::open(&path).unwrap();
        let contents = noted(&file);
        assert_eq!(contents.record(&file), None);
        assert_eq!(is_known(&contents, &file), [Some(content(1)), Some(content(2))], "for now it is known");
    }

    #[test]
    fn a_record_of_another_table_is_refused() {
        let (_folder, path) = settled();
        let file = Gguf::open(&path).unwrap();
        let record = noted(&file).record(&file).unwrap();
        let other = Contents { table: [0; 32], ..Contents::of(&file) };
        assert!(!other.recall(&record) && Contents::of(&file).recall(&record));
    }
}
