//! Placement of blocks in any order, each into a gap left by the blocks that were placed before.
//!
//! The order is what matters. A few good ones are tried; after that the best is repaired: a block that did not find
//! room below the limit is moved to just before the first of those in its way, and everything from there on is placed
//! again. The effort is bounded by the number of blocks and of pairs that meet.

use super::Pool;
use super::lifetimes::{Blocks, NONE, Piece};
use super::replay::Address;
use super::whole::is_permanent;

/// A block that has no address yet.
const UNPLACED: Address = Address::MAX;

/// Pairs of blocks that meet, per block, above which searching would no longer be linear; small graphs may have more.
const MOST_PAIRS_PER_BLOCK: usize = 64;
const FREE_PAIRS: usize = 1 << 18;

/// Looks at neighbours that repairing may spend: a few for each pair, and enough to settle small graphs.
const LOOKS_PER_PAIR: usize = 4;
const FREE_LOOKS: usize = 1 << 17;

/// Addresses that need fewer than `most` bytes, if such are found.
pub(super) fn place(
    blocks: &Blocks,
    pool: Pool,
    lower_bound: usize,
    most: usize,
    end: u32,
) -> Option<Vec<Address>> {
    let mut search = Search::new(blocks, pool, end)?;
    let mut best = None;
    let mut best_bytes = most;
    for order in search.orders() {
        if let Some(bytes) = search.place_all(&order, best_bytes) {
            best_bytes = bytes;
            best = Some(search.addresses.clone());
            if bytes == lower_bound {
                break;
            }
        }
    }
    best
}

/// Blocks, who meets whom, and where they are.
struct Search<'a> {
    blocks: &'a Blocks,
    /// Blocks that do not live all the time.
    movable: Vec<u32>,
    /// Below this lie the blocks that do.
    base: Address,
    capacity: usize,
    neighbours: Neighbours,
    addresses: Vec<Address>,
    /// What is taken around the block that is being placed.
    taken: Vec<(Address, Address)>,
}

impl<'a> Search<'a> {
    /// `None` when too many blocks meet.
    fn new(blocks: &'a Blocks, pool: Pool, end: u32) -> Option<Search<'a>> {
        let mut addresses = vec![UNPLACED; blocks.first.len()];
        let mut movable = Vec::with_capacity(blocks.first.len());
        let mut base = 0;
        for (block, piece) in blocks.first.iter().enumerate() {
            if piece.size == 0 {
                addresses[block] = 0;
            } else if is_permanent(piece, end) {
                addresses[block] = base;
                base += piece.size;
            } else {
                movable.push(block as u32);
            }
        }
        let neighbours = Neighbours::new(blocks, &movable)?;
        Some(Search {
            blocks,
            movable,
            base,
            capacity: pool.chunk_capacity(),
            neighbours,
            addresses,
            taken: vec![],
        })
    }

    /// Orders worth trying, the most promising first.
    fn orders(&self) -> [Vec<u32>; 2] {
        let size = |block: u32| self.blocks.first[block as usize].size;
        let life = |block: u32| {
            let piece = self.blocks.first[block as usize];
            (piece.death - piece.birth) as usize
        };
        let sorted = |key: &dyn Fn(u32) -> usize| {
            let mut order = self.movable.clone();
            order.sort_by_key(|&block| std::cmp::Reverse(key(block)));
            order
        };
        [sorted(&size), sorted(&|block| size(block).saturating_mul(life(block) + 1))]
    }

    /// Places all movable blocks, unless one would reach `limit`.
    fn place_all(&mut self, order: &[u32], limit: usize) -> Option<usize> {
        for &block in order {
            self.addresses[block as usize] = UNPLACED;
        }
        let mut bytes = self.base;
        for &block in order {
            let address = self.gap(block);
            let end = address + self.blocks.first[block as usize].size;
            if end >= limit {
                return None;
            }
            self.addresses[block as usize] = address;
            bytes = bytes.max(end);
        }
        Some(bytes)
    }

    /// The smallest gap for a block, or the first free address above all its neighbours.
    fn gap(&mut self, block: u32) -> Address {
        let size = self.blocks.first[block as usize].size;
        self.taken.clear();
        for &other in self.neighbours.of(block) {
            let address = self.addresses[other as usize];
            if address != UNPLACED {
                let end = address + self.blocks.first[other as usize].size;
                self.taken.push((address, end));
            }
        }
        insertion_sort(&mut self.taken);
        let mut above = self.base;
        let mut best = (usize::MAX, UNPLACED);
        for &(start, end) in &self.taken {
            if start >= above + size && start - above < best.0 {
                best = (start - above, above);
            }
            above = above.max(end);
        }
        if best.1 == UNPLACED { above } else { best.1 }
    }
}

/// For each block those that are alive at the same moment, in one array.
struct Neighbours {
    first: Vec<u32>,
    all: Vec<u32>,
}

impl Neighbours {
    fn new(blocks: &Blocks, movable: &[u32]) -> Option<Neighbours> {
        let most = FREE_PAIRS.max(MOST_PAIRS_PER_BLOCK * movable.len());
        let mut pairs: Vec<(u32, u32)> = Vec::with_capacity(8 * movable.len());
        let mut first = vec![0_u32; blocks.first.len() + 1];
        // Alive now, each with its death.
        let mut alive: Vec<(u32, u32)> = Vec::new();
        for &block in movable {
            let Piece { birth, .. } = blocks.first[block as usize];
            alive.retain(|&(_, death)| death >= birth);
            if pairs.len() + alive.len() > most {
                return None;
            }
            for &(other, _) in &alive {
                first[other as usize] += 1;
                pairs.push((block, other));
            }
            first[block as usize] += alive.len() as u32;
            let death = blocks.pieces(block as usize).last().map_or(birth, |piece| piece.death);
            alive.push((block, death));
        }
        let mut sum = 0;
        for count in &mut first {
            sum += std::mem::replace(count, sum);
        }
        let mut all = vec![NONE; sum as usize];
        let mut next = first.clone();
        let mut add = |block: u32, other: u32| {
            all[next[block as usize] as usize] = other;
            next[block as usize] += 1;
        };
        for (block, other) in pairs {
            add(block, other);
            add(other, block);
        }
        Some(Neighbours { first, all })
    }

    fn of(&self, block: u32) -> &[u32] {
        &self.all[self.first[block as usize] as usize..self.first[block as usize + 1] as usize]
    }
}

/// Almost all lists are short.
fn insertion_sort(taken: &mut [(Address, Address)]) {
    if taken.len() > 32 {
        return taken.sort_unstable();
    }
    for at in 1..taken.len() {
        let item = taken[at];
        let mut to = at;
        while to > 0 && taken[to - 1] > item {
            taken[to] = taken[to - 1];
            to -= 1;
        }
        taken[to] = item;
    }
}
