//! A sequence: its tokens, and the pages that hold what blocks remember of them.
//!
//! Invariant: every position below [`Sequence::len`] that a token to come can see is held by the page that the table of its
//! kind names. Tables of windowed blocks forget pages that no token to come can see.

use super::pages::{Content, PAGE, Pages};
use crate::model::Window;

/// Kinds of pages: of blocks that see everything, and of blocks that see a window.
pub(crate) const KINDS: usize = 2;

/// A sequence of a runner. It means nothing to any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub(crate) u64);

impl std::fmt::Display for SequenceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sequence {}", self.0)
    }
}

/// What is kept of a sequence.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) tokens: Vec<u32>,
    /// Its row in tables and in recurrent state.
    pub(crate) row: usize,
    /// By kind and number of the page in the sequence, the page that holds it.
    pub(crate) tables: [Vec<Option<u32>>; KINDS],
    /// What its full pages hold, as far as that was needed.
    contents: Vec<Content>,
    /// It shares pages with sequences of the same scope alone.
    scope: u64,
    /// Up to here pages hold what computing the tokens gives. After it, keys were moved, and pages are never shared.
    exact_until: usize,
}

/// A page of a sequence that is to be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) kind: usize,
    /// Number of the page in the sequence.
    pub(crate) index: usize,
    /// The page that holds it from now on.
    pub(crate) page: u32,
    /// The page it was on before, if its contents must be copied.
    pub(crate) copied_from: Option<u32>,
}

impl Sequence {
    pub(crate) fn new(row: usize) -> Sequence {
        Sequence {
            tokens: Vec::new(),
            row,
            tables: Default::default(),
            contents: Vec::new(),
            scope: 0,
            exact_until: usize::MAX,
        }
    }

    /// The same, sharing pages with sequences of this scope alone.
    pub(crate) fn in_scope(self, scope: u64) -> Sequence {
        Sequence { scope, ..self }
    }

    pub(crate) fn scope(&self) -> u64 {
        self.scope
    }

    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// What its page of a number holds, which must be full.
    pub(crate) fn content(&mut self, index: usize) -> Content {
        while self.contents.len() <= index {
            let at = self.contents.len();
            let before = self.contents.last().copied().or_else(|| Content::of_scope(self.scope));
            let content = Content::after(before, &self.tokens[at * PAGE..(at + 1) * PAGE]);
            self.contents.push(content);
        }
        self.contents[index]
    }

    /// The pages, by their numbers here, that the next `count` positions need and that this sequence may not write to yet.
    pub(crate) fn missing_pages(
        &self,
        kind: usize,
        count: usize,
        pool: &Pages,
    ) -> impl Iterator<Item = usize> {
        let held = move |index: usize| self.tables[kind].get(index).copied().flatten();
        let pages = self.len() / PAGE..(self.len() + count).div_ceil(PAGE);
        pages.filter(move |&index| !held(index).is_some_and(|page| pool.is_own(page)))
    }

    /// Makes sure that the next `count` positions have pages that this sequence may write to. `None`, and nothing has
    /// changed, if there are not enough pages.
    pub(crate) fn make_room(
        &mut self,
        count: usize,
        pools: &mut [Option<Pages>; KINDS],
        changes: &mut Vec<Change>,
    ) -> Option<()> {
        let before = changes.len();
        for (kind, pool) in pools.iter_mut().enumerate() {
            let Some(pool) = pool else { continue };
            let missing: Vec<usize> = self.missing_pages(kind, count, pool).collect();
            for index in missing {
                let held = self.tables[kind].get(index).copied().flatten();
                let Some(page) = pool.take() else {
                    self.undo(changes.drain(before..), pools);
                    return None;
                };
                if self.tables[kind].len() <= index {
                    self.tables[kind].resize(index + 1, None);
                }
                self.tables[kind][index] = Some(page);
                changes.push(Change { kind, index, page, copied_from: held });
            }
        }
        // What was copied is used by one sequence fewer; until here it might have been needed to go back.
        Some(())
    }

    /// Takes back what [`make_room`](Sequence::make_room) did.
    pub(crate) fn undo(
        &mut self,
        changes: impl DoubleEndedIterator<Item = Change>,
        pools: &mut [Option<Pages>; KINDS],
    ) {
        for change in changes.rev() {
            self.tables[change.kind][change.index] = change.copied_from;
            if let Some(pool) = &mut pools[change.kind] {
                pool.give_back(change.page);
            }
        }
    }

    /// Adds tokens that were computed, lets go of pages that were copied or that no window reaches any more, and makes full
    /// ones findable.
    pub(crate) fn commit(
        &mut self,
        tokens: &[u32],
        changes: &[Change],
        pools: &mut [Option<Pages>; KINDS],
        window: Option<Window>,
    ) {
        let full_before = self.len() / PAGE;
        self.tokens.extend_from_slice(tokens);
        for change in changes {
            if let (Some(old), Some(pool)) = (change.copied_from, &mut pools[change.kind]) {
                pool.give_back(old);
            }
        }
        for index in full_before..(self.len().min(self.exact_until)) / PAGE {
            let content = self.content(index);
            for (kind, pool) in pools.iter_mut().enumerate() {
                let page = self.tables[kind].get(index).copied().flatten();
                if let (Some(page), Some(pool)) = (page, pool) {
                    pool.publish(page, content);
                }
            }
        }
        if let (Some(window), Some(pool)) = (window, &mut pools[1]) {
            let reach = window.first_seen(self.len()) / PAGE;
            let gone = reach.min(self.tables[1].len());
            for page in self.tables[1][..gone].iter_mut().rev().map_while(Option::take) {
                pool.give_back(page);
            }
        }
    }

    /// Whether pages hold what computing the tokens gives.
    pub(crate) fn is_exact(&self) -> bool {
        self.tokens.len() <= self.exact_until
    }

    /// Whether everything that a token at `position` sees is still here.
    pub(crate) fn can_go_back_to(&self, position: usize, window: Option<Window>, has_windows: bool) -> bool {
        let (Some(window), true) = (window, has_windows) else { return true };
        let (first, end) = (window.first_seen(position) / PAGE, position.div_ceil(PAGE));
        (first..end).all(|index| self.tables[1].get(index).copied().flatten().is_some())
    }

    /// Forgets the tokens from `position` on.
    pub(crate) fn truncate(&mut self, position: usize, pools: &mut [Option<Pages>; KINDS]) {
        self.tokens.truncate(position);
        self.contents.truncate(position / PAGE);
        if position <= self.exact_until {
            self.exact_until = usize::MAX;
        }
        let kept = position.div_ceil(PAGE);
        for (table, pool) in self.tables.iter_mut().zip(pools) {
            let gone = table.drain(kept.min(table.len())..).flatten();
            if let Some(pool) = pool {
                gone.for_each(|page| pool.give_back(page));
            }
        }
    }

    /// Takes over the pages of the longest beginning of `tokens` that is known, so that it need not be computed; all but
    /// the last token at most, because of that one logits are wanted. Returns how many tokens these are. The sequence must
    /// be empty.
    pub(crate) fn adopt(
        &mut self,
        tokens: &[u32],
        pools: &mut [Option<Pages>; KINDS],
        window: Option<Window>,
    ) -> usize {
        debug_assert!(self.tokens.is_empty(), "only an empty sequence takes over pages");
        self.contents = known_pages(self.scope, tokens, pools, window);
        let count = self.contents.len();
        for (kind, pool) in pools.iter_mut().enumerate() {
            let Some(pool) = pool else { continue };
            let first = if kind == 1 { first_page_seen(count, window) } else { 0 };
            let share = |(index, content): (usize, &Content)| {
                let page = pool.find(*content).filter(|_| index >= first)?;
                pool.share(page);
                Some(page)
            };
            self.tables[kind] = self.contents.iter().enumerate().map(share).collect();
        }
        self.tokens.extend_from_slice(&tokens[..count * PAGE]);
        count * PAGE
    }

    /// Another sequence with the same tokens and, for as long as neither writes to them, the same pages.
    pub(crate) fn fork(&self, row: usize, pools: &mut [Option<Pages>; KINDS]) -> Sequence {
        for (table, pool) in self.tables.iter().zip(pools) {
            if let Some(pool) = pool {
                table.iter().flatten().for_each(|&page| pool.share(page));
            }
        }
        Sequence {
            tokens: self.tokens.clone(),
            row,
            tables: self.tables.clone(),
            contents: self.contents.clone(),
            scope: self.scope,
            exact_until: self.exact_until,
        }
    }

    /// Forgets the tokens `from..to`, whole pages, whose followers have moved.
    pub(crate) fn cut_out(&mut self, from: usize, to: usize, pools: &mut [Option<Pages>; KINDS]) {
        self.tokens.drain(from..to);
        self.contents.truncate(from / PAGE);
        self.exact_until = self.exact_until.min(from);
        for (table, pool) in self.tables.iter_mut().zip(pools) {
            let (from, to) = ((from / PAGE).min(table.len()), (to / PAGE).min(table.len()));
            let gone = table.drain(from..to).flatten();
            if let Some(pool) = pool {
                gone.for_each(|page| pool.give_back(page));
            }
        }
    }

    /// Makes room in an empty sequence for tokens whose pages come from elsewhere, and adds the tokens. What it holds is
    /// never shared: nothing vouches for it. `None`, and nothing has changed, if there are not enough pages.
    pub(crate) fn take_in(
        &mut self,
        tokens: &[u32],
        pools: &mut [Option<Pages>; KINDS],
        window: Option<Window>,
    ) -> Option<()> {
        debug_assert!(self.tokens.is_empty(), "only an empty sequence takes others' pages in");
        let end = tokens.len().div_ceil(PAGE);
        let first = window.map_or(0, |window| window.first_seen(tokens.len()) / PAGE).min(end);
        for (kind, pool) in pools.iter_mut().enumerate() {
            let Some(pool) = pool else { continue };
            let needed = if kind == 1 { end - first } else { end };
            self.tables[kind] = vec![None; end - needed];
            for _ in 0..needed {
                self.tables[kind].push(pool.take());
            }
        }
        if self.tables.iter().zip(&*pools).any(|(table, pool)| pool.is_some() && table.last() == Some(&None))
        {
            self.truncate(0, pools);
            return None;
        }
        self.tokens.extend_from_slice(tokens);
        self.exact_until = 0;
        Some(())
    }

    /// The cell of a position.
    pub(crate) fn cell(&self, kind: usize, position: usize) -> Option<usize> {
        let page = self.tables[kind].get(position / PAGE).copied().flatten()?;
        Some(page as usize * PAGE + position % PAGE)
    }
}

/// What the pages of the longest beginning of `tokens` hold that is known in a scope; all but the last token at most.
pub(crate) fn known_pages(
    scope: u64,
    tokens: &[u32],
    pools: &[Option<Pages>; KINDS],
    window: Option<Window>,
) -> Vec<Content> {
    let most = tokens.len().saturating_sub(1) / PAGE;
    let mut contents = Vec::new();
    for page in tokens.chunks_exact(PAGE).take(most) {
        let before = contents.last().copied().or_else(|| Content::of_scope(scope));
        let content = Content::after(before, page);
        if pools[0].as_ref().is_some_and(|pool| pool.find(content).is_none()) {
            break;
        }
        contents.push(content);
    }
    // Of windowed blocks, all pages that the next token sees must be there.
    if let Some(pool) = &pools[1] {
        let is_whole = |count: usize| {
            contents[first_page_seen(count, window)..count]
                .iter()
                .all(|content| pool.find(*content).is_some())
        };
        let count = (0..=contents.len()).rev().find(|&count| is_whole(count)).unwrap_or(0);
        contents.truncate(count);
    }
    contents
}

/// The first page that the token after so many pages sees.
fn first_page_seen(pages: usize, window: Option<Window>) -> usize {
    window.map_or(0, |window| window.first_seen(pages * PAGE) / PAGE)
}

/// How many tokens may follow `position` before pages are let go of that a token at `position` sees.
pub(crate) fn tokens_until_forgotten(position: usize, window: Window) -> usize {
    let first_page = window.first_seen(position) / PAGE;
    // The first length at which the next page is the first one seen.
    window.first_blind((first_page + 1) * PAGE).saturating_sub(position + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Pools = [Option<Pages>; KINDS];

    fn pools(pages: usize, windowed: usize) -> Pools {
        [Some(Pages::new(pages)), (windowed > 0).then(|| Pages::new(windowed))]
    }

    fn grow(
        sequence: &mut Sequence,
        tokens: &[u32],
        pools: &mut Pools,
        window: Option<Window>,
    ) -> Option<usize> {
        let mut changes = Vec::new();
        sequence.make_room(tokens.len(), pools, &mut changes)?;
        sequence.commit(tokens, &changes, pools, window);
        Some(changes.iter().filter(|change| change.copied_from.is_some()).count())
    }

    fn text(count: usize) -> Vec<u32> {
        (0..count as u32).map(|at| at * 7 % 101).collect()
    }

    #[test]
    fn a_beginning_is_computed_once() {
        let (mut pools, tokens) = (pools(20, 0), text(200));
        let mut first = Sequence::new(0);
        grow(&mut first, &tokens, &mut pools, None).unwrap();
        let mut second = Sequence::new(1);
        // Not the page that is not full, and never the last token.
        assert_eq!(second.adopt(&tokens, &mut pools, None), 192);
        assert_eq!(first.tables[0][..3], second.tables[0][..]);
        let mut third = Sequence::new(2);
        assert_eq!(third.adopt(&tokens[..192], &mut pools, None), 128);
        let mut other = tokens.clone();
        other[70] = 9999;
        assert_eq!(Sequence::new(3).adopt(&other, &mut pools, None), 64);
    }

    #[test]
    fn a_beginning_is_shared_within_its_scope_alone() {
        let (mut pools, tokens) = (pools(20, 0), text(200));
        grow(&mut Sequence::new(0), &tokens, &mut pools, None).unwrap();
        assert_eq!(Sequence::new(1).in_scope(7).adopt(&tokens, &mut pools, None), 0);
        let mut own = Sequence::new(2).in_scope(7);
        grow(&mut own, &tokens, &mut pools, None).unwrap();
        let mut second = Sequence::new(3).in_scope(7);
        assert_eq!(second.adopt(&tokens, &mut pools, None), 192);
        assert_eq!(own.tables[0][..3], second.tables[0][..]);
        assert_eq!(Sequence::new(4).in_scope(8).adopt(&tokens, &mut pools, None), 0);
        // A copy stays in the scope, and what it computes is found there alone.
        let mut copy = own.fork(5, &mut pools);
        grow(&mut copy, &text(100), &mut pools, None).unwrap();
        let longer = copy.tokens.clone();
        assert_eq!(Sequence::new(6).in_scope(7).adopt(&longer, &mut pools, None), 256);
        assert_eq!(Sequence::new(7).adopt(&longer, &mut pools, None), 192);
    }

    #[test]
    fn what_others_use_is_copied_before_it_is_written_to() {
        let (mut pools, tokens) = (pools(20, 0), text(100));
        let mut first = Sequence::new(0);
        grow(&mut first, &tokens, &mut pools, None).unwrap();
        let mut second = first.fork(1, &mut pools);
        assert_eq!(grow(&mut second, &[1], &mut pools, None), Some(1), "the half page is copied");
        assert_eq!(grow(&mut first, &[2], &mut pools, None), Some(0), "now it is the first one's alone");
        assert_eq!(first.tables[0][0], second.tables[0][0]);
        assert_ne!(first.tables[0][1], second.tables[0][1]);
        // Going back into a full page means writing to it, which others may find.
        second.truncate(10, &mut pools);
        assert_eq!(grow(&mut second, &[3], &mut pools, None), Some(1));
        let held = [first, second].map(|sequence| sequence.tables[0].iter().flatten().copied().collect());
        pools[0].as_ref().unwrap().check(&held);
    }

    #[test]
    fn too_few_pages_change_nothing() {
        let (mut pools, tokens) = (pools(3, 0), text(100));
        let mut sequence = Sequence::new(0);
        grow(&mut sequence, &tokens, &mut pools, None).unwrap();
        assert_eq!(grow(&mut sequence, &tokens, &mut pools, None), None);
        assert_eq!((sequence.len(), pools[0].as_ref().unwrap().in_use()), (100, 2));
        grow(&mut sequence, &tokens[..28], &mut pools, None).unwrap();
    }

    #[test]
    fn windows_let_go_of_what_nothing_sees() {
        let mut pools = pools(20, 6);
        let window = Some(Window::Sliding(100));
        let mut sequence = Sequence::new(0);
        for piece in text(640).chunks(50) {
            grow(&mut sequence, piece, &mut pools, window).unwrap();
            assert!(pools[1].as_ref().unwrap().in_use() <= 4);
        }
        assert!(sequence.can_go_back_to(630, window, true));
        assert!(!sequence.can_go_back_to(300, window, true) && sequence.can_go_back_to(300, window, false));
        // Its last pages are there, and so is all of the other kind.
        let mut again = Sequence::new(1);
        assert_eq!(again.adopt(&text(640), &mut pools, window), 576);
    }

    proptest! {
        /// So many tokens can be taken back, and not one more, where a token sees any before it at all.
        #[test]
        fn room_to_go_back_is_what_windows_keep(position in 1_usize..500, length in 1_usize..200, chunked: bool) {
            let window = if chunked { Window::Chunked(length) } else { Window::Sliding(length) };
            let room = tokens_until_forgotten(position, window);
            let sees_any = window.first_seen(position) / PAGE < position.div_ceil(PAGE);
            for more in [room, room + 1] {
                let (mut pools, mut sequence) = (pools(20, 20), Sequence::new(0));
                grow(&mut sequence, &text(position), &mut pools, Some(window)).unwrap();
                grow(&mut sequence, &text(more), &mut pools, Some(window)).unwrap();
                prop_assert_eq!(sequence.can_go_back_to(position, Some(window), true), more == room || !sees_any);
            }
        }

        /// Whatever sequences do, counts of pages agree with what they hold, and positions they can see have pages.
        #[test]
        fn pages_and_sequences_agree(steps in prop::collection::vec((0_u8..6, 0_usize..4, 1_usize..150), 1..80)) {
            let (mut pools, window) = (pools(30, 20), Some(Window::Sliding(70)));
            let mut sequences: Vec<Sequence> = (0..4).map(Sequence::new).collect();
            for (what, who, size) in steps {
                match what {
                    0..=2 => {
                        let start = sequences[who].len();
                        let tokens: Vec<u32> = text(start + size)[start..].to_vec();
                        grow(&mut sequences[who], &tokens, &mut pools, window);
                    }
                    3 => {
                        let to = sequences[who].len().saturating_sub(size);
                        let possible = sequences[who].can_go_back_to(to, window, true);
                        sequences[who].truncate(if possible { to } else { 0 }, &mut pools);
                    }
                    4 => {
                        sequences[who].truncate(0, &mut pools);
                        sequences[who].adopt(&text(size * 3), &mut pools, window);
                    }
                    _ => {
                        let copy = sequences[(who + 1) % 4].fork(who, &mut pools);
                        sequences[who].truncate(0, &mut pools);
                        sequences[who] = copy;
                    }
                }
                for (kind, pool) in pools.iter().enumerate() {
                    let held: Vec<Vec<u32>> = sequences
                        .iter()
                        .map(|sequence| sequence.tables[kind].iter().flatten().copied().collect())
                        .collect();
                    pool.as_ref().unwrap().check(&held);
                }
                for sequence in &sequences {
                    prop_assert!((0..sequence.len()).all(|at| sequence.cell(0, at).is_some()));
                    let first = Window::Sliding(70).first_seen(sequence.len());
                    prop_assert!((first..sequence.len()).all(|at| sequence.cell(1, at).is_some()));
                }
            }
        }
    }
}
