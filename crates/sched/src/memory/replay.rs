//! Placement moment by moment, as a running allocator would do it.
//!
//! [`Replay`] walks through time, takes memory for what is born and gives back what dies; an [`Arena`] decides where.
//! [`Chunks`] is the plain allocator of [`Strategy::Online`](super::Strategy::Online).

use super::Pool;
use super::blocks::{Blocks, NONE, Piece};
use super::free_list::FreeList;

/// An address in a pool: bytes from the first byte of its first chunk, each chunk counting for its full capacity.
pub(super) type Address = usize;

/// Memory that is taken and given back.
pub(super) trait Arena {
    /// Finds room for a block that begins with this piece. `None` when there is none, which ends the replay.
    fn allocate(&mut self, piece: &Piece) -> Option<Address>;

    /// Takes back bytes.
    fn free(&mut self, address: Address, size: usize);
}

/// The walk through time, and the memory it needs, to be used again.
#[derive(Debug, Default)]
pub(super) struct Replay {
    /// Address of each block that was born so far.
    pub(super) addresses: Vec<Address>,
    /// Per moment, a linked list of the blocks that get narrower or vanish after it. Empty lists between runs.
    dying: Vec<u32>,
    next_dying: Vec<u32>,
    /// Moments whose lists are not empty.
    enlisted: Vec<u32>,
}

impl Replay {
    /// Places all blocks, or says that the arena gave up.
    pub(super) fn run(&mut self, blocks: &Blocks, arena: &mut impl Arena) -> bool {
        self.addresses.clear();
        self.next_dying.clear();
        // Most runs fail early, and most pools are used for a part of the time only: neither should cost all of it.
        for moment in self.enlisted.drain(..) {
            self.dying[moment as usize] = NONE;
        }
        self.dying.resize(self.dying.len().max(blocks.span().last as usize + 1), NONE);
        let mut now = first_change(blocks);
        // Nothing needs to be given back after the last birth.
        for (block, piece) in blocks.first.iter().enumerate() {
            while now < piece.birth {
                self.free_dying(blocks, now, arena);
                now += 1;
            }
            let Some(address) = arena.allocate(piece) else { return false };
            self.addresses.push(address);
            self.next_dying.push(NONE);
            self.enlist(block, piece.death);
        }
        true
    }

    fn enlist(&mut self, block: usize, death: u32) {
        self.next_dying[block] = std::mem::replace(&mut self.dying[death as usize], block as u32);
        self.enlisted.push(death);
    }

    fn free_dying(&mut self, blocks: &Blocks, now: u32, arena: &mut impl Arena) {
        let mut at = self.dying[now as usize];
        while at != NONE {
            let block = at as usize;
            at = self.next_dying[block];
            let mut ends = &blocks.first[block];
            while let Some(next) = blocks.after(ends).filter(|_| ends.death < now) {
                ends = next;
            }
            let mut kept = 0;
            if let Some(stays) = blocks.after(ends) {
                kept = stays.size;
                self.enlist(block, stays.death);
            }
            arena.free(self.addresses[block] + kept, ends.size - kept);
        }
    }
}

/// The first moment at which something dies, or is born that was not there from the beginning.
fn first_change(blocks: &Blocks) -> u32 {
    let mut change = u32::MAX;
    for piece in &blocks.first {
        if piece.birth > 0 {
            return change.min(piece.birth);
        }
        change = change.min(piece.death);
    }
    change
}

/// Free lists of a pool's chunks, chunks being added as needed.
#[derive(Debug)]
pub(super) struct Chunks {
    lists: Vec<FreeList>,
    alignment: usize,
    capacity: usize,
}

impl Chunks {
    pub(super) fn new(pool: Pool) -> Chunks {
        Chunks { lists: Vec::new(), alignment: pool.alignment, capacity: pool.chunk_capacity() }
    }

    /// The smallest hole of all chunks.
    fn hole(&self, size: usize) -> Option<(usize, usize)> {
        let holes =
            self.lists.iter().enumerate().filter_map(|(chunk, list)| Some((chunk, list.best_hole(size)?)));
        holes.min_by_key(|&(chunk, block)| self.lists[chunk].block_size(block))
    }

    /// The end of the chunk that grows least.
    fn tail(&self, size: usize) -> Option<(usize, usize)> {
        let tails = self.lists.iter().enumerate().filter_map(|(chunk, list)| Some((chunk, list.tail(size)?)));
        tails.min_by_key(|&(chunk, _)| self.lists[chunk].tail_cost(size))
    }
}

impl Arena for Chunks {
    /// From the best hole; else from the end of the chunk where that costs least; else from a new chunk.
    fn allocate(&mut self, piece: &Piece) -> Option<Address> {
        if piece.size == 0 {
            return Some(0);
        }
        let (chunk, block) = self.hole(piece.size).or_else(|| self.tail(piece.size)).unwrap_or_else(|| {
            self.lists.push(FreeList::bounded(self.alignment, self.capacity));
            (self.lists.len() - 1, 0)
        });
        Some(chunk * self.capacity + self.lists[chunk].take(block, piece.size))
    }

    fn free(&mut self, address: Address, size: usize) {
        if size > 0 {
            let chunk = address / self.capacity;
            self.lists[chunk].free(address % self.capacity, size);
        }
    }
}
