//! How content becomes an entry, and what a second content with the same hash does.
//!
//! Invariant: an entry has been synced and read back before it gets its name. Runs on a thread of the entry's own.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::thread;

use super::domain::Domain;
use zerocopy::IntoBytes;

use super::entry::{Damaged, Entry, HEADER_BYTES, Header, Summary};
use super::folder::Folder;
use super::keeping::Keeping;
use super::pipe::{Broken, Feed, Pieces, pipe};
use super::room::Partial;
use super::writers::Permit;
use super::{EntryFolder, WeightCache};
use crate::worker::counters::add;
use crate::worker::limits::{COLLISIONS, KEPT_ON_REQUEST_ABOVE_BYTES};

/// What says that a hash stands for two contents.
pub(super) const COLLISION: &str = ".collision";
/// What says that a domain has too many of those.
const CLOSED: &str = "closed";
/// Bytes of room made at a time, at most, for what has not arrived.
const MOST_ROOM_AHEAD: u64 = 256 << 20;
/// Times that something damaged is cleared out of an entry's way.
const TRIES: usize = 3;

/// Why content is not kept.
enum NotKept {
    /// The client left, or stopped while others waited, or the disk was too slow for it.
    Broken,
    /// Its hash stands for two contents, or its domain is closed.
    Barred,
    /// The file system failed.
    Failed,
}

impl From<io::Error> for NotKept {
    fn from(_: io::Error) -> NotKept {
        NotKept::Failed
    }
}

impl From<Broken> for NotKept {
    fn from(_: Broken) -> NotKept {
        NotKept::Broken
    }
}

impl From<Damaged> for NotKept {
    fn from(_: Damaged) -> NotKept {
        NotKept::Failed
    }
}

/// What stands where an entry should go.
enum Existing {
    None,
    /// The same content.
    Same,
    /// Another content, intact.
    Other,
}

impl WeightCache {
    /// Keeps content of so many bytes, which follow, for a domain. `None` if it is not worth it.
    pub fn keep(self: &Arc<Self>, domain: &Domain, len: u64) -> Option<Keeping> {
        (len > KEPT_ON_REQUEST_ABOVE_BYTES).then(|| Keeping::announced(Arc::clone(self), domain.clone(), len))
    }

    /// Starts to write content of which the first bytes are here. `None` if it will not be kept.
    pub(super) fn start(self: &Arc<Self>, domain: &Domain, len: u64) -> Option<Feed> {
        let feed = self.writers.permit(&domain.share()).and_then(|permit| self.spawn(permit, domain, len));
        if feed.is_none() {
            add(&self.counters.failed, 1);
        }
        feed
    }

    fn spawn(self: &Arc<Self>, permit: Permit, domain: &Domain, len: u64) -> Option<Feed> {
        let (feed, pieces) = pipe(self.waits);
        let (cache, domain) = (Arc::clone(self), domain.clone());
        let write = move || {
            let counters = &cache.counters;
            match catch_unwind(AssertUnwindSafe(|| cache.write(&permit, &domain, len, pieces))) {
                Ok(Ok(())) => add(&counters.stored, 1),
                Ok(Err(NotKept::Barred)) => {}
                Ok(Err(NotKept::Failed | NotKept::Broken)) => add(&counters.failed, 1),
                Err(_panic) => add(&counters.panics, 1),
            }
            drop(permit);
        };
        thread::Builder::new().name("weight cache".into()).spawn(write).ok()?;
        Some(feed)
    }

    /// Writes content as it comes, and names it.
    fn write(&self, permit: &Permit, domain: &Domain, len: u64, pieces: Pieces) -> Result<(), NotKept> {
        let (mut partial, evicted) = self.room.start(&self.root, domain)?;
        add(&self.counters.evicted, evicted);
        let mut summary = Summary::default();
        let (mut last, mut room) = (None, HEADER_BYTES);
        partial.file.seek(HEADER_BYTES)?;
        while let Some(piece) = pieces.next(last.take(), || permit.is_wanted())? {
            let end = HEADER_BYTES.saturating_add(summary.len()).saturating_add(piece.len() as u64);
            if end > room {
                // As much again as has come, so that a long content asks seldom and an announcement takes nothing.
                let longer = end.saturating_add(summary.len().min(MOST_ROOM_AHEAD));
                let longer = longer.min(len.saturating_add(HEADER_BYTES)).max(end);
                let evicted = self.room.lengthen(&self.root, &partial, (room, longer))?;
                add(&self.counters.evicted, evicted);
                room = longer;
            }
            partial.file.write_all(&piece)?;
            summary.add(&piece);
            last = Some(piece);
        }
        if summary.len() != len {
            return Err(NotKept::Broken);
        }
        drop((pieces, last));
        let header = summary.header();
        partial.file.seek(0)?;
        partial.file.write_all(header.as_bytes())?;
        partial.file.sync()?;
        self.publish(domain, partial, &header)
    }

    /// Gives an entry its name, unless its hash already stands for something.
    fn publish(&self, domain: &Domain, mut partial: Partial, header: &Header) -> Result<(), NotKept> {
        let hash = header.hash();
        // Read back: a disk that lies is found out now and not when the content is needed.
        Entry::read_back(&partial.file, header)?;
        if self.is_barred(domain, hash) {
            return Err(NotKept::Barred);
        }
        if let Some(shared) = self.entry_folder(None) {
            match self.existing(&shared, header) {
                Existing::None => {}
                Existing::Same => return Ok(()),
                Existing::Other => return Err(self.collide(domain, &partial.folder, hash)),
            }
        }
        let entries = self.entry_folder(Some(domain)).ok_or(NotKept::Failed)?;
        for _ in 0..TRIES {
            if partial.publish(hash)? {
                // Should the name not reach the disk, it is as if it had never been given.
                let _ = partial.folder.sync();
                if self.is_barred(domain, hash) {
                    self.remove(domain, &partial.folder, hash);
                    return Err(NotKept::Barred);
                }
                return Ok(());
            }
            match self.existing(&entries, header) {
                // What was damaged has been removed.
                Existing::None => {}
                Existing::Same => return Ok(()),
                Existing::Other => return Err(self.collide(domain, &partial.folder, hash)),
            }
        }
        Err(NotKept::Failed)
    }

    /// Looks at an entry with the same hash.
    fn existing(&self, entries: &EntryFolder, header: &Header) -> Existing {
        let Some(mut there) = self.entry(entries, header.hash()) else { return Existing::None };
        if there.verify().is_err() {
            self.reject(entries, header.hash());
            return Existing::None;
        }
        if there.header() != header {
            return Existing::Other;
        }
        there.touch();
        Existing::Same
    }

    /// Notes that a hash stands for two contents, then removes the one that is there.
    fn collide(&self, domain: &Domain, folder: &Folder, hash: u64) -> NotKept {
        add(&self.counters.collisions, 1);
        let name = if self.room.note(domain) < COLLISIONS { collision_name(hash) } else { CLOSED.to_owned() };
        let noted = folder.create(&name).and_then(|_| folder.sync());
        if noted.is_err_and(|error| error.kind() != io::ErrorKind::AlreadyExists) {
            // At least this worker will not forget.
            self.barred.lock().unwrap_or_else(PoisonError::into_inner).insert((domain.clone(), hash));
        }
        self.remove(domain, folder, hash);
        NotKept::Barred
    }

    /// Whether a domain may not be served a hash. Where that cannot be told, it may not.
    pub(super) fn is_barred(&self, domain: &Domain, hash: u64) -> bool {
        let barred = self.barred.lock().unwrap_or_else(PoisonError::into_inner);
        if barred.len() > COLLISIONS || !barred.is_empty() && barred.contains(&(domain.clone(), hash)) {
            return true;
        }
        drop(barred);
        match self.root.inner(domain.folder()) {
            Ok(None) => false,
            Ok(Some(folder)) => {
                [collision_name(hash).as_str(), CLOSED].iter().any(|note| folder.has(note).unwrap_or(true))
            }
            Err(_) => true,
        }
    }
}

fn collision_name(hash: u64) -> String {
    format!("{hash:016x}{COLLISION}")
}
