//! Running a plan: the pool's threads take pieces of one stage after another.
//!
//! Invariant: a stage begins when all pieces of the one before are done, so a failure is one of the stage under way; no stage
//! begins after it. A kernel that gives up because it was asked to has failed: no thread goes on to its next phase or uses its
//! result. Any thread may do any piece; what it needs for itself is its own part of the scratch memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use oxcart_backend::{Error, HostRead, HostWrite};
use oxcart_tensor::TensorId;

use super::Line;
use super::bind::{Binding, NOWHERE, Operand, Part, Role, SCRATCH_ALIGN, SourceBinding, Step};
use crate::claims::{MOST_RANGES, Pause, Ranges, Taken};
use crate::device::NAME;
use crate::job::{Effort, Fault, Job, MAX_SOURCES, Meter, SharedScratch, Stop};
use crate::pool::{Ahead, Pace, Pool, Stages};
use crate::view::{Dst, Share, Src};

/// Why a run ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RunFailure {
    Cancelled,
    Data { node: TensorId, fault: Fault },
    Panic { node: TensorId },
}

impl RunFailure {
    pub(crate) fn into_error(self) -> Error {
        let failed = |reason| Error::DeviceFailed { device: NAME.to_owned(), reason };
        match self {
            RunFailure::Cancelled => Error::Cancelled,
            RunFailure::Data { node, fault } => failed(format!("{node}: {fault}")),
            RunFailure::Panic { node } => Error::Panicked { device: NAME.to_owned(), what: node.to_string() },
        }
    }
}

/// Locked memory of a buffer.
enum Held<'b> {
    Read(HostRead<'b>),
    Write(HostWrite<'b>),
}

/// First byte of every buffer of the plan.
struct Bases(Vec<*mut u8>);

impl Bases {
    /// First byte of a tensor.
    fn of(&self, operand: &Operand) -> *mut u8 {
        if operand.buffer == NOWHERE {
            // Aligned for everything; a tensor without elements is neither read nor written.
            return std::ptr::without_provenance_mut(SCRATCH_ALIGN);
        }
        // SAFETY: the operand lies inside its buffer, as was checked when it was bound.
        unsafe { self.0[operand.buffer].add(operand.offset) }
    }
}

// SAFETY: the memory is locked for as long as the plan runs; which thread may touch which part of it is what `view` is about.
unsafe impl Sync for Bases {}

/// Scratch memory of the plan.
struct ScratchArea {
    base: *mut u8,
    len: usize,
}

// SAFETY: the plan owns the memory; steps give each thread its part of it.
unsafe impl Sync for ScratchArea {}

/// Computes all steps.
pub(super) fn run(
    binding: &Binding,
    pool: &Pool,
    scratch: &mut [Line],
    cancel: &AtomicBool,
    effort: &Effort,
) -> Result<(), RunFailure> {
    let mut held: Vec<_> = std::iter::repeat_with(|| None).take(binding.buffers.len()).collect();
    for &index in &binding.lock_order {
        let buffer = &binding.buffers[index];
        held[index] = Some(match buffer.writes {
            true => Held::Write(
                buffer.memory().write().unwrap_or_else(|| unreachable!("checked when it was bound")),
            ),
            false => Held::Read(buffer.memory().read()),
        });
    }
    let bases = held.iter_mut().map(|held| match held {
        Some(Held::Read(bytes)) => bytes.as_ptr().cast_mut(),
        Some(Held::Write(bytes)) => bytes.as_mut_ptr(),
        None => unreachable!("every buffer was locked"),
    });
    let run = Running {
        binding,
        bases: Bases(bases.collect()),
        scratch: ScratchArea { base: scratch.as_mut_ptr().cast(), len: size_of_val(scratch) },
        begun: AtomicUsize::new(0),
        taken: [const { Taken::new() }; MOST_RANGES],
        threads: pool.threads(),
        has_failed: AtomicBool::new(false),
        failure: Mutex::new(None),
        cancel,
        effort,
    };
    pool.run(&run);
    let failure = run.failure.into_inner().unwrap_or_else(PoisonError::into_inner);
    failure.map_or(Ok(()), Err)
}

/// What the threads of a run share.
struct Running<'r> {
    binding: &'r Binding,
    bases: Bases,
    scratch: ScratchArea,
    /// Stages that have begun.
    begun: AtomicUsize,
    /// What was taken of the ranges of a stage; see [`Claims`](crate::claims::Claims).
    taken: [Taken; MOST_RANGES],
    /// Threads of the pool.
    threads: usize,
    has_failed: AtomicBool,
    failure: Mutex<Option<RunFailure>>,
    cancel: &'r AtomicBool,
    effort: &'r Effort,
}

impl Stages for Running<'_> {
    fn next(&self) -> Option<usize> {
        let stage = self.binding.stages.get(self.begun.load(Ordering::Relaxed))?;
        if self.is_over() {
            return None;
        }
        // Threads see it through the pool, which they take their pieces from.
        self.begun.fetch_add(1, Ordering::Relaxed);
        Some(if stage.is_alone { 1 } else { self.binding.parts[stage.parts.start].shares })
    }

    fn work(&self, piece: usize, thread: usize, pace: &Pace) -> bool {
        let number = self.begun.load(Ordering::Relaxed);
        let stage = &self.binding.stages[number - 1];
        if self.is_over() {
            return true;
        }
        let parts = &self.binding.parts[stage.parts.clone()];
        if let (false, [part]) = (stage.is_alone, parts) {
            let taken = &self.taken[..part.shares.min(MOST_RANGES)];
            // Where all threads have a share, each has the same range in every stage.
            let seat = if part.shares == self.threads { thread } else { piece };
            let ranges = Ranges { taken, stage: number as u32, own: seat % taken.len() };
            return self.attempt(part, piece, thread, ranges, Some(pace));
        }
        // All of these parts are one piece.
        let taken = Taken::new();
        for (number, part) in parts.iter().enumerate() {
            let ranges = Ranges { taken: std::slice::from_ref(&taken), stage: number as u32 + 1, own: 0 };
            for share in 0..part.shares {
                if self.is_over() {
                    return true;
                }
                self.attempt(part, share, 0, ranges, None);
            }
        }
        true
    }

    fn ahead(&self, thread: usize) -> Ahead {
        self.reading_ahead(thread).unwrap_or_default()
    }
}

/// Stages that are looked through for what a thread will read next.
const STAGES_AHEAD: usize = 4;

/// The most bytes that memory is asked for while a thread waits: they stay in the second cache.
const BYTES_AHEAD: usize = 128 << 10;

impl Running<'_> {
    /// Where a thread begins to read in one of the next stages.
    fn reading_ahead(&self, thread: usize) -> Option<Ahead> {
        let Binding { stages, parts, steps, .. } = self.binding;
        let coming = stages[self.begun.load(Ordering::Relaxed)..].iter().take(STAGES_AHEAD);
        let (part, step) = coming
            .filter(|stage| !stage.is_alone)
            .map(|stage| &parts[stage.parts.start])
            .map(|part| (part, &steps[part.step]))
            .find(|(_, step)| step.kernel.reads[0].is_some())?;
        // Otherwise it is not known where this thread begins.
        if part.shares != self.threads || self.threads > MOST_RANGES {
            return None;
        }
        let reads = step.kernel.reads.iter().flatten();
        let mut first = reads.clone().map(|read| read.units).sum::<usize>() * thread / self.threads;
        for read in reads {
            if first < read.units {
                let source = self.sources(step)[read.slot]?;
                let bytes = ((read.units - first) * read.unit_bytes).min(BYTES_AHEAD);
                let start = self.bases.of(&source.operand).wrapping_add(first * read.unit_bytes);
                return Some(Ahead::new(start, bytes));
            }
            first -= read.units;
        }
        None
    }

    /// Whether nothing more is to be done: something has failed, or the run is to stop.
    fn is_over(&self) -> bool {
        if self.cancel.load(Ordering::Relaxed) {
            self.fail(RunFailure::Cancelled);
        }
        self.has_failed.load(Ordering::Relaxed)
    }

    /// One share of a part, and whether it is finished. With a pace, the kernel may end in between.
    fn attempt(
        &self,
        part: &Part,
        share: usize,
        thread: usize,
        ranges: Ranges<'_>,
        pace: Option<&Pace>,
    ) -> bool {
        let step = &self.binding.steps[part.step];
        let (given_up, paused) = (AtomicBool::new(false), AtomicBool::new(false));
        let meter = Meter::new(self.binding.grain);
        let stop = Stop { cancel: self.cancel, given_up: &given_up, meter: &meter };
        let pause = Pause { pace, grain: self.binding.grain, paused: &paused };
        let done = catch_unwind(AssertUnwindSafe(|| {
            let share = Share::new(share, part.shares);
            match part.phase.checked_sub(usize::from(step.has_copies)) {
                Some(phase) => (step.kernel.run)(self.job(step, phase, thread, share, (ranges, stop, pause))),
                None => {
                    self.copy_sources(step, share, stop);
                    Ok(())
                }
            }
        }));
        self.effort.add(&meter);
        match done {
            Ok(Ok(())) if given_up.into_inner() => self.fail(RunFailure::Cancelled),
            Ok(Ok(())) => return !paused.into_inner(),
            Ok(Err(fault)) => self.fail(RunFailure::Data { node: step.node, fault }),
            Err(_) => self.fail(RunFailure::Panic { node: step.node }),
        }
        true
    }

    /// Remembers the first failure.
    fn fail(&self, failure: RunFailure) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
        self.has_failed.store(true, Ordering::Relaxed);
    }

    fn sources(&self, step: &Step) -> &[Option<SourceBinding>] {
        &self.binding.sources[step.sources.clone()]
    }

    /// Puts sources that overlap the result aside.
    fn copy_sources(&self, step: &Step, share: Share, stop: Stop<'_>) {
        for source in self.sources(step).iter().flatten() {
            let Role::Copied(at) = source.role else { continue };
            let bytes = share.of(source.operand.layout.byte_len());
            assert!(at.checked_add(bytes.end).is_some_and(|end| end <= self.scratch.len));
            for part in stop.stretches(bytes.len()) {
                let start = bytes.start + part.start;
                // SAFETY: the source lies inside its buffer and the copy inside the scratch memory (both were checked), which
                // do not overlap; each thread copies bytes of its own.
                unsafe {
                    let from = self.bases.of(&source.operand).add(start);
                    let to = self.scratch.base.add(at + start);
                    std::ptr::copy_nonoverlapping(from, to, part.len());
                }
            }
        }
    }

    fn job<'t>(
        &'t self,
        step: &'t Step,
        phase: usize,
        thread: usize,
        share: Share,
        (ranges, stop, pause): (Ranges<'t>, Stop<'t>, Pause<'t>),
    ) -> Job<'t> {
        let mut sources = [None; MAX_SOURCES];
        let mut written = [const { None }; MAX_SOURCES];
        let mut aliased = false;
        for (slot, source) in self.sources(step).iter().enumerate() {
            let Some(SourceBinding { operand, role }) = source else { continue };
            // SAFETY: the operand lies inside its buffer, as was checked when it was bound, and the buffer is locked. Roles
            // were given so that the invariants of `view` hold; copies were made in a phase before.
            unsafe {
                let base = self.bases.of(operand);
                match *role {
                    Role::Read => sources[slot] = Some(Src::new(base, &operand.layout, false)),
                    Role::Result => {
                        aliased = true;
                        sources[slot] = Some(Src::new(base, &operand.layout, true));
                    }
                    Role::Copied(at) => {
                        sources[slot] = Some(Src::new(self.scratch.base.add(at), &operand.layout, false));
                    }
                    Role::Written { aliased } => {
                        written[slot] = Some(Dst::new(base, &operand.layout, aliased));
                    }
                }
            }
        }
        let own = thread.checked_mul(step.own_stride).and_then(|own| own.checked_add(step.own_at));
        let own_at = own.unwrap_or(usize::MAX);
        let fits = |at: usize, len: usize, end| at.checked_add(len).is_some_and(|last| last <= end);
        assert!(
            fits(own_at, step.kernel.own, self.scratch.len)
                && fits(step.shared_at, step.kernel.shared, step.own_at)
        );
        // SAFETY: as above for the result; the two areas of scratch lie inside it, as just checked, do not overlap, and
        // each thread has its own `own`.
        unsafe {
            Job {
                op: step.op,
                dst: Dst::new(self.bases.of(&step.dst), &step.dst.layout, aliased),
                sources,
                written,
                phase,
                share,
                own: std::slice::from_raw_parts_mut(self.scratch.base.add(own_at), step.kernel.own),
                shared: SharedScratch::new(self.scratch.base.add(step.shared_at), step.kernel.shared),
                ranges,
                stop,
                pause,
            }
        }
    }
}
