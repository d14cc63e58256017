//! Running a plan: every thread walks all steps, and they meet at a barrier wherever one must see what another did.
//!
//! Invariant: threads agree on where to stop. Phases of all steps are counted through. A failure carries the number of its
//! phase, and after the barrier that ends phase `p` every thread stops exactly if a failure at `p` or before is known; a
//! failure of a later phase, which a faster thread may already have had, waits for that phase's barrier. A kernel that gives
//! up because it was asked to has failed: no thread goes on to its next phase or uses its result.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use oxcart_backend::{Error, HostRead, HostWrite};
use oxcart_tensor::TensorId;

use super::Line;
use super::bind::{Binding, NOWHERE, Operand, Role, SCRATCH_ALIGN, SourceBinding, Step};
use crate::device::NAME;
use crate::job::{Fault, Job, MAX_SOURCES, SharedScratch, Stop};
use crate::pool::{Barrier, Pool};
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
        barrier: Barrier::new(binding.threads),
        counter: AtomicUsize::new(0),
        failed_phase: AtomicUsize::new(usize::MAX),
        failure: Mutex::new(None),
        cancel,
    };
    pool.run(binding.threads, &|thread| run.walk(thread));
    let failure = run.failure.into_inner().unwrap_or_else(PoisonError::into_inner);
    failure.map_or(Ok(()), |(_, failure)| Err(failure))
}

/// What the threads of a run share.
struct Running<'r> {
    binding: &'r Binding,
    bases: Bases,
    scratch: ScratchArea,
    barrier: Barrier,
    /// See [`Job::claims`]; back to zero at every barrier.
    counter: AtomicUsize,
    /// The earliest phase that failed.
    failed_phase: AtomicUsize,
    failure: Mutex<Option<(usize, RunFailure)>>,
    cancel: &'r AtomicBool,
}

impl Running<'_> {
    /// One thread's way through all steps.
    fn walk(&self, thread: usize) {
        let steps = &self.binding.steps;
        let mut number = 0;
        for (place, step) in steps.iter().enumerate() {
            if thread == 0 && self.cancel.load(Ordering::Relaxed) {
                self.fail(number, RunFailure::Cancelled);
            }
            let alone = step.threads == 1;
            let next_alone = steps.get(place + 1).is_none_or(|next| next.threads == 1);
            for phase in 0..step.phases() {
                if thread < step.threads && self.failed_phase.load(Ordering::Relaxed) > number {
                    self.attempt(number, step, phase, thread);
                }
                // Between steps that only thread 0 does, no thread needs to wait.
                if !alone || !next_alone && phase + 1 == step.phases() {
                    self.barrier.wait(|| self.counter.store(0, Ordering::Relaxed));
                    if self.failed_phase.load(Ordering::Relaxed) <= number {
                        return;
                    }
                }
                number += 1;
            }
        }
    }

    /// One thread's part of one phase: every so many shares one.
    fn attempt(&self, number: usize, step: &Step, phase: usize, thread: usize) {
        let own_counter = AtomicUsize::new(0);
        let counter = if step.threads == 1 { &own_counter } else { &self.counter };
        let given_up = AtomicBool::new(false);
        let stop = Stop { cancel: self.cancel, given_up: &given_up };
        let done = catch_unwind(AssertUnwindSafe(|| {
            for share in (thread..step.shares).step_by(step.threads) {
                if share != thread && stop.now() {
                    break;
                }
                let share = Share::new(share, step.shares);
                match phase.checked_sub(usize::from(step.has_copies)) {
                    Some(phase) => {
                        (step.kernel.run)(self.job(step, phase, thread, share, (counter, stop)))?;
                    }
                    None => self.copy_sources(step, share),
                }
            }
            Ok(())
        }));
        match done {
            Ok(Ok(())) if given_up.into_inner() => self.fail(number, RunFailure::Cancelled),
            Ok(Ok(())) => {}
            Ok(Err(fault)) => self.fail(number, RunFailure::Data { node: step.node, fault }),
            Err(_) => self.fail(number, RunFailure::Panic { node: step.node }),
        }
    }

    /// Remembers the earliest failure.
    fn fail(&self, number: usize, failure: RunFailure) {
        let mut known = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_none_or(|&(earlier, _)| number < earlier) {
            *known = Some((number, failure));
            self.failed_phase.store(number, Ordering::Relaxed);
        }
    }

    fn sources(&self, step: &Step) -> &[Option<SourceBinding>] {
        &self.binding.sources[step.sources.clone()]
    }

    /// Puts sources that overlap the result aside.
    fn copy_sources(&self, step: &Step, share: Share) {
        for source in self.sources(step).iter().flatten() {
            let Role::Copied(at) = source.role else { continue };
            let bytes = share.of(source.operand.layout.byte_len());
            assert!(at + bytes.end <= self.scratch.len);
            // SAFETY: the source lies inside its buffer and the copy inside the scratch memory (both were checked), which
            // do not overlap; each thread copies bytes of its own.
            unsafe {
                let from = self.bases.of(&source.operand).add(bytes.start);
                let to = self.scratch.base.add(at + bytes.start);
                std::ptr::copy_nonoverlapping(from, to, bytes.len());
            }
        }
    }

    fn job<'t>(
        &'t self,
        step: &'t Step,
        phase: usize,
        thread: usize,
        share: Share,
        (counter, stop): (&'t AtomicUsize, Stop<'t>),
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
        let own_at = step.own_at + thread * step.own_stride;
        assert!(
            own_at + step.kernel.own <= self.scratch.len
                && step.shared_at + step.kernel.shared <= step.own_at
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
                counter,
                stop,
            }
        }
    }
}
