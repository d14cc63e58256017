//! Which token each cell of a cache holds.
//!
//! Invariant: a cell holds at most one position, and every position that a token to come can see is in exactly one cell.
//! Cells need not be in the order of positions.

/// The cells of one kind of cache.
#[derive(Clone, Debug)]
pub(crate) struct Cells {
    /// By cell, the position it holds, or [`EMPTY`].
    positions: Vec<i32>,
    /// How many positions a token sees, if not all.
    window: Option<usize>,
    /// Where to look for a free cell first.
    next: usize,
    /// One more than the highest cell in use.
    end: usize,
}

const EMPTY: i32 = -1;

/// Graphs are made for numbers of cells that are multiples of this, so that one serves many tokens.
pub(crate) const STEP: usize = 256;

/// Cells of dense and of windowed blocks, for a context of so many tokens.
pub(crate) fn cell_counts(context: usize, window: Option<usize>, batch: usize) -> [usize; 2] {
    let all = context.next_multiple_of(STEP);
    // What the first token of a batch sees, and the batch.
    let few = window.map(|window| window.saturating_add(batch).next_multiple_of(STEP));
    [all, few.map_or(all, |few| few.min(all))]
}

impl Cells {
    pub(crate) fn new(count: usize, window: Option<usize>) -> Cells {
        Cells { positions: vec![EMPTY; count], window, next: 0, end: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.positions.len()
    }

    /// Cells that attention has to look at.
    pub(crate) fn visible(&self) -> usize {
        self.end.next_multiple_of(STEP).clamp(STEP.min(self.len()), self.len())
    }

    /// Gives cells to `count` tokens from position `first` on, and appends them to `cells`. Says whether there were
    /// enough.
    pub(crate) fn assign(&mut self, first: usize, count: usize, cells: &mut Vec<u32>) -> bool {
        let size = self.len();
        let mut seen = 0;
        for position in first..first + count {
            let free = loop {
                if seen == size {
                    return false;
                }
                let cell = (self.next + seen) % size;
                seen += 1;
                if self.is_free(cell, first) {
                    break cell;
                }
            };
            // Positions are below the largest context, which fits.
            self.positions[free] = position as i32;
            self.end = self.end.max(free + 1);
            cells.push(free as u32);
        }
        self.next = (self.next + seen) % size;
        true
    }

    /// Whether no token from position `first` on sees what a cell holds.
    fn is_free(&self, cell: usize, first: usize) -> bool {
        let position = self.positions[cell];
        position == EMPTY || self.window.is_some_and(|window| position as usize + window <= first)
    }

    /// Forgets positions from `position` on.
    pub(crate) fn truncate(&mut self, position: usize) {
        for (cell, held) in self.positions.iter_mut().enumerate() {
            if *held >= position as i32 {
                *held = EMPTY;
                self.next = self.next.min(cell);
            }
        }
        self.find_end();
    }

    fn find_end(&mut self) {
        self.end = self.positions.iter().rposition(|&held| held != EMPTY).map_or(0, |last| last + 1);
    }

    /// Whether everything that a token at `position` sees is still here.
    pub(crate) fn can_go_back_to(&self, position: usize) -> bool {
        let Some(window) = self.window else { return true };
        let first = (position + 1).saturating_sub(window) as i32;
        let seen = |&&held: &&i32| held >= first && held < position as i32;
        self.positions.iter().filter(seen).count() == position - first as usize
    }

    /// Forgets the positions `from..to`, and moves later ones down to close the gap. `moved` gets the change of each of
    /// the cells that are looked at.
    pub(crate) fn shift(&mut self, from: usize, to: usize, moved: &mut Vec<i32>) {
        let (from, to) = (from as i32, to as i32);
        moved.clear();
        moved.resize(self.visible(), 0);
        for (cell, held) in self.positions.iter_mut().enumerate() {
            if (from..to).contains(held) {
                *held = EMPTY;
                self.next = self.next.min(cell);
            } else if *held >= to {
                *held -= to - from;
                moved[cell] = from - to;
            }
        }
        self.find_end();
    }

    /// Writes which cells a token at `position` sees, in numbers of the mask's type; `hidden` is its minus infinity.
    pub(crate) fn mask_row<const N: usize>(&self, position: usize, hidden: [u8; N], row: &mut [u8]) {
        let position = position as i32;
        let first = self.window.map_or(0, |window| position + 1 - window.min(1 << 30) as i32).max(0);
        for (out, &held) in row.as_chunks_mut::<N>().0.iter_mut().zip(&self.positions) {
            *out = if held >= first && held <= position { [0; N] } else { hidden };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(cells: &Cells, position: usize) -> Vec<usize> {
        let mut row = vec![7; cells.len()];
        cells.mask_row(position, [1], &mut row);
        let visible = row.iter().enumerate().filter(|&(_, &hidden)| hidden == 0).map(|(cell, _)| cell);
        visible.collect()
    }

    #[test]
    fn cells_follow_positions_until_they_are_gone() {
        let mut cells = Cells::new(4, None);
        let mut out = Vec::new();
        assert!(cells.assign(0, 3, &mut out));
        assert_eq!((out.as_slice(), cells.visible()), ([0, 1, 2].as_slice(), 4));
        assert_eq!(seen(&cells, 1), [0, 1]);
        assert!(!cells.clone().assign(3, 2, &mut out));
        cells.truncate(1);
        out.clear();
        assert!(cells.assign(1, 1, &mut out));
        assert_eq!(out, [1]);
    }

    #[test]
    fn a_window_uses_cells_again() {
        let mut cells = Cells::new(4, Some(2));
        let mut out = Vec::new();
        for position in 0..20 {
            out.clear();
            assert!(cells.assign(position, 1, &mut out), "{position}");
            assert_eq!(seen(&cells, position).len(), 2.min(position + 1));
        }
        assert!(cells.can_go_back_to(20) && cells.can_go_back_to(18) && !cells.can_go_back_to(16));
    }

    #[test]
    fn a_shift_closes_the_gap() {
        let (mut cells, mut out, mut moved) = (Cells::new(8, None), Vec::new(), Vec::new());
        assert!(cells.assign(0, 8, &mut out));
        cells.shift(2, 5, &mut moved);
        assert_eq!(moved, [0, 0, 0, 0, 0, -3, -3, -3]);
        assert_eq!(seen(&cells, 4), [0, 1, 5, 6, 7]);
        out.clear();
        assert!(cells.assign(5, 3, &mut out));
        assert_eq!(out, [2, 3, 4]);
    }
}
