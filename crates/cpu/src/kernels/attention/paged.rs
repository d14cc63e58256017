//! PAGED_ATTN: attention of tokens of many sequences over pages of keys and values.
//!
//! Invariant: the result of a token depends on its own query, its sequence's keys and values and its position, not on other
//! tokens, on which pages hold the sequence, or on threads.
//!
//! What there is to do is known only when positions are: every thread makes the same [`PageSchedule`] of a batch, and claims items
//! of it.

mod schedule;
#[cfg(test)]
mod tests;

use oxcart_tensor::TensorRef;
use oxcart_tensor::ops::PagedAttn;

use self::schedule::PageSchedule;
use super::super::soft_max::Slopes;
use super::lens::{Attention, HeadAt, Item, KEYS, KeyForm, Lens, MOST_CHANNELS, Query, Sight, Sizes, Tile};
use super::multiply_adds;
use super::slots::Slots;
use super::soften::Shaping;
use super::walk::{AttentionScratch, finish, walk};
use crate::job::{Fault, Job, Kernel, as_floats};
use crate::simd::{Level, Simd, for_each_level};
use crate::view::{Dst, Src};

/// Cells of a page; a page is a tile.
const PAGE: usize = PagedAttn::PAGE;
const _: () = assert!(PAGE == KEYS);

fn sizes(op: &PagedAttn, q: [usize; 4], values: [usize; 4]) -> Sizes {
    let [d, heads, ..] = q;
    Sizes { d, dv: values[0] / op.key_heads, group: heads / op.key_heads, heads }
}

/// The most rows of an item.
fn most_rows(sizes: &Sizes, tokens: usize) -> usize {
    tokens.saturating_mul(sizes.group).clamp(1, sizes.most_rows())
}

pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let op = PagedAttn::try_from(*node.op()).ok()?;
    let (q, keys, values, table) = (node.source(0)?, node.source(1)?, node.source(2)?, node.source(3)?);
    let (sizes, tokens) = (sizes(&op, q.ne().extents(), values.ne().extents()), q.ne()[2]);
    if sizes.d.saturating_add(sizes.dv) > MOST_CHANNELS {
        return None;
    }
    let run = for_each_level!(paged: fn(job: Job<'_>) -> Result<(), Fault>).at(level);
    // How far back tokens look is known when they run; at most as far as the table goes.
    let most = table.ne()[0].saturating_mul(PAGE);
    let work = q.ne()[1].saturating_mul(tokens).saturating_mul(most).saturating_mul(sizes.d + sizes.dv);
    let rows = most_rows(&sizes, tokens);
    let slots = schedule::most_slots(&sizes, tokens, table.ne()[0]);
    let items = tokens.saturating_mul(sizes.heads).saturating_mul(table.ne()[0]);
    let own = AttentionScratch::bytes(&sizes, KeyForm::of(keys.dtype()), rows)
        + PageSchedule::bytes(&sizes, tokens);
    let kernel = Kernel::claimed(run, items, multiply_adds(work)).own(own);
    Some(if slots > 0 { kernel.phases(2).shared(slots * size_of::<f32>()) } else { kernel })
}

/// What positions and a table let rows see.
struct Pages<'t> {
    q: Src<'t>,
    table: Src<'t>,
    tokens: Src<'t>,
    sizes: Sizes,
    /// Pages of the cache.
    count: usize,
    op: PagedAttn,
}

impl Pages<'_> {
    fn tokens(&self) -> usize {
        self.tokens.ne()[1]
    }

    /// Sequence and position of a token, checked; `None` for padding.
    #[inline(always)]
    fn place(&self, token: usize) -> Result<Option<(usize, usize)>, Fault> {
        let place = self.tokens.row::<i32>([token, 0, 0]);
        let (sequence, position) = (i64::from(place.get(0)), i64::from(place.get(1)));
        if sequence < 0 {
            return Ok(None);
        }
        let [pages, sequences, ..] = self.table.ne();
        let sequence = Fault::check("sequence", sequence, sequences)?;
        Ok(Some((sequence, Fault::check("position", position, pages.saturating_mul(PAGE))?)))
    }

    /// Position of a token that was found to be in order.
    #[inline(always)]
    fn position(&self, token: usize) -> usize {
        self.tokens.row::<i32>([token, 0, 0]).get(1) as usize
    }

    /// The first position that a token sees.
    #[inline(always)]
    fn first_seen(&self, position: usize) -> usize {
        let by_window = match self.op.window {
            0 => 0,
            window => (position + 1).saturating_sub(window),
        };
        by_window.max(position.checked_div(self.op.chunk).unwrap_or(0) * self.op.chunk)
    }

    /// The first token of an item, and the last.
    #[inline(always)]
    fn ends(&self, item: &Item) -> [usize; 2] {
        [item.first_row, item.first_row + item.rows - 1].map(|row| row / self.sizes.group)
    }
}

impl Lens for Pages<'_> {
    fn heads(&self, item: &Item) -> [HeadAt; 2] {
        let head = item.first_head / self.sizes.group;
        [self.sizes.d, self.sizes.dv].map(|size| HeadAt { plane: [0, 0], channel: head * size })
    }

    fn tile(&self, item: &Item, number: usize) -> Result<Option<Tile>, Fault> {
        // Positions of an item ascend one by one, and so does what its tokens see.
        let [first, last] = self.ends(item);
        let (seen, position) = (self.first_seen(self.position(first)), self.position(last));
        let start = number * PAGE;
        let keys = seen.saturating_sub(start)..PAGE.min((position + 1).saturating_sub(start));
        if keys.is_empty() {
            return Ok(None);
        }
        let sequence = self.tokens.row::<i32>([first, 0, 0]).get(0) as usize;
        let page = i64::from(self.table.row::<i32>([sequence, 0, 0]).get(number));
        let cell = Fault::check("page", page, self.count)? * PAGE;
        Ok(Some(Tile { number, cell, keys }))
    }

    fn sight(&self, _item: &Item, query: Query, tile: &Tile, slope: f32, biases: &mut [f32; KEYS]) -> Sight {
        let (position, start) = (self.position(query.token), tile.number * PAGE);
        let first = self.first_seen(position).saturating_sub(start).clamp(tile.keys.start, tile.keys.end);
        let end = (position + 1).saturating_sub(start).clamp(first, tile.keys.end);
        if self.op.max_bias > 0.0 {
            // From the first key of the tile on, so that few are too large to be exact.
            let distance = (position as i64 - start as i64) as f32;
            for (key, bias) in biases.iter_mut().enumerate() {
                *bias = if (first..end).contains(&key) {
                    -slope * (distance - key as f32)
                } else {
                    f32::NEG_INFINITY
                };
            }
            return Sight::Biased;
        }
        if (first, end) == (tile.keys.start, tile.keys.end) { Sight::All } else { Sight::Keys(first..end) }
    }

    fn query(&self, query: Query) -> &[f32] {
        self.q.row::<f32>([query.head, query.token, 0]).slice()
    }
}

#[inline(always)]
fn paged<S: Simd>(s: S, job: Job<'_>) -> Result<(), Fault> {
    let op: PagedAttn = job.op();
    let [q, keys, values, table, tokens] = [0, 1, 2, 3, 4].map(|slot| job.src(slot));
    let sizes = sizes(&op, q.ne(), values.ne());
    let (form, rows) = (KeyForm::of(keys.dtype()), most_rows(&sizes, q.ne()[2]));
    let lens = Pages { q, table, tokens, sizes, count: keys.ne()[1] / PAGE, op };
    let attention = Attention {
        lens: &lens,
        sizes,
        form,
        keys,
        values,
        sinks: job.may(5),
        slopes: Slopes::new(op.max_bias, sizes.heads),
        shaping: Shaping::new(op.scale, op.softcap),
    };
    let (claims, stop) = (job.to_claim(), job.stop);
    let (own, rest) = job.own.split_at_mut(AttentionScratch::bytes(&sizes, form, rows));
    let schedule = PageSchedule::new(&lens, job.shared.len() / size_of::<f32>(), rest)?;
    if job.phase == 1 {
        let totals = as_floats(own);
        for index in job.share.of(schedule.entries().len() * op.key_heads) {
            let (entry, key_head) = (schedule.entries()[index / op.key_heads], index % op.key_heads);
            let Some(slots) = schedule.slots(&entry, key_head) else { continue };
            let item = schedule.item(&entry, key_head);
            // SAFETY: no thread leaves anything in this phase.
            let slots = unsafe { Slots::new(job.shared, slots, item.spans.clone()) };
            for row in 0..item.rows {
                if stop.after(item.spans.len() * sizes.dv) {
                    return Ok(());
                }
                // SAFETY: shares do not meet, and each row belongs to one entry.
                unsafe { slots.merge(s, &attention, &item, row, totals, &job.dst) };
            }
        }
        return Ok(());
    }
    let mut scratch = AttentionScratch::new(&sizes, form, rows, own);
    let mut cursor = schedule.cursor();
    for index in claims.of(schedule.items()) {
        let (entry, key_head, piece) = cursor.find(index);
        let item = schedule.item(&entry, key_head);
        if entry.is_padding() {
            // SAFETY: each item is claimed by one thread, and each row belongs to one entry.
            unsafe { clear(&item, &sizes, &job.dst) };
            continue;
        }
        match schedule.slots(&entry, key_head) {
            None => {
                if walk(S::LEVEL)(&attention, &item, &mut scratch, stop, None)? {
                    // SAFETY: each item is claimed by one thread, and each row belongs to one entry.
                    unsafe { finish(s, &attention, &item, &scratch, &job.dst) };
                }
            }
            Some(first) => {
                // SAFETY: each item is claimed by one thread, and slots of entries do not meet; they are merged in the next
                // phase.
                let slots = unsafe { Slots::new(job.shared, first, item.spans.clone()) };
                let item = Item { spans: schedule.piece(&entry, piece), ..item };
                walk(S::LEVEL)(&attention, &item, &mut scratch, stop, Some(&slots))?;
            }
        }
    }
    Ok(())
}

/// Writes the results of padding.
///
/// # Safety
///
/// No other thread reads or writes the results of these rows in this phase, and this thread has no handle of them.
unsafe fn clear(item: &Item, sizes: &Sizes, dst: &Dst<'_>) {
    for row in 0..item.rows {
        let query = item.query(sizes, row);
        // SAFETY: as the caller says.
        unsafe { dst.row::<f32>([query.head, query.token, 0]) }.slice().fill(0.0);
    }
}
