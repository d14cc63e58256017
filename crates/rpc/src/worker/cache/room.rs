//! Room for entries: the cache's own limit, and what must stay free on its disk. What was used least recently goes first.
//!
//! What is in the folders is remembered (`index`), so that an upload does not have to read them all. Workers may share a folder, so it
//! is read again: for each request while it is small, and as soon as a hundredth of the time may go into that when it is large.
//! Until then a little more may be kept than should be. An entry is looked at before it goes: one that was used meanwhile stays.
//!
//! An entry in the making is a file under a name of its own, as long as what room was made for, locked while its writer lives;
//! without a lock it was left behind and is removed. Room is made as content arrives, never for what is only announced.
//!
//! Invariant: a share takes room from another only while it has less than that one, and so does a domain of a share from
//! another of the same.
//!
//! Concurrency: threads of this worker make room one at a time. Other workers may do so too; then a little more goes than
//! had to.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::domain::Domain;
use super::entry::{self, HEADER_BYTES};
use super::folder::{Folder, PlainFile};
use super::index::{Index, OfDomain};
use super::store::COLLISION;
use crate::worker::limits::{KEPT_DOMAINS, KEPT_ENTRIES, NAMES_READ_ALWAYS, READING_PART};

#[derive(Debug)]
pub(super) struct Room {
    pub(super) max_bytes: u64,
    pub(super) keep_free_bytes: u64,
    known: Mutex<Known>,
}

/// What is remembered of the folders.
#[derive(Debug, Default)]
struct Known {
    index: Index,
    reading: Option<Reading>,
}

/// When the folders were read last, and how long that took.
#[derive(Clone, Copy, Debug)]
struct Reading {
    end: Instant,
    took: Duration,
}

impl Known {
    /// Reads the folders again if it is time to.
    fn refresh(&mut self, root: &Folder) -> io::Result<()> {
        let is_recent = self.reading.is_some_and(|last| {
            self.index.sums().names() > NAMES_READ_ALWAYS
                && last.end.elapsed() < last.took.saturating_mul(READING_PART)
        });
        if !is_recent {
            let start = Instant::now();
            // If it fails, it is done again next time.
            self.reading = None;
            self.index = read(root)?;
            self.reading = Some(Reading { end: Instant::now(), took: start.elapsed() });
        }
        Ok(())
    }
}

/// An entry in the making. It is removed when it is dropped, unless it got a name before.
#[derive(Debug)]
pub(super) struct Partial {
    pub(super) folder: Folder,
    pub(super) file: PlainFile,
    room: Arc<Room>,
    domain: Domain,
    name: String,
    named: bool,
}

impl Partial {
    /// Gives it the name of the entry of a hash, unless that is taken; says whether it did.
    pub(super) fn publish(&mut self, hash: u64) -> io::Result<bool> {
        let mut known = self.room.known();
        self.named = self.folder.rename_new(&self.name, &entry::name(hash))?;
        if self.named {
            let listed = self.folder.listed(&entry::name(hash)).ok().flatten();
            known.index.change(&self.domain, |of_domain| {
                of_domain.forget_partial(&self.name);
                // Otherwise it is found when the folder is read again.
                listed.into_iter().for_each(|listed| of_domain.put(hash, listed));
            });
        }
        Ok(self.named)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.named {
            let mut known = self.room.known();
            // If that fails, it is removed when the folder is read again.
            let _ = self.folder.remove(&self.name);
            known.index.change(&self.domain, |of_domain| of_domain.forget_partial(&self.name));
        }
    }
}

/// A file of a new name in the folder of a domain.
fn create(root: &Folder, domain: &Domain) -> io::Result<(Folder, PlainFile, String)> {
    let folder = root.make_inner(domain.folder())?;
    let name = format!("{:016x}{PARTIAL}", RandomState::new().hash_one(0_u8));
    let file = folder.create(&name)?;
    Ok((folder, file, name))
}

const PARTIAL: &str = ".partial";

fn is_partial(name: &str) -> bool {
    let number = name.strip_suffix(PARTIAL).unwrap_or_default();
    number.len() == 16 && number.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl Room {
    pub(super) fn new(max_bytes: u64, keep_free_bytes: u64) -> Arc<Room> {
        Arc::new(Room { max_bytes, keep_free_bytes, known: Mutex::default() })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts an entry. Returns how many others had to go.
    pub(super) fn start(self: &Arc<Self>, root: &Folder, domain: &Domain) -> io::Result<(Partial, u64)> {
        let mut known = self.known();
        let mut evicted = 0;
        if !known.index.knows(domain) && known.index.sums().domains >= KEPT_DOMAINS {
            let (idle, hashes) =
                known.index.idle_domain(&domain.share()).ok_or(io::ErrorKind::StorageFull)?;
            for hash in hashes {
                evicted += u64::from(remove(&mut known.index, root, &idle, hash)?);
            }
            // Something was used meanwhile, and stays.
            if known.index.sums().domains >= KEPT_DOMAINS {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        let (folder, file, name) = match create(root, domain) {
            // Another worker found the folder empty and removed it in that moment.
            Err(error) if error.kind() == io::ErrorKind::NotFound => create(root, domain)?,
            created => created?,
        };
        known.index.change(domain, |of_domain| of_domain.put_partial(&name, 0));
        drop(known);
        let room = Arc::clone(self);
        let partial = Partial { folder, file, room, domain: domain.clone(), name, named: false };
        if !partial.file.lock()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // From now on it is not empty: one that is may be about to be locked, and stays.
        partial.file.reserve(HEADER_BYTES)?;
        Ok((partial, evicted))
    }

    /// Makes an entry that is being written longer, from some bytes to others, once there is room for it. Returns how many
    /// entries had to go.
    pub(super) fn lengthen(
        &self,
        root: &Folder,
        partial: &Partial,
        (from, to): (u64, u64),
    ) -> io::Result<u64> {
        let mut known = self.known();
        let evicted = self.free(&mut known, root, Some(&partial.domain), to.saturating_sub(from))?;
        partial.file.reserve(to)?;
        known.index.change(&partial.domain, |of_domain| of_domain.put_partial(&partial.name, to));
        Ok(evicted)
    }

    /// Cleans up what was left behind, and forgets what is too much.
    pub(super) fn tidy(&self, root: &Folder) -> io::Result<u64> {
        self.free(&mut self.known(), root, None, 0)
    }

    /// An entry is no more. Nothing waits for this: a thread that is about to remove it looks first.
    pub(super) fn forget(&self, domain: &Domain, hash: u64) {
        if let Ok(mut known) = self.known.try_lock() {
            known.index.change(domain, |of_domain| of_domain.forget(hash));
        }
    }

    /// Notes one more hash of a domain that stands for two contents, and returns how many there were.
    pub(super) fn note(&self, domain: &Domain) -> usize {
        let mut known = self.known();
        let notes = known.index.notes(domain);
        known.index.change(domain, OfDomain::put_note);
        notes
    }

    /// Removes entries until so many more bytes fit for a domain, unless that would be in vain. Returns how many.
    fn free(&self, known: &mut Known, root: &Folder, domain: Option<&Domain>, bytes: u64) -> io::Result<u64> {
        known.refresh(root)?;
        let index = &mut known.index;
        let mut free = root.free_bytes()?;
        let others = index.sums().in_the_making.saturating_add(bytes);
        let wanted_free = self.keep_free_bytes.saturating_add(bytes);
        let fits = |kept: u64, free: u64| {
            others.saturating_add(kept) <= self.max_bytes && (bytes == 0 || free >= wanted_free)
        };
        if bytes > 0 && !fits(0, free.saturating_add(index.sums().kept)) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut evicted = 0;
        while !fits(index.sums().kept, free) || index.sums().entries > KEPT_ENTRIES {
            // Should the last one have gone without making enough room, others are writing at the same time.
            let (of, hash) = index.victim(domain, bytes).ok_or(io::ErrorKind::StorageFull)?;
            let bytes = index.entry(&of, hash).map_or(0, |listed| listed.bytes);
            if remove(index, root, &of, hash)? {
                free = free.saturating_add(bytes);
                evicted += 1;
            }
        }
        Ok(evicted)
    }
}

/// Removes an entry if it is as remembered, and says whether it did; otherwise what is there is remembered.
fn remove(index: &mut Index, root: &Folder, of: &Domain, hash: u64) -> io::Result<bool> {
    let Some(folder) = root.inner(of.folder())? else {
        index.change(of, |of_domain| *of_domain = OfDomain::default());
        return Ok(false);
    };
    let listed = folder.listed(&entry::name(hash))?;
    if listed != index.entry(of, hash) {
        index.change(of, |of_domain| match listed {
            Some(listed) => of_domain.put(hash, listed),
            None => of_domain.forget(hash),
        });
        return Ok(false);
    }
    match folder.remove(&entry::name(hash)) {
        // Another worker was faster.
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    index.change(of, |of_domain| of_domain.forget(hash));
    if !index.knows(of) {
        // Notes of others may still be in there; then this fails.
        let _ = root.remove(of.folder());
    }
    Ok(true)
}

/// Reads the folders of all domains. What is none of our files is left alone.
fn read(root: &Folder) -> io::Result<Index> {
    let mut index = Index::default();
    let mut domains = Vec::new();
    root.each_name(|name| domains.extend(Domain::from_folder(name)))?;
    for domain in domains {
        // It may have gone meanwhile, or be something else.
        let Ok(Some(folder)) = root.inner(domain.folder()) else { continue };
        let (mut names, mut notes, mut is_empty) = (Vec::new(), 0, true);
        folder.each_name(|name| {
            is_empty &= name == "." || name == "..";
            notes += usize::from(name.ends_with(COLLISION));
            if entry::hash_in(name).is_some() || is_partial(name) {
                names.push(name.to_owned());
            }
        })?;
        if is_empty {
            let _ = root.remove(domain.folder());
        }
        let mut of_domain = OfDomain::default();
        (0..notes).for_each(|_| of_domain.put_note());
        for name in names {
            let Some(listed) = folder.listed(&name)? else { continue };
            if let Some(hash) = entry::hash_in(&name) {
                of_domain.put(hash, listed);
            } else if listed.is_young_and_empty() || !remove_if_orphan(&folder, &name) {
                of_domain.put_partial(&name, listed.bytes);
            }
        }
        index.change(&domain, |there| *there = of_domain);
    }
    Ok(index)
}

/// Removes an entry in the making whose writer is no more.
fn remove_if_orphan(folder: &Folder, name: &str) -> bool {
    let is_orphan = folder.read(name).ok().flatten().is_some_and(|file| file.lock().unwrap_or(false));
    is_orphan && folder.remove(name).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_names_are_entries_in_the_making() {
        assert!(is_partial("0123456789abcdef.partial"));
        for name in [".partial", "0123.partial", "0123456789abcdeg.partial", "0123456789abcdef.weights", ""] {
            assert!(!is_partial(name), "{name}");
        }
    }
}
