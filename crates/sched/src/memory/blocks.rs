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

/// The moments between which memory is taken that is given back before the pool's last moment, that one included. Most
/// pools are busy for a part of the run only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first: u32,
    pub(super) last: u32,
}

impl Span {
    /// Whether a piece is there all that time.
    pub(super) fn is_filled_by(self, piece: &Piece) -> bool {
        piece.birth <= self.first && piece.death == self.last
    }
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
    /// The last death.
    last: u32,
}

impl Blocks {
    pub(super) fn clear(&mut self) {
        self.first.clear();
        self.narrowed.clear();
        self.total = 0;
        self.last = 0;
    }

    /// When the pool is busy.
    pub(super) fn span(&self) -> Span {
        let passing = self.first.iter().find(|piece| piece.death < self.last);
        Span { first: passing.map_or(self.last, |piece| piece.birth), last: self.last }
    }

    /// The first birth and the last death.
    fn ends(&self) -> (u32, u32) {
        (self.first.first().map_or(self.last, |piece| piece.birth), self.last)
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

    /// The largest sum of bytes that are taken at the same moment: no placement can do with less. Fills in the sums,
    /// by moments since the first.
    pub(super) fn lower_bound(&self, live: &mut Vec<usize>) -> usize {
        let (first, last) = self.ends();
        live.clear();
        live.resize((last - first) as usize + 2, 0);
        for piece in self.first.iter().chain(&self.narrowed) {
            let (birth, death) = ((piece.birth - first) as usize, (piece.death - first) as usize + 1);
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
    pub(super) fn stretch(&mut self, lower_bound: usize, live: &[usize]) {
        let (first, last) = self.ends();
        let leaves = self.first.iter_mut().take_while(|piece| piece.birth == first);
        let mut leaves: Vec<_> = leaves.filter(|piece| piece.next == NONE && piece.death < last).collect();
        leaves.sort_by_key(|piece| std::cmp::Reverse(piece.death));
        // The most that is taken after the death of a leaf, those that were stretched before included.
        let (mut most, mut since) = (0, (last - first) as usize + 1);
        for leaf in leaves {
            let death = (leaf.death - first) as usize + 1;
            most = live[death..since].iter().copied().fold(most, usize::max);
            since = death;
            if most + leaf.size <= lower_bound {
                leaf.death = last;
                most += leaf.size;
            }
        }
    }

    /// Adds a block, born no earlier than those before. `None` when all of them would be more than can be counted.
    pub(super) fn add(&mut self, size: usize, birth: u32, death: u32) -> Option<u32> {
        self.total = self.total.checked_add(size).filter(|&total| total <= MOST_BYTES)?;
        self.last = self.last.max(death);
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
        self.last = self.last.max(death);
        if piece.size == size {
            piece.death = death;
        } else if death > now {
            piece.next = count;
            self.narrowed.push(Piece { birth: now + 1, death, size, next: NONE });
        }
    }
}
