//! Whom this machine knows now: what the list says, read by a thread of its own.
//!
//! Invariants: only that thread waits for the file, whatever the file system does; [`Book::refresh`] waits for the thread, for a
//! moment at most. What cannot be read changes nothing: machines that were known stay so, and no others become so. Where the system keeps
//! the list from being read for a while, or does not answer at all, it is read as soon as that is over, and until then no new machine
//! comes in: a machine that is revoked stays revoked.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use super::limits::{LOOK_EVERY, LOOK_PATIENCE};
use super::machines::{Machines, MachinesError, MachinesFile, Stamp};
use crate::os::socket::{SpareDescriptor, is_exhausted};

/// Who is known, as the file says now.
#[derive(Debug)]
pub struct Book {
    file: MachinesFile,
    shared: Arc<SharedBook>,
}

/// What the reading thread and all others share.
#[derive(Debug)]
struct SharedBook {
    known: Mutex<Known>,
    /// A look is wanted, or none any more.
    wanted: Condvar,
    /// A look has ended.
    looked: Condvar,
}

/// What was found last.
#[derive(Debug)]
struct Known {
    machines: Arc<Machines>,
    /// Whether the file says something that the system does not let be read.
    is_unread: bool,
    /// What was wrong since, if something was.
    error: Option<MachinesError>,
    /// Looks that have begun, that have ended, and that are wanted.
    begun: u64,
    ended: u64,
    wanted: u64,
    /// When the look under way has begun.
    since: Option<Instant>,
    is_over: bool,
}

impl Known {
    /// Whether the file system does not answer.
    fn is_stuck(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() > LOOK_PATIENCE)
    }
}

impl SharedBook {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    /// Reads a file, which then may change.
    pub fn open(file: MachinesFile) -> Result<Book, MachinesError> {
        // The stamp first: what is changed in between is read again.
        let stamp = file.stamp();
        let known = Known {
            machines: Arc::new(file.read()?),
            is_unread: false,
            error: None,
            begun: 0,
            ended: 0,
            wanted: 0,
            since: None,
            is_over: false,
        };
        let shared =
            Arc::new(SharedBook { known: Mutex::new(known), wanted: Condvar::new(), looked: Condvar::new() });
        let reader = Reader { file: file.clone(), stamp, unread: None, spare: SpareDescriptor::new() };
        let for_thread = Arc::clone(&shared);
        // No thread waits for its end, which may never come.
        thread::Builder::new()
            .name("machines".into())
            .spawn(move || reader.run(&for_thread))
            .map_err(|error| MachinesError::File { path: file.path().to_owned(), error })?;
        Ok(Book { file, shared })
    }

    /// The file.
    pub fn file(&self) -> &MachinesFile {
        &self.file
    }

    /// Has the file looked at, and waits for that, for a moment at most. Changes made before are known then, unless it is not read.
    pub fn refresh(&self) {
        let mut known = self.shared.known();
        let this = known.begun + 1;
        known.wanted = known.wanted.max(this);
        self.shared.wanted.notify_one();
        let until = Instant::now() + LOOK_PATIENCE;
        while known.ended < this && !known.is_stuck() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.shared.looked.wait_timeout(known, left);
            known = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Who is known, as far as that could be read.
    pub fn look(&self) -> Arc<Machines> {
        Arc::clone(&self.shared.known().machines)
    }

    /// Who is known; `None` as long as the file has changed and cannot be read, or the file system does not answer.
    pub fn look_now(&self) -> Option<Arc<Machines>> {
        let known = self.shared.known();
        (!known.is_unread && !known.is_stuck()).then(|| Arc::clone(&known.machines))
    }

    /// Why the file could not be read when it changed, if it could not; said once.
    pub fn take_error(&self) -> Option<MachinesError> {
        self.shared.known().error.take()
    }
}

impl Drop for Book {
    fn drop(&mut self) {
        self.shared.known().is_over = true;
        self.shared.wanted.notify_one();
    }
}

/// What a look at the file finds.
enum News {
    /// Nothing new.
    Nothing,
    /// Other machines.
    Machines(Machines),
    /// Something that the system does not let be read now; the reason the first time.
    Unread(Option<MachinesError>),
    /// Something that is wrong, until it changes.
    Wrong(MachinesError),
}

/// What looks at the file.
struct Reader {
    file: MachinesFile,
    /// Of the file that was read.
    stamp: Stamp,
    /// Of a file that the system does not let be read.
    unread: Option<Stamp>,
    /// To read with when there are no descriptors.
    spare: SpareDescriptor,
}

impl Reader {
    /// Looks again and again until the book is dropped.
    fn run(mut self, shared: &SharedBook) {
        let mut known = shared.known();
        while !known.is_over {
            (known.begun, known.since) = (known.begun + 1, Some(Instant::now()));
            drop(known);
            let news = self.look();
            known = shared.known();
            (known.ended, known.since) = (known.begun, None);
            known.is_unread = matches!(news, News::Unread(_));
            match news {
                News::Nothing | News::Unread(None) => {}
                News::Machines(machines) => known.machines = Arc::new(machines),
                News::Unread(Some(error)) | News::Wrong(error) => known.error = Some(error),
            }
            shared.looked.notify_all();
            let is_idle = |known: &mut Known| known.wanted <= known.begun && !known.is_over;
            let waited = shared.wanted.wait_timeout_while(known, LOOK_EVERY, is_idle);
            known = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn look(&mut self) -> News {
        let stamp = self.file.stamp();
        if stamp == self.stamp {
            self.unread = None;
            return News::Nothing;
        }
        let read = match self.file.read() {
            Err(MachinesError::File { error, .. }) if is_exhausted(&error) => {
                self.spare.lend(|| self.file.read())
            }
            read => read,
        };
        match read {
            Ok(machines) => {
                (self.stamp, self.unread) = (stamp, None);
                News::Machines(machines)
            }
            // The reason may pass, so it is read again the next time; it is said once.
            Err(error @ MachinesError::File { .. }) => {
                let is_new = self.unread.replace(stamp) != Some(stamp);
                News::Unread(is_new.then_some(error))
            }
            Err(error) => {
                (self.stamp, self.unread) = (stamp, None);
                News::Wrong(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    #[cfg(unix)]
    use std::time::Duration;

    use super::super::key::Key;
    use super::super::name::MachineName;
    use super::*;

    fn key(number: u8) -> Key {
        Key::from_bytes([number; 32])
    }

    fn name(text: &str) -> MachineName {
        text.parse().unwrap()
    }

    impl Book {
        fn looked(&self) -> Arc<Machines> {
            self.refresh();
            self.look()
        }

        #[cfg(unix)]
        fn looked_now(&self) -> Option<Arc<Machines>> {
            self.refresh();
            self.look_now()
        }
    }

    /// A file that someone breaks while a worker runs lets no machine in, and shuts none out either.
    #[test]
    fn what_cannot_be_read_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = MachinesFile::new(folder.path());
        file.change(|machines| machines.remember(name("den"), key(1)).map(|_| ())).unwrap();
        let book = Book::open(file.clone()).unwrap();
        let whole = fs::read_to_string(file.path()).unwrap();
        let twice = format!("{whole}\n{}", whole.replace("den", "attic"));
        for broken in [
            "x",
            // For a moment, in the middle of being written.
            "",
            "\n",
            // A slip that would have a machine overlooked.
            &whole.replace("[[machine]]", "[[machines]]"),
            &format!("{whole}\n[[revoked]]\nname = \"attic\""),
            "machine = 100",
            "[[machine]]",
            "[[machine]]\nname = \"den\"\nkey = \"x\"",
            &twice,
            &whole.replace("may_use_this_machine", "may_use"),
            &whole.replace("false", "7"),
            &whole.replace("den", "all"),
        ] {
            fs::write(file.path(), broken).unwrap();
            assert!(book.looked().by_key(key(1)).is_some() && book.take_error().is_some(), "{broken}");
            book.looked();
            assert!(
                book.take_error().is_none()
                    && Book::open(file.clone()).is_err()
                    && file.change(|_| Ok(())).is_err()
            );
        }
        fs::remove_file(file.path()).unwrap();
        assert!(book.looked().by_key(key(1)).is_none());
    }

    /// A file that the system does not let be read for a while is read when it does; until then no new machine comes in.
    #[cfg(unix)]
    #[test]
    fn a_list_is_read_again_when_it_could_not_be() {
        let folder = tempfile::tempdir().unwrap();
        let file = MachinesFile::new(folder.path());
        file.change(|machines| machines.remember(name("den"), key(1)).map(|_| ())).unwrap();
        let book = Book::open(file.clone()).unwrap();
        assert!(book.looked_now().is_some());
        // A link to itself has a stamp of its own kind, and cannot be opened.
        let aside = folder.path().join("aside");
        fs::rename(file.path(), &aside).unwrap();
        std::os::unix::fs::symlink(file.path(), file.path()).unwrap();
        for is_first in [true, false] {
            assert!(book.looked().by_key(key(1)).is_some() && book.looked_now().is_none());
            assert_eq!(book.take_error().is_some(), is_first, "it is said once");
        }
        fs::remove_file(file.path()).unwrap();
        fs::rename(&aside, file.path()).unwrap();
        assert!(book.looked_now().unwrap().by_key(key(1)).is_some());
        file.change(|machines| Ok(machines.forget(key(1)))).unwrap();
        assert!(book.looked_now().unwrap().by_key(key(1)).is_none());
    }

    /// A file system that does not answer holds up no machine, and lets no new one in until it does.
    #[cfg(unix)]
    #[test]
    fn a_list_that_is_never_read_holds_up_no_machine() {
        let folder = tempfile::tempdir().unwrap();
        let file = MachinesFile::new(folder.path());
        file.change(|machines| machines.remember(name("den"), key(1)).map(|_| ())).unwrap();
        let book = Book::open(file.clone()).unwrap();
        // Opening a pipe waits for a program that writes into it.
        let (aside, pipe) = (folder.path().join("aside"), folder.path().join("pipe"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        fs::rename(file.path(), &aside).unwrap();
        fs::rename(&pipe, file.path()).unwrap();
        let start = Instant::now();
        for _ in 0..1000 {
            book.refresh();
            assert!(book.look().by_key(key(1)).is_some());
        }
        assert!(book.look_now().is_none());
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
        // Now it answers.
        drop(fs::OpenOptions::new().write(true).open(file.path()).unwrap());
        fs::rename(&aside, file.path()).unwrap();
        while book.looked_now().is_none() {
            assert!(start.elapsed() < Duration::from_secs(60), "it is not read any more");
        }
    }
}
