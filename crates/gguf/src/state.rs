//! What tells one state of a file from another without reading it.
//!
//! A file that is written to gets new times from its system. Invariant: two states are equal only if device, number, length and both
//! times are. That is no proof: see [`FileState::is_settled`] for what has to be true besides.

use std::fs::File;
use std::time::{Duration, SystemTime};

/// The state of a file as its system describes it: which file, how long, when it was last written to, and when anything about it
/// last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileState {
    device: u64,
    number: u64,
    len: u64,
    /// Seconds and nanoseconds.
    written: (i64, i64),
    changed: (i64, i64),
}

/// Times of files may be this coarse.
const COARSEST: Duration = Duration::from_secs(2);

impl FileState {
    /// Bytes of [`encode`](FileState::encode).
    pub const BYTES: usize = 56;

    /// That of an open file, now; `None` where the system says too little about it.
    #[cfg(unix)]
    pub fn of(file: &File) -> Option<FileState> {
        use std::os::unix::fs::MetadataExt;
        let found = file.metadata().ok()?;
        Some(FileState {
            device: found.dev(),
            number: found.ino(),
            len: found.len(),
            written: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }

    /// That of an open file, now; `None` where the system says too little about it: here, files have no time that programs cannot set.
    #[cfg(not(unix))]
    pub fn of(_file: &File) -> Option<FileState> {
        None
    }

    /// As bytes, to be compared.
    pub fn encode(&self) -> [u8; FileState::BYTES] {
        let times = [self.written.0, self.written.1, self.changed.0, self.changed.1].map(i64::cast_unsigned);
        let [written, written_ns, changed, changed_ns] = times;
        let numbers = [self.device, self.number, self.len, written, written_ns, changed, changed_ns];
        let mut bytes = [0; FileState::BYTES];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Which file it is: what stays the same while the file is written to.
    pub fn file(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        for (place, number) in bytes.chunks_exact_mut(8).zip([self.device, self.number]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Whether a change from `now` on would show in the state: one that came as soon after an earlier one as the system's clock ticks would
    /// not.
    pub fn is_settled(&self, now: SystemTime) -> bool {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        [self.written, self.changed].into_iter().all(|(seconds, nanoseconds)| {
            let whole = u64::try_from(seconds).ok().map(Duration::from_secs);
            let part = u64::try_from(nanoseconds).ok().map(Duration::from_nanos);
            let time = whole.zip(part).and_then(|(whole, part)| whole.checked_add(part));
            time.and_then(|time| time.checked_add(COARSEST)).is_some_and(|seen| seen < now)
        })
    }
}

#[cfg(test)]
#[cfg(unix)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn writing_replacing_and_touching_change_the_state() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        std::fs::write(&path, b"one").unwrap();
        let mut file = File::options().read(true).write(true).open(&path).unwrap();
        let state = || FileState::of(&File::open(&path).unwrap()).unwrap();
        let first = state();
        assert_eq!((state(), state().encode()), (first, first.encode()));
        // Times tick a few times in a hundredth of a second.
        std::thread::sleep(Duration::from_millis(50));
        file.write_all(b"two").unwrap();
        let second = state();
        assert_ne!(first, second);
        assert_ne!(first.encode(), second.encode());
        assert_eq!(first.file(), second.file());
        // Setting the time of writing back changes the other one.
        let before = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        file.set_modified(before).unwrap();
        let third = state();
        std::thread::sleep(Duration::from_millis(50));
        file.set_modified(before).unwrap();
        assert_eq!(third.written, state().written);
        assert_ne!(third, state());
        std::fs::write(folder.path().join("other"), b"two").unwrap();
        std::fs::rename(folder.path().join("other"), &path).unwrap();
        assert_ne!(first.file(), state().file());
        // What is open is still what it was.
        assert_eq!(FileState::of(&file).unwrap().file(), first.file());
    }

    #[test]
    fn a_file_is_settled_a_moment_after_its_last_change() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let state = |written, changed| FileState {
            device: 1,
            number: 2,
            len: 3,
            written: (written, 5),
            changed: (changed, 999_999_999),
        };
        assert!(state(90, 90).is_settled(at(100)));
        assert!(state(90, 96).is_settled(at(100)));
        for (written, changed) in [(90, 98), (99, 90), (101, 90), (90, i64::MAX), (-1, 90)] {
            assert!(!state(written, changed).is_settled(at(100)), "{written} {changed}");
        }
    }
}
