//! A stream of work on the CPU: computes when it is told to, and is done when it returns.
//!
//! Concurrency: a stream may be used from several threads; its pool runs one graph at a time.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use oxcart_backend::{Device, Error, Guid, Plan, Stream, StreamOptions, Work};

use crate::device::{CpuDevice, NAME};
use crate::job::{Effort, Grain, WorkDone};
use crate::os::affinity;
use crate::plan::{CpuPlan, StreamScratch};
use crate::pool::Pool;
use crate::simd::Level;

/// A stream of the CPU device.
#[derive(Debug)]
pub struct CpuStream {
    device: Arc<dyn Device>,
    level: Level,
    grain: Grain,
    pool: Arc<Pool>,
    cancel: Arc<AtomicBool>,
    scratch: Arc<StreamScratch>,
    effort: Arc<Effort>,
}

impl CpuStream {
    pub(crate) fn new(device: Arc<CpuDevice>, options: &StreamOptions) -> Result<CpuStream, Error> {
        if let Some(what) = affinity::CANNOT.filter(|_| !options.cpus.is_empty()) {
            return Err(Error::Unsupported { device: NAME.to_owned(), what: what.to_owned() });
        }
        let (level, grain) = (device.level(), device.grain());
        let failed = |error: std::io::Error| Error::DeviceFailed {
            device: NAME.to_owned(),
            reason: format!("cannot start its threads: {error}"),
        };
        let pool = Arc::new(Pool::new(options).map_err(failed)?);
        let scratch = Arc::new(StreamScratch::new(options.max_scratch));
        Ok(CpuStream { device, level, grain, pool, cancel: Arc::default(), scratch, effort: Arc::default() })
    }

    /// Threads that compute.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// What stops this stream: while it is true, runs end with [`Error::Cancelled`], in the middle of a long node too.
    pub fn cancel_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancel)
    }

    /// What was computed since this was asked last.
    pub fn take_work_done(&self) -> WorkDone {
        self.effort.take()
    }

    /// Stops the run under way, and every run until [`resume`](CpuStream::resume).
    pub fn cancel(&self) {
        self.cancel.store(true, Ordering::Relaxed);
    }

    /// Lets runs go on again.
    pub fn resume(&self) {
        self.cancel.store(false, Ordering::Relaxed);
    }

    fn cpu_plan(&self, work: Work<'_>) -> Result<CpuPlan, Error> {
        let (pool, cancel) = (Arc::clone(&self.pool), Arc::clone(&self.cancel));
        let kept = (Arc::clone(&self.scratch), Arc::clone(&self.effort));
        CpuPlan::new((self.level, self.grain), pool, cancel, kept, work)
    }
}

impl Stream for CpuStream {
    fn name(&self) -> &str {
        NAME
    }

    fn guid(&self) -> Guid {
        Guid(*b"oxcart cpu dev 1")
    }

    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn plan(&self, work: Work<'_>) -> Result<Option<Box<dyn Plan>>, Error> {
        Ok(Some(Box::new(self.cpu_plan(work)?)))
    }

    fn compute(&self, work: Work<'_>) -> Result<(), Error> {
        self.cpu_plan(work)?.compute()
    }

    fn cancel_flag(&self) -> Option<Arc<AtomicBool>> {
        Some(CpuStream::cancel_flag(self))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
