//! Pages of one kind of state: which are free, who uses the others, and what full ones hold.
//!
//! A page is memory for [`PAGE`] consecutive positions of a sequence, in every block of its kind. A page that is full can be
//! found by what it holds, and is then shared by all sequences that begin with the same tokens.
//!
//! Invariant: a page is free, idle or in use. Idle ones are full and used by no sequence; they are kept to be found again and
//! make way, the longest unused first, when nothing is free. Page 0 belongs to no sequence: what is computed only to fill up
//! a batch is written there.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

/// Positions of a page.
pub(crate) const PAGE: usize = 64;

/// What a full page holds: its tokens and all those before them, as a digest for which no two texts can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Content([u8; 16]);

impl Content {
    /// What stands before the first page of sequences that share pages among themselves alone. Those of scope 0 share with all others of
    /// it.
    pub(crate) fn of_scope(scope: u64) -> Option<Content> {
        let mut hasher = blake3::Hasher::new_derive_key("oxcart: scope of shared pages");
        hasher.update(&scope.to_le_bytes());
        let mut digest = [0; 16];
        digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        (scope != 0).then_some(Content(digest))
    }

    /// The digest of a page that follows another, or of a first one.
    pub(crate) fn after(before: Option<Content>, tokens: &[u32]) -> Content {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&before.map_or([0; 16], |Content(digest)| digest));
        for token in tokens {
            hasher.update(&token.to_le_bytes());
        }
        let mut digest = [0; 16];
        digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Content(digest)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Page {
    /// Sequences that use it.
    users: u32,
    /// What it holds, if it can be found by that.
    content: Option<Content>,
    /// When it was used last; its key among the idle ones.
    used: u64,
}

/// Pages of one kind.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    pages: Vec<Page>,
    /// The lowest first, so that what is in use stays together.
    free: BinaryHeap<Reverse<u32>>,
    /// By when they were used last.
    idle: BTreeMap<u64, u32>,
    by_content: HashMap<Content, u32>,
    clock: u64,
}

impl Pages {
    /// So many pages, all free but page 0.
    pub(crate) fn new(count: usize) -> Pages {
        // Their number is bounded by that of the cells, which fit.
        let free = (1..count as u32).map(Reverse).collect();
        Pages { pages: vec![Page::default(); count], free, ..Pages::default() }
    }

    /// Pages there are, page 0 included.
    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Pages that a sequence could get now.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    /// Pages that sequences use.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        self.pages.len() - 1 - self.available()
    }

    /// One more than the highest page that holds anything.
    pub(crate) fn end(&self) -> usize {
        let holds = |page: &Page| page.users > 0 || page.content.is_some();
        self.pages.iter().rposition(holds).map_or(1, |last| last + 1)
    }

    /// A page for one sequence; the caller's, with whatever is in it.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let page = match self.free.pop() {
            Some(Reverse(page)) => page,
            None => {
                let (_, page) = self.idle.pop_first()?;
                self.forget(page);
                page
            }
        };
        self.pages[page as usize].users = 1;
        Some(page)
    }

    /// One more sequence uses a page.
    pub(crate) fn share(&mut self, page: u32) {
        let entry = &mut self.pages[page as usize];
        if entry.users == 0 {
            self.idle.remove(&entry.used);
        }
        entry.users += 1;
    }

    /// A sequence uses a page no more.
    pub(crate) fn give_back(&mut self, page: u32) {
        self.clock += 1;
        let entry = &mut self.pages[page as usize];
        debug_assert!(entry.users > 0, "page {page} is given back more often than it was taken");
        entry.users = entry.users.saturating_sub(1);
        if entry.users > 0 {
            return;
        }
        match entry.content {
            Some(_) => {
                entry.used = self.clock;
                self.idle.insert(self.clock, page);
            }
            None => self.free.push(Reverse(page)),
        }
    }

    /// Whether a sequence may write to a page: no other uses it, and it is not to be found by what it holds.
    pub(crate) fn is_own(&self, page: u32) -> bool {
        let entry = &self.pages[page as usize];
        entry.users == 1 && entry.content.is_none()
    }

    /// Makes a full page findable, unless it is already, or another one holds the same.
    pub(crate) fn publish(&mut self, page: u32, content: Content) {
        if self.pages[page as usize].content.is_some() {
            return;
        }
        if let std::collections::hash_map::Entry::Vacant(entry) = self.by_content.entry(content) {
            entry.insert(page);
            self.pages[page as usize].content = Some(content);
        }
    }

    /// The page that holds something.
    pub(crate) fn find(&self, content: Content) -> Option<u32> {
        self.by_content.get(&content).copied()
    }

    fn forget(&mut self, page: u32) {
        if let Some(content) = self.pages[page as usize].content.take() {
            self.by_content.remove(&content);
        }
    }

    /// Whether the counts agree with what sequences hold; for tests.
    #[cfg(test)]
    pub(crate) fn check(&self, held: &[Vec<u32>]) {
        let mut users = vec![0_u32; self.pages.len()];
        held.iter().flatten().for_each(|&page| users[page as usize] += 1);
        for (index, page) in self.pages.iter().enumerate().skip(1) {
            assert_eq!(page.users, users[index], "page {index}");
            let is_free = self.free.iter().any(|&Reverse(free)| free as usize == index);
            let is_idle = self.idle.values().any(|&idle| idle as usize == index);
            let states = [page.users > 0, is_free, is_idle];
            assert_eq!(states.iter().filter(|&&state| state).count(), 1, "page {index} is {states:?}");
            if let Some(content) = page.content {
                assert_eq!(self.by_content.get(&content), Some(&(index as u32)));
            }
        }
        let findable = self.pages.iter().filter(|page| page.content.is_some()).count();
        assert_eq!(self.by_content.len(), findable);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn contents_depend_on_everything_before() {
        let first = Content::after(None, &[1, 2]);
        assert_eq!(first, Content::after(None, &[1, 2]));
        assert_ne!(first, Content::after(None, &[2, 1]));
        assert_ne!(Content::after(Some(first), &[3]), Content::after(None, &[3]));
    }

    #[test]
    fn idle_pages_are_found_until_they_make_way() {
        let mut pages = Pages::new(3);
        let [a, b] = [1, 2].map(|token| Content::after(None, &[token]));
        let first = pages.take().unwrap();
        let second = pages.take().unwrap();
        assert_eq!((first, second, pages.take()), (1, 2, None));
        pages.publish(first, a);
        pages.publish(second, b);
        pages.give_back(second);
        pages.give_back(first);
        assert_eq!((pages.available(), pages.in_use()), (2, 0));
        // Found again, it is in use and stays.
        pages.share(pages.find(a).unwrap());
        assert_eq!(pages.take(), Some(second), "the only one that can make way");
        assert_eq!((pages.find(a), pages.find(b)), (Some(first), None));
        assert!(!pages.is_own(first) && pages.is_own(second));
        pages.check(&[vec![first], vec![second]]);
    }

    #[test]
    fn what_is_held_already_is_not_published_twice() {
        let mut pages = Pages::new(4);
        let content = Content::after(None, &[7]);
        let (one, two) = (pages.take().unwrap(), pages.take().unwrap());
        pages.publish(one, content);
        pages.publish(two, content);
        assert_eq!(pages.find(content), Some(one));
        pages.give_back(two);
        pages.check(&[vec![one]]);
        assert_eq!(pages.available(), 2);
    }

    proptest! {
        /// Sequences that take, share, publish and give back in any order.
        #[test]
        fn counts_hold(steps in prop::collection::vec((0_u8..5, 0_usize..6, any::<u8>()), 1..200)) {
            let mut pages = Pages::new(9);
            let mut held: Vec<Vec<u32>> = vec![Vec::new(); 6];
            for (what, who, number) in steps {
                match what {
                    0 | 1 => held[who].extend(pages.take()),
                    2 => if let Some(page) = held[who].pop() {
                        pages.give_back(page);
                    },
                    3 => if let Some(&page) = held[who].last() {
                        pages.publish(page, Content::after(None, &[u32::from(number % 8)]));
                    },
                    _ => if let Some(page) = pages.find(Content::after(None, &[u32::from(number % 8)])) {
                        pages.share(page);
                        held[who].push(page);
                    },
                }
                pages.check(&held);
            }
        }
    }
}
