//! Placement in execution order, as a running allocator would do it.

use super::Pool;
use super::free_list::FreeList;
use super::lifetimes::{Blocks, NONE};

/// An address in a pool: bytes from the first byte of its first chunk, each chunk counting for its full capacity.
pub(super) type Address = usize;

/// Free lists of a pool's chunks, chunks being added as needed.
struct Chunks {
    lists: Vec<FreeList>,
    alignment: usize,
    capacity: usize,
}

impl Chunks {
    /// Takes bytes from the best hole; else from the end of the chunk where that costs least; else from a new chunk.
    fn allocate(&mut self, size: usize) -> Address {
        if size == 0 {
            return 0;
        }
        let found = self.hole(size).or_else(|| self.tail(size)).unwrap_or_else(|| {
            self.lists.push(FreeList::bounded(self.alignment, self.capacity));
            (self.lists.len() - 1, 0)
        });
        let (chunk, block) = found;
        chunk * self.capacity + self.lists[chunk].take(block, size)
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

    fn free(&mut self, address: Address, size: usize) {
        if size == 0 {
            return;
        }
        let chunk = address / self.capacity;
        self.lists[chunk].free(address % self.capacity, size);
    }
}

/// The address of each block.
pub(super) fn place(blocks: &Blocks, pool: Pool, end: u32) -> Vec<Address> {
    let mut chunks = Chunks { lists: Vec::new(), alignment: pool.alignment, capacity: capacity(pool) };
    // Per moment, the blocks that get narrower or vanish after it: heads of linked lists.
    let mut dying = vec![NONE; end as usize + 1];
    let mut next_dying = vec![NONE; blocks.first.len()];
    let mut addresses = Vec::with_capacity(blocks.first.len());
    let mut narrower = Vec::new();
    let mut births = blocks.first.iter().enumerate().peekable();
    for now in 0..=end {
        while let Some((block, piece)) = births.next_if(|(_, piece)| piece.birth == now) {
            addresses.push(chunks.allocate(piece.size));
            next_dying[block] = std::mem::replace(&mut dying[piece.death as usize], block as u32);
        }
        let mut at = dying[now as usize];
        while at != NONE {
            let block = at as usize;
            at = next_dying[block];
            let mut pieces = blocks.pieces(block).skip_while(|piece| piece.death < now);
            let (ends, stays) = (pieces.next().map_or(0, |piece| piece.size), pieces.next());
            let kept = stays.map_or(0, |piece| piece.size);
            chunks.free(addresses[block] + kept, ends - kept);
            narrower.extend(stays.map(|piece| (block, piece.death)));
        }
        for (block, death) in narrower.drain(..) {
            next_dying[block] = std::mem::replace(&mut dying[death as usize], block as u32);
        }
    }
    addresses
}

/// Bytes a chunk can have.
pub(super) fn capacity(pool: Pool) -> usize {
    (pool.max_size.min(usize::MAX / 2) & !(pool.alignment - 1)).max(pool.alignment)
}
