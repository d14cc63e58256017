//! What is in the folders of a cache, remembered: how much each share and each domain has, and which entry goes next.
//!
//! It is made by reading the folders and kept up with what this worker does there itself; others may change them too. So it is a
//! guess, and what removes an entry by it looks at that entry first and tells the index what it saw. A use of an entry that it
//! has not heard of makes the entry younger, never older: the oldest one that is as remembered is the oldest.
//!
//! Invariant: sums are those of what is remembered, and every change and every search takes logarithmic time. No call to the
//! file system is made here.

use std::collections::{BTreeSet, HashMap};

use super::domain::Domain;
use super::folder::Listed;
use super::share::Share;

/// Everything that is remembered.
#[derive(Debug, Default)]
pub(super) struct Index {
    shares: HashMap<Share, OfShare>,
    /// Shares that have entries, by what they have in all.
    order: BTreeSet<(u64, Share)>,
    sums: Sums,
}

/// What is remembered of one share.
#[derive(Debug, Default)]
struct OfShare {
    domains: HashMap<Domain, OfDomain>,
    /// Domains that have entries, by what they have in all.
    order: BTreeSet<(u64, Domain)>,
    sums: Sums,
}

/// What is remembered of one domain.
#[derive(Debug, Default)]
pub(super) struct OfDomain {
    /// Entries by their hash.
    entries: HashMap<u64, Listed>,
    /// Entries by their last use.
    order: BTreeSet<((i64, i64), u64)>,
    /// Bytes of entries in the making, by name.
    partials: HashMap<String, u64>,
    /// Hashes that stand for two contents.
    notes: usize,
    sums: Sums,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    /// Bytes of entries.
    pub(super) kept: u64,
    /// Bytes of entries in the making.
    pub(super) in_the_making: u64,
    pub(super) entries: usize,
    /// Files of any of our kinds.
    files: usize,
    pub(super) domains: usize,
}

impl Sums {
    const fn bytes(&self) -> u64 {
        self.kept.saturating_add(self.in_the_making)
    }

    /// Names of files and folders that reading all of it would meet.
    pub(super) const fn names(&self) -> usize {
        self.files.saturating_add(self.domains)
    }

    /// Counts what was `before` as what is there `now`.
    fn change(&mut self, before: &Sums, now: &Sums) {
        let bytes = |sum: u64, before: u64, now: u64| sum.saturating_sub(before).saturating_add(now);
        let count = |sum: usize, before: usize, now: usize| sum.saturating_sub(before).saturating_add(now);
        *self = Sums {
            kept: bytes(self.kept, before.kept, now.kept),
            in_the_making: bytes(self.in_the_making, before.in_the_making, now.in_the_making),
            entries: count(self.entries, before.entries, now.entries),
            files: count(self.files, before.files, now.files),
            domains: count(self.domains, before.domains, now.domains),
        };
    }
}

impl OfDomain {
    /// There is an entry, as a listing shows it.
    pub(super) fn put(&mut self, hash: u64, listed: Listed) {
        self.forget(hash);
        self.entries.insert(hash, listed);
        self.order.insert((listed.used, hash));
        self.sums.kept = self.sums.kept.saturating_add(listed.bytes);
        self.count();
    }

    /// There is no entry of this hash.
    pub(super) fn forget(&mut self, hash: u64) {
        if let Some(listed) = self.entries.remove(&hash) {
            self.order.remove(&(listed.used, hash));
            self.sums.kept = self.sums.kept.saturating_sub(listed.bytes);
        }
        self.count();
    }

    /// There is an entry in the making of so many bytes.
    pub(super) fn put_partial(&mut self, name: &str, bytes: u64) {
        self.forget_partial(name);
        self.partials.insert(name.to_owned(), bytes);
        self.sums.in_the_making = self.sums.in_the_making.saturating_add(bytes);
        self.count();
    }

    /// There is no entry in the making of this name.
    pub(super) fn forget_partial(&mut self, name: &str) {
        let bytes = self.partials.remove(name).unwrap_or(0);
        self.sums.in_the_making = self.sums.in_the_making.saturating_sub(bytes);
        self.count();
    }

    /// One more hash stands for two contents.
    pub(super) fn put_note(&mut self) {
        self.notes = self.notes.saturating_add(1);
        self.count();
    }

    fn count(&mut self) {
        self.sums.entries = self.entries.len();
        self.sums.files = self.sums.entries.saturating_add(self.partials.len()).saturating_add(self.notes);
        self.sums.domains = usize::from(self.sums.files > 0);
    }
}

impl Index {
    /// Sums of all there is.
    pub(super) const fn sums(&self) -> &Sums {
        &self.sums
    }

    /// Changes what is remembered of a domain; one that has nothing is forgotten.
    pub(super) fn change(&mut self, domain: &Domain, change: impl FnOnce(&mut OfDomain)) {
        let share = domain.share();
        let of_share = self.shares.entry(share.clone()).or_default();
        let of_domain = of_share.domains.entry(domain.clone()).or_default();
        let (domain_before, share_before) = (of_domain.sums, of_share.sums);
        change(of_domain);
        let domain_now = of_domain.sums;
        if domain_now.domains == 0 {
            of_share.domains.remove(domain);
        }
        of_share.sums.change(&domain_before, &domain_now);
        let share_now = of_share.sums;
        reorder(&mut of_share.order, domain, (&domain_before, &domain_now));
        if share_now.domains == 0 {
            self.shares.remove(&share);
        }
        self.sums.change(&share_before, &share_now);
        reorder(&mut self.order, &share, (&share_before, &share_now));
    }

    fn of(&self, domain: &Domain) -> Option<&OfDomain> {
        self.shares.get(&domain.share())?.domains.get(domain)
    }

    /// Whether anything is remembered of a domain.
    pub(super) fn knows(&self, domain: &Domain) -> bool {
        self.of(domain).is_some()
    }

    /// The domain that makes way for a new one: of the share that has most of them, the new one's own if that has as many, the
    /// one that no one has used for longest, and its entries. What is noted of a domain stays, and so does what is being written.
    pub(super) fn idle_domain(&self, own: &Share) -> Option<(Domain, Vec<u64>)> {
        let (_, most) =
            self.shares.iter().max_by_key(|(share, of_share)| (of_share.sums.domains, *share == own))?;
        let may_go = |(_, of_domain): &(&Domain, &OfDomain)| {
            of_domain.notes == 0 && of_domain.partials.is_empty() && !of_domain.order.is_empty()
        };
        let idle = most.domains.iter().filter(may_go);
        let (domain, of_domain) = idle.min_by_key(|(_, of_domain)| of_domain.order.last().copied())?;
        Some((domain.clone(), of_domain.order.iter().map(|(_, hash)| *hash).collect()))
    }

    /// What is remembered of an entry.
    pub(super) fn entry(&self, domain: &Domain, hash: u64) -> Option<Listed> {
        self.of(domain)?.entries.get(&hash).copied()
    }

    /// How many hashes of a domain stand for two contents.
    pub(super) fn notes(&self, domain: &Domain) -> usize {
        self.of(domain).map_or(0, |of_domain| of_domain.notes)
    }

    /// The entry that makes way for more bytes of a domain: the oldest of the domain that has most in the share that has most, or of
    /// its own share or domain if that would have more.
    pub(super) fn victim(&self, domain: Option<&Domain>, bytes: u64) -> Option<(Domain, u64)> {
        let own_share = domain.map(Domain::share);
        let has = |share: &Share| self.shares.get(share).map_or(0, |of_share| of_share.sums.bytes());
        let share = who_has_most(&self.order, own_share.as_ref(), has, bytes)?;
        let of_share = self.shares.get(share)?;
        let own = domain.filter(|_| own_share.as_ref() == Some(share));
        let has =
            |domain: &Domain| of_share.domains.get(domain).map_or(0, |of_domain| of_domain.sums.bytes());
        let domain = who_has_most(&of_share.order, own, has, bytes)?;
        let (_, hash) = of_share.domains.get(domain)?.order.first()?;
        Some((domain.clone(), *hash))
    }
}

/// Puts one who has something else now where it belongs. Only those who have entries can be asked for one.
fn reorder<T: Clone + Ord>(order: &mut BTreeSet<(u64, T)>, one: &T, (before, now): (&Sums, &Sums)) {
    if before.entries > 0 {
        order.remove(&(before.bytes(), one.clone()));
    }
    if now.entries > 0 {
        order.insert((now.bytes(), one.clone()));
    }
}

/// Who has most, or one's own if that would have more.
fn who_has_most<'a, T: Ord>(
    order: &'a BTreeSet<(u64, T)>,
    own: Option<&'a T>,
    has: impl Fn(&T) -> u64,
    bytes: u64,
) -> Option<&'a T> {
    let (most, who) = order.last()?;
    Some(own.filter(|own| *own != who && has(own).saturating_add(bytes) > *most).unwrap_or(who))
}

#[cfg(test)]
mod tests;
