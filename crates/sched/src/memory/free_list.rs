//! An allocator of offsets over one buffer.
//!
//! Best fit among the free blocks; the block that reaches to the end of the buffer is a last resort, so that the
//! high-water mark grows only when no hole fits. It hands out numbers and touches no memory.
//!
//! Invariant: free blocks are sorted, lie apart from each other with at least one byte in between, are not empty, and
//! start and end at multiples of the alignment. [`FreeList::check`] verifies it.

use super::error::MemoryPlanError;

/// Room without a bound, for measuring: half of what can be addressed, so that no sum overflows.
const UNBOUNDED: usize = usize::MAX / 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    offset: usize,
    size: usize,
}

impl Block {
    const fn end(self) -> usize {
        self.offset + self.size
    }
}

/// Free and used bytes of one buffer.
///
/// ```
/// use oxcart_sched::memory::FreeList;
///
/// let mut list = FreeList::bounded(32, 1024);
/// let a = list.allocate(100, || "a".into())?;
/// let b = list.allocate(100, || "b".into())?;
/// list.free(a, 100);
/// assert_eq!(list.allocate(60, || "c".into())?, a);
/// assert_eq!((b, list.high_water()), (128, 256));
///
/// let full = list.allocate(4096, || "d".into()).unwrap_err();
/// assert_eq!(full.to_string(), "no room for d: it needs 4096 bytes, the largest free block has 768 of 1024");
/// # Ok::<(), oxcart_sched::memory::MemoryPlanError>(())
/// ```
#[derive(Clone, Debug)]
pub struct FreeList {
    blocks: Vec<Block>,
    alignment: usize,
    capacity: usize,
    high_water: usize,
}

impl FreeList {
    /// Over a buffer of `capacity` bytes. The alignment is a power of two; bytes past its last multiple stay unused.
    pub fn bounded(alignment: usize, capacity: usize) -> FreeList {
        assert!(alignment.is_power_of_two(), "an alignment is a power of two");
        let capacity = capacity.min(UNBOUNDED) & !(alignment - 1);
        let mut list = FreeList { blocks: Vec::new(), alignment, capacity, high_water: 0 };
        list.reset();
        list
    }

    /// Over a buffer as large as it needs to be; [`FreeList::high_water`] tells afterwards.
    pub fn measuring(alignment: usize) -> FreeList {
        FreeList::bounded(alignment, UNBOUNDED)
    }

    /// Takes `size` bytes and says where they begin. `label` names the tensor in case there is no room.
    pub fn allocate(
        &mut self,
        size: usize,
        label: impl FnOnce() -> String,
    ) -> Result<usize, MemoryPlanError> {
        let refuse = |largest, list: &FreeList| {
            Err(MemoryPlanError::OutOfSpace { tensor: label(), size, largest, capacity: list.capacity })
        };
        let Some(padded) = size.checked_next_multiple_of(self.alignment) else { return refuse(0, self) };
        match self.best_hole(padded).or_else(|| self.tail(padded)) {
            Some(index) => Ok(self.take(index, padded)),
            None => refuse(self.blocks.iter().map(|block| block.size).max().unwrap_or(0), self),
        }
    }

    /// Gives back what was allocated with this size, or an aligned part of it.
    ///
    /// # Panics
    /// When some of it is free already.
    pub fn free(&mut self, offset: usize, size: usize) {
        // A multiple of the alignment, which is a power of two; every allocation fits twice into what can be counted.
        let size = (size + self.alignment - 1) & !(self.alignment - 1);
        if size == 0 {
            return;
        }
        let next = self.blocks.partition_point(|block| block.offset < offset);
        let joins_next = self.blocks.get(next).is_some_and(|block| block.offset == offset + size);
        let joins_last = next > 0 && self.blocks[next - 1].end() == offset;
        let free_before = next > 0 && self.blocks[next - 1].end() > offset;
        let free_after = self.blocks.get(next).is_some_and(|block| block.offset < offset + size);
        assert!(!free_before && !free_after, "{size} bytes at {offset} are free already");
        match (joins_last, joins_next) {
            (true, true) => {
                self.blocks[next - 1].size += size + self.blocks[next].size;
                self.blocks.remove(next);
            }
            (true, false) => self.blocks[next - 1].size += size,
            (false, true) => {
                self.blocks[next].offset = offset;
                self.blocks[next].size += size;
            }
            (false, false) => self.blocks.insert(next, Block { offset, size }),
        }
    }

    /// Everything is free again; the high-water mark starts anew.
    pub fn reset(&mut self) {
        self.blocks.clear();
        self.blocks.extend((self.capacity > 0).then_some(Block { offset: 0, size: self.capacity }));
        self.high_water = 0;
    }

    /// The end of the last byte that was ever in use.
    pub const fn high_water(&self) -> usize {
        self.high_water
    }

    /// Verifies the invariant.
    pub fn check(&self) -> Result<(), String> {
        for block in &self.blocks {
            let aligned = (block.offset | block.size) & (self.alignment - 1) == 0;
            if block.size == 0 || !aligned || block.end() > self.capacity {
                return Err(format!("{block:?} is empty, not aligned, or past the end"));
            }
        }
        match self.blocks.windows(2).find(|pair| pair[0].end() >= pair[1].offset) {
            Some(pair) => Err(format!("{:?} and {:?} are out of order, overlap or touch", pair[0], pair[1])),
            None => Ok(()),
        }
    }

    /// The smallest block that is large enough, the one at the end of the buffer left aside; of equals the last.
    pub(super) fn best_hole(&self, size: usize) -> Option<usize> {
        let holes = match self.blocks.split_last() {
            Some((last, holes)) if last.end() == self.capacity => holes,
            _ => &self.blocks,
        };
        FreeList::best(holes, size)
    }

    /// The smallest block that is large enough.
    pub(super) fn best_of_all(&self, size: usize) -> Option<usize> {
        FreeList::best(&self.blocks, size)
    }

    fn best(holes: &[Block], size: usize) -> Option<usize> {
        let mut best = None;
        let mut best_size = usize::MAX;
        for (index, block) in holes.iter().enumerate() {
            if block.size >= size && block.size <= best_size {
                (best, best_size) = (Some(index), block.size);
            }
        }
        best
    }

    /// The last block, if it is large enough.
    pub(super) fn tail(&self, size: usize) -> Option<usize> {
        self.blocks.last().filter(|block| block.size >= size).map(|_| self.blocks.len() - 1)
    }

    pub(super) fn block_size(&self, index: usize) -> usize {
        self.blocks[index].size
    }

    /// What using the last block for `size` bytes would cost: growth first, then what would be left unused below the
    /// high-water mark.
    pub(super) fn tail_cost(&self, size: usize) -> (usize, usize) {
        let end = self.blocks.last().map_or(self.capacity, |block| block.offset) + size;
        (end.saturating_sub(self.high_water), self.high_water.saturating_sub(end))
    }

    /// Takes `size` bytes, a multiple of the alignment, from the front of a block.
    pub(super) fn take(&mut self, index: usize, size: usize) -> usize {
        let block = &mut self.blocks[index];
        let offset = block.offset;
        block.offset += size;
        block.size -= size;
        if block.size == 0 {
            self.blocks.remove(index);
        }
        self.high_water = self.high_water.max(offset + size);
        offset
    }

    /// As [`FreeList::take`], from the back of the block.
    pub(super) fn take_back(&mut self, index: usize, size: usize) -> usize {
        let block = &mut self.blocks[index];
        block.size -= size;
        let offset = block.end();
        if block.size == 0 {
            self.blocks.remove(index);
        }
        self.high_water = self.high_water.max(offset + size);
        offset
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn label() -> String {
        "x".into()
    }

    #[test]
    fn takes_the_smallest_hole_that_fits() {
        let mut list = FreeList::measuring(16);
        let sizes = [64, 16, 32, 16, 48, 16];
        let at: Vec<_> = sizes.iter().map(|&size| list.allocate(size, label).unwrap()).collect();
        assert_eq!(at, [0, 64, 80, 112, 128, 176]);
        for hole in [0, 2, 4] {
            list.free(at[hole], sizes[hole]);
            list.check().unwrap();
        }
        assert_eq!(list.allocate(40, label).unwrap(), 128, "48 bytes for 40, padded to 48");
        assert_eq!(list.allocate(17, label).unwrap(), 80, "32 bytes for 17, padded to 32");
        assert_eq!(list.allocate(65, label).unwrap(), 192, "no hole: the last block");
        assert_eq!(list.high_water(), 272);
    }

    #[test]
    fn neighbours_merge() {
        let mut list = FreeList::bounded(8, 64);
        for _ in 0..8 {
            list.allocate(8, label).unwrap();
        }
        assert!(list.blocks.is_empty());
        for offset in [8, 24, 16, 0, 56] {
            list.free(offset, 8);
            list.check().unwrap();
        }
        assert_eq!(list.blocks, [Block { offset: 0, size: 32 }, Block { offset: 56, size: 8 }]);
    }

    #[test]
    fn no_room_names_the_tensor() {
        let mut list = FreeList::bounded(32, 100);
        list.allocate(40, label).unwrap();
        let error = list.allocate(33, || "kq-3".into()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no room for kq-3: it needs 33 bytes, the largest free block has 32 of 96"
        );
        assert!(list.allocate(usize::MAX, label).is_err());
        list.reset();
        assert_eq!((list.high_water(), list.allocate(96, label)), (0, Ok(0)));
    }

    #[test]
    #[should_panic(expected = "8 bytes at 16 are free already")]
    fn giving_back_twice_is_a_mistake() {
        let mut list = FreeList::bounded(8, 64);
        list.allocate(24, label).unwrap();
        list.free(0, 24);
        list.free(16, 8);
    }

    #[test]
    fn nothing_is_always_available() {
        let mut list = FreeList::bounded(32, 64);
        let at = list.allocate(0, label).unwrap();
        list.free(at, 0);
        assert_eq!(list.allocate(64, label), Ok(0));
        list.check().unwrap();
    }

    #[test]
    fn blocks_can_be_taken_from_the_back() {
        let mut list = FreeList::bounded(8, 64);
        assert_eq!(list.take_back(0, 16), 48);
        assert_eq!(list.take(0, 8), 0);
        assert_eq!(list.best_of_all(40), Some(0));
        assert_eq!(list.take_back(0, 40), 8);
        assert_eq!(list.best_of_all(8), None);
        list.check().unwrap();
    }

    /// Every byte by itself: whether it is taken.
    struct Bytes(Vec<bool>);

    impl Bytes {
        fn set(&mut self, offset: usize, len: usize, taken: bool) {
            for byte in &mut self.0[offset..offset + len] {
                assert_ne!(*byte, taken, "taken or freed twice");
                *byte = taken;
            }
        }

        /// Lengths of the free runs, the last one apart.
        fn holes(&self) -> (Vec<usize>, usize) {
            let runs: Vec<_> = self.0.chunk_by(|a, b| a == b).collect();
            let free = |run: &&[bool]| !run[0];
            let last = runs.last().filter(|run| free(run)).map_or(0, |run| run.len());
            let holes = runs.iter().copied().filter(free).map(<[bool]>::len).collect();
            (holes, last)
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_map_of_bytes(
            alignment in prop::sample::select(vec![1_usize, 8, 32]),
            steps in prop::collection::vec((any::<bool>(), 0..700_usize, any::<prop::sample::Index>()), 1..120),
        ) {
            const CAPACITY: usize = 4096;
            let mut list = FreeList::bounded(alignment, CAPACITY);
            let mut bytes = Bytes(vec![false; CAPACITY]);
            let mut taken: Vec<(usize, usize)> = Vec::new();
            let mut high_water = 0;
            for (free, size, which) in steps {
                if free && !taken.is_empty() {
                    let (offset, size) = taken.swap_remove(which.index(taken.len()));
                    list.free(offset, size);
                    bytes.set(offset, size.next_multiple_of(alignment), false);
                } else {
                    let padded = size.next_multiple_of(alignment);
                    let (holes, last) = bytes.holes();
                    let room = holes.iter().copied().max().unwrap_or(0);
                    match list.allocate(size, label) {
                        Ok(offset) => {
                            prop_assert!(offset.is_multiple_of(alignment));
                            let hole = bytes.0[offset..].iter().take_while(|&&taken| !taken).count();
                            let best = holes.iter().copied().filter(|&hole| hole >= padded).min();
                            // The smallest hole, unless that is the last block and another one would do.
                            prop_assert!(padded == 0 || Some(hole) == best || best == Some(last));
                            bytes.set(offset, padded, true);
                            taken.push((offset, size));
                            high_water = high_water.max(offset + padded);
                        }
                        Err(_) => prop_assert!(padded > room),
                    }
                }
                prop_assert_eq!(list.check(), Ok(()));
                prop_assert_eq!(list.high_water(), high_water);
                let free: usize = list.blocks.iter().map(|block| block.size).sum();
                prop_assert_eq!(free, bytes.0.iter().filter(|&&taken| !taken).count());
            }
        }
    }
}
