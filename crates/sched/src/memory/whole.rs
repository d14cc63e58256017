//! Placement that looks at all lifetimes first.
//!
//! The aim is the lower bound, and ways to it are tried in order of cost. First replays in an arena of exactly that
//! size, which put blocks that stay long at one end of a hole and the others at the other end; a replay is over at the
//! first block that does not fit, in a language model within the first layer, so failing costs little. Then a
//! [search](super::search), largest blocks first. When that fails too, what a running allocator would do is the result
//! to beat.
//!
//! Blocks that live all the time are stacked at the bottom: whatever lies between two of them could as well lie above
//! both, so this loses nothing, and the rest need not know them.

use super::Pool;
use super::blocks::{Blocks, Piece, Span};
use super::free_list::FreeList;
use super::plan::chunk_sizes;
use super::replay::{Address, Arena, Chunks, Replay};
use super::search::Search;

/// A block that stays for more moments than this counts as staying long; several are tried.
const LONG: [u32; 8] = [2, 5, 0, 1, 3, 8, 16, 64];

/// How many limits the search tries.
const ATTEMPTS: usize = 4;

/// Working memory, kept from one pool to the next.
#[derive(Debug, Default)]
pub(super) struct Whole {
    replay: Replay,
    search: Search,
    best: Vec<Address>,
}

impl Whole {
    /// The address of each block.
    pub(super) fn place(&mut self, blocks: &Blocks, pool: Pool, bound: usize) -> &[Address] {
        let single = bound <= pool.chunk_capacity();
        if single && self.replay_within(blocks, pool, bound) {
            return &self.replay.addresses;
        }
        let searching = self.search.prepare(blocks, pool);
        if searching {
            self.search.order_by_size();
            if single && self.search.reach(blocks, bound, 0) {
                self.search.addresses(blocks, &mut self.best);
                return &self.best;
            }
        }
        self.replay.run(blocks, &mut Chunks::new(pool));
        self.best.clone_from(&self.replay.addresses);
        match (searching, single) {
            (true, true) => self.improve(blocks, pool, bound),
            (true, false) => self.search_chunks(blocks, pool),
            (false, _) => {}
        }
        &self.best
    }

    /// Whether a replay succeeds in an arena as large as the lower bound.
    fn replay_within(&mut self, blocks: &Blocks, pool: Pool, bound: usize) -> bool {
        let mut placed = 0;
        for long in LONG {
            if self.replay.run(blocks, &mut TwoEnded::new(blocks, pool, bound, long)) {
                return true;
            }
            // Attempts that fail late may not add up to much more than one that succeeds.
            placed += self.replay.addresses.len();
            if placed > blocks.first.len() {
                break;
            }
        }
        false
    }

    /// Searches for something better than the best so far: the lower bound first, then halfway between what was found
    /// and what was not.
    fn improve(&mut self, blocks: &Blocks, pool: Pool, bound: usize) {
        let looks = self.search.looks_allowed() / ATTEMPTS;
        let mut found = bytes(blocks, &self.best, pool);
        let (mut failed, mut limit) = (bound, bound);
        for _ in 0..ATTEMPTS {
            if self.search.reach(blocks, limit, looks) {
                self.search.addresses(blocks, &mut self.best);
                found = bytes(blocks, &self.best, pool);
            } else {
                failed = limit;
            }
            // Several buffers may need less than their addresses say, hence also less than what failed.
            let open = found.saturating_sub(failed);
            if open <= pool.alignment {
                break;
            }
            limit = failed + open / 2;
        }
    }

    /// Where one buffer is not enough there is no limit to aim at: addresses do not tell how full the buffers are.
    fn search_chunks(&mut self, blocks: &Blocks, pool: Pool) {
        if self.search.reach(blocks, usize::MAX, 0) {
            self.search.addresses(blocks, &mut self.replay.addresses);
            if bytes(blocks, &self.replay.addresses, pool) < bytes(blocks, &self.best, pool) {
                self.best.clone_from(&self.replay.addresses);
            }
        }
    }
}

fn bytes(blocks: &Blocks, addresses: &[Address], pool: Pool) -> usize {
    chunk_sizes(blocks, addresses, pool).iter().sum()
}

/// An arena of a fixed size, long-lived blocks growing from the bottom and short-lived ones from the top.
struct TwoEnded {
    list: FreeList,
    /// Where the next block that lives all the time goes.
    permanent: Address,
    span: Span,
    long: u32,
}

impl TwoEnded {
    fn new(blocks: &Blocks, pool: Pool, capacity: usize, long: u32) -> TwoEnded {
        let mut list = FreeList::bounded(pool.alignment, capacity);
        let span = blocks.span();
        let permanent = blocks.first.iter().take_while(|piece| piece.birth <= span.first);
        let below = permanent.filter(|piece| span.is_filled_by(piece)).map(|piece| piece.size).sum();
        if below > 0 {
            list.take(0, below);
        }
        TwoEnded { list, permanent: 0, span, long }
    }
}

impl Arena for TwoEnded {
    fn allocate(&mut self, piece: &Piece) -> Option<Address> {
        if piece.size == 0 {
            return Some(0);
        }
        if self.span.is_filled_by(piece) {
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
