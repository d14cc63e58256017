//! Placement that looks at all lifetimes first.
//!
//! The aim is the lower bound, and it is tried in order of cost. First replays in an arena of exactly that size, which
//! put blocks that stay long at one end of a hole and the others at the other end; a replay is over at the first block
//! that does not fit, so failing costs little. If none succeeds, blocks are [searched](super::search) a place one by
//! one, the largest first. What a running allocator would do is always a candidate, so this is never worse.
//!
//! Blocks that live all the time are stacked at the bottom: whatever lies between two of them could as well lie above
//! both, so this loses nothing, and the rest need not know them.

use super::Pool;
use super::free_list::FreeList;
use super::lifetimes::{Blocks, Piece};
use super::plan::chunk_sizes;
use super::replay::{Address, Arena, Chunks, Replay};
use super::search;

/// A block that stays for more moments than this counts as staying long; several are tried.
const LONG: [u32; 8] = [0, 1, 2, 4, 8, 16, 32, 128];

/// The address of each block.
pub(super) fn place(blocks: &Blocks, pool: Pool, lower_bound: usize, end: u32) -> Vec<Address> {
    let mut replay = Replay::default();
    if lower_bound <= pool.chunk_capacity() {
        for long in LONG {
            let mut arena = TwoEnded::new(blocks, pool, lower_bound, end, long);
            if replay.run(blocks, end, &mut arena) {
                return replay.addresses;
            }
        }
    }
    replay.run(blocks, end, &mut Chunks::new(pool));
    let bytes = |addresses: &[Address]| chunk_sizes(blocks, addresses, pool).iter().sum::<usize>();
    let online_bytes = bytes(&replay.addresses);
    if online_bytes == lower_bound {
        return replay.addresses;
    }
    match search::place(blocks, pool, lower_bound, online_bytes, end) {
        Some(found) if bytes(&found) < online_bytes => found,
        _ => replay.addresses,
    }
}

/// Whether a block lives all the time.
pub(super) fn is_permanent(piece: &Piece, end: u32) -> bool {
    piece.birth == 0 && piece.death == end
}

/// An arena of a fixed size, long-lived blocks growing from the bottom and short-lived ones from the top.
struct TwoEnded {
    list: FreeList,
    /// Where the next block that lives all the time goes.
    permanent: Address,
    end: u32,
    long: u32,
}

impl TwoEnded {
    fn new(blocks: &Blocks, pool: Pool, capacity: usize, end: u32, long: u32) -> TwoEnded {
        let mut list = FreeList::bounded(pool.alignment, capacity);
        let permanent = blocks.first.iter().take_while(|piece| piece.birth == 0);
        let below = permanent.filter(|piece| is_permanent(piece, end)).map(|piece| piece.size).sum();
        if below > 0 {
            list.take(0, below);
        }
        TwoEnded { list, permanent: 0, end, long }
    }
}

impl Arena for TwoEnded {
    fn allocate(&mut self, piece: &Piece) -> Option<Address> {
        if piece.size == 0 {
            return Some(0);
        }
        if is_permanent(piece, self.end) {
            self.permanent += piece.size;
            return Some(self.permanent - piece.size);
        }
        let hole = self.list.best_of_all(piece.size)?;
        let stays_long = piece.death - piece.birth > self.long;
        Some(if stays_long {
            self.list.take(hole, piece.size)
        } else {
            self.list.take_back(hole, piece.size)
        })
    }

    fn free(&mut self, address: Address, size: usize) {
        self.list.free(address, size);
    }
}
