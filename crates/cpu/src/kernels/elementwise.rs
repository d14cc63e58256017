//! Walks over elementwise ops: one or two sources with the extents of the result, chunk by chunk.
//!
//! Where all operands are packed their rows are taken together as one, so that short rows cost no more than long ones.
//!
//! Invariant: what is read of a source lies at the place that is written next, so a result may be the memory of any
//! source.

use super::chunk::{CHUNK, Chunk, chunks};
use crate::job::Job;
use crate::view::{Dst, In, Number, Out, Src};

/// Elements of a row that a thread takes at a time; a whole number of chunks.
pub(super) const PIECE: usize = 8 * CHUNK;

/// Whether result and sources are packed alike, so that element `i` of one belongs to element `i` of the others.
pub(super) fn is_flat(dst: &Dst<'_>, sources: &[Src<'_>]) -> bool {
    dst.layout().is_contiguous()
        && sources.iter().all(|source| source.layout().is_contiguous() && source.ne() == dst.ne())
}

/// `y = f(a)` for a source with the extents of the result. `f` gets a chunk and how many of its lanes matter.
#[inline(always)]
pub(super) fn map<A: Number, Y: Number>(job: Job<'_>, f: impl Fn(&mut Chunk, usize)) {
    let (a, mut lanes, stop) = (job.src(0), Lanes::new(), job.stop);
    if is_flat(&job.dst, &[a]) {
        let (start, mut y) = job.dst.run::<Y>(job.share, CHUNK);
        let a = a.packed::<A>().part(start..start + y.len());
        for part in stop.stretches(y.len()) {
            lanes.map(a.part(part.clone()), &mut y, part.start, &f);
        }
    } else {
        for (at, start, mut y) in job.dst.pieces::<Y>(job.share, PIECE) {
            if stop.after(y.len()) {
                return;
            }
            lanes.map(a.row::<A>(at).part(start..start + y.len()), &mut y, 0, &f);
        }
    }
}

/// `y = f(a, b)` for two sources with the extents of the result. `f` turns the first chunk into the result.
#[inline(always)]
pub(super) fn zip<A: Number, B: Number, Y: Number>(job: Job<'_>, f: impl Fn(&mut Chunk, &Chunk, usize)) {
    let (a, b, mut lanes, stop) = (job.src(0), job.src(1), Lanes::new(), job.stop);
    if is_flat(&job.dst, &[a, b]) {
        let (start, mut y) = job.dst.run::<Y>(job.share, CHUNK);
        let all = start..start + y.len();
        let (a, b) = (a.packed::<A>().part(all.clone()), b.packed::<B>().part(all));
        for part in stop.stretches(y.len()) {
            lanes.zip(a.part(part.clone()), b.part(part.clone()), &mut y, part.start, &f);
        }
    } else {
        for (at, start, mut y) in job.dst.pieces::<Y>(job.share, PIECE) {
            if stop.after(y.len()) {
                return;
            }
            let part = start..start + y.len();
            lanes.zip(a.row::<A>(at).part(part.clone()), b.row::<B>(at).part(part), &mut y, 0, &f);
        }
    }
}

/// What chunks are computed in; made once, because rows may be short.
pub(super) struct Lanes([Chunk; 2]);

impl Lanes {
    #[inline(always)]
    pub(super) const fn new() -> Lanes {
        Lanes([Chunk::new(); 2])
    }

    /// `y[at..] = f(a)`, as long as `a` is.
    #[inline(always)]
    pub(super) fn map<A: Number, Y: Number>(
        &mut self,
        a: In<'_, A>,
        y: &mut Out<'_, Y>,
        at: usize,
        f: &impl Fn(&mut Chunk, usize),
    ) {
        let Lanes([chunk, _]) = self;
        for (start, len) in chunks(a.len()) {
            chunk.load(&a, start, len);
            f(chunk, len);
            chunk.store_at(y, at + start, len);
        }
    }

    /// `y[at..] = f(a, b)`, as long as `a` and `b` are.
    #[inline(always)]
    pub(super) fn zip<A: Number, B: Number, Y: Number>(
        &mut self,
        a: In<'_, A>,
        b: In<'_, B>,
        y: &mut Out<'_, Y>,
        at: usize,
        f: &impl Fn(&mut Chunk, &Chunk, usize),
    ) {
        let Lanes([left, right]) = self;
        for (start, len) in chunks(a.len()) {
            left.load(&a, start, len);
            right.load(&b, start, len);
            f(left, right, len);
            left.store_at(y, at + start, len);
        }
    }
}
