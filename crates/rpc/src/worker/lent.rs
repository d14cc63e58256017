//! A device that is lent: streams that all clients share by turns, and a budget of its memory.
//!
//! A node cannot be cut, and some take longer than a turn, up to minutes. Where the device is this machine's processor, there is a
//! [`Lane`] for nodes of up to a turn, one for those of up to a second, and one for the rest, and the system has the threads of all
//! lanes take turns: so what is shorter never waits for what is longer.
//!
//! Concurrency: the holder of a turn of a lane's turnstile uses its stream. `running` says whose turn it is, so that the
//! watcher stops the right client's work; it changes under its lock together with the stream's cancel flag.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oxcart_backend::{Buffer, Device, Error, Memory, Stream, StreamOptions, allocate};

use super::budget::{Budget, Lease};
use super::client::Client;
use super::limits::{KEEPS_ASIDE_FROM, LANES, LITTLE_MEMORY, MEMORY_ASIDE, WATCH_EVERY};
use super::passing::{Passing, Pieces};
use super::peer::Holder;
use super::turnstile::Turnstile;

/// A device and what of it may be used.
#[derive(Debug)]
pub(crate) struct Lent {
    device: Arc<dyn Device>,
    /// For work of a turn at most, and for everything where there is no other.
    short: Lane,
    /// For nodes that take longer, by how long; see [`LANES`].
    longer: Vec<Lane>,
    budget: Arc<Budget>,
    /// Nothing can be computed on it any more.
    lost: AtomicBool,
    pieces: Pieces,
}

/// A stream, and turns at it.
#[derive(Debug)]
pub(crate) struct Lane {
    stream: Box<dyn Stream>,
    turnstile: Turnstile,
    running: Mutex<Option<u64>>,
    cancel: Option<Arc<AtomicBool>>,
}

impl Lane {
    fn new(device: &Arc<dyn Device>, options: &StreamOptions) -> Result<Lane, Error> {
        let stream = Arc::clone(device).open(options)?;
        let cancel = stream.cancel_flag();
        Ok(Lane { stream, turnstile: Turnstile::new(1), running: Mutex::new(None), cancel })
    }

    pub(crate) fn stream(&self) -> &dyn Stream {
        &*self.stream
    }

    fn running(&self) -> MutexGuard<'_, Option<u64>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops what a client is computing, if it is.
    fn stop(&self, client: u64) {
        let running = self.running();
        if let (Some(id), Some(cancel)) = (*running, &self.cancel)
            && id == client
        {
            cancel.store(true, Ordering::Relaxed);
        }
    }
}

impl Lent {
    /// Lends a device, at most so many bytes of it.
    pub(crate) fn new(
        device: &Arc<dyn Device>,
        options: &StreamOptions,
        max_memory: usize,
    ) -> Result<Lent, Error> {
        let aside = if max_memory < KEEPS_ASIDE_FROM { 0 } else { MEMORY_ASIDE };
        let budget = Budget::with_aside(max_memory, aside, LITTLE_MEMORY);
        let more_lanes = if device.buffer_type().is_host() { LANES.len() } else { 0 };
        Ok(Lent {
            device: Arc::clone(device),
            short: Lane::new(device, options)?,
            longer: (0..more_lanes).map(|_| Lane::new(device, options)).collect::<Result<_, _>>()?,
            budget,
            lost: AtomicBool::new(false),
            pieces: Pieces::default(),
        })
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Host memory that so many bytes pass through on their way to or from its memory.
    pub(crate) fn passing(&self, bytes: usize) -> Passing<'_> {
        self.pieces.take(&*self.device, bytes)
    }

    /// Where work is done that counts so much.
    pub(crate) fn lane(&self, work: u64) -> &Lane {
        let longer = LANES.iter().filter(|most| work > **most).count();
        longer.checked_sub(1).and_then(|index| self.longer.get(index)).unwrap_or(&self.short)
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

    /// Bytes that clients hold.
    pub(crate) fn held_bytes(&self) -> usize {
        self.budget.used()
    }

    /// How many other clients hold some of it, and how many bytes.
    pub(crate) fn others_of(&self, holder: Holder) -> (usize, usize) {
        self.budget.others_of(holder)
    }

    /// Memory there is for a client: what the device says, but no more than the budget, nor than its peer may have.
    pub(crate) fn memory(&self, holder: Holder, most: usize) -> Memory {
        if self.is_lost() {
            return Memory { free: 0, total: 0 };
        }
        let own = most.saturating_sub(self.budget.used_by_peer(holder.peer));
        let (total, left) = (self.budget.total().min(most), self.budget.left().min(own));
        match self.device.memory() {
            Ok(memory) => Memory { free: memory.free.min(left), total: memory.total.min(total) },
            Err(_) => Memory { free: left, total },
        }
    }

    /// Allocates zeroed memory; `None` when there is not enough, or more than its peer may have.
    pub(crate) fn allocate(
        &self,
        holder: Holder,
        size: usize,
        most: usize,
    ) -> Option<(Arc<dyn Buffer>, Lease)> {
        if self.is_lost() {
            return None;
        }
        let lease = self.budget.lease_within(holder, size, most)?;
        if size > self.device.memory().map_or(usize::MAX, |memory| memory.free) {
            return None;
        }
        let buffer = allocate(&self.device.buffer_type(), size).ok()?;
        Some((buffer, lease))
    }

    /// Works on the stream of a lane when it is the client's turn, and waits for the results. Cancelled once the client is gone.
    pub(crate) fn take_turn(
        &self,
        lane: &Lane,
        client: &Client,
        work: impl FnOnce(&dyn Stream) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let turn = lane
            .turnstile
            .enter(client.holder(), WATCH_EVERY, || client.is_gone())
            .ok_or(Error::Cancelled)?;
        let running = Running::new(lane, client.id);
        // A thread that marks the client as gone looks at `running` afterwards, so one of the two threads sees the other.
        let done = match client.is_gone() {
            true => Err(Error::Cancelled),
            false if self.is_lost() => {
                let device = self.device.name().to_owned();
                Err(Error::DeviceLost { device, reason: "it failed earlier".into() })
            }
            false => client.in_turn(|| work(&*lane.stream).and_then(|()| lane.stream.synchronize())),
        };
        drop(running);
        drop(turn);
        done
    }

    /// Stops what a client is computing, if it is.
    pub(crate) fn stop(&self, client: u64) {
        std::iter::once(&self.short).chain(&self.longer).for_each(|lane| lane.stop(client));
    }
}

/// The client whose turn it is; none once this is dropped, also by a panic.
struct Running<'a>(&'a Lane);

impl Running<'_> {
    fn new(lane: &Lane, client: u64) -> Running<'_> {
        *lane.running() = Some(client);
        Running(lane)
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
