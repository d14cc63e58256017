//! Placement of blocks in any order, each into a gap left by those that were placed before.
//!
//! The order is what matters, and largest first is a good one. Where a block finds no room below the limit, the order
//! is repaired: the block is moved to just before one of those in its way, and everything from there on is placed
//! again. The effort is bounded by the number of blocks and of pairs that meet.
//!
//! Blocks are sorted by birth, so that those that meet a block and are born after it follow it directly; only those
//! that were there before it are listed.

use super::Pool;
use super::blocks::{Blocks, NONE};
use super::replay::Address;

/// A block that has no address yet.
const UNPLACED: Address = Address::MAX;

/// Pairs of blocks that meet, per block, above which searching would no longer be linear; small graphs may have more.
const MOST_PAIRS_PER_BLOCK: usize = 64;
const FREE_PAIRS: usize = 1 << 18;

/// How many pairs repairing may look at: some for each block, and enough to settle small graphs.
const LOOKS_PER_BLOCK: usize = 16;
const FREE_LOOKS: usize = 1 << 16;

/// A block that does not live all the time.
#[derive(Clone, Copy, Debug)]
struct Item {
    size: usize,
    birth: u32,
    /// Its index among all blocks.
    block: u32,
    /// Whether it has later, smaller pieces.
    narrows: bool,
    /// Where the list of those it meets and that were there before it ends.
    before_end: u32,
    /// One past the last of those it meets and that are born after it.
    after_end: u32,
}

/// Blocks, which of them meet, and where they are. Used for one pool after the other.
#[derive(Debug, Default)]
pub(super) struct Search {
    items: Vec<Item>,
    /// For each item those it meets and that were there before it, one list after the other.
    before: Vec<u32>,
    addresses: Vec<Address>,
    /// Below this lie the blocks that live all the time.
    base: Address,
    capacity: usize,
    order: Vec<u32>,
    rank: Vec<u32>,
    /// What is taken around the item that is being placed.
    taken: Vec<(Address, Address)>,
    alive: Vec<(u32, u32)>,
    looks: usize,
    random: XorShift,
}

/// Numbers without a pattern, the same ones each time.
#[derive(Debug, Default)]
struct XorShift(u64);

impl XorShift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

impl Search {
    /// Prepares for these blocks. False when too many of them meet for searching to be quick.
    pub(super) fn prepare(&mut self, blocks: &Blocks, pool: Pool) -> bool {
        self.capacity = pool.chunk_capacity();
        self.items.clear();
        self.before.clear();
        self.alive.clear();
        self.base = 0;
        let most = FREE_PAIRS.max(MOST_PAIRS_PER_BLOCK * blocks.first.len()).min(u32::MAX as usize / 2);
        let span = blocks.span();
        for (block, piece) in (0..).zip(&blocks.first) {
            if span.is_filled_by(piece) {
                self.base = self.unbroken(self.base, piece.size) + piece.size;
            } else if piece.size > 0 {
                let last = blocks.last(piece);
                self.enter(piece.birth, last.death);
                let (size, birth, narrows) = (piece.size, piece.birth, piece.next != NONE);
                let before_end = self.before.len() as u32;
                self.items.push(Item { size, birth, block, narrows, before_end, after_end: 0 });
            }
            if self.before.len() > most {
                return false;
            }
        }
        let count = self.items.len() as u32;
        for (item, _) in self.alive.drain(..) {
            self.items[item as usize].after_end = count;
        }
        self.random = XorShift(0x2545_f491_4f6c_dd1d);
        true
    }

    /// Lists the items that are there at `birth`, and adds the one that is about to be made.
    fn enter(&mut self, birth: u32, death: u32) {
        let new = self.items.len() as u32;
        let mut at = 0;
        while let Some(&(item, end)) = self.alive.get(at) {
            if end < birth {
                self.items[item as usize].after_end = new;
                self.alive.swap_remove(at);
            } else {
                self.before.push(item);
                at += 1;
            }
        }
        self.alive.push((new, death));
    }

    /// The first address from `from` on at which `size` bytes do not straddle chunks.
    fn unbroken(&self, from: Address, size: usize) -> Address {
        if from + size <= self.capacity {
            return from;
        }
        let room = self.capacity - from % self.capacity;
        if size <= room { from } else { from + room }
    }

    /// How many pairs repairing may look at.
    pub(super) fn looks_allowed(&self) -> usize {
        FREE_LOOKS + LOOKS_PER_BLOCK * self.items.len()
    }

    /// Takes the order by falling size, then by birth.
    pub(super) fn order_by_size(&mut self) {
        let mut keys: Vec<_> = (0_u32..).zip(&self.items).map(|(index, item)| (item.size, index)).collect();
        keys.sort_by_key(|&(size, _)| std::cmp::Reverse(size));
        self.order.clear();
        self.order.extend(keys.into_iter().map(|(_, index)| index));
        self.rank.clear();
        self.rank.resize(self.order.len(), 0);
        for (rank, &item) in (0..).zip(&self.order) {
            self.rank[item as usize] = rank;
        }
    }

    /// Places everything in the current order, none of it beyond `limit`, repairing the order as long as `looks` last.
    /// On success the addresses can be [read](Search::addresses).
    pub(super) fn reach(&mut self, blocks: &Blocks, limit: usize, looks: usize) -> bool {
        self.addresses.clear();
        self.addresses.resize(self.items.len(), UNPLACED);
        self.looks = 0;
        let mut at = 0;
        while let Some(&item) = self.order.get(at) {
            let address = self.gap(blocks, item as usize);
            if address + self.items[item as usize].size <= limit {
                self.addresses[item as usize] = address;
                at += 1;
            } else if self.looks > looks {
                return false;
            } else {
                match self.promote(at) {
                    Some(to) => at = to,
                    None => return false,
                }
            }
        }
        true
    }

    /// Items that meet this one: those that were there before, and those that came later.
    fn neighbours(&self, index: usize) -> impl Iterator<Item = usize> + '_ {
        let item = &self.items[index];
        let start = index.checked_sub(1).map_or(0, |previous| self.items[previous].before_end);
        let before =
            self.before[start as usize..item.before_end as usize].iter().map(|&other| other as usize);
        before.chain(index + 1..item.after_end as usize)
    }

    /// The smallest gap between the neighbours of an item, or the first address above them all.
    fn gap(&mut self, blocks: &Blocks, index: usize) -> Address {
        let item = self.items[index];
        let mut taken = std::mem::take(&mut self.taken);
        taken.clear();
        for other in self.neighbours(index) {
            let address = self.addresses[other];
            if address == UNPLACED {
                continue;
            }
            let other = &self.items[other];
            let since = item.birth.max(other.birth);
            // Where a narrower item would collide, a block of full width could begin that much earlier.
            let slack = item.size - item.width(blocks, since);
            taken.push((address + slack, address + other.width(blocks, since)));
        }
        sort(&mut taken);
        let mut above = self.base;
        let mut best = (usize::MAX, UNPLACED);
        for &(start, end) in &taken {
            let address = self.unbroken(above, item.size);
            if address + item.size <= start && start - above < best.0 {
                best = (start - above, address);
            }
            above = above.max(end);
        }
        self.looks += taken.len() + 1;
        self.taken = taken;
        if best.1 == UNPLACED { self.unbroken(above, item.size) } else { best.1 }
    }

    /// Moves the item at a place of the order to before one of those in its way, any of them, and takes away the
    /// address of everything from there on. Says where that is, or `None` if nothing is in its way.
    fn promote(&mut self, at: usize) -> Option<usize> {
        let item = self.order[at] as usize;
        let random = self.random.next() as usize;
        let in_the_way = || self.neighbours(item).filter(|&other| self.addresses[other] != UNPLACED);
        let count = in_the_way().count();
        let pick = in_the_way().nth(random % count.max(1))?;
        let to = self.rank[pick] as usize;
        self.order[to..=at].rotate_right(1);
        for (rank, &item) in (to as u32..).zip(&self.order[to..=at]) {
            self.rank[item as usize] = rank;
            self.addresses[item as usize] = UNPLACED;
        }
        self.looks += count + at - to;
        Some(to)
    }

    /// The address of each block, after a success.
    pub(super) fn addresses(&self, blocks: &Blocks, addresses: &mut Vec<Address>) {
        addresses.clear();
        addresses.resize(blocks.first.len(), 0);
        let (mut base, span) = (0, blocks.span());
        for (address, piece) in addresses.iter_mut().zip(&blocks.first) {
            if span.is_filled_by(piece) {
                *address = self.unbroken(base, piece.size);
                base = *address + piece.size;
            }
        }
        for (item, &address) in self.items.iter().zip(&self.addresses) {
            addresses[item.block as usize] = address;
        }
    }
}

impl Item {
    /// How many bytes it takes at a moment of its life.
    fn width(&self, blocks: &Blocks, now: u32) -> usize {
        if !self.narrows {
            return self.size;
        }
        let mut piece = &blocks.first[self.block as usize];
        while let Some(next) = blocks.after(piece).filter(|next| next.birth <= now) {
            piece = next;
        }
        piece.size
    }
}

/// Sorts, almost all lists being short.
fn sort(taken: &mut [(Address, Address)]) {
    if taken.len() > 24 {
        return taken.sort_unstable();
    }
    for at in 1..taken.len() {
        let item = taken[at];
        let mut to = at;
        while to > 0 && taken[to - 1].0 > item.0 {
            taken[to] = taken[to - 1];
            to -= 1;
        }
        taken[to] = item;
    }
}
