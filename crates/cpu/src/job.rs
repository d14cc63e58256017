//! What a kernel is, and what it is given: one thread's part of one phase of one node.
//!
//! Invariant: all threads of a step get jobs with the same tensors and different shares; a phase begins only after
//! every thread has finished the one before.

use std::sync::atomic::{AtomicUsize, Ordering};

use oxcart_tensor::{Layout, Op};

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

/// How to compute a node: chosen once, run many times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    pub(crate) run: Run,
    /// How often every thread is called, with a barrier in between.
    pub(crate) phases: usize,
    /// The most threads that can do something useful.
    pub(crate) width: usize,
    /// Bytes all threads share, zeroed never.
    pub(crate) shared: usize,
    /// Bytes each thread has for itself.
    pub(crate) own: usize,
}

/// Elements that one thread should do at least, for ops of a few instructions per element; below, waking and waiting
/// for another thread costs more than it saves.
const ELEMENTS_PER_THREAD: usize = 8 * 1024;

impl Kernel {
    /// For a result without elements, whatever the other extents are.
    pub(crate) const NOTHING: Kernel = Kernel::new(nothing);

    /// A kernel for one thread.
    pub(crate) const fn new(run: Run) -> Kernel {
        Kernel { run, phases: 1, width: 1, shared: 0, own: 0 }
    }

    /// A cheap elementwise kernel over a result: as many threads as there are worthwhile pieces.
    pub(crate) fn elementwise(run: Run, result: &Layout) -> Kernel {
        Kernel::new(run).width(result.elements() / ELEMENTS_PER_THREAD)
    }

    /// A kernel that shares the rows of a result: at most one thread per row, and about as many as `work`, the number
    /// of multiply-adds or their like, is worth.
    pub(crate) fn rows(run: Run, result: &Layout, work: usize) -> Kernel {
        let rows = result.ne().extents()[1..].iter().product();
        Kernel::new(run).width((work / ELEMENTS_PER_THREAD).min(rows))
    }

    pub(crate) const fn phases(self, phases: usize) -> Kernel {
        Kernel { phases, ..self }
    }

    pub(crate) fn width(self, width: usize) -> Kernel {
        Kernel { width: width.max(1), ..self }
    }

    pub(crate) const fn shared(self, shared: usize) -> Kernel {
        Kernel { shared, ..self }
    }

    pub(crate) const fn own(self, own: usize) -> Kernel {
        Kernel { own, ..self }
    }
}

fn nothing(_job: Job<'_>) -> Result<(), Fault> {
    Ok(())
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
    pub(crate) shared: Shared<'t>,
    /// Starts at zero in every phase; see [`Job::claims`].
    pub(crate) counter: &'t AtomicUsize,
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

    /// Units out of `count` that this thread does, first come, first served; for units that take long or unequally
    /// long. Each unit goes to exactly one thread.
    pub(crate) fn claims(&self, count: usize) -> impl Iterator<Item = usize> + use<'t> {
        let counter = self.counter;
        std::iter::from_fn(move || {
            let unit = counter.fetch_add(1, Ordering::Relaxed);
            (unit < count).then_some(unit)
        })
    }
}

/// Scratch memory that all threads of a step see, 64-byte aligned, with whatever it held before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared<'t> {
    base: *mut u8,
    len: usize,
    life: std::marker::PhantomData<&'t [u8]>,
}

impl<'t> Shared<'t> {
    /// Memory of all threads.
    ///
    /// # Safety
    ///
    /// `base` points at `len` bytes that only the threads of one step use during `'t`.
    pub(crate) const unsafe fn new(base: *mut u8, len: usize) -> Shared<'t> {
        Shared { base, len, life: std::marker::PhantomData }
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
    #[expect(
        clippy::mut_from_ref,
        reason = "threads share the memory; the caller says that they do not meet"
    )]
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
