//! Room for entries: the cache's own limit, and what must stay free on its disk. What was used least recently goes first.
//!
//! Two workers may share a folder, so nothing is remembered about it: each request for room looks at what is there. An entry
//! in the making is a file of its full length under a name of its own, locked while its writer lives; without a lock it
//! was left behind and is removed.
//!
//! Concurrency: threads of this worker make room one at a time. Other workers may do so too; then a little more goes than
//! had to.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::{Mutex, PoisonError};

use super::domain::Domain;
use super::entry::{self, HEADER_BYTES};
use super::folder::{Folder, PlainFile};

#[derive(Debug)]
pub(super) struct Room {
    pub(super) max_bytes: u64,
    pub(super) keep_free_bytes: u64,
    turn: Mutex<()>,
}

/// An entry as a listing shows it.
#[derive(Debug)]
struct Found {
    domain: Domain,
    name: String,
    bytes: u64,
    used: (i64, i64),
}

/// An entry in the making. It is removed when it is dropped, unless it got a name before.
#[derive(Debug)]
pub(super) struct Partial {
    pub(super) folder: Folder,
    pub(super) file: PlainFile,
    name: String,
    named: bool,
}

impl Partial {
    /// Gives it the name of an entry, unless that is taken; says whether it did.
    pub(super) fn publish(&mut self, name: &str) -> io::Result<bool> {
        self.named = self.folder.rename_new(&self.name, name)?;
        Ok(self.named)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.named {
            // If that fails, the next request for room removes it.
            let _ = self.folder.remove(&self.name);
        }
    }
}

fn create(root: &Folder, domain: &Domain) -> io::Result<Partial> {
    let folder = root.make_inner(domain.folder())?;
    let name = format!("{:016x}{PARTIAL}", RandomState::new().hash_one(0_u8));
    let file = folder.create(&name)?;
    Ok(Partial { folder, file, name, named: false })
}

const PARTIAL: &str = ".partial";

fn is_partial(name: &str) -> bool {
    let number = name.strip_suffix(PARTIAL).unwrap_or_default();
    number.len() == 16 && number.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl Room {
    pub(super) fn new(max_bytes: u64, keep_free_bytes: u64) -> Room {
        Room { max_bytes, keep_free_bytes, turn: Mutex::new(()) }
    }

    /// Starts an entry with so much content, once there is room for it. Returns how many others had to go.
    pub(super) fn start(&self, root: &Folder, domain: &Domain, len: u64) -> io::Result<(Partial, u64)> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = len.saturating_add(HEADER_BYTES);
        let evicted = self.free(root, bytes)?;
        let partial = match create(root, domain) {
            // Another worker found the folder empty and removed it in that moment.
            Err(error) if error.kind() == io::ErrorKind::NotFound => create(root, domain)?,
            created => created?,
        };
        if !partial.file.lock()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        partial.file.reserve(bytes)?;
        Ok((partial, evicted))
    }

    /// Cleans up what was left behind, and forgets what is too much.
    pub(super) fn tidy(&self, root: &Folder) -> io::Result<u64> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.free(root, 0)
    }

    /// Removes entries until so many more bytes fit, unless that would be in vain. Returns how many.
    fn free(&self, root: &Folder, bytes: u64) -> io::Result<u64> {
        let (mut entries, partial_bytes) = scan(root)?;
        let mut kept: u64 = entries.iter().map(|entry| entry.bytes).sum();
        let mut free = root.free_bytes()?;
        let others = partial_bytes.saturating_add(bytes);
        let wanted_free = self.keep_free_bytes.saturating_add(bytes);
        let fits = |kept: u64, free: u64| {
            others.saturating_add(kept) <= self.max_bytes && (bytes == 0 || free >= wanted_free)
        };
        if bytes > 0 && !fits(0, free.saturating_add(kept)) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        entries.sort_by(|a, b| (b.used, &b.name).cmp(&(a.used, &a.name)));
        let mut evicted = 0;
        while !fits(kept, free) {
            // Should the last one have gone without making enough room, others are writing at the same time.
            let Some(oldest) = entries.pop() else { return Err(io::ErrorKind::StorageFull.into()) };
            let Some(folder) = root.inner(oldest.domain.folder())? else { continue };
            folder.remove(&oldest.name)?;
            kept = kept.saturating_sub(oldest.bytes);
            free = free.saturating_add(oldest.bytes);
            evicted += 1;
            // It may have been the last one in there; if not, this fails.
            let _ = root.remove(oldest.domain.folder());
        }
        Ok(evicted)
    }
}

/// All entries, and the bytes of those in the making. What is neither is left alone.
fn scan(root: &Folder) -> io::Result<(Vec<Found>, u64)> {
    let (mut entries, mut partial_bytes) = (Vec::new(), 0_u64);
    let mut domains = Vec::new();
    root.each_name(|name| domains.extend(Domain::from_folder(name)))?;
    for domain in domains {
        // It may have gone meanwhile, or be something else.
        let Ok(Some(folder)) = root.inner(domain.folder()) else { continue };
        let (mut names, mut is_empty) = (Vec::new(), true);
        folder.each_name(|name| {
            is_empty &= name == "." || name == "..";
            if entry::hash_in(name).is_some() || is_partial(name) {
                names.push(name.to_owned());
            }
        })?;
        if is_empty {
            let _ = root.remove(domain.folder());
        }
        for name in names {
            let Some(listed) = folder.listed(&name)? else { continue };
            if !is_partial(&name) {
                let domain = domain.clone();
                entries.push(Found { domain, name, bytes: listed.bytes, used: listed.used });
            } else if listed.is_young_and_empty() || !remove_if_orphan(&folder, &name) {
                partial_bytes = partial_bytes.saturating_add(listed.bytes);
            }
        }
    }
    Ok((entries, partial_bytes))
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
