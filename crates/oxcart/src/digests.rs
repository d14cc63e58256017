//! Where it is kept what the tensors of model files are known by: one record for each file, computed once.
//!
//! Records name bytes that are then taken from elsewhere unread, so a user who can change one decides what is loaded. Invariant: a record is
//! used only if no other user can have changed it, it is whole, and it says the state that its file is in. Anything else counts as none, and
//! is written anew.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use oxcart_gguf::Gguf;
use oxcart_llm::model::{Contents, ModelFile};

use crate::{folders, os};

/// Records that are kept; beyond, those that were not used for longest go.
pub const MAX_RECORDS: usize = 512;
/// Bytes of all of them.
pub const MAX_BYTES: u64 = 64 << 20;
/// What is unfinished for so long will never be finished.
const ABANDONED: Duration = Duration::from_secs(3600);

const RECORD: &str = "digests";
const UNFINISHED: &str = "partial";

const _: () = assert!(Contents::MAX_RECORD <= MAX_BYTES);

/// A folder of records.
#[derive(Clone, Debug)]
pub struct Digests {
    folder: PathBuf,
}

/// What is known about a record that is there.
struct Kept {
    used: SystemTime,
    bytes: u64,
    path: PathBuf,
}

impl Digests {
    /// Those in a folder, which is made when there is something to keep.
    pub fn at(folder: impl Into<PathBuf>) -> Digests {
        Digests { folder: folder.into() }
    }

    /// Those of this user; `None` without a home.
    pub fn of_user() -> Option<Digests> {
        folders::digests().map(Digests::at)
    }

    /// Finds what is known about a model's files.
    pub fn recall(&self, model: &ModelFile) {
        model.contents().iter().for_each(|contents| {
            self.recall_one(contents);
        });
    }

    /// Keeps what has become known about a model's files.
    pub fn keep(&self, model: &ModelFile) -> io::Result<()> {
        let files = model.files().files().iter().zip(model.contents());
        files.map(|(file, contents)| self.keep_one(file, contents)).fold(Ok(()), Result::and)
    }

    /// Finds what is known about one file; says whether that was anything.
    pub(crate) fn recall_one(&self, contents: &Contents) -> bool {
        let record = contents.name().and_then(|name| self.read(&self.folder.join(name)));
        record.is_some_and(|record| contents.recall(&record))
    }

    fn read(&self, path: &Path) -> Option<Vec<u8>> {
        let is_ours = fs::metadata(&self.folder).is_ok_and(|folder| os::is_private(&folder));
        if !is_ours || !fs::symlink_metadata(path).ok()?.is_file() {
            return None;
        }
        let file = File::open(path).ok()?;
        let found = file.metadata().ok()?;
        if !os::is_private(&found) || found.len() > Contents::MAX_RECORD {
            return None;
        }
        // One that cannot be marked only goes sooner.
        let _ = file.set_modified(SystemTime::now());
        let mut record = Vec::new();
        file.take(Contents::MAX_RECORD).read_to_end(&mut record).ok()?;
        Some(record)
    }

    /// Keeps what has become known about one file.
    pub(crate) fn keep_one(&self, file: &Gguf, contents: &Contents) -> io::Result<()> {
        let (Some(name), Some(_)) = (contents.name(), contents.record(file)) else { return Ok(()) };
        // Another process may have found out more.
        self.recall_one(contents);
        let Some(record) = contents.record(file) else { return Ok(()) };
        os::make_private_folder(&self.folder)?;
        if !os::is_private(&fs::metadata(&self.folder)?) {
            let why = format!("{} belongs to another user, or others may write to it", self.folder.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        self.make_room(record.len() as u64)?;
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let unfinished = self.folder.join(format!("{}-{number}.{UNFINISHED}", std::process::id()));
        // Not synced: what a power cut leaves of it is no record, and written anew.
        let written = os::make_private_file(&unfinished)
            .and_then(|mut out| out.write_all(&record))
            .and_then(|()| fs::rename(&unfinished, self.folder.join(name)));
        match written {
            Ok(()) => contents.kept(),
            // It counts as abandoned if it cannot be removed.
            Err(_) => drop(fs::remove_file(&unfinished)),
        }
        written
    }

    /// Removes what has not been used for longest until there is room for one more record, and what was never finished.
    fn make_room(&self, bytes: u64) -> io::Result<()> {
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let Ok(found) = fs::symlink_metadata(&path) else { continue };
            let used = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            match path.extension().and_then(|extension| extension.to_str()) {
                Some(RECORD) => kept.push(Kept { used, bytes: found.len(), path }),
                Some(UNFINISHED) if used.elapsed().is_ok_and(|age| age > ABANDONED) => {
                    fs::remove_file(&path)?;
                }
                _ => {}
            }
        }
        kept.sort_by_key(|record| record.used);
        let mut sum = kept.iter().fold(bytes, |sum, record| sum.saturating_add(record.bytes));
        let mut count = kept.len() + 1;
        for record in kept {
            if count <= MAX_RECORDS && sum <= MAX_BYTES {
                break;
            }
            fs::remove_file(&record.path)?;
            sum = sum.saturating_sub(record.bytes);
            count -= 1;
        }
        Ok(())
    }
}

// Elsewhere nothing is kept, because nothing tells one state of a file from another.
#[cfg(test)]
#[cfg(unix)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::thread::sleep;

    use oxcart_backend::Content;
    use oxcart_gguf::Builder;
    use oxcart_tensor::{DType, Layout};

    use super::*;

    /// A file of one tensor, that has settled.
    fn model(folder: &Path) -> PathBuf {
        let path = folder.join("model.gguf");
        let mut builder = Builder::new();
        builder.tensor("one", Layout::packed(DType::F32, [16]).unwrap(), vec![7; 64]);
        builder.write(File::create(&path).unwrap()).unwrap();
        sleep(Duration::from_millis(2_100));
        path
    }

    fn open(path: &Path) -> (Gguf, Contents) {
        let file = Gguf::open(path).unwrap();
        let contents = Contents::of(&file);
        (file, contents)
    }

    const CONTENT: Content = Content { hash: 1, digest: [2; 32] };

    fn note(file: &Gguf, contents: &Contents) {
        contents.note(&file.tensor("one").unwrap(), CONTENT);
    }

    #[test]
    fn digests_are_kept_privately_and_recalled() {
        let folder = tempfile::tempdir().unwrap();
        let path = model(folder.path());
        let digests = Digests::at(folder.path().join("a/digests"));
        let (file, contents) = open(&path);
        assert!(!digests.recall_one(&contents));
        digests.keep_one(&file, &contents).unwrap();
        assert!(!digests.folder.exists(), "there is nothing to keep");
        note(&file, &contents);
        digests.keep_one(&file, &contents).unwrap();
        let record = digests.folder.join(contents.name().unwrap());
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&digests.folder), mode(&record)), (0o700, 0o600));
        assert_eq!(fs::read_dir(&digests.folder).unwrap().count(), 1, "nothing unfinished is left");

        let (again, recalled) = open(&path);
        assert!(digests.recall_one(&recalled));
        assert_eq!(recalled.find(&again, &again.tensor("one").unwrap()), Some(CONTENT));
    }

    #[test]
    fn records_that_others_may_have_changed_are_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = model(folder.path());
        let digests = Digests::at(folder.path().join("digests"));
        let (file, contents) = open(&path);
        note(&file, &contents);
        digests.keep_one(&file, &contents).unwrap();
        let record = digests.folder.join(contents.name().unwrap());
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let is_used = || digests.recall_one(&open(&path).1);
        assert!(is_used());
        for mode in [0o620, 0o602] {
            set(&record, mode);
            assert!(!is_used(), "{mode:o}");
        }
        set(&record, 0o600);
        set(&digests.folder, 0o770);
        assert!(!is_used());
        note(&file, &contents);
        digests.keep_one(&file, &contents).unwrap_err();
        set(&digests.folder, 0o700);
        assert!(is_used());
        // A link to a record is none.
        let moved = folder.path().join("moved");
        fs::rename(&record, &moved).unwrap();
        std::os::unix::fs::symlink(&moved, &record).unwrap();
        assert!(!is_used());
        // What is damaged is written anew.
        fs::remove_file(&record).unwrap();
        fs::write(&record, [&fs::read(&moved).unwrap()[..], b"x"].concat()).unwrap();
        set(&record, 0o600);
        assert!(!is_used());
        let (file, contents) = open(&path);
        note(&file, &contents);
        digests.keep_one(&file, &contents).unwrap();
        assert!(is_used());
    }

    #[test]
    fn what_was_not_used_for_longest_makes_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = model(folder.path());
        let digests = Digests::at(folder.path().join("digests"));
        os::make_private_folder(&digests.folder).unwrap();
        let at = |hours: u64| SystemTime::now() - Duration::from_secs(hours * 3600);
        let make = |name: &str, bytes: u64, hours| {
            let file = File::create(digests.folder.join(name)).unwrap();
            file.set_len(bytes).unwrap();
            file.set_modified(at(hours)).unwrap();
        };
        (0..MAX_RECORDS as u64).for_each(|n| make(&format!("{n}.digests"), 1, 10 + n));
        make("1-1.partial", 1, 2);
        make("1-2.partial", 1, 0);
        make("other", 1, 1000);
        let (file, contents) = open(&path);
        note(&file, &contents);
        digests.keep_one(&file, &contents).unwrap();
        let has = |name: &str| digests.folder.join(name).exists();
        let oldest = MAX_RECORDS - 1;
        assert!(!has(&format!("{oldest}.digests")) && has(&format!("{}.digests", oldest - 1)));
        assert!(!has("1-1.partial") && has("1-2.partial") && has("other"));
        assert!(has(&contents.name().unwrap()));
        // The same by bytes.
        make("0.digests", MAX_BYTES, 5);
        make("1.digests", 1, 4);
        note(&file, &contents);
        digests.keep_one(&file, &contents).unwrap();
        assert!(!has("0.digests") && has("1.digests") && has(&contents.name().unwrap()));
    }
}
