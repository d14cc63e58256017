//! FLASH_ATTN_EXT: softmax attention over one cache, with a mask.
//!
//! Work is claimed item by item. Where there are few of them and many keys, spans of keys are items too: then each leaves what
//! it has found in shared memory, and a second phase merges them in the order of keys.

use half::f16;
use oxcart_tensor::ops::FlashAttnExt;
use oxcart_tensor::{Layout, TensorRef};

use super::super::soft_max::Slopes;
use super::lens::{
    Attention, HeadAt, Item, KEYS, KeyForm, Lens, MOST_CHANNELS, Query, SPAN, Sight, Sizes, Tile,
};
use super::slots::Slots;
use super::soften::Shaping;
use super::walk::{AttentionScratch, finish, walk};
use super::{ENOUGH_ITEMS, MOST_SLOT_FLOATS, multiply_adds};
use crate::job::{Fault, Job, Kernel, as_floats};
use crate::simd::{Level, Simd, for_each_level};
use crate::view::Src;

pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let [q, k, v] = [0, 1, 2].map(|slot| node.source(slot));
    let (q, k, v) = (q?, k?, v?);
    let cut = Cut::new(q.layout(), k.layout(), v.layout());
    if cut.sizes.d.saturating_add(cut.sizes.dv) > MOST_CHANNELS {
        return None;
    }
    let run = for_each_level!(flash: fn(job: Job<'_>) -> Result<(), Fault>).at(level);
    let work = cut.queries().saturating_mul(cut.kv).saturating_mul(cut.sizes.d + cut.sizes.dv);
    let form = KeyForm::of(k.dtype());
    let kernel = Kernel::claimed(run, cut.items(), multiply_adds(work)).own(AttentionScratch::bytes(
        &cut.sizes,
        form,
        cut.most_rows(),
    ));
    Some(match cut.is_split {
        true => kernel.phases(2).shared(cut.slots() * size_of::<f32>()),
        false => kernel,
    })
}

/// How the work is cut; it follows from the shapes alone.
#[derive(Clone, Copy, Debug)]
struct Cut {
    sizes: Sizes,
    kv: usize,
    tokens: usize,
    batch: usize,
    /// Whether each span is an item.
    is_split: bool,
}

impl Cut {
    fn new(q: &Layout, k: &Layout, v: &Layout) -> Cut {
        let ([d, tokens, heads, batch], kv) = (q.ne().extents(), k.ne()[1]);
        // An empty result has no rows, and is only asked about.
        let group = greatest_common_divisor(heads / k.ne()[2], heads / v.ne()[2]).max(1);
        let sizes = Sizes { d, dv: v.ne()[0], group, heads };
        let mut cut = Cut { sizes, kv, tokens, batch, is_split: false };
        cut.is_split = cut.spans() > 1 && cut.tiles() < ENOUGH_ITEMS && cut.slots() <= MOST_SLOT_FLOATS;
        cut
    }

    fn groups(&self) -> usize {
        self.sizes.heads / self.sizes.group
    }

    /// Rows of a group.
    fn rows(&self) -> usize {
        self.tokens * self.sizes.group
    }

    fn most_rows(&self) -> usize {
        self.rows().clamp(1, self.sizes.most_rows())
    }

    fn row_tiles(&self) -> usize {
        self.rows().div_ceil(self.sizes.most_rows())
    }

    /// Rows that share keys, in as many pieces as it takes.
    fn tiles(&self) -> usize {
        self.batch * self.groups() * self.row_tiles()
    }

    fn spans(&self) -> usize {
        self.kv.div_ceil(SPAN)
    }

    fn items(&self) -> usize {
        self.tiles() * if self.is_split { self.spans() } else { 1 }
    }

    fn queries(&self) -> usize {
        self.batch * self.tokens * self.sizes.heads
    }

    /// Floats of all slots.
    fn slots(&self) -> usize {
        self.queries().saturating_mul(self.spans()).saturating_mul(self.sizes.partial())
    }

    /// All spans of some rows, and the first float of their slots.
    fn tile(&self, index: usize) -> (Item, usize) {
        // With a causal mask the last rows are the most work; they come first.
        let (tile, rest) = (self.row_tiles() - 1 - index % self.row_tiles(), index / self.row_tiles());
        let first_row = tile * self.sizes.most_rows();
        let item = Item {
            batch: rest / self.groups(),
            first_head: rest % self.groups() * self.sizes.group,
            first_row,
            rows: self.sizes.most_rows().min(self.rows() - first_row),
            spans: 0..self.spans(),
        };
        (item, (rest * self.rows() + first_row) * self.spans() * self.sizes.partial())
    }
}

const fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// What a mask lets rows see.
struct Masked<'t> {
    q: Src<'t>,
    mask: Option<Src<'t>>,
    kv: usize,
    sizes: Sizes,
    batch: usize,
    /// Heads and batch of keys, and of values.
    planes: [[usize; 2]; 2],
}

impl<'t> Masked<'t> {
    /// A query's mask over a tile of keys.
    #[inline(always)]
    fn mask(&self, query: Query, first: usize, count: usize) -> Option<&'t [f16]> {
        let mask = self.mask?;
        let [.., heads, batch] = mask.ne();
        let row = mask.row::<f16>([query.token, query.head % heads, query.batch % batch]).slice();
        Some(&row[first..][..count])
    }

    /// Whether the masks of all rows hide all keys.
    #[inline(always)]
    fn hides(&self, item: &Item, first: usize, count: usize) -> bool {
        let mut last: Option<&[f16]> = None;
        for row in 0..item.rows {
            let Some(mask) = self.mask(item.query(&self.sizes, row), first, count) else { return false };
            // Heads of a token mostly share their mask.
            if last.is_some_and(|last| std::ptr::eq(last, mask)) {
                continue;
            }
            last = Some(mask);
            let seen = mask.iter().fold(0, |seen, x| seen | (x.to_bits() ^ f16::NEG_INFINITY.to_bits()));
            if seen != 0 {
                return false;
            }
        }
        true
    }
}

impl Lens for Masked<'_> {
    fn heads(&self, item: &Item) -> [HeadAt; 2] {
        self.planes.map(|[heads, batch]| {
            let plane = [item.first_head / (self.sizes.heads / heads), item.batch / (self.batch / batch)];
            HeadAt { plane, channel: 0 }
        })
    }

    fn tile(&self, item: &Item, number: usize) -> Result<Option<Tile>, Fault> {
        let cell = number * KEYS;
        let count = self.kv.saturating_sub(cell).min(KEYS);
        if count == 0 || self.hides(item, cell, count) {
            return Ok(None);
        }
        Ok(Some(Tile { number, cell, keys: 0..count }))
    }

    fn sight(&self, _item: &Item, query: Query, tile: &Tile, slope: f32, biases: &mut [f32; KEYS]) -> Sight {
        let Some(mask) = self.mask(query, tile.cell, tile.keys.len()) else { return Sight::All };
        // Zeros of either sign.
        if mask.iter().fold(0, |set, x| set | x.to_bits() << 1) == 0 {
            return Sight::All;
        }
        let biases = &mut biases[..mask.len()];
        oxcart_tensor::quant::from_f16_slice(mask, biases);
        biases.iter_mut().for_each(|x| *x *= slope);
        Sight::Biased
    }

    fn query(&self, query: Query) -> &[f32] {
        self.q.row::<f32>([query.token, query.head, query.batch]).slice()
    }
}

#[inline(always)]
fn flash<S: Simd>(s: S, job: Job<'_>) -> Result<(), Fault> {
    let (op, [q, k, v]): (FlashAttnExt, _) = (job.op(), [0, 1, 2].map(|slot| job.src(slot)));
    let cut = Cut::new(q.layout(), k.layout(), v.layout());
    let planes = [&k, &v].map(|src| [src.ne()[2], src.ne()[3]]);
    let lens = Masked { q, mask: job.may(3), kv: cut.kv, sizes: cut.sizes, batch: cut.batch, planes };
    let attention = Attention {
        lens: &lens,
        sizes: cut.sizes,
        form: KeyForm::of(k.dtype()),
        keys: k,
        values: v,
        sinks: job.may(4),
        slopes: Slopes::new(op.max_bias, cut.sizes.heads),
        shaping: Shaping::new(op.scale, op.softcap),
    };
    if job.phase == 1 {
        merge(s, &cut, &attention, job);
        return Ok(());
    }
    let (claims, stop) = (job.claims(cut.items()), job.stop);
    let (dst, shared) = (job.dst, job.shared);
    let mut scratch = AttentionScratch::new(&cut.sizes, attention.form, cut.most_rows(), job.own);
    for index in claims {
        if !cut.is_split {
            let (item, _) = cut.tile(index);
            if walk(S::LEVEL)(&attention, &item, &mut scratch, stop, None)? {
                // SAFETY: each item is claimed by one thread, and each row belongs to one item.
                unsafe { finish(s, &attention, &item, &scratch, &dst) };
            }
            continue;
        }
        let (tile, span) = (index / cut.spans(), index % cut.spans());
        let (item, first) = cut.tile(tile);
        // SAFETY: each item is claimed by one thread, and slots of tiles do not meet; they are merged in the next phase.
        let slots = unsafe { Slots::new(shared, first, item.spans.clone()) };
        walk(S::LEVEL)(
            &attention,
            &Item { spans: span..span + 1, ..item },
            &mut scratch,
            stop,
            Some(&slots),
        )?;
    }
    Ok(())
}

/// Puts the spans of all rows together.
#[inline(always)]
fn merge<S: Simd>(s: S, cut: &Cut, attention: &Attention<'_>, job: Job<'_>) {
    let totals = as_floats(job.own);
    for index in job.share.of(cut.tiles()) {
        let (item, first) = cut.tile(index);
        // SAFETY: no thread leaves anything in this phase.
        let slots = unsafe { Slots::new(job.shared, first, item.spans.clone()) };
        for row in 0..item.rows {
            if job.stop.after(cut.spans() * cut.sizes.dv) {
                return;
            }
            // SAFETY: shares do not meet, and each row belongs to one tile.
            unsafe { slots.merge(s, attention, &item, row, totals, &job.dst) };
        }
    }
}
