//! What there is to do for a batch: which rows share keys, which spans they see, and who does what.
//!
//! Tokens of one sequence whose positions follow each other share keys; their rows are cut into entries. An entry that sees
//! more spans than its share of the work is cut into pieces, which leave what they find in slots.
//!
//! Invariant: a schedule follows from positions and shapes alone, so all threads have the same one, in every phase.

use std::ops::Range;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::super::lens::{Item, SPAN, SPAN_TILES, Sizes};
use super::super::{ENOUGH_ITEMS, MOST_SLOT_FLOATS};
use super::Pages;
use crate::job::Fault;

/// Rows of neighbouring tokens that share keys, for every head of keys.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Entry {
    /// First row, all rows of a batch being counted through.
    first_row: u64,
    rows: u64,
    /// Spans that some row sees; none for padding.
    first_span: u64,
    end_span: u64,
    /// Number of the first of its items.
    first_item: u64,
    /// First float of its slots, or [`NO_SLOTS`].
    slots: u64,
}

const NO_SLOTS: u64 = u64::MAX;

impl Entry {
    const fn spans(&self) -> u64 {
        self.end_span - self.first_span
    }

    /// Whether its result is zero.
    pub(super) const fn is_padding(&self) -> bool {
        self.spans() == 0
    }

    /// Items for each head of keys, of so many spans.
    const fn pieces(&self, piece: u64) -> u64 {
        if self.slots == NO_SLOTS { 1 } else { self.spans().div_ceil(piece) }
    }
}

/// Floats of slots that a batch may need at most.
pub(super) fn most_slots(sizes: &Sizes, tokens: usize, pages: usize) -> usize {
    let spans = pages.div_ceil(SPAN_TILES);
    if spans < 2 {
        return 0;
    }
    let rows = sizes.heads.saturating_mul(tokens);
    rows.saturating_mul(spans).saturating_mul(sizes.partial()).min(MOST_SLOT_FLOATS)
}

/// What there is to do.
pub(super) struct PageSchedule<'a> {
    entries: &'a [Entry],
    sizes: Sizes,
    key_heads: u64,
    /// Spans of a piece.
    piece: u64,
    items: usize,
}

impl<'a> PageSchedule<'a> {
    /// Bytes of a thread's own memory.
    pub(super) fn bytes(sizes: &Sizes, tokens: usize) -> usize {
        tokens.saturating_mul(sizes.group.div_ceil(sizes.most_rows())).saturating_mul(size_of::<Entry>())
    }

    /// Looks at all tokens. `slots` is how many floats there are for slots.
    pub(super) fn new(
        pages: &Pages<'_>,
        slots: usize,
        memory: &'a mut [u8],
    ) -> Result<PageSchedule<'a>, Fault> {
        let sizes = pages.sizes;
        let key_heads = pages.op.key_heads as u64;
        let entries = <[Entry]>::mut_from_bytes(memory).unwrap_or_else(|_| unreachable!("whole entries"));
        let count = cut(pages, entries)?;
        let entries = &mut entries[..count];
        let spans: u64 = entries.iter().map(Entry::spans).sum();
        // A piece must be a fair part of all work, and slots must suffice.
        let mut piece = (spans * key_heads / ENOUGH_ITEMS as u64).max(1);
        let floats = |entry: &Entry| entry.spans() * entry.rows * key_heads * sizes.partial() as u64;
        let is_long = |entry: &Entry, piece: u64| entry.spans() > piece;
        while entries.iter().filter(|entry| is_long(entry, piece)).map(floats).sum::<u64>() > slots as u64 {
            piece *= 2;
        }
        let (mut items, mut used) = (0, 0);
        // The last rows of a prompt are the most work; they come first.
        for entry in entries.iter_mut().rev() {
            if is_long(entry, piece) {
                entry.slots = used;
                used += floats(entry);
            }
            entry.first_item = items;
            items += entry.pieces(piece) * key_heads;
        }
        let items = usize::try_from(items).unwrap_or(usize::MAX);
        Ok(PageSchedule { entries, sizes, key_heads, piece, items })
    }

    pub(super) fn entries(&self) -> &'a [Entry] {
        self.entries
    }

    /// Items of all entries.
    pub(super) const fn items(&self) -> usize {
        self.items
    }

    /// All of an entry, for a head of keys.
    pub(super) fn item(&self, entry: &Entry, key_head: usize) -> Item {
        Item {
            batch: 0,
            first_head: key_head * self.sizes.group,
            first_row: entry.first_row as usize,
            rows: entry.rows as usize,
            spans: entry.first_span as usize..entry.end_span as usize,
        }
    }

    /// The spans of a piece.
    pub(super) fn piece(&self, entry: &Entry, piece: usize) -> Range<usize> {
        let first = entry.first_span + piece as u64 * self.piece;
        first as usize..(first + self.piece).min(entry.end_span) as usize
    }

    /// First float of the slots of an entry and a head of keys, if it has slots.
    pub(super) fn slots(&self, entry: &Entry, key_head: usize) -> Option<usize> {
        let floats = entry.spans() * entry.rows * self.sizes.partial() as u64;
        (entry.slots != NO_SLOTS).then(|| (entry.slots + key_head as u64 * floats) as usize)
    }

    /// Finds items whose numbers ascend.
    pub(super) const fn cursor(&self) -> Cursor<'_> {
        Cursor { schedule: self, left: self.entries }
    }
}

/// Finds items whose numbers ascend.
pub(super) struct Cursor<'p> {
    schedule: &'p PageSchedule<'p>,
    /// Entries that later items may belong to.
    left: &'p [Entry],
}

impl Cursor<'_> {
    /// The entry of an item, its head of keys, and which piece of the entry it is.
    pub(super) fn find(&mut self, item: usize) -> (Entry, usize, usize) {
        let (item, &PageSchedule { key_heads, piece, .. }) = (item as u64, self.schedule);
        loop {
            let [left @ .., entry] = self.left else { unreachable!("items belong to entries") };
            let number = item - entry.first_item;
            if number < entry.pieces(piece) * key_heads {
                return (*entry, (number % key_heads) as usize, (number / key_heads) as usize);
            }
            self.left = left;
        }
    }
}

/// Cuts a batch into entries, and gives their number.
fn cut(pages: &Pages<'_>, entries: &mut [Entry]) -> Result<usize, Fault> {
    let (tokens, group, mut count) = (pages.tokens(), pages.sizes.group, 0);
    let (mut first, mut start) = (0, if tokens == 0 { None } else { pages.place(0)? });
    while first < tokens {
        // As many tokens as follow each other.
        let (mut end, mut last, mut next) = (first + 1, start, None);
        while end < tokens {
            next = pages.place(end)?;
            let follows = match (last, next) {
                (Some((a, position)), Some((b, next))) => a == b && next == position + 1,
                (None, None) => true,
                _ => false,
            };
            if !follows {
                break;
            }
            (last, end) = (next, end + 1);
        }
        for row in (first * group..end * group).step_by(pages.sizes.most_rows()) {
            let rows = pages.sizes.most_rows().min(end * group - row);
            let spans = match start {
                None => 0..0,
                Some((_, position)) => {
                    let at = |row: usize| position + row / group - first;
                    pages.first_seen(at(row)) / SPAN..at(row + rows - 1) / SPAN + 1
                }
            };
            let [first_span, end_span] = [spans.start, spans.end].map(|span| span as u64);
            let (first_row, rows) = (row as u64, rows as u64);
            entries[count] = Entry { first_row, rows, first_span, end_span, first_item: 0, slots: NO_SLOTS };
            count += 1;
        }
        (first, start) = (end, next);
    }
    Ok(count)
}
