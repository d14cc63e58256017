//! A device that is lent: one stream that all clients share by turns, and a budget of its memory.
//!
//! Concurrency: the holder of a turn of the turnstile uses the stream. `running` says whose turn it is, so that the
//! watcher stops the right client's work; it changes under its lock together with the stream's cancel flag.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oxcart_backend::{Buffer, Device, Error, Memory, Stream, StreamOptions, allocate};

use super::budget::{Budget, Lease};
use super::client::Client;
use super::limits::WATCH_EVERY;
use super::turnstile::Turnstile;

/// A device and what of it may be used.
#[derive(Debug)]
pub(crate) struct Lent {
    device: Arc<dyn Device>,
    stream: Box<dyn Stream>,
    budget: Arc<Budget>,
    turnstile: Turnstile,
    running: Mutex<Option<u64>>,
    cancel: Option<Arc<AtomicBool>>,
    /// Nothing can be computed on it any more.
    lost: AtomicBool,
}

impl Lent {
    /// Lends a device, at most `max_memory` bytes of it; by default what is free now.
    pub(crate) fn new(
        device: &Arc<dyn Device>,
        options: &StreamOptions,
        max_memory: Option<usize>,
    ) -> Result<Lent, Error> {
        let stream = Arc::clone(device).open(options)?;
        let free = || device.memory().map_or(usize::MAX, |memory| memory.free);
        let budget = Budget::new(max_memory.unwrap_or_else(free));
        let cancel = stream.cancel_flag();
        Ok(Lent {
            device: Arc::clone(device),
            stream,
            budget,
            turnstile: Turnstile::default(),
            running: Mutex::new(None),
            cancel,
            lost: AtomicBool::new(false),
        })
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub(crate) fn stream(&self) -> &dyn Stream {
        &*self.stream
    }

    /// Notes that it is broken; says whether that is news.
    pub(crate) fn lose(&self) -> bool {
        !self.lost.swap(true, Ordering::SeqCst)
    }

    /// Whether it is broken.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }

    /// Bytes that are lent at most.
    pub(crate) fn budget_bytes(&self) -> usize {
        self.budget.total()
    }

    /// Memory there is for clients: what the device says, but no more than the budget.
    pub(crate) fn memory(&self) -> Memory {
        if self.is_lost() {
            return Memory { free: 0, total: 0 };
        }
        let (total, left) = (self.budget.total(), self.budget.left());
        match self.device.memory() {
            Ok(memory) => Memory { free: memory.free.min(left), total: memory.total.min(total) },
            Err(_) => Memory { free: left, total },
        }
    }

    /// Allocates zeroed memory; `None` when there is not enough.
    pub(crate) fn allocate(&self, size: usize) -> Option<(Arc<dyn Buffer>, Lease)> {
        if self.is_lost() {
            return None;
        }
        let lease = self.budget.lease(size)?;
        if size > self.device.memory().map_or(usize::MAX, |memory| memory.free) {
            return None;
        }
        let buffer = allocate(&self.device.buffer_type(), size).ok()?;
        Some((buffer, lease))
    }

    fn running(&self) -> MutexGuard<'_, Option<u64>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on the stream when it is the client's turn, and waits for the results. Cancelled once the client is gone.
    pub(crate) fn take_turn(
        &self,
        client: &Client,
        work: impl FnOnce(&dyn Stream) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let turn = self.turnstile.enter(WATCH_EVERY, || client.is_gone()).ok_or(Error::Cancelled)?;
        let running = Running::new(self, client.id);
        // A thread that marks the client as gone looks at `running` afterwards, so one of the two threads sees the other.
        let done = match client.is_gone() {
            true => Err(Error::Cancelled),
            false if self.is_lost() => {
                let device = self.device.name().to_owned();
                Err(Error::DeviceLost { device, reason: "it broke down before".into() })
            }
            false => work(&*self.stream).and_then(|()| self.stream.synchronize()),
        };
        drop(running);
        drop(turn);
        done
    }

    /// Stops what a client is computing, if it is.
    pub(crate) fn stop(&self, client: u64) {
        let running = self.running();
        if let (Some(id), Some(cancel)) = (*running, &self.cancel)
            && id == client
        {
            cancel.store(true, Ordering::Relaxed);
        }
    }
}

/// The client whose turn it is; none once this is dropped, also by a panic.
struct Running<'a>(&'a Lent);

impl Running<'_> {
    fn new(lent: &Lent, client: u64) -> Running<'_> {
        *lent.running() = Some(client);
        Running(lent)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut running = self.0.running();
        *running = None;
        if let Some(cancel) = &self.0.cancel {
            cancel.store(false, Ordering::Relaxed);
        }
    }
}
