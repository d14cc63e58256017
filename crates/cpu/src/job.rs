//! What a kernel is, and what it is given: one thread's part of one phase of one node.
//!
//! Invariant: all jobs of a step have the same tensors and different shares; a phase begins only after all shares of the one
//! before are finished. Any thread may be given any share, and several. A kernel tells [`Stop`] what it does and is never long
//! without asking it: at most [`MOST_BETWEEN_LOOKS`] units, which `tests/work.rs` asserts for every op.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use oxcart_tensor::{Layout, Op};

use crate::claims::{Claims, Pause, Ranges};
use crate::view::{Dst, Share, Src};

/// The most sources an op has.
pub(crate) const MAX_SOURCES: usize = 10;

/// What tensor data can do wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{what} {value} is not below {limit}")]
    Index { what: &'static str, value: i64, limit: usize },
    #[error(transparent)]
    Quant(#[from] oxcart_tensor::quant::QuantError),
}

impl Fault {
    /// An index from tensor data, if it is one of `limit` things.
    #[inline(always)]
    pub(crate) fn check(what: &'static str, value: i64, limit: usize) -> Result<usize, Fault> {
        match usize::try_from(value) {
            Ok(index) if index < limit => Ok(index),
            _ => Err(Fault::Index { what, value, limit }),
        }
    }
}

/// Does one job.
pub(crate) type Run = fn(Job<'_>) -> Result<(), Fault>;

/// How finely work is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grain {
    /// Work that one thread should do at least; below, waking and waiting for another thread costs more than it saves. The
    /// unit is an element of a cheap elementwise op; what costs more or less is counted as several or as a fraction.
    per_thread: usize,
    /// Work between two looks at whether to stop.
    per_cut: usize,
    /// Units between two looks at whether to stop, beside those that a kernel counts in one go.
    per_look: u64,
    /// Elements of a row that are done between two looks, where it may be long; a multiple of everything that rows are cut at.
    stretch: usize,
    /// Whether kernels that may end between two units always do, and not only when it is time to give way.
    always_pauses: bool,
}

impl Grain {
    /// Any work is cut, so that small tensors show what cutting does, and kernels are seen going on where they ended.
    pub(crate) const FINEST: Grain =
        Grain { per_thread: 1, per_cut: 64, per_look: 1, stretch: 1 << 10, always_pauses: true };

    /// Whether kernels that may end between two units always do.
    pub(crate) const fn always_pauses(&self) -> bool {
        self.always_pauses
    }

    /// Units between two looks at the clock, which take longer than a small unit of work does.
    pub(crate) const fn per_clock(&self) -> u64 {
        if self.always_pauses { 0 } else { self.per_look >> 3 }
    }
}

impl Default for Grain {
    /// What is worth it: some ten milliseconds from cut to cut, some milliseconds from look to look.
    fn default() -> Grain {
        let always_pauses = false;
        Grain { per_thread: 8 * 1024, per_cut: 1 << 24, per_look: 1 << 20, stretch: 1 << 16, always_pauses }
    }
}

/// How to compute a node: chosen once, run many times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    pub(crate) run: Run,
    /// How often all shares are gone through, each time after the time before is over.
    pub(crate) phases: usize,
    /// Whether the first phase is for one thread, whatever the others are.
    pub(crate) first_alone: bool,
    /// The most shares that have something to do.
    units: usize,
    /// All of it, in the unit of [`Grain::per_thread`]; without end where `units` says how many threads are worth it.
    work: usize,
    /// Whether there are as few shares as threads.
    uncut: bool,
    /// Bytes all threads share, zeroed never.
    pub(crate) shared: usize,
    /// Bytes each thread has for itself. Nothing stays in them from one call to the next.
    pub(crate) own: usize,
    /// What units of the last phase read, if each reads on where the one before it ended.
    pub(crate) reads: [Option<Reading>; MOST_READINGS],
}

/// The most tensors that [`Kernel::reads`] can tell of.
pub(crate) const MOST_READINGS: usize = 3;

/// A tensor that units of a kernel read in order, each so many bytes of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// The source that it is.
    pub(crate) slot: usize,
    pub(crate) units: usize,
    pub(crate) unit_bytes: usize,
}

/// The most shares that the work of a node is cut into.
pub(crate) const MAX_CUTS: usize = 1 << 16;

/// What packing a value into a block counts: it takes a search.
pub(crate) const PACKING: usize = 8;

/// What moving bytes counts where they are not computed with.
pub(crate) const fn bytes_moved(bytes: usize) -> usize {
    bytes / 8
}

impl Kernel {
    /// For a result without elements, whatever the other extents are.
    pub(crate) const NOTHING: Kernel = Kernel::new(nothing);

    /// A kernel for one thread.
    pub(crate) const fn new(run: Run) -> Kernel {
        Kernel {
            run,
            phases: 1,
            first_alone: false,
            units: 1,
            work: usize::MAX,
            uncut: true,
            shared: 0,
            own: 0,
            reads: [None; MOST_READINGS],
        }
    }

    /// A cheap elementwise kernel over a result: as many threads as there are worthwhile pieces.
    pub(crate) fn elementwise(run: Run, result: &Layout) -> Kernel {
        Kernel::units(run, usize::MAX, result.elements())
    }

    /// A kernel that shares the rows of a result: at most one thread per row, and as many as the work is worth.
    pub(crate) fn rows(run: Run, result: &Layout, work: usize) -> Kernel {
        Kernel::units(run, result.ne().extents()[1..].iter().product(), work)
    }

    /// A kernel that shares some units: at most one thread per unit, and as many as the work, in elements of a cheap
    /// op, is worth.
    pub(crate) const fn units(run: Run, units: usize, work: usize) -> Kernel {
        Kernel { units, work, uncut: false, ..Kernel::new(run) }
    }

    /// A kernel whose threads claim units ([`Job::claims`]), and look whether to stop themselves.
    pub(crate) const fn claimed(run: Run, units: usize, work: usize) -> Kernel {
        Kernel::units(run, units, work).uncut()
    }

    /// As few shares as there are threads, because each share looks at everything; such a kernel looks whether to stop itself.
    pub(crate) const fn uncut(self) -> Kernel {
        Kernel { uncut: true, ..self }
    }

    pub(crate) const fn phases(self, phases: usize) -> Kernel {
        Kernel { phases, ..self }
    }

    /// Says whether the first phase is too little for two threads: it is then done right after what was before, without a wait.
    pub(crate) const fn first_alone(self, first_alone: bool) -> Kernel {
        Kernel { first_alone, ..self }
    }

    /// So many threads at most, each of which is worth it.
    pub(crate) const fn width(self, width: usize) -> Kernel {
        Kernel { units: width, work: usize::MAX, ..self }
    }

    pub(crate) const fn shared(self, shared: usize) -> Kernel {
        Kernel { shared, ..self }
    }

    pub(crate) const fn own(self, own: usize) -> Kernel {
        Kernel { own, ..self }
    }

    pub(crate) const fn reads(self, reads: [Option<Reading>; MOST_READINGS]) -> Kernel {
        Kernel { reads, ..self }
    }

    /// The most threads that can do something useful.
    pub(crate) fn threads(&self, grain: Grain) -> usize {
        (self.work / grain.per_thread).min(self.units).max(1)
    }

    /// Into how many shares the work is cut at least, whatever the number of threads, so that a long one can be stopped
    /// between two shares.
    pub(crate) fn cuts(&self, grain: Grain) -> usize {
        if self.uncut { 1 } else { (self.work / grain.per_cut).min(self.units).clamp(1, MAX_CUTS) }
    }
}

fn nothing(_job: Job<'_>) -> Result<(), Fault> {
    Ok(())
}

/// Whether a kernel should give up, because its result is no longer wanted; and the count of what it does. A unit is a
/// multiplication, or an element that is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stop<'t> {
    /// Set by any thread to end the run.
    pub(crate) cancel: &'t AtomicBool,
    /// Set once a kernel has given up: what it wrote is not to be used.
    pub(crate) given_up: &'t AtomicBool,
    pub(crate) meter: &'t Meter,
}

/// The most units that any kernel does between two looks.
pub const MOST_BETWEEN_LOOKS: u64 = 1 << 24;

/// The longest row of which a kernel that cannot stop inside of it does all; longer ones are refused when it is chosen.
pub(crate) const LONGEST_WHOLE: usize = 1 << 22;

/// Units counted by one share of a kernel.
#[derive(Debug)]
pub(crate) struct Meter {
    grain: Grain,
    since_look: Cell<u64>,
    units: Cell<u64>,
    longest: Cell<u64>,
}

impl Meter {
    /// What is counted after a kernel was told to give up, so that it is told again.
    const GIVEN_UP: u64 = u64::MAX;

    /// Nothing so far.
    pub(crate) const fn new(grain: Grain) -> Meter {
        Meter { grain, since_look: Cell::new(0), units: Cell::new(0), longest: Cell::new(0) }
    }

    fn note_look(&self) {
        let since = self.since_look.replace(0);
        self.units.set(self.units.get().saturating_add(since));
        self.longest.set(self.longest.get().max(since));
    }
}

/// What kernels have done, added up over shares and threads.
#[derive(Debug, Default)]
pub(crate) struct Effort {
    units: AtomicU64,
    longest: AtomicU64,
}

impl Effort {
    /// Adds what a share has done, which ends with a look.
    pub(crate) fn add(&self, meter: &Meter) {
        if meter.since_look.get() != Meter::GIVEN_UP {
            meter.note_look();
        }
        self.units.fetch_add(meter.units.get(), Ordering::Relaxed);
        self.longest.fetch_max(meter.longest.get(), Ordering::Relaxed);
    }

    /// What was done, and begins anew.
    pub(crate) fn take(&self) -> WorkDone {
        WorkDone {
            units: self.units.swap(0, Ordering::Relaxed),
            longest: self.longest.swap(0, Ordering::Relaxed),
        }
    }
}

/// What a stream has done: see [`TensorRef::work`](oxcart_tensor::TensorRef::work) for what a unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkDone {
    /// Units in all.
    pub units: u64,
    /// The most units between two looks at whether to stop.
    pub longest: u64,
}

impl Stop<'_> {
    /// Units that this share has counted up to its last look.
    pub(crate) fn done(self) -> u64 {
        self.meter.units.get()
    }

    /// Whether to give up now. A kernel that is told so leaves its work undone, and is told so again whenever it asks.
    pub(crate) fn now(self) -> bool {
        if self.meter.since_look.get() == Meter::GIVEN_UP {
            return true;
        }
        self.meter.note_look();
        let asked = self.cancel.load(Ordering::Relaxed);
        if asked {
            self.given_up.store(true, Ordering::Relaxed);
            self.meter.since_look.set(Meter::GIVEN_UP);
        }
        asked
    }

    /// Counts units that are done, or that are done next; says whether to give up.
    #[inline(always)]
    pub(crate) fn after(self, units: usize) -> bool {
        let since = self.meter.since_look.get().saturating_add(units as u64);
        self.meter.since_look.set(since);
        since >= self.meter.grain.per_look && self.now()
    }

    /// Elements of a row, some at a time, until they are all done or the kernel is to give up. Counts each as a unit.
    #[inline(always)]
    pub(crate) fn stretches(self, len: usize) -> impl Iterator<Item = Range<usize>> {
        self.stretches_of(len, 1)
    }

    /// As [`Stop::stretches`], where an element is several units.
    #[inline(always)]
    pub(crate) fn stretches_of(self, len: usize, units: usize) -> impl Iterator<Item = Range<usize>> {
        let mut start = 0;
        std::iter::from_fn(move || {
            let part = start..len.min(start + self.meter.grain.stretch);
            start = part.end;
            (!part.is_empty() && !self.after(units.saturating_mul(part.len()))).then_some(part)
        })
    }
}

/// One thread's part of one phase of one node.
#[derive(Debug)]
pub(crate) struct Job<'t> {
    pub(crate) op: Op,
    /// The result.
    pub(crate) dst: Dst<'t>,
    /// Sources by slot; a slot that the op also writes to is in `written` instead.
    pub(crate) sources: [Option<Src<'t>>; MAX_SOURCES],
    /// Sources the op writes to, see [`OpInfo::also_writes`](oxcart_tensor::ops::OpInfo::also_writes).
    pub(crate) written: [Option<Dst<'t>>; MAX_SOURCES],
    pub(crate) phase: usize,
    /// Which part is this thread's.
    pub(crate) share: Share,
    /// Memory of this thread alone.
    pub(crate) own: &'t mut [u8],
    /// Memory that all threads see.
    pub(crate) shared: SharedScratch<'t>,
    /// What units are taken from; see [`Job::claims`].
    pub(crate) ranges: Ranges<'t>,
    /// Whether to give up; work that takes long looks here now and then.
    pub(crate) stop: Stop<'t>,
    /// Whether to go on later; see [`Claims`].
    pub(crate) pause: Pause<'t>,
}

impl<'t> Job<'t> {
    /// The op as what the kernel was chosen for.
    pub(crate) fn op<T: TryFrom<Op>>(&self) -> T {
        T::try_from(self.op).unwrap_or_else(|_| unreachable!("the kernel of another op"))
    }

    /// A source that must be there.
    pub(crate) fn src(&self, slot: usize) -> Src<'t> {
        self.sources[slot].unwrap_or_else(|| unreachable!("the door lets no node pass without its sources"))
    }

    /// A source that may be absent.
    pub(crate) fn may(&self, slot: usize) -> Option<Src<'t>> {
        self.sources[slot]
    }

    /// A source that the op writes to.
    pub(crate) fn take_written(&mut self, slot: usize) -> Dst<'t> {
        self.written[slot].take().unwrap_or_else(|| unreachable!("the op does not write to this source"))
    }

    /// Units out of `count` that this thread does, in ascending order; see [`Claims::of`].
    pub(crate) fn claims(&self, count: usize) -> impl Iterator<Item = usize> + use<'t> {
        self.to_claim().of(count)
    }

    /// What this thread claims units from, if it does not yet know how many there are.
    pub(crate) const fn to_claim(&self) -> Claims<'t> {
        Claims { ranges: self.ranges, stop: self.stop, pause: self.pause }
    }
}

/// Scratch memory that all threads of a step see, 64-byte aligned, with whatever it held before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedScratch<'t> {
    base: *mut u8,
    len: usize,
    life: std::marker::PhantomData<&'t [u8]>,
}

impl<'t> SharedScratch<'t> {
    /// Memory of all threads.
    ///
    /// # Safety
    ///
    /// `base` points at `len` bytes that only the threads of one step use during `'t`.
    pub(crate) const unsafe fn new(base: *mut u8, len: usize) -> SharedScratch<'t> {
        SharedScratch { base, len, life: std::marker::PhantomData }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Bytes for reading.
    ///
    /// # Safety
    ///
    /// No thread writes to them in this phase.
    pub(crate) unsafe fn bytes(&self, start: usize, len: usize) -> &'t [u8] {
        assert!(start <= self.len && len <= self.len - start);
        // SAFETY: inside the memory, and not written, as the caller says.
        unsafe { std::slice::from_raw_parts(self.base.add(start), len) }
    }

    /// Bytes for writing.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes them in this phase, and this thread has no other borrow of them.
    pub(crate) unsafe fn bytes_mut(&self, start: usize, len: usize) -> &'t mut [u8] {
        assert!(start <= self.len && len <= self.len - start);
        // SAFETY: inside the memory, and this thread's alone, as the caller says.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(start), len) }
    }
}

/// Bytes as numbers; scratch memory is aligned for all of them.
///
/// # Panics
///
/// When the bytes are not aligned or not a whole number of elements.
pub(crate) fn as_floats(bytes: &mut [u8]) -> &mut [f32] {
    <[f32] as zerocopy::FromBytes>::mut_from_bytes(bytes)
        .unwrap_or_else(|_| unreachable!("scratch is aligned and sized in whole floats"))
}
