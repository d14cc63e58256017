//! What is placed: bytes that are taken for some time.
//!
//! Invariant: blocks are sorted by birth, and the pieces of a block follow each other in time without a gap, each
//! smaller than the one before, all beginning at the block's first byte.

/// No block, or no further piece.
pub(super) const NONE: u32 = u32::MAX;

/// The most bytes all blocks of a pool may have together, so that offsets and sums of them cannot overflow.
const MOST_BYTES: usize = usize::MAX / 8;

/// Bytes that are taken from one moment to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) birth: u32,
    pub(super) death: u32,
    /// A multiple of the pool's alignment.
    pub(super) size: usize,
    /// The piece that follows at the same offset, smaller than this one; [`NONE`] for almost all.
    pub(super) next: u32,
}

/// All that is to be placed in one pool.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// The first piece of each block, in order of birth.
    pub(super) first: Vec<Piece>,
    /// What is left of blocks whose later tenants are smaller.
    pub(super) narrowed: Vec<Piece>,
    /// All first pieces together.
    total: usize,
}

impl Blocks {
    pub(super) fn clear(&mut self) {
        self.first.clear();
        self.narrowed.clear();
        self.total = 0;
    }

    /// The piece after this one.
    pub(super) fn after(&self, piece: &Piece) -> Option<&Piece> {
        self.narrowed.get(piece.next as usize)
    }

    /// The last piece of a block.
    pub(super) fn last<'a>(&'a self, mut piece: &'a Piece) -> &'a Piece {
        while let Some(next) = self.after(piece) {
            piece = next;
        }
        piece
    }

    /// The largest sum of bytes that are taken at the same moment: no placement can do with less. Fills in the sums.
    pub(super) fn lower_bound(&self, end: u32, live: &mut Vec<usize>) -> usize {
        live.clear();
        live.resize(end as usize + 2, 0);
        for piece in self.first.iter().chain(&self.narrowed) {
            let (birth, death) = (piece.birth as usize, piece.death as usize + 1);
            live[birth] = live[birth].wrapping_add(piece.size);
            live[death] = live[death].wrapping_sub(piece.size);
        }
        let (mut sum, mut most) = (0_usize, 0);
        for live in live {
            sum = sum.wrapping_add(*live);
            *live = sum;
            most = most.max(sum);
        }
        most
    }

    /// Lets blocks that are there from the beginning stay to the end where that does not raise the lower bound. What
    /// lives all the time is easy to place, and not in the way of anything.
    pub(super) fn stretch(&mut self, lower_bound: usize, end: u32, live: &[usize]) {
        let leaves = self.first.iter_mut().take_while(|piece| piece.birth == 0);
        let mut leaves: Vec<_> = leaves.filter(|piece| piece.next == NONE && piece.death < end).collect();
        leaves.sort_by_key(|piece| std::cmp::Reverse(piece.death));
        // The most that is taken after the death of a leaf, those that were stretched before included.
        let (mut most, mut since) = (0, end as usize + 1);
        for leaf in leaves {
            let death = leaf.death as usize + 1;
            most = live[death..since].iter().copied().fold(most, usize::max);
            since = death;
            if most + leaf.size <= lower_bound {
                leaf.death = end;
                most += leaf.size;
            }
        }
    }

    /// Adds a block, born no earlier than those before. `None` when all of them would be more than can be counted.
    pub(super) fn add(&mut self, size: usize, birth: u32, death: u32) -> Option<u32> {
        self.total = self.total.checked_add(size).filter(|&total| total <= MOST_BYTES)?;
        self.first.push(Piece { birth, death, size, next: NONE });
        Some(self.first.len() as u32 - 1)
    }

    /// Lets a tenant of `size` bytes that is made at moment `now` stay until `death`.
    pub(super) fn move_in(&mut self, block: u32, size: usize, now: u32, death: u32) {
        let count = self.narrowed.len() as u32;
        let mut piece = &mut self.first[block as usize];
        while piece.next != NONE {
            let next = piece.next as usize;
            piece = &mut self.narrowed[next];
        }
        if piece.size == size {
            piece.death = death;
        } else if death > now {
            piece.next = count;
            self.narrowed.push(Piece { birth: now + 1, death, size, next: NONE });
        }
    }
}
