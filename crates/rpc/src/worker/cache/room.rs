//! Room for entries: the cache's own limit, and what must stay free on its disk. What was used least recently goes first.
//!
//! Two workers may share a folder, so nothing is remembered about it: each request for room looks at what is there. An entry
//! in the making is a file under a name of its own, as long as what room was made for, locked while its writer lives; without
//! a lock it was left behind and is removed. Room is made as content arrives, never for what is only announced.
//!
//! Invariant: a share takes room from another only while it has less than that one, and so does a domain of a share from
//! another of the same.
//!
//! Concurrency: threads of this worker make room one at a time. Other workers may do so too; then a little more goes than
//! had to.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::io;
use std::sync::{Mutex, PoisonError};

use super::domain::Domain;
use super::entry::{self, HEADER_BYTES};
use super::folder::{Folder, PlainFile};
use super::share::Share;

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

    /// Starts an entry.
    pub(super) fn start(&self, root: &Folder, domain: &Domain) -> io::Result<Partial> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let partial = match create(root, domain) {
            // Another worker found the folder empty and removed it in that moment.
            Err(error) if error.kind() == io::ErrorKind::NotFound => create(root, domain)?,
            created => created?,
        };
        if !partial.file.lock()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // From now on it is not empty: one that is may be about to be locked, and stays.
        partial.file.reserve(HEADER_BYTES)?;
        Ok(partial)
    }

    /// Makes an entry that is being written longer, from some bytes to others, once there is room for it. Returns how many
    /// entries had to go.
    pub(super) fn lengthen(
        &self,
        root: &Folder,
        domain: &Domain,
        partial: &Partial,
        (from, to): (u64, u64),
    ) -> io::Result<u64> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let evicted = self.free(root, Some(domain), to.saturating_sub(from))?;
        partial.file.reserve(to)?;
        Ok(evicted)
    }

    /// Cleans up what was left behind, and forgets what is too much.
    pub(super) fn tidy(&self, root: &Folder) -> io::Result<u64> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.free(root, None, 0)
    }

    /// Removes entries until so many more bytes fit for a domain, unless that would be in vain. Returns how many.
    fn free(&self, root: &Folder, domain: Option<&Domain>, bytes: u64) -> io::Result<u64> {
        let (mut entries, partials) = scan(root)?;
        let mut kept: u64 = entries.iter().map(|entry| entry.bytes).sum();
        let mut free = root.free_bytes()?;
        let others = partials.values().sum::<u64>().saturating_add(bytes);
        let wanted_free = self.keep_free_bytes.saturating_add(bytes);
        let fits = |kept: u64, free: u64| {
            others.saturating_add(kept) <= self.max_bytes && (bytes == 0 || free >= wanted_free)
        };
        if bytes > 0 && !fits(0, free.saturating_add(kept)) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut used = partials;
        for entry in &entries {
            *used.entry(entry.domain.clone()).or_default() += entry.bytes;
        }
        entries.sort_by(|a, b| (b.used, &b.name).cmp(&(a.used, &a.name)));
        let mut evicted = 0;
        while !fits(kept, free) {
            // Should the last one have gone without making enough room, others are writing at the same time.
            let victim = victim(&entries, &used, domain, bytes).ok_or(io::ErrorKind::StorageFull)?;
            let oldest = entries.remove(victim);
            let Some(folder) = root.inner(oldest.domain.folder())? else { continue };
            folder.remove(&oldest.name)?;
            kept = kept.saturating_sub(oldest.bytes);
            free = free.saturating_add(oldest.bytes);
            if let Some(used) = used.get_mut(&oldest.domain) {
                *used = used.saturating_sub(oldest.bytes);
            }
            evicted += 1;
            // It may have been the last one in there; if not, this fails.
            let _ = root.remove(oldest.domain.folder());
        }
        Ok(evicted)
    }
}

/// Which of the entries, the least recently used last, makes way for more bytes of a domain: the oldest of the domain that has
/// most in the share that has most, or of its own share or domain if that would have more.
fn victim(
    entries: &[Found],
    used: &HashMap<Domain, u64>,
    domain: Option<&Domain>,
    bytes: u64,
) -> Option<usize> {
    let mut shares = HashMap::<Share, u64>::new();
    for (domain, used) in used {
        *shares.entry(domain.share()).or_default() += used;
    }
    let own = domain.map(Domain::share);
    let of_share =
        who_has_most(entries.iter().map(|entry| entry.domain.share()), &shares, own.as_ref(), bytes)?;
    let domains = entries.iter().map(|entry| &entry.domain).filter(|domain| domain.share() == of_share);
    let own = domain.filter(|_| own.as_ref() == Some(&of_share));
    let of = who_has_most(domains.cloned(), used, own, bytes)?;
    entries.iter().rposition(|entry| entry.domain == of)
}

/// Who has most, or one's own if that would have more.
fn who_has_most<T: Clone + Ord + Hash>(
    all: impl Iterator<Item = T>,
    used: &HashMap<T, u64>,
    own: Option<&T>,
    bytes: u64,
) -> Option<T> {
    let used_by = |one: &T| used.get(one).copied().unwrap_or_default();
    let most = all.max_by_key(|one| (used_by(one), one.clone()))?;
    let own = own.filter(|own| **own != most && used_by(own).saturating_add(bytes) > used_by(&most));
    Some(own.cloned().unwrap_or(most))
}

/// All entries, and the bytes of those in the making, by domain. What is neither is left alone.
fn scan(root: &Folder) -> io::Result<(Vec<Found>, HashMap<Domain, u64>)> {
    let (mut entries, mut partials) = (Vec::new(), HashMap::<Domain, u64>::new());
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
                *partials.entry(domain.clone()).or_default() += listed.bytes;
            }
        }
    }
    Ok((entries, partials))
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
